"""The result over all ranks: stragglers, which rank waits for which, and how the slowest rank spends its time."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.charts.notebook import Shown
from nsysprof.core.arrays import Floats, Ints
from nsysprof.core.text import join_first, plural
from nsysprof.core.units import format_share
from nsysprof.errors import NsysprofError
from nsysprof.fleet.examine import ReportFailure
from nsysprof.fleet.findings import fleet_findings
from nsysprof.fleet.identity import FILE_NAME, ORDER, Identity, Ranked, identify_ranks
from nsysprof.fleet.rank_part import FAR_LONGER
from nsysprof.fleet.stragglers import NOT_PROVEN, Waiting, find_waiting, iteration_rows, outlier_rows, straggler_rows
from nsysprof.fleet.tables import (
    BLOCKED,
    OWN_PARTS,
    SUMS,
    WAITS,
    iteration_frame,
    own_matrix,
    path_frame,
    rank_rows,
    spread_frame,
)
from nsysprof.formats.rank_answer import (
    BLOCKING,
    COMMUNICATION,
    COMPUTE,
    COPIES,
    EXPOSED,
    IDLE_PARTS,
    PARTS,
    WHOLE,
    ReportAnswer,
)
from nsysprof.statistics.judge import count_warm_up

# Ranks whose clocks put their iterations further apart than this many times their length have no common time.
_MAX_APART = 4
_MAX_RANKS_NAMED = 3  # in a warning


@dataclass(frozen=True)
class RankLane:
    """The activity of one rank over time: ``start_ns`` and ``end_ns`` are on the common clock. The time between them is
    divided into equal bins, each with a share (0 to 1) of compute and a share of communication without compute.
    """

    rank: int
    start_ns: int
    end_ns: int
    compute: Floats
    exposed: Floats


@dataclass(frozen=True, repr=False)
class Fleet(Shown):
    """The result over all ranks; all data frames have a default index, and times are int64 ns.

    ``ranks``: a row per rank with the columns of ``ranks.csv``: identity, parts of its iteration time, collectives, and
    whether the rank is a straggler. ``paths``: a row per path and rank (``fleet.csv``). ``iterations``: a row per path
    and iteration with the distribution over ranks (``iterations.csv``). ``spread``: a row per path. ``outliers``:
    exceptionally long iterations of single ranks. ``split``: each kind of time, as mean ns per iteration, for the
    slowest rank and for the median rank.

    ``iteration_path`` is the path of the iterations, `WHOLE` if nothing repeats. ``source``: how ranks were numbered;
    ``clock``: how clocks were aligned. ``lanes`` is a lane per rank on the common clock. ``failures`` are reports
    without a result.

    ``usual``: the ``ranks``, but summed only over usual iterations, as in text, page and charts. Iterations that take
    more than `FAR_LONGER` times the median on any rank, such as warm-up, are in ``left_out``.
    """

    iteration_path: str
    ranks: pd.DataFrame
    usual: pd.DataFrame
    left_out: tuple[str, ...]
    paths: pd.DataFrame
    iterations: pd.DataFrame
    spread: pd.DataFrame
    outliers: pd.DataFrame
    split: pd.DataFrame
    waiting: Waiting
    source: str
    clock: str
    lanes: tuple[RankLane, ...] = field(repr=False)
    findings: tuple[str, ...]
    warnings: tuple[str, ...]
    failures: tuple[ReportFailure, ...]
    options: dict[str, Any]


def fleet_answer(
    answers: Sequence[ReportAnswer | ReportFailure],
    *,
    rank_from: re.Pattern[str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Fleet:
    """Build the `Fleet` from the reports' answers, in the order given.

    ``rank_from`` finds the rank's number in a file name; ``options`` are kept unchanged; the option ``per`` names the
    requested iterations. Raises `NsysprofError` if no report could be read, if no report has these iterations, or if
    `identify_ranks` fails.
    """
    good = [answer for answer in answers if isinstance(answer, ReportAnswer)]
    failures = [answer for answer in answers if isinstance(answer, ReportFailure)]
    if not good:
        first = failures[0]
        more = f" (and {plural(len(failures) - 1, 'report')} more)" if len(failures) > 1 else ""
        raise NsysprofError(f"{first.reason}{more}", first.hint)
    identity = identify_ranks(answers, rank_from)
    path = _iteration_path(identity.ranks, (options or {}).get("per"))
    if (options or {}).get("per") is None and identity.source in (ORDER, FILE_NAME):
        _refuse_strangers(identity.ranks, path)
    rows = rank_rows(identity.ranks)
    iterations = iteration_frame(rows)
    paths = path_frame(rows, iterations)
    own = own_matrix(rows, path)
    waiting = find_waiting(identity.ranks, path)
    whole = paths[paths["path"] == WHOLE].set_index("rank")
    own = own.drop(columns=_warm_up(identity.ranks, path))
    slow = straggler_rows(own if own.shape[1] else whole[["own_ns"]].astype(float))
    ranks = _rank_frame(identity, whole, paths[paths["path"] == path].set_index("rank"), waiting, slow)
    own_iterations = iterations[iterations["path"] == path]
    far = own_iterations["span_max_ns"] > FAR_LONGER * own_iterations["span_max_ns"].median()
    far |= own_iterations["iteration"].isin(_warm_up(identity.ranks, path))
    left_out = tuple(own_iterations["iteration"][far].tolist())
    usual, usual_waiting = ranks, waiting
    if left_out:
        each, late = (frame[~frame["label"].isin(left_out)] for frame in (waiting.each, waiting.late))
        usual_waiting = replace(waiting, each=each, late=late)
        usual = _usual(identity.ranks, ranks, path, left_out, usual_waiting)
    lanes, clock = _lanes(identity.ranks, waiting)
    spread, split, outliers = spread_frame(paths, iterations), _split(usual), outlier_rows(own)
    findings = fleet_findings(path, usual, left_out, iterations, spread, split, outliers, usual_waiting)
    warnings = (*identity.warnings, *_warnings(identity.ranks, path, own, waiting))
    return Fleet(
        iteration_path=path,
        ranks=ranks,
        usual=usual,
        left_out=left_out,
        paths=paths,
        iterations=iterations,
        spread=spread,
        outliers=outliers,
        split=split,
        waiting=waiting,
        source=identity.source,
        clock=clock,
        lanes=lanes,
        findings=tuple(findings),
        warnings=(*warnings, *_outside(path, ranks, options)),
        failures=tuple(failures),
        options=dict(options or {}),
    )


def _iteration_path(ranks: Sequence[Ranked], per: str | None) -> str:
    """Choose the path of the iterations of most ranks; in a tie, a path that repeats comes before the whole report.

    If ``per`` names the iterations, ranks without such iterations do not vote.
    """
    votes = Counter(each.part.iteration_path for each in ranks)
    if per is not None:
        del votes[WHOLE]
    if not votes:
        raise NsysprofError(
            f"--per {per!r} matches no range with GPU work on any rank",
            f"nsysprof analyze {quote(ranks[0].answer.report)}   (lists the ranges)",
        )
    return max(votes, key=lambda path: (votes[path], path != WHOLE))


def _refuse_strangers(ranks: Sequence[Ranked], path: str) -> None:
    """Raise `NsysprofError` if reports that do not record their ranks are not from ranks of one job.

    Ranks of one job mostly have the same steps, and share collectives if they have any.
    """
    if len({each.answer.report for each in ranks}) < 2:
        return
    names = [frozenset(each.part.collective_names) for each in ranks]
    have = [each for each, kept in zip(ranks, names, strict=True) if kept]
    other = next((each for each in ranks if each.part.iteration_path != path), None)
    if 2 * sum(each.part.iteration_path == path for each in ranks) <= len(ranks) and other is not None:
        why = f"the steps are {other.part.iteration_path!r} in {other.answer.report}, but {path!r} in other reports"
    elif len(have) > 1 and not frozenset.intersection(*(each for each in names if each)):
        why = f"{have[0].answer.report} and {have[1].answer.report} have no collective in common"
    else:
        return
    first, last = quote(ranks[0].answer.report), quote(ranks[-1].answer.report)
    raise NsysprofError(
        f"these reports are not ranks of one job: {why}",
        f"nsysprof compare {first} {last}; for ranks of one job, name the steps with --per GLOB",
    )


def _warm_up(ranks: Sequence[Ranked], path: str) -> list[str]:
    """The first iterations that are warm-up on any rank; these iterations are not judged."""
    labels: dict[str, None] = {}
    for each in ranks:
        rows = iteration_rows(each.part, path)
        rows = rows[each.part.label[rows] > 0]
        rows = rows[np.argsort(each.part.first_ns[rows], kind="stable")]
        first = rows[: count_warm_up(each.part.columns["span"][rows])]
        labels |= dict.fromkeys(each.part.labels[at] for at in each.part.label[first].tolist())
    return list(labels)


def _rank_frame(
    identity: Identity, whole: pd.DataFrame, iterations: pd.DataFrame, waiting: Waiting, slow: pd.DataFrame
) -> pd.DataFrame:
    """Fill the columns of ``ranks.csv``: times of the ``iterations``; columns ``report_…``: times of the ``whole``."""
    frame = pd.DataFrame(
        {
            "rank": each.rank,
            "report": _encodable(each.answer.report),
            "host": _encodable(each.answer.host or ""),
            "pid": each.part.pid,
            "process": _encodable(each.part.process),
            "gpu": ", ".join(map(str, each.part.gpu_ids)),
            "gpu_name": _encodable(", ".join(dict.fromkeys(each.part.gpus))),
            "nsys_version": each.answer.nsys_version or "",
            "report_duration_ns": each.answer.duration_ns or 0,
        }
        for each in identity.ranks
    )
    whole, sums = whole.reindex(frame["rank"]), iterations.reindex(frame["rank"])
    for name in ("span_ns", "busy_ns"):
        frame[f"report_{name}"] = whole[name].to_numpy()
    for name in ("iterations", *(f"{name}_ns" for name in SUMS)):
        frame[name] = sums[name].fillna(0).to_numpy(np.int64)
    for name in ("own_median_ns", "span_median_ns"):
        frame[name] = sums[name].to_numpy()
    frame["times_slowest"] = sums["times_slowest"].fillna(0).to_numpy(np.int64)
    frame = frame.assign(**_waited(frame["rank"], waiting)).pipe(_blocked, identity.ranks, waiting)
    frame["clock_offset_ns"] = frame["rank"].map(dict(waiting.offset_ns))
    frame = frame.merge(slow, on="rank", how="left", validate="one_to_one")
    frame["straggler"] = frame["straggler"].eq(True)  # NaN of a rank without iterations is no straggler
    frame = frame.fillna({"verdict": NOT_PROVEN, "basis": ""})
    frame[["slower", "compared"]] = frame[["slower", "compared"]].fillna(0).astype(np.int64)
    frame["seconds"] = [each.answer.seconds for each in identity.ranks]
    frame["peak_bytes"] = [each.answer.peak_bytes for each in identity.ranks]
    return frame


def _waited(numbers: pd.Series, waiting: Waiting) -> dict[str, Ints]:
    """For each rank, add up its `WAITS`, and count the iterations in which it arrives last at the collectives."""
    together = waiting.each.groupby("rank")[list(WAITS)].sum().reindex(numbers, fill_value=0)
    last = waiting.each.sort_values(["collective_ns", "rank"], kind="stable").drop_duplicates("label")
    times = numbers.map(last["rank"].value_counts()).fillna(0)
    return {**{name: together[name].to_numpy(np.int64) for name in WAITS}, "times_awaited": times.to_numpy(np.int64)}


def _blocked(frame: pd.DataFrame, ranks: Sequence[Ranked], waiting: Waiting) -> pd.DataFrame:
    """Split blocking communication into late peer and transfer; NaN for ranks that lack the necessary data."""
    most = waiting.late.groupby(["rank", "peer"])["late_ns"].sum().reset_index()
    most = most.sort_values(["late_ns", "peer"], ascending=[False, True], kind="stable").drop_duplicates("rank")
    late = np.minimum(frame["late_peer_ns"], frame["blocking_ns"])
    frame = frame.assign(
        late_peer_ns=late,
        transfer_ns=frame["blocking_ns"] - late,
        late_peer=frame["rank"].map(most.set_index("rank")["peer"]).astype(float),
    )
    known = np.array([not each.part.lacks for each in ranks])
    return frame if known.all() else frame.assign(**{name: frame[name].where(known) for name in BLOCKED})


def _usual(
    ranks: Sequence[Ranked], frame: pd.DataFrame, path: str, left_out: Sequence[str], waiting: Waiting
) -> pd.DataFrame:
    """Sum the frame of ranks over the iterations that are not left out."""
    sums = []
    for each in ranks:
        part = each.part
        rows = iteration_rows(part, path)
        rows = rows[~np.isin(np.array(part.labels)[part.label[rows]], left_out)]
        total = {name: int(part.columns[name][rows].sum()) for name in ("cpu", "span", COMMUNICATION, *PARTS, BLOCKING)}
        total["own"] = sum(total[name] for name in OWN_PARTS)
        total["idle"] = sum(total[name] for name in IDLE_PARTS)
        sums.append({"iterations": int((part.label[rows] > 0).sum()), **{f"{name}_ns": total[name] for name in SUMS}})
    columns = {str(name): values for name, values in pd.DataFrame(sums).items()}
    return frame.assign(**columns, **_waited(frame["rank"], waiting)).pipe(_blocked, ranks, waiting)


def _encodable(text: str) -> str:
    r"""Escape parts of a file name that are not UTF-8, as ``\udcff``."""
    return text.encode(errors="backslashreplace").decode()


def _split(ranks: pd.DataFrame) -> pd.DataFrame:
    """Compare the parts of an iteration's time (of the whole time if nothing repeats) between the slowest rank by own
    time and the median rank (an actual rank, not a mean).
    """
    timed = ranks[ranks["span_ns"] > 0]
    by = "own_median_ns" if timed["own_median_ns"].notna().any() else "own_ns"
    timed = timed.sort_values([by, "own_ns", "rank"], kind="stable", na_position="first")
    names = ["part", "slowest_ns", "median_ns", "slowest_rank", "median_rank"]
    if len(timed) < 2:
        return pd.DataFrame(columns=names)
    slowest, middle = timed.iloc[-1], timed.iloc[(len(timed) - 1) // 2]
    rows = [
        {
            "part": part,
            "slowest_ns": int(slowest[f"{part}_ns"]) // max(int(slowest["iterations"]), 1),
            "median_ns": int(middle[f"{part}_ns"]) // max(int(middle["iterations"]), 1),
            "slowest_rank": int(slowest["rank"]),
            "median_rank": int(middle["rank"]),
        }
        for part in (*(part for part in PARTS if part != EXPOSED), EXPOSED)
    ]
    return pd.DataFrame(rows, columns=names)


def _lanes(ranks: Sequence[Ranked], waiting: Waiting) -> tuple[tuple[RankLane, ...], str]:
    """Put the lanes on a common clock that starts at 0; also say how the clocks were aligned."""
    offsets = waiting.offset_ns
    epochs = [each.answer.start_utc_ns for each in ranks]
    reports = {each.answer.report for each in ranks}
    starts = [each.part.timeline_ns[0] for each in ranks]
    if len(reports) == 1:
        shift, clock = [0] * len(ranks), "one report, one clock"
    elif len(offsets) == len(ranks):
        shift = [-offsets[each.rank] for each in ranks]
        clock = "clocks aligned by the ends of collectives"
    elif all(epoch is not None for epoch in epochs):
        shift = [epoch or 0 for epoch in epochs]
        clock = "the clocks of the ranks are aligned by the start times in the reports"
    else:
        shift, clock = [-start for start in starts], "the time axis of each rank starts at its own first iteration"
    lengths = [each.part.timeline_ns[1] - each.part.timeline_ns[0] for each in ranks]
    begins = [start + by for start, by in zip(starts, shift, strict=True)]
    if max(begins) - min(begins) > _MAX_APART * max(lengths):
        clock = "the time axis of each rank starts at its own first iteration, because the ranks ran at different times"
        begins = [0] * len(ranks)
    origin = min(begins)
    lanes = []
    for each, begin, length in zip(ranks, begins, lengths, strict=True):
        bins = len(each.part.compute_bins)
        each_bin = max(length / bins, 1e-9) * max(len(each.part.gpus), 1)
        lanes.append(
            RankLane(
                rank=each.rank,
                start_ns=begin - origin,
                end_ns=begin - origin + length,
                compute=np.clip(each.part.compute_bins / each_bin, 0, 1),
                exposed=np.clip(each.part.exposed_bins / each_bin, 0, 1),
            )
        )
    return tuple(lanes), clock


def _warnings(ranks: Sequence[Ranked], path: str, own: pd.DataFrame, waiting: Waiting) -> Iterator[str]:
    others = [each.rank for each in ranks if path not in each.part.paths]
    if others:
        has = "have" if len(others) > 1 else "has"
        yield f"the findings do not cover {_ranks(others)}, which {has} no iterations {path!r}"
    known = own.notna()
    lacking = [rank for rank in known.index[(~known).any(axis=1)].tolist() if rank not in others]
    if lacking and own.shape[1]:
        shared = int(known.loc[[each.rank for each in ranks if each.rank not in others]].all(axis=0).sum())
        whole = own.shape[1]
        yield (
            f"only {shared:,} of {whole:,} iterations of {path!r} are on all ranks; some are missing on "
            f"{_ranks(lacking)}"
        )
    if waiting.unmatched:
        whole = waiting.matched + waiting.unmatched
        yield f"{waiting.unmatched:,} of {whole:,} collectives have no counterpart on other ranks and are left out"
    for lacks in dict.fromkeys(each.part.lacks for each in ranks if each.part.lacks):
        unknown = [each.rank for each in ranks if each.part.lacks == lacks]
        what = (
            f"it is unknown which communication delays compute, because some data are not recorded: {', '.join(lacks)}"
        )
        yield f"{_ranks(unknown)}: {what}"
    versions = Counter(each.answer.nsys_version for each in ranks)
    if len(versions) > 1:
        yield f"reports of different nsys versions: {', '.join(sorted(map(str, versions)))}"
    gpus = Counter(name for each in ranks for name in each.part.gpus)
    if len(gpus) > 1:
        yield f"ranks on different GPUs: {', '.join(f'{count} x {name}' for name, count in gpus.most_common())}"
    alike: dict[str, dict[int, str]] = {}  # but for their numbers
    for each in ranks:
        for text in (*each.answer.warnings, *each.part.warnings):
            alike.setdefault(re.sub(r"[\d,.]+", "#", text), {}).setdefault(each.rank, text)
    for texts in alike.values():
        yield f"{_ranks(sorted(texts))}: {next(iter(texts.values()))}"


def _outside(path: str, ranks: pd.DataFrame, options: Mapping[str, Any] | None) -> Iterator[str]:
    """Warn if most GPU work is outside the iterations, unless the user asked to skip iterations."""
    busy = int(ranks[ranks["iterations"] > 0]["report_busy_ns"].sum())
    inside = sum(int(ranks[f"{part}_ns"].sum()) for part in (COMPUTE, EXPOSED, COPIES))
    if 2 * inside < busy and not (options or {}).get("skip"):
        share = format_share(inside / busy)
        yield f"the findings cover only {share} of GPU busy time: the rest is outside the iterations of {path!r}"


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' * (len(numbers) > 1)} {join_first(list(map(str, numbers)), _MAX_RANKS_NAMED)}"
