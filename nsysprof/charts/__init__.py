"""The drawing kit: marks, lanes, axes, label placement, and the process that draws."""
