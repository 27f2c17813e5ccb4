"""Tables and sections in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """A table, the first ``texts`` columns flush left and the others right; columns without content are left out."""
    if not rows:
        return []
    shown = [place for place in range(len(head)) if any(row[place] for row in rows)]
    cells = [[head[place] for place in shown], *([row[place] for place in shown] for row in rows)]
    ruler = ["---" if place < texts else "---:" for place in shown]
    lines = [
        [cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (cells[0], ruler, *cells[1:])
    ]
    return [f"| {' | '.join(line)} |" for line in lines]


def markdown_section(title: str, *parts: Sequence[str]) -> Iterator[str]:
    """A section with its parts, each after an empty line; nothing where all parts are empty."""
    if any(parts):
        yield ""
        yield f"## {title}"
        for part in parts:
            if part:
                yield ""
                yield from part
