"""Compute the bytes and FLOPs of selected ranges from hardware counters, per kernel and per cause. Rates are bytes and
FLOPs divided by the times in the report.

Times are from the report, because kernels run slower while Nsight Compute counts. A rate above the GPU's limit is
refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.attribution.globs import listed
from nsysprof.compare.attention_model import Models
from nsysprof.compare.counter_match import CounterMatch, match_counters
from nsysprof.compare.loaded import LoadedReport
from nsysprof.compare.pairs import Pair
from nsysprof.compare.selection import Selection
from nsysprof.core.text import join_first
from nsysprof.core.units import format_share
from nsysprof.errors import NsysprofError
from nsysprof.formats.counters import METRICS, CounterFile, counters_beside, read_counters
from nsysprof.hardware.peaks import share_of_peak
from nsysprof.kernels.classify import short_name
from nsysprof.trace.trace import GRAPH, KERNEL

FLOPS = ("tensor_flops", "fp32_flops", "fp16_flops", "fp64_flops")
AMOUNTS = ("dram_read_bytes", "dram_write_bytes", "l2_bytes", "tensor_instructions", *FLOPS)
# The columns of `Measured.causes`, in the order in which ``gap.csv`` has them for either side.
COLUMNS = ("dram_bytes", *AMOUNTS, "dram_bytes_per_s", "dram_share", "expected_bytes")
# Of the time of a cause's kernels: the remaining kernels are taken to be like the rest.
MIN_MATCHED_OF_CAUSE = 0.99
# Of the time of a side's kernels: with less its totals are not those of a call.
MIN_MATCHED_OF_SIDE = 0.95
MAX_NAMES = 4
SUSPECTS = (
    "the counters (they also count write-backs of earlier kernels, and reads that hit L2 in a run without counters)",
    "the memory bandwidth that the report records",
)


@dataclass(frozen=True)
class Measured:
    """The measurement of one side, per call.

    ``kernels`` has a row per kernel row of `Selection.evidence`: ``cause, kernel, grid, count`` (the number of launches
    over all calls), ``sum_ns``, ``matched`` (the number of launches with counters), and the `METRICS` of one launch.
    ``causes`` has the `COLUMNS` of each cause, NaN if unknown. ``total`` has the `COLUMNS` of the whole call, without
    kernels that lack counters. ``matched_share`` is the share of kernel time with counters, ``calls`` is the number of
    counted calls behind the medians, and ``l2_bytes`` is the size of the GPU's L2 cache if known. ``cold`` is as in
    `CounterFile`.
    """

    path: Path
    calls: int
    launches: int
    matched: int
    matched_share: float
    kernels: pd.DataFrame
    causes: pd.DataFrame
    total: Mapping[str, float]
    l2_bytes: int | None
    cold: bool | None
    warnings: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Return whether enough kernels have counters for totals per call."""
        return self.matched_share >= MIN_MATCHED_OF_SIDE


BothMeasured = tuple[Measured | None, Measured | None]


def measure(side: Selection, match: CounterMatch, expected_bytes: Mapping[str, int]) -> Measured:
    """The `Measured` of a side; ``expected_bytes`` of each cause come from the model, if any."""
    kernels = _kernel_rows(side, match)
    causes, refused = _cause_rows(side, kernels, expected_bytes)
    time, known = float(kernels["sum_ns"].sum()), float(kernels["matched_ns"].sum())
    share = known / time if time else 0.0
    gpu = side.only_gpu
    return Measured(
        path=match.counters.path,
        calls=match.calls,
        launches=int(kernels["count"].sum()),
        matched=int(kernels["matched"].sum()),
        matched_share=share,
        kernels=kernels.drop(columns="matched_ns"),
        causes=causes,
        total=_total(causes, kernels, side.ledger.calls),
        l2_bytes=gpu.l2_bytes if gpu else None,
        cold=match.counters.cold,
        warnings=(*_unmatched(kernels, match, share), *refused),
    )


def _kernel_rows(side: Selection, match: CounterMatch) -> pd.DataFrame:
    work, rows = side.work, side.evidence_of
    some = match.of >= 0
    count = len(side.evidence)
    frame = side.evidence[["cause", "kernel", "grid", "count", "sum_ns"]].copy()
    frame["matched"] = np.bincount(rows[some], minlength=count)
    time = np.bincount(rows[some], weights=(work.end - work.start)[some], minlength=count)
    frame["matched_ns"] = time.astype(np.int64)
    for name in METRICS:
        amount = np.bincount(rows[some], weights=match.values[name][match.of[some]], minlength=count)
        frame[name] = amount / frame["matched"].where(frame["matched"] > 0)
    kernels = np.isin(side.loaded.trace.ops.kind[work.op], (KERNEL, GRAPH))
    return frame[np.bincount(rows[kernels], minlength=count) > 0].reset_index(drop=True)


def _cause_rows(
    side: Selection, kernels: pd.DataFrame, expected_bytes: Mapping[str, int]
) -> tuple[pd.DataFrame, list[str]]:
    """`COLUMNS` by cause, and a sentence if figures are refused."""
    calls = side.ledger.calls
    each = kernels[["cause", "sum_ns", "matched_ns"]].copy()
    for name in AMOUNTS:  # a row without figures counts nothing; too many of them, and the cause has none
        each[name] = (kernels[name] * kernels["count"]).mask(kernels["matched"] == 0, 0.0)
    grouped = each.groupby("cause", sort=False)
    amounts = list(AMOUNTS)
    frame = grouped[amounts].sum().mask(each[amounts].isna().groupby(each["cause"], sort=False).any()) / calls
    time = grouped["sum_ns"].sum()
    frame[grouped["matched_ns"].sum() < MIN_MATCHED_OF_CAUSE * time] = np.nan
    frame["dram_bytes"] = frame["dram_read_bytes"] + frame["dram_write_bytes"]
    frame["dram_bytes_per_s"] = frame["dram_bytes"] / (time.where(time > 0) / calls) * 1e9
    gpu = side.only_gpu
    shares = frame["dram_bytes_per_s"] / ((gpu.bandwidth_bytes_per_s if gpu else None) or np.nan)
    frame["dram_share"] = shares
    beyond = {str(cause): share for cause, share in shares.items() if share > 1}
    frame.loc[[*beyond], ["dram_bytes_per_s", "dram_share"]] = np.nan
    frame["expected_bytes"] = frame.index.map(expected_bytes).astype(float)
    return frame[list(COLUMNS)], list(_refused(beyond))


def _refused(beyond: Mapping[str, float]) -> Iterator[str]:
    """One sentence on the causes whose traffic would exceed the memory bandwidth."""
    if not beyond:
        return
    worst = max(beyond, key=lambda cause: beyond[cause])
    others = len(beyond) - 1
    what = f"DRAM bytes of {worst}{f' and {others} more' if others else ''} over their time"
    try:
        share_of_peak(beyond[worst], 1.0, what=what, suspects=SUSPECTS)
    except NsysprofError as error:
        yield error.message


def _total(causes: pd.DataFrame, kernels: pd.DataFrame, calls: int) -> dict[str, float]:
    """`AMOUNTS` of a call, with measured and expected DRAM bytes and FLOPs, over the kernels with figures."""
    some = kernels[kernels["matched"] > 0]
    total: dict[str, Any] = {
        name: float((some[name] * some["count"]).sum(skipna=False)) / calls if len(some) else np.nan for name in AMOUNTS
    }
    total["dram_bytes"] = total["dram_read_bytes"] + total["dram_write_bytes"]
    total["expected_bytes"] = float(causes["expected_bytes"].sum(min_count=1))
    return {**total, "flops": flops_of(total)}


def flops_of(amounts: Mapping[str, float]) -> float:
    """Return all FLOPs, on any unit, or NaN if not counted."""
    known = [float(amounts[name]) for name in FLOPS if not np.isnan(amounts[name])]
    return sum(known) if known else np.nan


def tensor_share(amounts: Mapping[str, float]) -> float:
    """Return the share of FLOPs on tensor cores; NaN if not counted, or if there are no FLOPs."""
    flops = flops_of(amounts)
    return float(amounts["tensor_flops"]) / flops if flops else np.nan


def _unmatched(kernels: pd.DataFrame, match: CounterMatch, share: float) -> Iterator[str]:
    lost = kernels[kernels["matched"] < kernels["count"]]
    if lost.empty:
        return
    left = (lost["sum_ns"] - lost["matched_ns"]).groupby(lost["kernel"], sort=False).sum()
    longest = left.sort_values(ascending=False, kind="stable").index.tolist()
    names = join_first(longest, MAX_NAMES, lambda name: short_name(name, 40))
    no_match = f"no counters of {match.counters.path.name} match {names}"
    if share < MIN_MATCHED_OF_SIDE:
        yield (
            f"counters cover only {format_share(share)} of the kernel time, so there are no totals per "
            f"call: {no_match}; run nsysprof counters on the recorded program"
        )
    else:
        yield f"{no_match} ({format_share(1 - share)} of the kernel time)"


def load_counters(
    reports: Sequence[LoadedReport], files: Sequence[Path | None], versions: Sequence[Mapping[str, str]]
) -> tuple[list[CounterFile | None], list[str]]:
    """Load the counters of each report (None if a report has none), and warnings about them.

    Raises `NsysprofError` if a file that the user names is invalid. An invalid file that was found beside a report is
    left out with a warning. ``versions`` are the library versions in the run record of each report.
    """
    loaded: list[CounterFile | None] = []
    warnings: list[str] = []
    for report, file, known in zip(reports, (*files, None, None), versions, strict=False):
        beside = counters_beside(report.path) if file is None else None
        path = file or beside
        try:
            counters = read_counters(path) if path else None
            if counters:
                _check_gpu(report, counters)
        except NsysprofError as error:
            if not beside:
                raise
            warnings.append(f"ignoring the counters beside the report: {error.message}")
            counters = None
        if counters:
            warnings += [*counters.doubts, *_other_versions(report, counters, known)]
        loaded.append(counters)
    return loaded, warnings


def _check_gpu(loaded: LoadedReport, counters: CounterFile) -> None:
    """Raise `NsysprofError` if the counters are from a GPU that is none of the report's."""
    names = [str(gpu.name) for gpu in loaded.report.about.cuda_gpus]
    if counters.gpus and names and not set(names) & set(counters.gpus):
        raise NsysprofError(
            f"{counters.path} was measured on {' and '.join(counters.gpus)}, but {loaded.path} was recorded on "
            f"{' and '.join(dict.fromkeys(names))}",
            "nsysprof counters, on the report's GPU",
        )


def _other_versions(loaded: LoadedReport, counters: CounterFile, known: Mapping[str, str]) -> Iterator[str]:
    """Warn about libraries of other versions, whose kernels may differ despite equal names."""
    changed = [
        f"{name} {counters.libraries[name]} there, {version} in the report"
        for name, version in known.items()
        if counters.libraries.get(name, version) != version
    ]
    if changed:
        yield f"{counters.path} was measured with other library versions than {loaded.path}: {'; '.join(changed)}"


def measure_pairs(
    pairs: Sequence[Pair],
    counters: Sequence[CounterFile | None],
    models: Mapping[str, Models],
    merge: Sequence[str] | None,
    *,
    named: bool,
) -> tuple[dict[str, BothMeasured], list[str]]:
    """Measure each side of each pair (empty if no report has ``counters``); also return warnings.

    Files that match no side are an error if the user ``named`` them, otherwise a warning.
    """
    if not any(counters):
        return {}, []
    done: dict[int, Measured | None] = {}
    warnings: list[str] = []
    missing: dict[Path, tuple[CounterFile, list[str]]] = {}
    for pair in pairs:
        each = zip(pair.sides, pair.titles, models[pair.name], (counters[0], counters[-1]), strict=True)
        for side, title, model, file in each:
            if id(side) in done:
                continue
            match = match_counters(side, file, merge) if file else None
            measured = measure(side, match, model.bytes_of if model else {}) if match else None
            done[id(side)] = measured
            if measured:
                warnings += [f"{title}: {text}" for text in measured.warnings]
            elif file and (named or not side.is_whole):
                missing.setdefault(file.path, (file, []))[1].append(side.text)
    lacking = [_lacking(file, texts) for file, texts in missing.values()]
    if named and lacking and not any(done.values()):
        raise NsysprofError(lacking[0], f"cut -d, -f1 {quote(str(next(iter(missing))))} | uniq -c")
    return {pair.name: (done[id(pair.base)], done[id(pair.new)]) for pair in pairs}, [*lacking, *warnings]


def _lacking(file: CounterFile, texts: Sequence[str]) -> str:
    tops = [path.rpartition("/")[0] or path for path in file.ranges if path]
    known = f"kernels of {listed(list(dict.fromkeys(tops)))}" if tops else "no kernels inside a range"
    return f"{file.path} has no kernels of {listed(texts)}; it has {known}"
