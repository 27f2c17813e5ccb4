"""The HTML kit: templates, packed timelines and the facts about its sources."""
