"""Views of an answer over all ranks: text, tables and charts."""
