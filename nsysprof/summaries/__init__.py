"""Summarize trace data other than kernel times: host calls, copies, memory, streams."""
