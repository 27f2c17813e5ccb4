"""Copies a report without what is private in it, so that it can be passed on."""
