"""Hardware counters for each kernel of a program, from Nsight Compute."""
