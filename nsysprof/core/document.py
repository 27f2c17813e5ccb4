"""JSON and TOML documents: what may stand in one is a msgspec struct, and what does not fit is refused by its place."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from nsysprof.errors import NsysprofError

__all__ = ["Amount", "Count", "Text", "fitted"]

Text = Annotated[str, msgspec.Meta(min_length=1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=2.0**62)]

_T = TypeVar("_T")


def fitted(value: Any, kind: type[_T], where: str, hint: str) -> _T:
    """A decoded value as the struct, or other type, that it must be.

    Raises `NsysprofError` that begins with ``where`` and the place inside, such as `a.json: points[3].seq`.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        why, _, place = str(error).partition(" - at `$")
        inside = place.rstrip("`").lstrip(".")
        why = (why[:1].lower() + why[1:]).replace("`", "")
        raise NsysprofError(f"{where}: {inside}: {why}" if inside else f"{where}: {why}", hint) from None
