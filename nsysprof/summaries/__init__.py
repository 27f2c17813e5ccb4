"""Summarize trace data beyond kernels in ranges: host calls, copies, memory, streams."""
