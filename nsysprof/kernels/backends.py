"""Which attention backend really ran in each ``RUN::<backend>::…`` range, by the names of its kernels.

The rules of `kernels.toml` say which fused backend a kernel belongs to. Math attention has no kernels of its own: it
is matrix products together with a softmax. Matrix products alone are projections.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from nsysprof.attribution.attribute import AMBIGUOUS, NO_LAUNCH, Attribution
from nsysprof.attribution.cover import cover
from nsysprof.core.nesting import ancestors_or_self
from nsysprof.kernels.classify import UNMATCHED, Kinds, Rules, classify, load_rules, short_name
from nsysprof.trace.trace import GRAPH, KERNEL, Trace

NONE, UNKNOWN, NO_ATTENTION = "none", "unknown", "no attention"
_RUN = re.compile(r"RUN::(.+?)::", re.DOTALL)
_MATH = "math"
# Requests that have no kernels of their own: what must run instead.
_STANDS_FOR = {"math_reduced": _MATH, "naive": _MATH, "flash_attn": "flash"}
# Causes of softmax kernels that belong to a loss or a router, not to attention.
_OTHER_SOFTMAX = ("log-softmax", "expert routing")
# What is asked of every op; the fused backends follow, a column each.
_IS_KERNEL, _IS_GRAPH, _IS_UNKNOWN, _IS_GEMM, _IS_SOFTMAX, _FUSED = range(6)
_MOST_NAMED = 5


@dataclass(frozen=True)
class BackendVerdict:
    """The answer of `judge_backends`; the frames have a default index, times are int64 ns.

    ``ranges``: a row per range name in order of first start, or several where its instances ran different backends:
    ``range, requested, observed, agrees, instances, kernels, evidence``. ``observed`` is a backend, several joined by
    ``+``, or ``no attention``; ``none`` without kernels and ``unknown`` where names do not tell have no ``agrees``
    (pandas' boolean). ``kernels`` counts all kernels inside. ``evidence`` lists what decided, ``name x count``.
    ``kernels``: that evidence with full names, ``row`` (of ``ranges``), ``kernel, count, sum_ns``, most time first.
    """

    ranges: pd.DataFrame
    kernels: pd.DataFrame
    warnings: tuple[str, ...]

    @property
    def differences(self) -> pd.DataFrame:
        """The rows of ``ranges`` that ran something else than asked for, with the index that they have there."""
        return self.ranges[(~self.ranges["agrees"]).fillna(False)]

    def records(self) -> list[dict[str, Any]]:
        """The rows of ``ranges`` as JSON can hold them: ``agrees`` is None where nothing can be said."""
        agrees = [None if value is pd.NA else bool(value) for value in self.ranges["agrees"]]
        rows = self.ranges.assign(agrees=pd.Series(agrees, dtype=object)).to_dict("records")
        return [{str(name): value for name, value in row.items()} for row in rows]


@dataclass(frozen=True)
class _Runs:
    """The outermost ``RUN::`` ranges: ``rows`` of `Trace.ranges`, and for each a code of ``names``."""

    rows: NDArray[np.intp]
    name: NDArray[np.int64]
    names: list[str]


def judge_backends(attribution: Attribution, rules: Rules | None = None) -> BackendVerdict:
    """The `BackendVerdict` of an attributed report: empty where no range is named ``RUN::<backend>::…``.

    A ``RUN::`` range inside another one is part of that. What a name asks for is compared without regard to case;
    ``auto``, and any name that no rule knows, agrees with whatever attention ran.
    """
    rules = rules or load_rules()
    trace = attribution.trace
    runs = _outermost_runs(attribution)
    work = _work_inside(attribution, runs.rows)
    used, name = np.unique(work["name"].to_numpy(), return_inverse=True)
    kinds = classify(rules, [trace.op_names[code] for code in used.tolist()])
    backends = sorted({backend for backend in kinds.attention_backend if backend is not None})
    traits = _traits(kinds, backends)[name.reshape(-1)]
    kind = work["kind"].to_numpy()
    traits[kind != KERNEL] = False
    traits[:, _IS_GRAPH] = kind == GRAPH

    run = work["run"].to_numpy()
    row, observed, deciding = _judged(runs, run, traits, backends, trace)
    evidence = work.assign(row=row[run])[deciding]
    by_name = evidence.groupby(["row", "name"], as_index=False)[["count", "sum_ns"]].sum()
    by_name = by_name.sort_values(
        ["row", "sum_ns"], ascending=[True, False], kind="stable", ignore_index=True
    )
    kernels = by_name.assign(kernel=[trace.op_names[code] for code in by_name["name"].tolist()])
    inside = np.zeros(len(observed), np.int64)
    np.add.at(inside, row[run], np.where(kind == KERNEL, work["count"], 0))
    ranges = _range_rows(runs, row, observed, rules)
    ranges["kernels"] = inside
    ranges["evidence"] = pd.Series(_evidence(kernels, len(ranges)), dtype=object)
    kernels = kernels[["row", "kernel", "count", "sum_ns"]]
    graphs = set(row[run[traits[:, _IS_GRAPH]]].tolist())
    return BackendVerdict(ranges, kernels, tuple(_warnings(attribution, ranges, kernels, graphs)))


def _outermost_runs(attribution: Attribution) -> _Runs:
    trace = attribution.trace
    texts = [name.text for name in trace.range_names]
    names = list(dict.fromkeys(text for text in texts if _RUN.match(text)))
    codes = {text: code for code, text in enumerate(names)}
    name = np.array([codes.get(text, -1) for text in texts], np.int64)[trace.ranges.name]
    inside = np.append(ancestors_or_self(attribution.parent, name >= 0), False)[attribution.parent]
    rows = np.flatnonzero((name >= 0) & ~inside)
    return _Runs(rows, name[rows], names)


def _work_inside(attribution: Attribution, runs: NDArray[np.intp]) -> pd.DataFrame:
    """``run, name, kind, count, sum_ns`` of the ops launched inside each run: a number in ``runs``, an op name code."""
    trace = attribution.trace
    number = np.zeros(len(trace.ranges), np.int32)
    number[runs] = np.arange(len(runs))
    found = [_added_up(trace, number[:0], runs[:0])]
    found += [
        _added_up(trace, run, rows) for run, rows in cover(attribution, runs, number, len(runs)).ops(trace)
    ]
    work = pd.concat(found, ignore_index=True)
    return work.groupby(["run", "name", "kind"], as_index=False).sum()


def _added_up(trace: Trace, run: NDArray[np.integer], rows: NDArray[np.integer]) -> pd.DataFrame:
    """The columns of `_work_inside` for ops ``rows``, each in a run."""
    ops, names = trace.ops, max(len(trace.op_names), 1)
    key = (run.astype(np.int64) * names + ops.name[rows]) * 4 + ops.kind[rows]
    distinct, group = np.unique(key, return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, group.reshape(-1), ops.end[rows] - ops.start[rows])
    return pd.DataFrame(
        {
            "run": distinct // 4 // names,
            "name": distinct // 4 % names,
            "kind": distinct % 4,
            "count": np.bincount(group.reshape(-1), minlength=len(distinct)).astype(np.int64),
            "sum_ns": total,
        }
    )


def _traits(kinds: Kinds, backends: list[str]) -> NDArray[np.bool_]:
    """What kernels of each name are, a row per name: the columns are `_IS_KERNEL` … and the fused ``backends``."""
    out = np.zeros((len(kinds.family), _FUSED + len(backends)), bool)
    named = zip(kinds.family, kinds.attention_backend, kinds.cause, kinds.rule, strict=True)
    for traits, (family, backend, cause, rule) in zip(out, named, strict=True):
        traits[_IS_KERNEL] = True
        traits[_IS_UNKNOWN] = rule == UNMATCHED or (family == "attention" and backend is None)
        traits[_IS_GEMM] = family == "gemm"
        traits[_IS_SOFTMAX] = family == "softmax" and not cause.startswith(_OTHER_SOFTMAX)
        if backend is not None:
            traits[_FUSED + backends.index(backend)] = True
    return out


def _judged(
    runs: _Runs,
    run: NDArray[np.int64],
    traits: NDArray[np.bool_],
    backends: list[str],
    trace: Trace,
) -> tuple[NDArray[np.intp], list[str], NDArray[np.bool_]]:
    """The row of the answer for each run, what was observed in each row, and which work decided.

    ``run`` and ``traits`` are of the rows of `_work_inside`. Runs of one name with one observation share a row.
    """
    seen = np.zeros((len(runs.rows), traits.shape[1]), bool)
    which, column = np.nonzero(traits)
    seen[run[which], column] = True
    kinds, kind = np.unique(seen, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    answers = [_observed(each, backends) for each in kinds]
    labels = sorted({label for label, _ in answers})
    label = np.array([labels.index(text) for text, _ in answers], np.int64)[kind]
    decides = np.array([traits for _, traits in answers], bool).reshape(len(answers), traits.shape[1])

    keys, row = np.unique(runs.name * len(labels) + label, return_inverse=True)
    row = row.reshape(-1)
    first = np.full(len(keys), np.iinfo(np.int64).max)
    np.minimum.at(first, row, trace.ranges.start[runs.rows])
    order = np.argsort(first, kind="stable")
    place = np.empty(len(keys), np.intp)
    place[order] = np.arange(len(keys))
    observed = [labels[code] for code in (keys[order] % max(len(labels), 1)).tolist()]
    return place[row], observed, (traits & decides[kind[run]]).any(axis=1)


def _observed(seen: NDArray[np.bool_], backends: list[str]) -> tuple[str, NDArray[np.bool_]]:
    """What kernels with these traits together are, and the traits that decide it."""
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


def _range_rows(runs: _Runs, row: NDArray[np.intp], observed: list[str], rules: Rules) -> pd.DataFrame:
    """The first columns of `BackendVerdict.ranges`."""
    name = np.zeros(len(observed), np.int64)
    name[row] = runs.name
    texts = [runs.names[code] for code in name.tolist()]
    requested = [match[1] for match in map(_RUN.match, texts) if match]
    known = {rule.attention_backend.casefold() for rule in rules.rules if rule.attention_backend} | {_MATH}
    agrees = [_agrees(*pair, known) for pair in zip(requested, observed, strict=True)]
    return pd.DataFrame(
        {
            "range": pd.Series(texts, dtype=object),
            "requested": pd.Series(requested, dtype=object),
            "observed": pd.Series(observed, dtype=object),
            "agrees": pd.array(agrees, dtype="boolean"),
            "instances": np.bincount(row, minlength=len(observed)).astype(np.int64),
        }
    )


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
    return [", ".join(f"{name} x {count:,}" for name, count in found.items()) for found in counts]


def _warnings(
    attribution: Attribution, ranges: pd.DataFrame, kernels: pd.DataFrame, graphs: set[int]
) -> Iterator[str]:
    """``graphs`` are the rows with CUDA graphs that were traced whole."""
    unknown = ranges.index[ranges["observed"] == UNKNOWN]
    whole = [row for row in unknown if row in graphs]
    if whole:
        yield (
            f"the backend of {_listed(ranges['range'][whole].tolist())} is unknown: CUDA graphs were traced whole;"
            " capture with --cuda-graph-trace=node"
        )
    strange = [row for row in unknown if row not in graphs]
    if strange:
        mine = kernels[kernels["row"].isin(strange)]
        by_name = mine.groupby("kernel")["sum_ns"].sum().sort_values(ascending=False, kind="stable")
        names = [short_name(name) for name in by_name.index.tolist()]
        yield (
            f"the backend of {_listed(ranges['range'][strange].tolist())} is unknown: no rule knows the attention in"
            f" {_listed(names)}; name it in a rule file: --rules FILE"
        )
    lost = attribution.ledger[AMBIGUOUS].ops + attribution.ledger[NO_LAUNCH].ops
    if lost and len(ranges):
        yield f"ops that belong to no range for sure, and so do not count for its backend: {lost:,}"


def _listed(texts: Sequence[Any]) -> str:
    """The first few different texts, and how many more there are."""
    texts = list(dict.fromkeys(texts))
    more = f" and {len(texts) - _MOST_NAMED:,} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + more
