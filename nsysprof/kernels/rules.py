"""Read rules for kernel names from TOML: the shipped rules and a user's rules."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import msgspec

from nsysprof.core.document import Texts, parse_as, read_toml, texts
from nsysprof.core.expressions import compiled
from nsysprof.core.text import shorten
from nsysprof.errors import NsysprofError

Family = Literal[
    "gemm", "attention", "softmax", "elementwise", "reduction", "copy", "fill", "mask", "norm", "rng",
    "communication", "memcpy", "memset", "migration", "graph", "other",
]  # fmt: skip
_Unit = Literal["tensor core", "FP32 FMA", "unknown"]
FAMILIES: tuple[str, ...] = get_args(Family)
MATH_UNITS: tuple[str, ...] = get_args(_Unit)
SHIPPED_RULES = Path(__file__).with_name("kernels.toml")

_COMMON = {"kernel", "cuda", "native", "triton", "fused", "cutlass", "cudnn", "lambda", "void", "functor"}


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One ``[[rule]]`` table; its expressions are not compiled until a name needs them."""

    name: str
    match: Texts
    family: Family
    where: Literal["name", "function", "words"] = "name"
    only: str | msgspec.UnsetType = msgspec.UNSET  # the words that a plain name may have; unset: any
    math_unit: _Unit = "unknown"
    attention_backend: str = ""
    cause: Texts = []
    backward: bool = False

    @property
    def patterns(self) -> list[str]:
        """Return the expressions; at least one must match."""
        return texts(self.match)

    @property
    def causes(self) -> list[str]:
        """The causes. The first cause whose groups all matched applies; otherwise, the family is the cause."""
        return texts(self.cause) or [self.family]


@dataclass(frozen=True)
class Rules:
    """Ordered rules: `checks` are (pattern, rule index) in order; `words`: the substring that each pattern requires."""

    rules: tuple[Rule, ...]
    checks: tuple[tuple[str, int], ...]
    words: tuple[str, ...]


def load_rules(extra: Path | None = None) -> Rules:
    """Return the shipped rules; rules in the file `extra` (same format) take precedence.

    Raises NsysprofError with file, rule and reason if a file cannot be read or a rule is invalid.
    """
    rules = (_read_rules(Path(extra), check=True) if extra is not None else ()) + _shipped()
    checks = tuple((pattern, index) for index, rule in enumerate(rules) for pattern in rule.patterns)
    return Rules(rules, checks, tuple(_needed_word(pattern) for pattern, _ in checks))


def fields_of(cause: str) -> list[str]:
    """Return the named groups that a cause refers to, such as the two in `cast {src}→{dst}`."""
    return re.findall(r"\{(\w+)\}", cause)


@cache
def _shipped() -> tuple[Rule, ...]:
    return _read_rules(SHIPPED_RULES, check=False)


@cache
def _needed_word(pattern: str) -> str:
    """The longest run of letters, lowercase, that every match of the expression contains; "" for none.

    Only text outside groups, classes and escapes is read, so a word may be missed, but no wrong word is returned.
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
    words = [word.lower() for word in runs if len(word) > 1]
    return max((word for word in words if word not in _COMMON), key=len, default=max(words, key=len, default=""))


def _class_end(pattern: str, at: int) -> int:
    at += 2 if pattern[at + 1 : at + 2] == "^" else 1
    at += pattern[at : at + 1] == "]"
    while at < len(pattern) and pattern[at] != "]":
        at += 2 if pattern[at] == "\\" else 1
    return at


def _read_rules(path: Path, check: bool) -> tuple[Rule, ...]:
    hint = f"the format, with examples: head -40 {SHIPPED_RULES}"
    tables = read_toml(path, "rule file", hint)
    entries = tables.get("rule")
    if tables.keys() != {"rule"} or not isinstance(entries, list):
        raise NsysprofError(f"{path}: expected only [[rule]] tables", hint)
    rules = []
    for number, entry in enumerate(entries, 1):
        label = entry.get("name") if isinstance(entry, dict) else None
        where = f"{path}: rule {number}" + (f' ("{shorten(label, 80)}")' if isinstance(label, str) else "")
        rule = parse_as(entry, Rule, where, hint)
        reason = next(_reasons(rule), None) if check else None
        if reason is not None:
            raise NsysprofError(f"{where}: {reason}", hint)
        rules.append(rule)
    return tuple(rules)


def _reasons(rule: Rule) -> Iterator[str]:
    """The reasons why this is not a valid rule; the first counts, because later ones may follow from it."""
    if rule.only is not msgspec.UNSET and rule.where != "words":
        yield "'only' needs where = \"words\""
    groups: set[str] = set()
    for pattern in rule.patterns:
        try:
            expression = compiled(pattern)
        except ValueError as error:
            yield f"expression {shorten(pattern, 80)!r} does not compile: {error}"
            continue
        groups |= set(expression.groupindex)
        if expression.search("") is not None:
            yield f"expression {shorten(pattern, 80)!r} matches every name"
    for field in (field for cause in rule.causes for field in fields_of(cause) if field not in groups):
        yield f"cause uses {{{shorten(field, 80)}}}, which no expression names as a group"
