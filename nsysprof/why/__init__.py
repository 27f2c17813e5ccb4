"""Explain why the GPU waits: the reason for each nanosecond without compute, and the code that causes it."""
