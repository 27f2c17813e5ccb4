"""Classify kernels (name → family, math unit, cause and attention backend) by ordered rules that users can extend."""
