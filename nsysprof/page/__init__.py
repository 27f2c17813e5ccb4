"""The HTML kit: templates, packed timelines and what a page says of its sources."""
