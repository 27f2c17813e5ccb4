"""Views of a comparison: text, tables and charts."""
