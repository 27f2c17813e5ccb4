"""Code that runs inside a captured program: it needs only the program's Python and, if present, torch."""
