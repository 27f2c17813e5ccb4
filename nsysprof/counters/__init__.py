"""Counts, with Nsight Compute, what the hardware does for each kernel of a program."""
