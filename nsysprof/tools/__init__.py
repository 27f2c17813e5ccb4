"""Finds and runs other programs: nsys, ncu, the driver, the program to be profiled."""
