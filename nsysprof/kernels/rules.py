"""Rules for kernel names, read from TOML: the shipped ones and those of a user."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof.core.side_file import read_small
from nsysprof.errors import NsysprofError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FAMILIES = (
    "gemm",
    "attention",
    "softmax",
    "elementwise",
    "reduction",
    "copy",
    "fill",
    "mask",
    "norm",
    "rng",
    "communication",
    "memcpy",
    "memset",
    "migration",
    "graph",
    "other",
)
MATH_UNITS = ("tensor core", "FP32 FMA", "unknown")
WHERE = ("name", "function", "words")
SHIPPED_RULES = Path(__file__).with_name("kernels.toml")

_KEYS = {"name", "match", "where", "only", "family", "math_unit", "attention_backend", "cause", "backward"}
_COMMON = {"kernel", "cuda", "native", "triton", "fused", "cutlass", "cudnn", "lambda", "void", "functor"}


@dataclass(frozen=True)
class Rule:
    """One rule as read from a file; `patterns` are not compiled until a name needs them."""

    name: str
    patterns: tuple[str, ...]
    where: str
    only: frozenset[str] | None  # the words that a plain name may have; None: any
    family: str
    math_unit: str
    attention_backend: str | None
    causes: tuple[str, ...]
    backward: bool


@dataclass(frozen=True)
class Rules:
    """Ordered rules; `checks` are (pattern, rule index) in asking order, `words` what letters each needs."""

    rules: tuple[Rule, ...]
    checks: tuple[tuple[str, int], ...]
    words: tuple[str, ...]


def load_rules(extra: Path | None = None) -> Rules:
    """The shipped rules; those of the file `extra` (same format) are asked first.

    Raises NsysprofError with file, rule and reason when a file cannot be read or a rule is not well formed.
    """
    own = _read_rules(Path(extra), check=True) if extra is not None else ()
    return _indexed(own + _shipped())


def fields_of(cause: str) -> list[str]:
    """The named groups that a cause asks for: `cast {src}→{dst}` asks for two."""
    return re.findall(r"\{(\w+)\}", cause)


@cache
def _shipped() -> tuple[Rule, ...]:
    return _read_rules(SHIPPED_RULES, check=False)


def _indexed(rules: tuple[Rule, ...]) -> Rules:
    checks = tuple((pattern, index) for index, rule in enumerate(rules) for pattern in rule.patterns)
    return Rules(rules, checks, tuple(_needed_word(pattern) for pattern, _ in checks))


@cache
def _needed_word(pattern: str) -> str:
    """The longest run of letters, lowercase, that every match of the expression holds; "" for none.

    Reads only what stands outside groups, classes and escapes: may miss a word but never names a wrong one.
    """
    runs, run, depth, at = [], "", 0, 0
    while at < len(pattern):
        char = pattern[at]
        if depth == 0 and char.isascii() and char.isalpha():
            run += char
            at += 1
            continue
        if run:
            # A quantifier after a letter belongs to that letter alone.
            runs.append(run[:-1] if char in "?*{" else run)
            run = ""
        if char == "|" and depth == 0:
            return ""
        if char == "\\":
            at += 2
            continue
        if char == "[":
            at = _class_end(pattern, at)
        depth += (char == "(") - (char == ")")
        at += 1
    runs.append(run)
    runs = [found.lower() for found in runs if len(found) > 1]
    return max(
        (found for found in runs if found not in _COMMON), key=len, default=max(runs, key=len, default="")
    )


def _class_end(pattern: str, at: int) -> int:
    at += 2 if pattern[at + 1 : at + 2] == "^" else 1
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at


def _read_rules(path: Path, check: bool) -> tuple[Rule, ...]:
    try:
        tables = tomllib.loads(read_small(path).decode())
    except OSError as error:
        raise NsysprofError(
            f"{path}: cannot read the rule file: {error.strerror}", f"ls -l {quote(str(path))}"
        ) from None
    except UnicodeDecodeError as error:
        raise NsysprofError(
            f"{path}: not UTF-8 text: byte {error.start} is {error.reason}", _format_hint()
        ) from None
    except (ValueError, RecursionError) as error:  # a number of a million digits, and very deep nesting
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise NsysprofError(f"{path}: not TOML: {reason}", _format_hint()) from None
    entries = tables.get("rule")
    if (
        set(tables) - {"rule"}
        or not isinstance(entries, list)
        or not all(isinstance(e, dict) for e in entries)
    ):
        raise NsysprofError(f"{path}: expected nothing but [[rule]] tables", _format_hint())
    return tuple(_rule(path, number, entry, check) for number, entry in enumerate(entries, 1))


def _rule(path: Path, number: int, entry: dict[str, Any], check: bool) -> Rule:
    label = entry.get("name")
    where = f"{path}: rule {number}" + (f' ("{label}")' if isinstance(label, str) else "")
    match = entry.get("match")
    patterns = [match] if isinstance(match, str) else match
    cause = entry.get("cause", entry.get("family"))
    causes = [cause] if isinstance(cause, str) else cause
    if check:
        reason = next(_reasons(entry, patterns, causes), None)
        if reason is not None:
            raise NsysprofError(f"{where}: {reason}", _format_hint())
    return Rule(
        str(label),
        tuple(patterns or ()),
        str(entry.get("where", WHERE[0])),
        frozenset(entry["only"].split()) if "only" in entry else None,
        str(entry["family"]),
        str(entry.get("math_unit", "unknown")),
        entry.get("attention_backend"),
        tuple(causes or ()),
        bool(entry.get("backward", False)),
    )


def _reasons(entry: dict[str, Any], patterns: Any, causes: Any) -> Iterator[str]:
    """Why this entry is no rule; the first reason counts, later ones may follow from it."""
    unknown = sorted(set(entry) - _KEYS)
    if unknown:
        yield f"unknown key {unknown[0]!r}; keys are {', '.join(sorted(_KEYS))}"
    for key in ("name", "match", "family"):
        if key not in entry:
            yield f"{key!r} is missing"
    for key in ("name", "where", "only", "family", "math_unit", "attention_backend"):
        if not isinstance(entry.get(key, ""), str):
            yield f"{key!r} must be a string"
    if not isinstance(entry.get("backward", False), bool):
        yield "'backward' must be true or false"
    for key, values in (("match", patterns), ("cause", causes)):
        if not isinstance(values, list) or not values or not all(isinstance(v, str) and v for v in values):
            yield f"{key!r} must be a string or a list of strings, none of them empty"
    allowed = {"family": FAMILIES, "math_unit": MATH_UNITS, "where": WHERE}
    for key, choices in allowed.items():
        if entry.get(key, choices[0]) not in choices:
            yield f"{key} {entry[key]!r} is not one of {', '.join(choices)}"
    if "only" in entry and entry.get("where") != "words":
        yield "'only' needs where = \"words\""
    yield from _expression_reasons(patterns, causes)


def _expression_reasons(patterns: list[str], causes: list[str]) -> Iterator[str]:
    groups: set[str] = set()
    for pattern in patterns:
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            yield f"expression {pattern!r} does not compile: {error}"
            continue
        groups |= set(compiled.groupindex)
        if compiled.search("") is not None:
            yield f"expression {pattern!r} matches every name"
    for field in (field for cause in causes for field in fields_of(cause) if field not in groups):
        yield f"cause uses {{{field}}}, which no expression names as a group"


def _format_hint() -> str:
    return f"the format, with examples: head -40 {SHIPPED_RULES}"
