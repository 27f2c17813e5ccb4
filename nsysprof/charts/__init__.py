"""The drawing kit: marks, lanes, axes, places for names, and the process that draws."""
