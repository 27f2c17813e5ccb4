"""Tables, and the folders and files that results are written to."""
