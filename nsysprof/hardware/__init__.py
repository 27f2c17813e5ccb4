"""Peaks of GPUs, and what attention costs at the least."""
