"""Peaks of GPUs, and the minimal cost of attention."""
