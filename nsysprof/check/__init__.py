"""Check a report against its budget."""
