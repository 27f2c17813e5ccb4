"""How much a change would save."""
