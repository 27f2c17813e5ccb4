"""Benchmarks: a sweep of backends over shapes, its plan, its samples, and the answers made of them."""
