"""Identify the attention backends that ran in ``RUN::<backend>::…`` ranges, by kernel names.

The rules in `kernels.toml` map kernels to fused backends. Math attention has no special kernels: it consists of matrix
products and a softmax. Matrix products without a softmax are projections.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.attribution.attribute import AMBIGUOUS, NO_LAUNCH, Attribution
from nsysprof.attribution.range_work import cover
from nsysprof.core.arrays import AnyInts, Index, Ints, Ints32, Mask
from nsysprof.core.columns import sums
from nsysprof.core.nesting import outermost
from nsysprof.core.text import join_first
from nsysprof.kernels.classify import OTHER_SOFTMAX, UNMATCHED, Kinds, Rules, classify, load_rules, short_name
from nsysprof.trace.trace import GRAPH, KERNEL

NONE, UNKNOWN, NO_ATTENTION = "none", "unknown", "no attention"
_RUN = re.compile(r"RUN::(.+?)::", re.DOTALL)
_MATH = "math"
# Requests that have no kernels of their own: what must run instead.
_STANDS_FOR = {"math_reduced": _MATH, "naive": _MATH, "flash_attn": "flash"}
# What is asked of every GPU op; the fused backends follow, a column each.
_IS_KERNEL, _IS_GRAPH, _IS_UNKNOWN, _IS_GEMM, _IS_SOFTMAX, _FUSED = range(6)
_MAX_NAMED = 5


@dataclass(frozen=True)
class BackendVerdict:
    """The result of `judge_backends`; data frames have a default index, times are int64 ns.

    ``ranges``: a row per range name in order of first start, or several rows if the instances ran different backends:
    ``range, requested, observed, agrees, instances, kernels, evidence``. ``observed`` is a backend, several backends
    joined by ``+``, ``no attention``, ``none`` (no kernels) or ``unknown`` (names do not show the backend). For
    ``none`` and ``unknown``, ``agrees`` (pandas' boolean) is missing. The column ``kernels`` counts all kernels inside;
    ``evidence`` lists the kernels that identify the backend, as ``name x count``. ``kernels``: the same evidence with
    full names: ``row`` (of ``ranges``), ``kernel, count, sum_ns``, most time first.
    """

    ranges: pd.DataFrame
    kernels: pd.DataFrame
    warnings: tuple[str, ...]

    @property
    def differences(self) -> pd.DataFrame:
        """Return the rows of ``ranges`` that ran a backend other than the requested one, with their index."""
        return self.ranges[(~self.ranges["agrees"]).fillna(False)]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of ``ranges`` for JSON, with None for an unknown ``agrees``."""
        rows = self.ranges.astype(object).to_dict("records")
        return [{str(name): None if value is pd.NA else value for name, value in row.items()} for row in rows]


@dataclass(frozen=True)
class Observed:
    """The result of `observe_backends`: the columns of `BackendVerdict.ranges` and ``group``, sorted by group.

    ``kernels`` as in `BackendVerdict`; ``graphs``: rows of ``groups`` that contain CUDA graphs traced as a whole.
    """

    groups: pd.DataFrame
    kernels: pd.DataFrame
    graphs: set[int]


def judge_backends(attribution: Attribution, rules: Rules | None = None) -> BackendVerdict:
    """Make the `BackendVerdict` of an attributed report: empty if no range is named ``RUN::<backend>::…``.

    A ``RUN::`` range inside another ``RUN::`` range counts as a part of the outer range. Requested names are compared
    case-insensitively; ``auto``, and any name without a rule, agrees with any attention.
    """
    rules = rules or load_rules()
    texts = [name.text for name in attribution.trace.range_names]
    runs = {text: match[1] for text in texts if (match := _RUN.match(text))}
    codes = {text: code for code, text in enumerate(runs)}
    name = np.array([codes.get(text, -1) for text in texts], np.int64)[attribution.trace.ranges.name]
    rows = np.flatnonzero(outermost(attribution.parent, name >= 0))
    seen = observe_backends(attribution, rows, name[rows], rules)

    group = seen.groups["group"].tolist()
    requested = [[*runs.values()][code] for code in group]
    known = {rule.attention_backend.casefold() for rule in rules.rules if rule.attention_backend} | {_MATH}
    agrees = [_agrees(*pair, known) for pair in zip(requested, seen.groups["observed"], strict=True)]
    ranges = seen.groups.assign(
        range=pd.Series([[*runs][code] for code in group], dtype=object),
        requested=pd.Series(requested, dtype=object),
        agrees=pd.array(agrees, dtype="boolean"),
    )[["range", "requested", "observed", "agrees", "instances", "kernels", "evidence"]]
    return BackendVerdict(ranges, seen.kernels, tuple(_warnings(attribution, ranges, seen)))


def observe_backends(attribution: Attribution, rows: Index, group: AnyInts, rules: Rules) -> Observed:
    """Find the attention backends in the range instances ``rows``; each instance is judged by all kernels inside it.

    Instances of one ``group`` with the same backend share a row.
    """
    trace = attribution.trace
    number = np.zeros(len(trace.ranges), np.int32)
    number[rows] = np.arange(len(rows))
    work = work_inside(attribution, rows, number, len(rows))
    used, name = np.unique(work["name"].to_numpy(), return_inverse=True)
    kinds = classify(rules, [trace.op_names[code] for code in used.tolist()])
    backends = sorted({backend for backend in kinds.attention_backend if backend is not None})
    traits = _traits(kinds, backends)[name.reshape(-1)]
    kind = work["kind"].to_numpy()
    traits[kind != KERNEL] = False
    traits[:, _IS_GRAPH] = kind == GRAPH

    run = work["number"].to_numpy()
    label, labels, deciding = _labelled(len(rows), run, traits, backends)
    runs = pd.DataFrame({"group": group, "label": label, "start": trace.ranges.start[rows]})
    groups = runs.groupby(["group", "label"], as_index=False).agg(start=("start", "min"), instances=("start", "size"))
    groups = groups.sort_values("start", kind="stable", ignore_index=True)
    place = pd.MultiIndex.from_frame(groups[["group", "label"]])
    row = place.get_indexer(pd.MultiIndex.from_frame(runs[["group", "label"]]))

    by_name = work.assign(row=row[run])[deciding].groupby(["row", "name"], as_index=False)[["count", "sum_ns"]].sum()
    by_name = by_name.sort_values(["row", "sum_ns"], ascending=[True, False], kind="stable", ignore_index=True)
    kernels = by_name.assign(kernel=[trace.op_names[code] for code in by_name["name"].tolist()])
    inside = sums(row[run], np.where(kind == KERNEL, work["count"], 0), len(groups))
    return Observed(
        groups.assign(
            observed=pd.Series([labels[code] for code in groups["label"].tolist()], dtype=object),
            kernels=inside,
            evidence=pd.Series(_evidence(kernels, len(groups)), dtype=object),
        ),
        kernels[["row", "kernel", "count", "sum_ns"]],
        set(row[run[traits[:, _IS_GRAPH]]].tolist()),
    )


def work_inside(attribution: Attribution, rows: Index, number: Ints32, count: int) -> pd.DataFrame:
    """Return the GPU ops launched inside range instances, sorted: ``number``, ``name`` (a code), ``kind, count,
    sum_ns``.

    Instances (``rows``) with the same ``number`` are counted together, so a GPU op counts only once for each number.
    Every range has a number below ``count``.
    """
    ops, names = attribution.trace.ops, max(len(attribution.trace.op_names), 1)
    parts = [_added_up(number[:0], ops.end[:0])]
    for place, op in cover(attribution, rows, number, count).ops(attribution.trace):
        key = (place.astype(np.int64) * names + ops.name[op]) * 4 + ops.kind[op]
        parts.append(_added_up(key, ops.end[op] - ops.start[op]))
    work = pd.concat(parts).groupby(level=0).sum()
    key = work.index.to_numpy(np.int64)
    work = work.assign(number=key // 4 // names, name=key // 4 % names, kind=key % 4)
    return work.reset_index(drop=True)


def _added_up(key: AnyInts, length: Ints) -> pd.DataFrame:
    return pd.DataFrame({"count": np.int64(1), "sum_ns": length}).groupby(key.astype(np.int64)).sum()


def _traits(kinds: Kinds, backends: list[str]) -> Mask:
    """The traits of kernels of each name, a row per name: the columns are `_IS_KERNEL` … and the fused ``backends``."""
    out = np.zeros((len(kinds.family), _FUSED + len(backends)), bool)
    named = zip(kinds.family, kinds.attention_backend, kinds.cause, kinds.rule, strict=True)
    for traits, (family, backend, cause, rule) in zip(out, named, strict=True):
        traits[_IS_KERNEL] = True
        traits[_IS_UNKNOWN] = rule == UNMATCHED or (family == "attention" and backend is None)
        traits[_IS_GEMM] = family == "gemm"
        traits[_IS_SOFTMAX] = family == "softmax" and not cause.startswith(OTHER_SOFTMAX)
        if backend is not None:
            traits[_FUSED + backends.index(backend)] = True
    return out


def _labelled(count: int, run: Ints, traits: Mask, backends: list[str]) -> tuple[Ints, list[str], Mask]:
    """The code of the label observed in each of ``count`` runs; the labels; and a mask of the work that decided.

    ``run`` and ``traits`` are of the rows of `work_inside`.
    """
    seen = np.zeros((count, traits.shape[1]), bool)
    which, column = np.nonzero(traits)
    seen[run[which], column] = True
    kinds, kind = np.unique(seen, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    answers = [_observed(each, backends) for each in kinds]
    labels = sorted({label for label, _ in answers})
    label = np.array([labels.index(text) for text, _ in answers], np.int64)[kind]
    decides = np.array([traits for _, traits in answers], bool).reshape(len(answers), traits.shape[1])
    return label, labels, (traits & decides[kind[run]]).any(axis=1)


def _observed(seen: Mask, backends: list[str]) -> tuple[str, Mask]:
    """The backend that kernels with these traits form together, and the traits that show it."""
    decides = np.zeros(len(seen), bool)
    fused = [backend for backend, there in zip(backends, seen[_FUSED:].tolist(), strict=True) if there]
    math = bool(seen[_IS_GEMM] and seen[_IS_SOFTMAX])
    if seen[_IS_GRAPH]:  # may hold anything
        decides[_IS_GRAPH] = True
        return UNKNOWN, decides
    if fused or math:
        decides[_FUSED:] = True
        decides[_IS_SOFTMAX] = math
        decides[_IS_GEMM] = math and not fused  # beside fused kernels they may be projections
        others = [backend for backend in fused if backend != _MATH]
        return " + ".join(others + [_MATH] * (math or _MATH in fused)), decides
    for trait, label in ((_IS_UNKNOWN, UNKNOWN), (_IS_KERNEL, NO_ATTENTION)):
        if seen[trait]:
            decides[trait] = True
            return label, decides
    return NONE, decides


def _agrees(requested: str, observed: str, known: set[str]) -> bool | None:
    if observed in (NONE, UNKNOWN):
        return None
    wanted = requested.casefold()
    if wanted not in known:
        wanted = _STANDS_FOR.get(wanted, wanted)
    if wanted not in known:
        return None if observed == NO_ATTENTION else True
    return observed.casefold() == wanted


def _evidence(kernels: pd.DataFrame, rows: int) -> list[str]:
    """``name x count, …`` for each row; names that are alike when shortened are counted together."""
    counts: list[dict[str, int]] = [{} for _ in range(rows)]
    short = {name: short_name(name, 120) for name in kernels["kernel"].unique().tolist()}
    columns = [kernels[column].tolist() for column in ("row", "kernel", "count")]
    for row, kernel, count in zip(*columns, strict=True):
        counts[row][short[kernel]] = counts[row].get(short[kernel], 0) + count
    return [", ".join(f"{name} x {count:,}" for name, count in names.items()) for names in counts]


def _warnings(attribution: Attribution, ranges: pd.DataFrame, seen: Observed) -> Iterator[str]:
    unknown = ranges.index[ranges["observed"] == UNKNOWN]
    if whole := [row for row in unknown if row in seen.graphs]:
        yield (
            f"the backend of {_listed(ranges['range'][whole].tolist())} is unknown: CUDA graphs were recorded as a"
            " whole; capture with --cuda-graph-trace=node"
        )
    if strange := [row for row in unknown if row not in seen.graphs]:
        kernels = seen.kernels[seen.kernels["row"].isin(strange)]
        by_name = kernels.groupby("kernel")["sum_ns"].sum().sort_values(ascending=False, kind="stable")
        names = [short_name(name) for name in by_name.index.tolist()]
        yield (
            f"the backend of {_listed(ranges['range'][strange].tolist())} is unknown, because no "
            f"rule matches the attention kernels {_listed(names)}: name them in a rule file (--rules FILE)"
        )
    lost = attribution.ledger[AMBIGUOUS].ops + attribution.ledger[NO_LAUNCH].ops
    if lost and len(ranges):
        yield f"GPU ops not used to detect backends, because their range is uncertain: {lost:,}"


def _listed(texts: Sequence[Any]) -> str:
    """The first few different texts, and how many more there are."""
    return join_first(list(dict.fromkeys(texts)), _MAX_NAMED)
