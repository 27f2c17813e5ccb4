"""The formats of files that one command writes and another reads."""
