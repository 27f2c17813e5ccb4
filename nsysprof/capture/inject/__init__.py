"""What runs inside of a captured program: nothing here may need more than its Python and, where it is there, torch."""
