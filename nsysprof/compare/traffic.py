"""What hardware counters say of a side: bytes and FLOPs per kernel and per cause, over the time of the report.

The counters are of another run, under Nsight Compute, which makes kernels slower; so only what was counted is taken
from there, and the time from the report. A rate above what the GPU can do is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.attribution.globs import listed
from nsysprof.compare.attention_model import Expected
from nsysprof.compare.counter_match import CounterMatch, match_counters
from nsysprof.compare.pairs import Pair
from nsysprof.compare.selection import Examined, Side
from nsysprof.core.units import format_share
from nsysprof.errors import NsysprofError
from nsysprof.formats.counters import METRICS, CounterFile, counters_beside, read_counters
from nsysprof.hardware.peaks import share_of_peak
from nsysprof.kernels.classify import short_name

FLOPS = ("tensor_flops", "fp32_flops", "fp16_flops", "fp64_flops")
AMOUNTS = ("dram_read_bytes", "dram_write_bytes", "l2_bytes", "tensor_instructions", *FLOPS)
# What `cause_rows` tells of a cause, in the order of the columns that ``gap.csv`` gets for either side.
COLUMNS = ("dram_bytes", *AMOUNTS, "dram_bytes_per_s", "dram_share", "expected_bytes")
# Of the time of a cause's kernels; what little has no figures is taken to be like the rest.
_COMPLETE = 0.99
# Of the time of a side's kernels: with less its totals are not those of a call.
ENOUGH = 0.95
_MOST_NAMED = 4
SUSPECTS = (
    "the counters (bytes that L2 held in the report's run, or that other kernels wrote before)",
    "the bandwidth that the report states",
)


@dataclass(frozen=True)
class Measured:
    """What the counters say of one side, per call of it.

    ``kernels``, a row per row of `Side.evidence` that is a kernel: ``cause, kernel, grid, count`` (launches over all
    calls), ``sum_ns``, ``matched`` launches, and the `METRICS` of one launch. ``causes``, by cause: `COLUMNS`, NaN
    where they are not known; ``total`` the same of the whole call, without those that had no counters.
    ``matched_share`` is the part of the kernels' time that has figures, ``calls`` how many calls of the counters these
    are the medians of, ``l2_bytes`` the size of the GPU's cache where it is known. ``cold``: as in `CounterFile`.
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
        """Whether so much has figures that the totals are those of a call."""
        return self.matched_share >= ENOUGH


def measure(side: Side, match: CounterMatch, expected_bytes: Mapping[str, int]) -> Measured:
    """The `Measured` of a side; ``expected_bytes`` of each cause come from the model, if there is one."""
    kernels = _kernel_rows(side, match)
    causes, refused = _cause_rows(side, kernels, expected_bytes)
    time, known = float(kernels["sum_ns"].sum()), float(kernels["matched_ns"].sum())
    launches, matched = int(kernels["count"].sum()), int(kernels["matched"].sum())
    share = known / time if time else 0.0
    gpu = side.only_gpu
    total = _total(causes, kernels, side.ledger.calls)
    warnings = [*_unmatched(kernels, match, share), *refused]
    return Measured(
        path=match.counters.path,
        calls=match.calls,
        launches=launches,
        matched=matched,
        matched_share=share,
        kernels=kernels.drop(columns="matched_ns"),
        causes=causes,
        total=total,
        l2_bytes=gpu.l2_bytes if gpu else None,
        cold=match.counters.cold,
        warnings=tuple(warnings),
    )


def _kernel_rows(side: Side, match: CounterMatch) -> pd.DataFrame:
    work, rows = side.work, side.evidence_of
    some = match.of >= 0
    count = len(side.evidence)
    frame = side.evidence[["cause", "kernel", "grid", "count", "sum_ns"]].copy()
    frame["matched"] = np.bincount(rows[some], minlength=count)
    frame["matched_ns"] = np.bincount(
        rows[some], weights=(work.end - work.start)[some], minlength=count
    ).astype(np.int64)
    for name in METRICS:
        amount = np.bincount(rows[some], weights=match.values[name][match.of[some]], minlength=count)
        frame[name] = amount / frame["matched"].where(frame["matched"] > 0)
    kernel = np.bincount(rows[match.kernels], minlength=count) > 0
    return frame[kernel].reset_index(drop=True)


def _cause_rows(
    side: Side, kernels: pd.DataFrame, expected_bytes: Mapping[str, int]
) -> tuple[pd.DataFrame, list[str]]:
    """`COLUMNS` by cause, and what was refused."""
    calls = side.ledger.calls
    each = kernels[["cause", "sum_ns", "matched_ns"]].copy()
    for name in AMOUNTS:  # a row without figures counts nothing; too many of them, and the cause has none
        each[name] = (kernels[name] * kernels["count"]).mask(kernels["matched"] == 0, 0.0)
    grouped = each.groupby("cause", sort=False)
    frame = grouped[list(AMOUNTS)].agg(_whole_sum) / calls
    time = grouped["sum_ns"].sum()
    frame[grouped["matched_ns"].sum() < _COMPLETE * time] = np.nan
    frame["dram_bytes"] = frame["dram_read_bytes"] + frame["dram_write_bytes"]
    frame["dram_bytes_per_s"] = frame["dram_bytes"] / (time.where(time > 0) / calls) * 1e9
    most = side.only_gpu.bandwidth_bytes_per_s if side.only_gpu else None
    shares = {cause: _share(rate, most) for cause, rate in frame["dram_bytes_per_s"].items()}
    frame["dram_share"] = pd.Series(shares, dtype=float)
    beyond = [cause for cause, share in shares.items() if share > 1]
    frame.loc[beyond, ["dram_bytes_per_s", "dram_share"]] = np.nan
    frame["expected_bytes"] = frame.index.map(expected_bytes).astype(float)
    return frame[list(COLUMNS)], list(_refused({str(cause): shares[cause] for cause in beyond}))


def _whole_sum(values: pd.Series[float]) -> float:
    """The sum; NaN where a part is not known."""
    return float(values.sum(skipna=False))


def _share(rate: float, most: int | None) -> float:
    return rate / most if most else np.nan


def _refused(beyond: Mapping[str, float]) -> Iterator[str]:
    """One sentence on the causes that would have moved more than the memory can."""
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
    """`AMOUNTS` of a call, with its DRAM bytes and those expected, and its FLOPs; of what has figures."""
    some = kernels[kernels["matched"] > 0]
    found: dict[str, Any] = {
        name: float((some[name] * some["count"]).sum(skipna=False)) / calls if len(some) else np.nan
        for name in AMOUNTS
    }
    found["dram_bytes"] = found["dram_read_bytes"] + found["dram_write_bytes"]
    known = causes["expected_bytes"].dropna()
    found["expected_bytes"] = float(known.sum()) if len(known) else np.nan
    return {**found, "flops": flops_of(found)}


def flops_of(amounts: Mapping[str, float]) -> float:
    """All FLOPs, of whatever unit; NaN where none were counted."""
    known = [float(amounts[name]) for name in FLOPS if not np.isnan(amounts[name])]
    return sum(known) if known else np.nan


def tensor_share(amounts: Mapping[str, float]) -> float:
    """The part of the FLOPs that tensor cores do; NaN where that was not counted, or there are none."""
    flops = flops_of(amounts)
    return float(amounts["tensor_flops"]) / flops if flops else np.nan


def _unmatched(kernels: pd.DataFrame, match: CounterMatch, share: float) -> Iterator[str]:
    """The kernels without figures, by name, and how much of the time that is."""
    lost = kernels[kernels["matched"] < kernels["count"]]
    if lost.empty:
        return
    left: dict[str, int] = {}
    for kernel, time in zip(lost["kernel"], lost["sum_ns"] - lost["matched_ns"], strict=True):
        left[kernel] = left.get(kernel, 0) + int(time)
    longest = sorted(left, key=lambda kernel: -left[kernel])
    names = ", ".join(short_name(name, 40) for name in longest[:_MOST_NAMED])
    more = f" and {len(left) - _MOST_NAMED:,} more" if len(left) > _MOST_NAMED else ""
    told = f"no counters of {match.counters.path.name} match {names}{more}"
    if share < ENOUGH:
        yield (
            f"only {format_share(share)} of its kernels' time has counters, so that totals are not those of a call:"
            f" {told}; measure the program that the report is of"
        )
    else:
        yield f"{told}: {format_share(1 - share)} of its kernels' time"


Models = tuple[Expected | None, Expected | None]
BothMeasured = tuple[Measured | None, Measured | None]


def load_counters(
    examined: Sequence[Examined], files: Sequence[Path | None], versions: Sequence[Mapping[str, str]]
) -> tuple[list[CounterFile | None], list[str]]:
    """The counters of each report, None for none, and what must be known of them.

    A file that is named must be right: `NsysprofError` says what is wrong with it. One that only lies beside a report
    is left out with a warning then. ``versions`` are those of the libraries by the run record of each report.
    """
    found: list[CounterFile | None] = []
    warnings: list[str] = []
    for one, file, known in zip(examined, (*files, None, None), versions, strict=False):
        beside = counters_beside(one.path) if file is None else None
        path = file or beside
        try:
            counters = read_counters(path) if path else None
            if counters:
                _check_gpu(one, counters)
        except NsysprofError as error:
            if not beside:
                raise
            warnings.append(f"the counters beside the report are left out: {error.message}")
            counters = None
        if counters:
            warnings += [*counters.doubts, *_versions_differ(one, counters, known)]
        found.append(counters)
    return found, warnings


def _check_gpu(examined: Examined, counters: CounterFile) -> None:
    """Raise `NsysprofError` where the counters are of another GPU than all of the report's."""
    names = [str(gpu.name) for gpu in examined.attribution.trace.report.about.cuda_gpus]
    if counters.gpus and names and not set(names) & set(counters.gpus):
        raise NsysprofError(
            f"{counters.path} was measured on {' and '.join(counters.gpus)}, {examined.path} on"
            f" {' and '.join(dict.fromkeys(names))}",
            "nsysprof counters, on the GPU that the report is of",
        )


def _versions_differ(examined: Examined, counters: CounterFile, known: Mapping[str, str]) -> Iterator[str]:
    """Where other libraries ran, kernels of the same name may be others."""
    both = [name for name in known if name in counters.libraries]
    changed = [
        f"{name} {counters.libraries[name]} there, {known[name]} in the report"
        for name in both
        if counters.libraries[name] != known[name]
    ]
    if changed:
        yield f"{counters.path}: measured with other versions than {examined.path}: {'; '.join(changed)}"


def measured_pairs(
    pairs: Sequence[Pair],
    counters: Sequence[CounterFile | None],
    models: Mapping[str, Models],
    merge: Sequence[str] | None,
    *,
    named: bool,
) -> tuple[dict[str, BothMeasured], list[str]]:
    """For each pair what was measured of either side, and what has no counters.

    Where the files have nothing of any side, that is an error if they were ``named``, otherwise a warning.
    """
    of_report = {id(pair.base.examined): counters[0] for pair in pairs}
    of_report |= {id(pair.new.examined): counters[-1] for pair in pairs}
    done: dict[int, Measured | None] = {}
    warnings: list[str] = []
    missing: dict[Path, list[str]] = {}
    out: dict[str, BothMeasured] = {}
    for pair in pairs:
        for side, title, model in zip((pair.base, pair.new), pair.titles, models[pair.name], strict=True):
            file = of_report[id(side.examined)]
            if file is None or id(side) in done:
                done.setdefault(id(side), None)
                continue
            found = _measured(side, file, model, merge)
            done[id(side)] = found
            if found is None:
                missing.setdefault(file.path, []).append(side.text)
            else:
                warnings += [f"{title}: {text}" for text in found.warnings]
        out[pair.name] = (done[id(pair.base)], done[id(pair.new)])
    files = {file.path: file for file in counters if file}
    lacking = [_lacking(files[path], texts) for path, texts in missing.items()]
    if named and lacking and not any(done.values()):
        raise NsysprofError(lacking[0], f"cut -d, -f1 {quote(str(next(iter(missing))))} | uniq -c")
    return out, [*lacking, *warnings]


def _measured(
    side: Side, file: CounterFile, model: Expected | None, merge: Sequence[str] | None
) -> Measured | None:
    match = match_counters(side, file, merge)
    return measure(side, match, model.bytes_of if model else {}) if match else None


def _lacking(file: CounterFile, texts: Sequence[str]) -> str:
    tops = [path.rpartition("/")[0] or path for path in file.ranges if path]
    known = f"those of {listed(list(dict.fromkeys(tops)))}" if tops else "none inside of any range"
    return f"{file.path} has no kernels of {listed(texts)}; it has {known}"
