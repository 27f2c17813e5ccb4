"""Output to stdout: text, coloured on a terminal, or one JSON document."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What stands out in text: the head above a ruler, rulers, commands to type, warnings, and what helps.
_STYLES = (
    (r"(?m)^(?=.*\S)[^\n]*(?=\n-+(?:  -+)*$(?!\ntotal ))", "bold"),  # the ruler above a total has no head
    (r"(?m)^-+(?:  -+)*$", "dim"),
    (r"(?m)^ *\$ .*$|(?<=: )nsysprof [a-z].*$", "cyan"),
    (r"(?m)^ +(?:nsys )?warning|^warning|\[warn\]", "yellow"),
    (r"\[missing\]|\bnsys error\b", "red"),
    (r"\[ok\]", "green"),
    (r"(?m)^( *)→ .*(?:\n\1  \S.*)*$", "green"),
)
_DARK = 3 * 128  # of the three parts of a colour together: white can be read on it


def show(text: str) -> None:
    """Print text unchanged, or coloured if stdout is a terminal; `NO_COLOR` turns colours off, `FORCE_COLOR` on."""
    if not _coloured():
        print(text, end="", flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    styled = Text(text)
    for pattern, style in _STYLES:
        styled.highlight_regex(pattern, style)
    from nsysprof.charts.palette import COLOURS

    for family, colour in COLOURS.items():  # where it fills a cell of a table
        ink = "white" if sum(bytes.fromhex(colour[1:])) < _DARK else "black"
        styled.highlight_regex(rf"(?<=  ){family}(?=[,:] |  |$)", f"{ink} on {colour}")
    Console(force_terminal=True, soft_wrap=True, highlight=False).print(styled, end="")


def show_next(command: str) -> None:
    """Print the next command as the last line of an answer."""
    from nsysprof.core.text import next_line

    show(f"{next_line(command)}\n")


def _coloured() -> bool:
    if os.environ.get("NO_COLOR") or sys.stdout is None:
        return False
    forced = os.environ.get("FORCE_COLOR", "0") not in ("", "0")
    return forced or (sys.stdout.isatty() and os.environ.get("TERM") != "dumb")


def print_json(document: Mapping[str, Any] | Path) -> None:
    """Print only one JSON document, or the content of its file."""
    if isinstance(document, Path):
        text = document.read_text(encoding="utf-8", errors="replace")
    else:
        text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    sys.stdout.write(text)
    sys.stdout.flush()


def written_document(command: str, written: Path, **more: Any) -> dict[str, Any]:
    """Make the JSON document of a command that writes files: the file names and sizes."""
    files = sorted(written.iterdir()) if written.is_dir() else [written]
    sizes = [{"path": str(file), "size_bytes": file.stat().st_size} for file in files]
    return {"schema": "nsysprof-written/1", "command": command, "files": sizes, **more}
