"""Columns, intervals, units, texts and files: knows nothing of traces."""
