"""Find the kernels that take most of the step time, the limit of each kernel, and the gain if it reached its limit."""
