"""Find and run other programs: nsys, ncu, the driver, the program to profile."""
