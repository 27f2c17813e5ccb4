"""Records a program under nsys, and says how the report came to be."""
