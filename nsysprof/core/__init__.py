"""Columns, intervals, units, texts and files, independent of traces."""
