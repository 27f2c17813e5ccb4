"""How a cell is written in CSV, also where a spreadsheet will open the file, and read back."""

from __future__ import annotations

import csv
import re
from pathlib import Path

from nsysprof.core.final_name import whole_file

__all__ = ["csv_field", "make_spreadsheet_safe", "undo_spreadsheet_safe"]

_SPECIAL = re.compile(r'[,"\r\n]').search
_FORMULA = r"[=+\-@\t\r\n＝＋－＠]"  # what a spreadsheet may take for the beginning of one
_BEGINS_FORMULA, _MADE_SAFE = re.compile(_FORMULA).match, re.compile(f"'{_FORMULA}").match
_NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?([eE][-+]?\d+)?|inf|nan)").fullmatch


def csv_field(text: object) -> str:
    """A CSV field, in quotes where RFC 4180 asks for them.

    The csv module takes ten times as long for long kernel names, and before Python 3.13 does not quote a lone CR.
    """
    field = str(text)
    return '"' + field.replace('"', '""') + '"' if _SPECIAL(field) else field


def make_spreadsheet_safe(path: Path) -> None:
    """Rewrite a CSV file so that a spreadsheet takes no name in it for a formula: with a ``'`` in front of such texts.

    Quotes of CSV do not keep it from that. Numbers stay as they are.
    """
    csv.field_size_limit(2**31 - 1)  # names of kernels are as long as they like
    with (
        whole_file(path) as part,
        path.open(newline="", encoding="utf-8") as rows,
        part.open("w", newline="", encoding="utf-8") as file,
    ):
        for row in csv.reader(rows):
            file.write(",".join(csv_field(_safe(cell)) for cell in row) + "\n")


def undo_spreadsheet_safe(text: str) -> str:
    """The text of a cell without the ``'`` that `make_spreadsheet_safe` puts in front."""
    return text[1:] if _MADE_SAFE(text) else text


def _safe(cell: str) -> str:
    return f"'{cell}" if _BEGINS_FORMULA(cell) and not _NUMBER(cell) else cell
