"""Explain why one range is slower than another."""
