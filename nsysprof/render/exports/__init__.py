"""A whole report in the formats of other tools."""
