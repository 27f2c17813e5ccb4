"""What did the hardware count?"""
