"""Analyze one report: open it, choose ranges, and break the time down by range path and by kernel."""

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.ledger import warnings
from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.globs import no_match
from nsysprof.attribution.graph_work import graph_work
from nsysprof.attribution.paths import (
    DEFAULT_MERGE,
    Instances,
    Paths,
    instance_numbers,
    instances_text,
    merged_paths,
    range_paths,
    warm_up,
)
from nsysprof.attribution.split import BY, Part, parts
from nsysprof.core.arrays import Ints, Ints32, Mask
from nsysprof.core.nesting import ancestors_or_self
from nsysprof.core.text import quote_path
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import Rules, kinds_of, load_rules
from nsysprof.trace.details import CALL_KINDS
from nsysprof.trace.trace import Report, Trace


def analyze(
    report: str | os.PathLike[str] | Report | Trace | Attribution,
    select: str | None = None,
    *,
    threads: str = "follow",
    graphs: str = "launched",
    ranges: str = "auto",
    rules: str | os.PathLike[str] | Rules | None = None,
    **options: Any,
) -> Breakdown:
    """Break a report down by range path and by kernel: open it, attribute its GPU ops, and add up their times.

    ``report`` is a file of any supported recorder, or a result of `open_report`, `read_tables` or `attribute`;
    ``select`` is a glob of ranges to keep; ``threads``, ``graphs`` and ``ranges`` are as in `attribute`, and
    ``options`` are as in `break_down`; ``rules`` is a file of kernel rules tried before the shipped rules. Raises
    `NsysprofError` if the report cannot be read, or if no range matches.
    """
    known = rules if isinstance(rules, Rules) else load_rules(Path(rules) if rules is not None else None)
    attribution = attribute(report, threads, graphs=graphs, ranges=ranges)
    return break_down(attribution, select=select, rules=known, **options)


def break_down(
    attribution: Attribution,
    *,
    merge: Sequence[str] | None = DEFAULT_MERGE,
    select: str | None = None,
    skip: int = 0,
    instances: Instances | None = None,
    by: str | None = None,
    rules: Rules | None = None,
    calls: Sequence[str] = CALL_KINDS,
    since: str | None = None,
    until: str | None = None,
    replay: bool = True,
) -> Breakdown:
    """Break an attributed report down by range path and by kernel.

    ``merge``: globs that replace matching names in merged paths (None: no merging). ``select``: a glob that keeps
    ranges with a matching path, merged path or name, and all ranges inside them. ``skip``: the number of first
    instances to leave out of each repeated range (warm-up). ``instances``: the first and the last instance to keep of
    each merged path, counted from 0. ``by``: the property by which to split each row, one of `BY`. ``since`` and
    ``until`` (seconds, or globs of range names) keep only the ranges between these times. Without ``replay``, the
    diagnosis tries no fix. The ledger and totals always cover the whole report.

    Raises `NsysprofError` if nothing matches ``select``, or if ``by`` is unknown.
    """
    if by is not None and by not in BY:
        raise NsysprofError(f"cannot split rows by {by!r}", f"choose one of {', '.join(BY)}")
    trace = attribution.trace
    paths = range_paths(attribution)
    merged = merged_paths(paths, merge)
    merged_of = merged.of[paths.of]
    selected = _selected(paths, merged, select, trace)[paths.of]
    left_out = warm_up(attribution, merged_of, skip)
    keep = selected & ~left_out
    graphs = graph_work(attribution)
    notes = [*warnings(attribution, paths, left_out, skip, select, int(selected.sum()))]
    options: dict[str, Any] = {
        "select": select,
        "skip": skip,
        "merge": list(merge) if merge is not None else None,
        "calls": list(calls),
        **({} if replay else {"replay": False}),
    }
    if since is not None or until is not None:
        low, high = _within(trace, since, until)
        keep &= (trace.ranges.start >= low) & (trace.ranges.end <= high)
        options |= {"from": since, "to": until}
        if not keep.any():
            raise NsysprofError(
                f"{trace.report.path}: no range within --from {since or 0} --to {until or 'the end'}",
                f"nsysprof ranges {quote_path(trace.report.path)}",
            )
    if instances is not None:
        numbers = instance_numbers(merged_of, trace.ranges.start)
        keep &= (numbers >= instances[0]) & (numbers <= instances[1])
        options["instances"] = list(instances)
        notes.append(f"only these instances of each range: {instances_text(instances)} (--instance)")
    return Breakdown(
        attribution=attribution,
        paths=paths,
        options=options,
        by=by,
        merged_paths=merged,
        kinds=kinds_of(trace, rules),
        kept=keep,
        graphs=graphs,
        parts=tuple(_with_rows(parts(attribution, keep, by, graphs), merged_of, len(merged))),
        notes=tuple(notes),
    )


def _with_rows(slices: list[Part], merged_of: Ints32, count: int) -> Iterator[tuple[Part, Ints]]:
    """Number the rows of merged paths, whose table is ordered part by part: yield each part with the row of each path.

    The row is -1 for a merged path without instances, and in an additional last entry for "no path".
    """
    before = 0
    for part in slices:
        some = np.bincount(merged_of[part.keep], minlength=count) > 0
        yield part, np.append(np.where(some, np.cumsum(some) - 1 + before, -1), -1)
        before += int(some.sum())


def _selected(paths: Paths, merged: Paths, select: str | None, trace: Trace) -> Mask:
    """Select paths by a glob that matches the path, its merged path or its name, or an ancestor's."""
    if select is None:
        return np.ones(len(paths), bool)

    def matches(texts: Sequence[str]) -> Mask:
        return np.array([fnmatchcase(text, select) for text in texts], bool)

    texts, merged_texts = paths.texts(), merged.texts()
    hit = matches(texts)
    if len(paths):
        hit |= matches(paths.names)[paths.name] | matches(merged_texts)[merged.of]
    hit = ancestors_or_self(paths.parent, hit)
    if not hit.any():
        raise no_match([*merged_texts, *merged.names], select, str(trace.report.path))
    return hit


def _within(trace: Trace, since: str | None, until: str | None) -> tuple[int, int]:
    """The ns from ``since`` to ``until``: seconds of the recording, or a glob of range names.

    Of ranges it is the start of the first that matches, and the end of the last.
    """
    limits = np.iinfo(np.int64)
    low, high = limits.min, limits.max
    names = [name.text for name in trace.range_names]
    for option, text in (("--from", since), ("--to", until)):
        if text is None:
            continue
        try:
            ns = round(float(text) * 1e9)
        except (ValueError, OverflowError):
            fits = np.array([fnmatchcase(name, text) for name in names], bool)[trace.ranges.name]
            if not fits.any():
                raise no_match(names, text, str(trace.report.path)) from None
            ns = int(trace.ranges.start[fits].min() if option == "--from" else trace.ranges.end[fits].max())
        low, high = (ns, high) if option == "--from" else (low, ns)
    if low >= high:
        raise NsysprofError(
            f"there are no ranges between --from {since} and --to {until}", "give --from the earlier time"
        )
    return low, high
