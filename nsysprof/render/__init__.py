"""Views of an answer: text, tables and charts, all with the same numbers."""
