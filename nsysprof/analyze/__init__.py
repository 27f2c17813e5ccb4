"""Where did the time go, and what is to be mended first?"""
