"""Record a program under nsys, with a record of how the report was made."""
