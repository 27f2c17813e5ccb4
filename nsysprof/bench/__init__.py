"""Benchmarks: what to measure, what was measured, and what that says."""
