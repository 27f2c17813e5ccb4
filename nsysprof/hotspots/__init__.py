"""Which kernels take most of the steps, what limits each, and the gain if a kernel reached its limit."""
