"""Why the GPU waits: what each nanosecond without compute waited for, and who is to blame for it."""
