"""Reads traces of the PyTorch profiler: the Chrome JSON that its library Kineto writes."""
