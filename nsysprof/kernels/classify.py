"""What a kernel is, by its name: family, math unit, attention backend and cause.

The rules are data (`kernels.toml`, ordered, the first match wins). Asking is by candidates: every expression
needs some word of letters, and the words that occur in names are few and repeat, so each distinct word is
compared with the rules' words once and an expression is searched only in names that hold its word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from nsysprof.kernels.names import dtype, function_name, is_plausible, own_words, short_name
from nsysprof.kernels.rules import FAMILIES, MATH_UNITS, Family, Rule, Rules, fields_of, load_rules

__all__ = [
    "FAMILIES", "MATH_UNITS", "UNMATCHED", "Family", "Kinds", "Rules", "classify", "function_name", "load_rules",
    "short_name",
]  # fmt: skip

UNMATCHED = "unmatched"

_TYPE_GROUPS = ("src", "dst")


@dataclass(frozen=True)
class Kinds:
    """One entry per name asked, in the order asked.

    `family` is one of FAMILIES, `math_unit` one of MATH_UNITS, `attention_backend` None unless the name tells,
    `cause` a finer label (the family where no rule says more), `rule` the rule that decided or "unmatched".
    """

    family: list[str]
    math_unit: list[str]
    attention_backend: list[str | None]
    cause: list[str]
    rule: list[str]


def classify(rules: Rules, names: Sequence[str]) -> Kinds:
    """Kinds of the kernels with these names: demangled, mangled or short, as the report has them.

    Equal names get equal answers; pass distinct names, 20,000 take a fraction of a second.
    """
    needs: dict[str, list[int]] = {}
    for number, word in enumerate(rules.words):
        needs.setdefault(word, []).append(number)
    always = frozenset(needs.pop("", ()))
    starts: dict[str, list[str]] = {}
    for word in needs:
        starts.setdefault(word[:2], []).append(word)
    known: dict[str, frozenset[int]] = {}
    kinds = Kinds([], [], [], [], [])
    for name in names:
        candidates = set(always)
        for word in set(_WORDS(name.lower())):
            found = known.get(word)
            if found is None:
                found = frozenset(number for need in _inside(word, starts) for number in needs[need])
                known[word] = found
            candidates |= found
        _append(kinds, *_first_match(rules, candidates, name))
    return kinds


_WORDS = re.compile(r"[a-z]{2,}").findall


def _inside(word: str, starts: dict[str, list[str]]) -> list[str]:
    """The needed words that stand anywhere in this word; `starts` lists them by their first two letters."""
    return [
        need
        for at in range(len(word) - 1)
        for need in starts.get(word[at : at + 2], ())
        if word.startswith(need, at)
    ]


def _first_match(
    rules: Rules, candidates: Iterable[int], name: str
) -> tuple[Rule | None, re.Match[str] | None]:
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
            rule.only is None or is_plausible(text["function"], text["words"], rule.only)
        ):
            return rule, match
    return None, None


def _append(kinds: Kinds, rule: Rule | None, match: re.Match[str] | None) -> None:
    if rule is None or match is None:
        kinds.family.append("other")
        kinds.math_unit.append("unknown")
        kinds.attention_backend.append(None)
        kinds.cause.append("other")
        kinds.rule.append(UNMATCHED)
        return
    kinds.family.append(rule.family)
    kinds.math_unit.append(rule.math_unit)
    kinds.attention_backend.append(rule.attention_backend)
    kinds.cause.append(_cause(rule, match))
    kinds.rule.append(rule.name)


def _cause(rule: Rule, match: re.Match[str]) -> str:
    cause = rule.causes[0]
    if "{" in cause:
        found = {key: text for key, text in match.groupdict().items() if text}
        groups = {key: dtype(text) if key in _TYPE_GROUPS else text for key, text in found.items()}
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
