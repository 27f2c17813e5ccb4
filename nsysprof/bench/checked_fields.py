"""Values of a JSON file that were made by a program and may have been damaged since: each is checked as it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.errors import NsysprofError

__all__ = ["CheckedFields"]


@dataclass(frozen=True)
class CheckedFields:
    """An object of a file. ``where`` says which, and begins every complaint; ``hint`` says what to do about it.

    Every method reads one field and raises `NsysprofError` where it is missing or not what it should be.
    """

    values: Mapping[str, Any]
    where: str
    hint: str

    def wrong(self, field: str, why: str) -> NsysprofError:
        """The complaint about a field."""
        return NsysprofError(f"{self.where}: {field} {why}", self.hint)

    def called(self, name: str) -> CheckedFields:
        """The same with a name for what it is about."""
        return CheckedFields(self.values, f"{self.where} ({name})", self.hint)

    def without(self, *names: str) -> CheckedFields:
        """The same without some fields."""
        left = {name: value for name, value in self.values.items() if name not in names}
        return CheckedFields(left, self.where, self.hint)

    def inner(self, field: str, *, optional: bool = False) -> CheckedFields:
        """An object inside; an empty one where it is missing and may be."""
        value = self.values.get(field)
        if value is None and optional:
            value = {}
        if not isinstance(value, dict):
            raise self.wrong(field, "is missing" if value is None else f"is no object but {value!r:.40}")
        return CheckedFields(value, f"{self.where}: {field}", self.hint)

    def each(self, field: str) -> list[CheckedFields]:
        """The objects of a list."""
        value = self.values.get(field)
        if not isinstance(value, list):
            raise self.wrong(field, "is missing" if value is None else f"is no list but {value!r:.40}")
        for number, item in enumerate(value):
            if not isinstance(item, dict):
                raise self.wrong(f"{field}[{number}]", f"is no object but {item!r:.40}")
        return [
            CheckedFields(item, f"{self.where}: {field}[{number}]", self.hint)
            for number, item in enumerate(value)
        ]

    def text(self, field: str) -> str:
        """A text that is not empty."""
        value = self.values.get(field)
        if not isinstance(value, str) or not value:
            raise self.wrong(field, "is missing" if value is None else f"is no text but {value!r:.40}")
        return value.encode(errors="replace").decode()  # half a surrogate pair cannot be written

    def optional_text(self, field: str) -> str | None:
        """A text, or None where it is missing or empty."""
        return None if self.values.get(field) in (None, "") else self.text(field)

    def choice(self, field: str, valid: Sequence[str]) -> str:
        """One of the valid texts."""
        value = self.text(field)
        if value not in valid:
            raise self.wrong(field, f"is {value!r}, not one of {', '.join(valid)}")
        return value

    def flag(self, field: str) -> bool:
        """True or false."""
        value = self.values.get(field)
        if not isinstance(value, bool):
            raise self.wrong(field, f"is neither true nor false but {value!r:.40}")
        return value

    def texts(self, field: str) -> list[str]:
        """A list of texts; an empty one where it is missing."""
        value = self.values.get(field)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(field, f"is no list of texts but {value!r:.40}")
        return value

    def count(self, field: str, *, least: int, most: int = 2**31 - 1) -> int:
        """A whole number."""
        value = self.values.get(field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(field, f"is no whole number from {least} to {most} but {value!r:.40}")
        return value

    def number(self, field: str, *, most: float = 2.0**62) -> float | None:
        """A number from zero to ``most``, or None."""
        value = self.values.get(field)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= most:
            raise self.wrong(field, f"is {value!r:.40}")
        return float(value)

    def numbers(self, field: str, *, least_count: int = 0) -> NDArray[np.float64]:
        """Durations in ns, from a picosecond to 30 years; none where the field is missing."""
        value = self.values.get(field)
        value = [] if value is None else value
        if not isinstance(value, list):
            raise self.wrong(field, f"is no list but {value!r:.40}")
        for number, item in enumerate(value):
            if not isinstance(item, int | float) or isinstance(item, bool) or not 1e-3 <= item <= 1e18:
                raise self.wrong(f"{field}[{number}]", f"is {item!r:.40}, which is no duration")
        if len(value) < least_count:
            raise self.wrong(field, "holds no sample although the point is measured")
        return np.array(value, np.float64)

    def flags(self, field: str, count: int) -> NDArray[np.bool_]:
        """As many as ``count``; all false where the field is missing."""
        value = self.values.get(field)
        if value is None:
            return np.zeros(count, np.bool_)
        if not isinstance(value, list) or not all(isinstance(item, bool) for item in value):
            raise self.wrong(field, "is no list of true and false")
        if len(value) != count:
            raise self.wrong(field, f"has {len(value)} entries for {count} samples")
        return np.array(value, np.bool_)
