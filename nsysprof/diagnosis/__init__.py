"""Find the bottlenecks of a program, their fixes, and the gain of each fix: one answer for all commands."""
