"""The bottlenecks of a program, their fixes, and the gain of each: one answer for all commands."""
