"""A copy of a report that can be passed on."""
