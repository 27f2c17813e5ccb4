"""Comparisons: two sides, cause by cause, until they add up to the difference."""
