"""Count what the hardware does for each kernel of a program, with Nsight Compute."""
