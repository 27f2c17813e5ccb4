"""Reads the small tables of a report by column name, whatever columns and tables its nsys wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nsysprof.trace.nsys.identify import fold

if TYPE_CHECKING:
    from nsysprof.trace.nsys.columns import Source

__all__ = ["known", "named_rows", "named_values", "system_properties", "whole"]

SYSTEM = frozenset(
    (
        *("NvDriverVersion", "CudaDriverVersion", "OsDescription", "CpuDescription", "CpuArchitecture"),
        *("GpuInfo", "TargetInstallDir"),
    )
)


def named_rows(source: Source, table: str, *names: str) -> Iterator[tuple[Any, ...]]:
    """The named columns of a table row by row, None for what it lacks; nothing where it has none of them."""
    have = set(map(fold, source.columns(table)))
    present = [name for name in names if fold(name) in have]
    if len(present) == len(names):
        yield from source.fetch(table, present)
        return
    if not present:
        return
    at = {name: place for place, name in enumerate(present)}
    for row in source.fetch(table, present):
        yield tuple(row[at[name]] if name in at else None for name in names)


def named_values(source: Source, table: str, wanted: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    """Those pairs of a (name, value) table whose name is wanted and whose value says something."""
    for name, value in named_rows(source, table, "name", "value"):
        if isinstance(name, str) and wanted(name) and value not in (None, ""):
            yield name, str(value)


def system_properties(source: Source) -> dict[str, str]:
    """The few properties of the target that are used; the first value where several are recorded."""
    found: dict[str, str] = {}
    for name, value in named_values(source, "TARGET_INFO_SYSTEM_ENV", SYSTEM.__contains__):
        if known(value) is not None:
            found.setdefault(name, value)
    return found


def whole(value: object) -> int | None:
    """The value as a whole number, whichever way it is stored; None for what is none of 64 bits."""
    try:
        number = int(value) if isinstance(value, (int, float, str)) else None
    except (ValueError, OverflowError):  # a text of something else, a real that is no number or infinite
        return None
    return number if number is not None and -(1 << 63) <= number < 1 << 63 else None


def known(value: object) -> str | None:
    """The value as text; None for NULL, the empty text and the 0 that nsys writes where it knows nothing."""
    text = "" if value is None else str(value).replace("\0", " ").strip()
    return None if text in ("", "0") else text
