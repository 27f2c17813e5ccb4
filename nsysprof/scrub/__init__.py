"""Copy a report without its private data, so that it can be shared."""
