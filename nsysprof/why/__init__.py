"""Why the GPU waits: what each nanosecond without compute waited for, and which code causes it."""
