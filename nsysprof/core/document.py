"""Read JSON and TOML documents, validated against msgspec structs. Errors name the invalid place."""

import difflib
import errno
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from nsysprof.core.files import MAX_BYTES, TooDeepError, open_regular, read_json, read_small, with_few_levels
from nsysprof.errors import NsysprofError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


Text = Annotated[str, msgspec.Meta(min_length=1)]
Texts = Text | Annotated[list[Text], msgspec.Meta(min_length=1)]
"""One text or a list of texts; `texts` turns both into a list."""
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=2.0**62)]

_T = TypeVar("_T")
_HEAD = 1 << 20  # bytes in which a document says what it is and of what
_UNKNOWN = object()
_MAX_TOML = 1 << 20  # bytes, of which each may take microseconds and hundreds of bytes of memory
_WORD = r"""[ 	]*(?:[\w-]+|"[^"
]*"|'[^'
]*')[ 	]*"""
_LONG_KEY = re.compile(rf"(?:^|[\[{{,]){_WORD}(?:\.{_WORD}){{32}}", re.MULTILINE)


def parse_as(value: Any, kind: type[_T], where: str, hint: str, *, cells: bool = False) -> _T:
    """Convert a decoded value to a struct or other type; custom types have a classmethod ``read``.

    With ``cells``, numbers are given as texts, as in a CSV row. Raises `NsysprofError`; its message starts with
    ``where`` and the field, such as `a.json: points[3].seq`. If a key or word is unknown, the hint starts with the
    valid keys or words; the most similar comes first.
    """
    try:
        return msgspec.convert(value, kind, dec_hook=_read, strict=not cells)
    except msgspec.ValidationError as error:
        why, _, place = str(error).partition(" - at `$")
        place = place.rstrip("`").lstrip(".")
        part, kinds = _inside(value, kind, place)
    why, near = (why[:1].lower() + why[1:]).replace("`", ""), ""
    why = why.removesuffix(", got str") if cells else why
    if unknown := re.fullmatch(r"object contains unknown field (.*)", why, re.DOTALL):
        keys = [field.encode_name for each in kinds for field in _fields(each)]
        why, near = f"unknown key {format_value(unknown[1])}", _near(unknown[1], keys, "keys are")
    elif missing := re.fullmatch(r"object missing required field (.*)", why):
        why = f"{missing[1]!r} is missing"
    elif why.startswith("invalid enum value"):
        words = [word for each in kinds if get_origin(each) is Literal for word in get_args(each)]
        why = f"{format_value(part)} is not one of {', '.join(words)}"
        near = _near(part, words)
    elif part is not _UNKNOWN and "got" not in why.split():
        why = f"{why}, got {format_value(part)}"
    raise NsysprofError(f"{where}: {place}: {why}" if place else f"{where}: {why}", f"{near}{hint}") from None


def parse_leniently(value: dict[str, Any], kind: type[_T]) -> _T:
    """Convert the valid fields to a struct; missing and invalid fields get their defaults."""
    known = {}
    for field in _fields(kind):
        try:
            known[field.name] = msgspec.convert(value[field.encode_name], field.type, dec_hook=_read)
        except (KeyError, msgspec.ValidationError):
            continue
    return kind(**known)


def texts(value: str | list[str] | None) -> list[str]:
    """Return one text or several as a list, empty for None."""
    return [value] if isinstance(value, str) else value or []


def format_value(value: Any) -> str:
    """Format a value from a file for a message, shortened."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a very large number"
    return text if len(text) <= 60 else f"{text[:59]}…"


def read_document(path: Path, what: str, hint: str, *schemas: str, most: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON object with one of these schemas from a file; ``what`` names the file in errors. NaN becomes None.

    Raises `NsysprofError` if the file cannot be read, is not JSON, or has another schema.
    """
    try:
        document = read_json(path, most, parse_constant=lambda name: None)
    except OSError as error:
        raise NsysprofError(f"{path}: cannot read the {what}: {error.strerror}", hint) from None
    except ValueError as error:
        raise NsysprofError(f"{path}: not JSON, so no {what}: {error}", hint) from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema not in schemas:
        raise NsysprofError(f"{path}: the schema must be {schemas[0]!r} ({what}), not {format_value(schema)}", hint)
    return dict(document)


def read_if_document(path: Path, *schemas: str, most: int = MAX_BYTES) -> dict[str, Any]:
    """Read a JSON object from a file; empty if this fails, or if none of the given schemas fits. NaN becomes None."""
    try:
        document = read_json(path, most, parse_constant=lambda name: None)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) and (not schemas or document.get("schema") in schemas) else {}


def members_at_head(path: Path) -> dict[str, Any]:
    """Read the complete members of a JSON object from the first bytes of a possibly long file."""
    decoder, members = json.JSONDecoder(), {}
    try:
        with open_regular(path) as file:
            text = file.read(_HEAD).decode("utf-8", "replace")
        at = re.compile(r"\s*\{").match(text).end()  # type: ignore[union-attr]
        while (key := re.compile(r'\s*,?\s*("[^"\\]*")\s*:\s*').match(text, at)) is not None:
            value, at = decoder.raw_decode(text, key.end())
            if not re.compile(r"\s*[,}]").match(text, at):  # a number may go on
                break
            members[json.loads(key[1])] = value
    except (OSError, ValueError, AttributeError, RecursionError):
        return members
    return members


def read_toml(path: Path, what: str, hint: str, missing: str | None = None) -> dict[str, Any]:
    """Read the tables of a TOML file. ``missing`` is the hint if there is no file.

    Raises `NsysprofError` if the file cannot be read or is not TOML.
    """
    try:
        text = read_small(path, _MAX_TOML).decode("utf-8-sig")
        if _LONG_KEY.search(text):  # time and memory are its square
            raise TooDeepError("a key of too many parts")
        return dict(with_few_levels(tomllib.loads(text)))
    except OSError as error:
        if error.errno == errno.EFBIG:  # a report, say
            raise NsysprofError(f"{path}: no {what}: {error.strerror}", hint) from None
        named = missing if isinstance(error, FileNotFoundError) else None
        look = named or f"ls -ld {quote(str(path))}"
        raise NsysprofError(f"{path}: cannot read the {what}: {error.strerror}", look) from None
    except UnicodeDecodeError as error:
        raise NsysprofError(f"{path}: not UTF-8, so no {what}: byte {error.start} is {error.reason}", hint) from None
    except (ValueError, RecursionError) as error:  # a number of a million digits, and very deep nesting
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise NsysprofError(f"{path}: not TOML: {reason}", hint) from None


def _read(kind: Any, value: Any) -> Any:
    return kind.read(value)


def _near(word: Any, words: list[str], are: str = "") -> str:
    near = difflib.get_close_matches(str(word), words, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{meant}{are} {', '.join(words)}; " if are else meant


def _inside(value: Any, kind: Any, place: str) -> tuple[Any, list[Any]]:
    """Find the value at a place such as ``points[3].seq``, and the types that it may have."""
    kinds = [*_types_in(kind)]
    for name, number in re.findall(r"(\w+)|\[(\d+|\.\.\.)\]", place):
        if name:
            below = [field.type for each in kinds for field in _fields(each) if field.encode_name == name]
        else:
            below = [part for each in kinds for part in get_args(each)]
        kinds = [plain for each in below for plain in _types_in(each)]
        try:
            value = value[name or int(number)]
        except (LookupError, TypeError, ValueError):  # msgspec does not say under which key of a mapping
            value = _UNKNOWN
    return value, kinds


def _types_in(kind: Any) -> Iterator[Any]:
    """Yield the types that a union or an annotated type is made of."""
    if get_origin(kind) in (Union, UnionType, Annotated):
        parts = get_args(kind)[:1] if get_origin(kind) is Annotated else get_args(kind)
        for part in parts:
            yield from _types_in(part)
    else:
        yield kind


def _fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else ()
