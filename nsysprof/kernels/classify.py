"""Classify kernels by name (family, math unit, attention backend, cause), and group them for charts.

The rules are data (`kernels.toml`); they are ordered, and the first match wins. Matching is fast for two reasons: every
expression requires a certain word, and all names together contain few distinct words. Each distinct word of the names
is compared with the words of the rules once. An expression is searched only in names that contain its word.
"""

import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache

import msgspec
import numpy as np

from nsysprof.core.arrays import Bytes, Mask, slices
from nsysprof.core.expressions import bounded
from nsysprof.kernels.names import dtype, function_name, is_plausible, own_words, short_name
from nsysprof.kernels.rules import FAMILIES, MATH_UNITS, Family, Rule, Rules, fields_of, load_rules
from nsysprof.trace.trace import GRAPH, MEMCPY, MEMSET, MIGRATION, Trace

__all__ = [
    "FAMILIES", "LAST", "MATH_UNITS", "NO_KERNELS", "OTHER", "UNMATCHED", "Family", "Kinds", "OpGroups", "Rules",
    "classify", "function_name", "kinds_of", "load_rules", "op_groups", "short_name",
]  # fmt: skip

UNMATCHED = "unmatched"
# Causes of softmax kernels that belong to a loss or a router, not to attention.
OTHER_SOFTMAX = ("log-softmax", "expert routing")

_TYPE_GROUPS = ("src", "dst")
# Families of GPU ops that are no kernels: groups of their own, whether kernels are grouped by family or by name.
NO_KERNELS = ("memcpy", "memset", "migration", "graph")
OTHER = "other"
LAST = (OTHER, *NO_KERNELS)  # what stands behind the names of kernels
MAX_NAMES = 8
_NAMED = 0.95  # of the kernels' time: what names beyond it share is one group
_LABEL = 40
_CHUNK = 1 << 20  # GPU ops at a time where temporaries would be large


@dataclass(frozen=True)
class Kinds:
    """One entry per name, in the given order.

    `family` is one of FAMILIES, and `math_unit` is one of MATH_UNITS. `attention_backend` is None unless the kernel
    name shows the backend. `cause` is a more specific label (by default, the family). `rule` is the rule that matched,
    or "unmatched".
    """

    family: list[str]
    math_unit: list[str]
    attention_backend: list[str | None]
    cause: list[str]
    rule: list[str]

    @property
    def communication(self) -> Mask:
        """Mask of collectives."""
        return np.array([family == "communication" for family in self.family], bool)


def classify(rules: Rules, names: Sequence[str]) -> Kinds:
    """Classify kernels with these names: demangled, mangled or short, as in the report.

    Equal names get equal results; pass distinct names (20,000 names take a fraction of a second). Raises
    `NsysprofError` in the main thread if a user's rules take much longer.
    """
    needs: dict[str, list[int]] = {}
    for number, word in enumerate(rules.words):
        needs.setdefault(word, []).append(number)
    always = frozenset(needs.pop("", ()))
    starts: dict[str, list[str]] = {}
    for word in needs:
        starts.setdefault(word[:2], []).append(word)
    known: dict[str, frozenset[int]] = {}
    found = []
    mine = len(rules.rules) > len(load_rules().rules)
    with bounded("the kernel rules", "--rules") if mine else nullcontext():
        for name in names:
            candidates = set(always)
            for word in set(_WORDS(name.lower())):
                if word not in known:
                    known[word] = frozenset(number for need in _inside(word, starts) for number in needs[need])
                candidates |= known[word]
            found.append(_first_match(rules, candidates, name))
    rules_, causes = [rule for rule, _ in found], [_cause(*each) for each in found]
    return Kinds(
        [rule.family if rule else OTHER for rule in rules_],
        [rule.math_unit if rule else "unknown" for rule in rules_],
        [rule.attention_backend or None if rule else None for rule in rules_],
        causes,
        [rule.name if rule else UNMATCHED for rule in rules_],
    )


def kinds_of(trace: Trace, rules: Rules | None = None) -> Kinds:
    """Return the kinds of a trace's op names, for use by every command.

    GPU ops other than kernels have separate families, regardless of the rules for their names.
    """
    kinds = classify(rules or load_rules(), trace.op_names)
    family, cause = list(kinds.family), list(kinds.cause)
    kind_of_name = np.zeros(len(family), np.uint8)
    for part in slices(len(trace.ops)):
        kind_of_name[trace.ops.name[part]] = trace.ops.kind[part]
    for kind, name in {MEMCPY: "memcpy", MEMSET: "memset", GRAPH: "graph", MIGRATION: "migration"}.items():
        for code in np.flatnonzero(kind_of_name == kind).tolist():
            family[code] = cause[code] = name
    return replace(kinds, family=family, cause=cause)


_WORDS = re.compile(r"[a-z]{2,}").findall


def _inside(word: str, starts: dict[str, list[str]]) -> list[str]:
    """The required words that occur anywhere in this word; `starts` lists them by their first two letters."""
    return [
        need for at in range(len(word) - 1) for need in starts.get(word[at : at + 2], ()) if word.startswith(need, at)
    ]


def _first_match(rules: Rules, candidates: Iterable[int], name: str) -> tuple[Rule | None, re.Match[str] | None]:
    text = {"name": name}
    for number in sorted(candidates):
        pattern, index = rules.checks[number]
        rule = rules.rules[index]
        if rule.where not in text:
            function = text["function"] = function_name(name)
            if rule.where == "words":
                text["words"] = own_words(function)
        match = _compiled(pattern).search(text[rule.where])
        if match is not None and (
            isinstance(rule.only, msgspec.UnsetType) or is_plausible(text["function"], text["words"], rule.only.split())
        ):
            return rule, match
    return None, None


def _cause(rule: Rule | None, match: re.Match[str] | None) -> str:
    if rule is None or match is None:
        return OTHER
    cause = rule.causes[0]
    if "{" in cause:
        groups = {key: text for key, text in match.groupdict().items() if text}
        groups |= {key: dtype(groups[key]) for key in _TYPE_GROUPS if key in groups}
        fits = (cause for cause in rule.causes if groups.keys() >= set(fields_of(cause)))
        cause = re.sub(r"\{(\w+)\}", lambda field: groups[field[1]], next(fits, rule.family))
    return f"{cause} backward" if rule.backward and _BACKWARD(match.string) else cause


# How kernels say that they are part of a backward pass: PyTorch's, cuDNN's, Flash Attention's and Triton's do.
_BACKWARD = re.compile(
    r"[Bb]ackward|(?<![a-z])bwd|Bwd|bprop|(?<![a-z])bw_|(?<![a-z])[dw]?grad(?!ual)|Grad|cutlassB_|dot_do_o|convert_dq"
).search


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@dataclass(frozen=True)
class OpGroups:
    """Groups of GPU ops: their ``labels``, and ``of`` (uint8), the group of each op name in the report.

    ``by_name``: whether groups are kernel names, followed by all other kernels and the families of `NO_KERNELS`.
    Otherwise, the groups are `FAMILIES`.
    """

    labels: tuple[str, ...]
    of: Bytes
    by_name: bool

    def place(self, family: str) -> int:
        """Return the group of a family in `LAST`; each of these families always has a group."""
        return len(self.labels) - len(LAST) + LAST.index(family) if self.by_name else FAMILIES.index(family)


def op_groups(trace: Trace, kinds: Kinds) -> OpGroups:
    """Find the `OpGroups` of a report: by name if `OTHER` takes more than half of the kernel time."""
    total = np.zeros(len(trace.op_names), np.int64)
    for first in range(0, len(trace.ops), _CHUNK):
        part = slice(first, first + _CHUNK)
        np.add.at(total, trace.ops.name[part], trace.ops.end[part] - trace.ops.start[part])
    kernel = np.array([family not in NO_KERNELS for family in kinds.family], bool)
    other = np.array([family == OTHER for family in kinds.family], bool)
    if 2 * int(total[other].sum()) <= int(total[kernel].sum()):
        of = [FAMILIES.index(family) for family in kinds.family]
        return OpGroups(FAMILIES, np.array(of, np.uint8), by_name=False)
    names = [short_name(name, _LABEL) for name in trace.op_names]
    times: dict[str, int] = {}
    for code in np.flatnonzero(kernel).tolist():
        times[names[code]] = times.get(names[code], 0) + int(total[code])
    shown: list[str] = []
    for name in sorted(times, key=lambda name: -times[name])[:MAX_NAMES]:
        if shown and sum(times[each] for each in shown) >= _NAMED * sum(times.values()):
            break
        shown.append(name)
    place = {name: number for number, name in enumerate(shown)}
    rest = {family: len(shown) + number for number, family in enumerate(LAST)}
    of = [
        place.get(name, rest[OTHER]) if is_kernel else rest[family]
        for name, is_kernel, family in zip(names, kernel.tolist(), kinds.family, strict=True)
    ]
    return OpGroups((*shown, "other kernels", *NO_KERNELS), np.array(of, np.uint8), by_name=True)
