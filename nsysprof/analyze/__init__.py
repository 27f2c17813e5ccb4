"""Where did the GPU time go?"""
