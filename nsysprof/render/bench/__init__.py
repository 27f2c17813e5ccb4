"""Views of a benchmark: text, Markdown, tables and charts."""
