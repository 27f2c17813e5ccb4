"""Answers as one HTML file: offline, self-contained, readable without JavaScript and better with it."""
