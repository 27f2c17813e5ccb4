"""Run a program under nsys, and record how its report was made."""
