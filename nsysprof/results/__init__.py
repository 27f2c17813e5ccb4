"""Tables, and the folders and files of results."""
