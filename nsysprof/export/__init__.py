"""Convert a report to formats of other tools."""
