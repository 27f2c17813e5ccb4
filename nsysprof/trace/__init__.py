"""What was recorded, whoever recorded it: ranges, launches, GPU ops, devices and threads as columns."""
