"""Why is one range slower than another?"""
