"""Benchmarks: sweep backends over shapes, with plans, samples and results."""
