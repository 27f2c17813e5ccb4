"""Find the kernels that take most of the step time, their limits, and the gain if a kernel reached its limit."""
