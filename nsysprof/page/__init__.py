"""The HTML kit: templates, packed timelines, and facts about the sources."""
