"""Find where the time went, and what to fix first."""
