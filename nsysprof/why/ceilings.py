"""Compute the time that a step would save without a culprit, from replays in which the culprit takes no time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import AnyInts, Ints
from nsysprof.core.columns import ColumnTable, Texts, distinct, numbers
from nsysprof.waits import edits
from nsysprof.waits.account import PLACE, WAIT_KEYS
from nsysprof.waits.culprits import LATE_PEER
from nsysprof.waits.facts import Facts
from nsysprof.waits.network import network_of
from nsysprof.waits.replay import Network
from nsysprof.waits.spans import MAX_RESIDUAL, Spans, doubt_of, moments_of, spans_of
from nsysprof.waits.whole import Cause, Wholes
from nsysprof.waits.windows import Windows

MAX_OPS = 250_000  # GPU ops of a report that is replayed
MAX_NODES = 2_000_000  # of all replays together: culprits with most time first, the others keep their bounds
MIN_SHARE = 0.001  # of the windows: less is not replayed
FORECAST, BOUND = "forecast", "bound"
_BASES = (BOUND, "", FORECAST)


def places_of(*tables: ColumnTable, names: Sequence[str] = PLACE) -> list[Ints]:
    """Number the places (path, GPU and process) in the rows of tables; columns of the same name share their texts."""
    each = [[numbers(table.columns[name]) for table in tables] for name in names]
    _, number = distinct(*map(np.concatenate, each))
    return np.split(number, np.cumsum([len(table) for table in tables])[:-1])


@dataclass(frozen=True)
class Removals:
    """Replays of a trace, each without the cause in a row of why.csv.

    ``base``: the length of each window in ``seen`` (rows of ``spans``); ``place``: the path, GPU and process of each
    window; ``known``: the places that the replay explains. Each row of ``waits`` belongs to the row of why.csv whose
    ``number`` equals ``of``.
    """

    network: Network
    wholes: Wholes
    spans: Spans
    seen: AnyInts
    base: Ints
    place: AnyInts
    known: frozenset[int]
    waits: ColumnTable
    of: AnyInts
    number: Ints

    def gain(self, rows: Sequence[int]) -> float | None:
        """Return the mean time (ns) that each window of a path saves if the cause of the rows is removed, or None if
        unknown.
        """
        waits = self.waits.take(np.isin(self.of, self.number[[*rows]]))
        [at] = set(self.place[waits["window"]].tolist()) or {-1}
        if at not in self.known:
            return None
        edited = self.network.copy()
        edits.remove(edited, _cause_of(self.wholes, waits))
        shorter = self.base - self.spans.lengths(edited)[self.seen]
        return max(float(shorter[self.place == at].mean()), 0.0)


def _cause_of(wholes: Wholes, waits: ColumnTable) -> Cause:
    op, thread, start, end = (waits[name] for name in ("op", "thread", "start_ns", "end_ns"))
    late = waits.texts("activity").equal(LATE_PEER)
    return wholes.of_waits(waits.texts("cause").codes, op, thread, start, end, late)


def removals_of(
    facts: Facts,
    windows: Windows,
    chosen: AnyInts | None,
    tables: Mapping[str, ColumnTable],
    waits_of: Callable[[], ColumnTable],
) -> tuple[Removals | None, str]:
    """Make the `Removals` of a result, or return the reason why none is possible. The run time is nearly linear.

    ``windows`` are all windows of the paths, ``chosen`` their rows in the result (None: all), ``tables`` the tables of
    the result, and ``waits_of`` the function that returns its waits. Savings are known for a path on a GPU if the
    median error is at most `MAX_RESIDUAL` in a replay that keeps only the lengths of GPU ops.
    """
    trace = facts.attribution.trace
    if np.isnan(tables["rows"]["ceiling_ns"]).all():
        return None, ""
    if len(trace.ops) > MAX_OPS:
        many = f"the report has more than {MAX_OPS:,} GPU ops"
        return None, f"{many}: nsysprof forecast --remove replays a step without one cause"
    ranges = np.unique(windows.range[windows.range >= 0]).astype(np.intp)
    moments = moments_of(trace, ranges)
    network = network_of(facts.attribution, facts.activity, facts.dependencies, moments, facts.peers)
    spans = spans_of(facts.attribution, windows, ranges, network, facts.communication)
    if doubt := doubt_of(trace, network, facts.lacks, spans):
        return None, doubt[0]
    seen = np.arange(len(windows)) if chosen is None else chosen
    place, of_rows = places_of(tables["windows"], tables["rows"])
    off = spans.residual(network)[seen]
    known = {at for at in range(int(place.max()) + 1) if np.median(off[place == at]) <= MAX_RESIDUAL}
    waits = waits_of()
    keyed = [
        ColumnTable({"place": at, **table.columns})
        for at, table in ((place[waits["window"]], waits), (of_rows, tables["rows"]))
    ]
    of, number = places_of(*keyed, names=("place", *WAIT_KEYS))
    base = (windows.end - windows.start)[seen]  # as replayed without a change
    return Removals(network, Wholes(facts), spans, seen, base, place, frozenset(known), waits, of, number), ""


def forecast_ceilings(rows: ColumnTable, removals: Removals | None) -> ColumnTable:
    """Replace the bounds in the ceilings of why.csv by forecasts, if possible; see `removals_of`.

    Replays take at most `MAX_NODES` steps. Rows with the same culprit that differ only in ``meanwhile`` are removed
    together; each row gains at most its wait.
    """
    ceiling, waited = rows["ceiling_ns"].copy(), rows["per_instance_ns"]
    bases = (np.isnan(ceiling)).astype(np.int64)  # codes of `_BASES`
    wanted = np.flatnonzero(~np.isnan(ceiling) & (rows["share_of_span"] >= MIN_SHARE))
    wanted = wanted[np.argsort(-rows["waited_ns"][wanted], kind="stable")]
    gains: dict[int, float | None] = {}
    for row in wanted.tolist():
        if removals is None:
            break
        number = int(removals.number[row])
        if number not in gains and (len(gains) + 1) * len(removals.network.extra) > MAX_NODES:
            break
        if number not in gains:
            gains[number] = removals.gain([row])
        if (gain := gains[number]) is not None:
            ceiling[row], bases[row] = min(gain, waited[row]), _BASES.index(FORECAST)
    return ColumnTable({**rows.columns, "ceiling_ns": ceiling, "ceiling_basis": Texts(bases, _BASES)})
