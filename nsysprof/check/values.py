"""What the values of a budget may be. Each function gives the value meant, or raises ValueError with the reason."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import FAMILIES

_MOST = 2**63 - 1
_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_NUMBER = r"\s*(\d+(?:\.\d*)?|\.\d+)\s*"
Parsers: TypeAlias = Mapping[str, Callable[[Any], Any]]


def as_flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def as_text(value: Any) -> str:
    """A text that says something."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be a string, and not empty")
    return value


def as_texts(value: Any) -> list[str]:
    """A list of such texts; one text is a list of one."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values or not all(isinstance(v, str) and v for v in values):
        raise ValueError("must be a string or a list of strings, none of them empty")
    return values


def as_count(value: Any) -> int:
    """A whole number from 0 on."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError("must be a whole number from 0 on")
    return value


def as_positive(value: Any) -> int:
    """A whole number from 1 on."""
    if as_count(value) == 0:
        raise ValueError("must be a whole number from 1 on")
    return int(value)


def as_time(value: Any) -> int:
    """Whole nanoseconds: a limit between two of them is the lower one."""
    match = re.fullmatch(rf"{_NUMBER}({'|'.join(_NS)})\s*", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('must be a number with a unit, ns, us, ms or s: "2.5 ms"')
    ns = Decimal(match[1]) * _NS[match[2]]
    if ns > _MOST:
        raise ValueError("is longer than any recording")
    return int(ns)


def as_part(value: Any) -> float:
    """A part of 1, from 0 on."""
    found = math.nan
    if isinstance(value, str):
        match = re.fullmatch(rf"{_NUMBER}%\s*", value)
        found = float(Decimal(match[1]) / 100) if match else math.nan
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        found = float(value)
    if not math.isfinite(found):
        raise ValueError('must be a percentage, "20 %", or a number from 0 to 1')
    return found


def as_share(value: Any) -> float:
    """A part of 1, not more than all."""
    found = as_part(value)
    if found > 1:
        raise ValueError("cannot be more than 100 %")
    return found


def one_of(*words: str) -> Callable[[Any], str]:
    """A function that takes these words only."""

    def choose(value: Any) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(value)

    return choose


def as_families(value: Any) -> list[str]:
    """A list of kernel families."""
    return [one_of(*FAMILIES)(family) for family in as_texts(value)]


def as_expressions(value: Any) -> list[str]:
    """A list of regular expressions, none of which matches everything."""
    for text in as_texts(value):
        try:
            matches_all = re.compile(text).search("") is not None
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"holds {text!r}, which does not compile: {error}") from None
        if matches_all:
            raise ValueError(f"holds {text!r}, which matches every name")
    return as_texts(value)


def as_tables(value: Any) -> list[dict[str, Any]]:
    """A list of tables; one table is a list of one."""
    values = [value] if isinstance(value, dict) else value
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise ValueError("must be tables")
    return values


def as_table(value: Any) -> dict[str, Any]:
    """A table that is not empty."""
    if not isinstance(value, dict) or not value:
        raise ValueError("must be a table with at least one entry")
    return value


class CheckedTable:
    """A table of the file, checked: every key is known, every value was understood.

    ``where`` is the file and the table, for messages; ``parsers`` has a function of this module for each key. Raises
    `NsysprofError` with the keys there are, or with what the value may be.
    """

    def __init__(self, where: str, values: Mapping[str, Any], parsers: Parsers) -> None:
        self.where = where
        self.values: dict[str, Any] = {}
        for key, value in values.items():
            if key not in parsers:
                near = difflib.get_close_matches(key, parsers, 1)
                meant = f"did you mean {near[0]}? " if near else ""
                raise self.error(f"unknown key {key!r}", f"{meant}keys are {', '.join(parsers)}")
            try:
                self.values[key] = parsers[key](value)
            except ValueError as error:
                raise self.error(f"{key} = {shown_value(value)} {error}") from None

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self.values.get(key, default)

    def need(self, key: str) -> Any:
        """The value of a key that must be there."""
        if key not in self.values:
            raise self.error(f"{key!r} is missing")
        return self.values[key]

    def error(self, reason: str, hint: str | None = None) -> NsysprofError:
        """What to raise, with the table that it is about."""
        return NsysprofError(f"{self.where}: {reason}", hint)


def shown_value(value: Any) -> str:
    """A value of the file as a message shows it, in short."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a very large number"
    return text if len(text) <= 60 else f"{text[:59]}…"
