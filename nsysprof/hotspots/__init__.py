"""Which kernels take most of the steps, what limits each, and what the steps gain if it reached that limit."""
