"""The data of a recording, from any recorder: ranges, launches, GPU ops, devices and threads as columns."""
