"""Where did the time go, and what to fix first?"""
