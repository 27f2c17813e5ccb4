"""Read traces of the PyTorch profiler: Chrome JSON written by its library Kineto."""
