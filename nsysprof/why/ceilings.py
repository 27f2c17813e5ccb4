"""Compute the time saved per step without a culprit, from replays in which the culprit takes no time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysprof.core.arrays import AnyInts, Ints
from nsysprof.core.columns import distinct
from nsysprof.waits import edits
from nsysprof.waits.account import PLACE, WAIT_KEYS
from nsysprof.waits.culprits import LATE_PEER
from nsysprof.waits.facts import CAUSES, Facts
from nsysprof.waits.network import network_of
from nsysprof.waits.replay import Network
from nsysprof.waits.spans import MAX_RESIDUAL, Spans, doubt_of, moments_of, spans_of
from nsysprof.waits.whole import Cause, Wholes
from nsysprof.waits.windows import Windows

MAX_OPS = 250_000  # GPU ops of a report that is replayed
MAX_NODES = 2_000_000  # of all replays together: culprits with most time first, the others keep their bounds
MIN_SHARE = 0.001  # of the windows: less is not replayed
FORECAST, BOUND = "forecast", "bound"


def cause_of(wholes: Wholes, waits: pd.DataFrame) -> Cause:
    """Find the cause behind some rows of `Why.waits`."""
    cause = pd.Categorical(waits["cause"], categories=CAUSES).codes
    names = ("op", "thread", "start_ns", "end_ns")
    op, thread, start, end = (waits[name].to_numpy(np.int64) for name in names)
    return wholes.of_waits(cause, op, thread, start, end, (waits["activity"] == LATE_PEER).to_numpy())


@dataclass(frozen=True)
class Removals:
    """Replays of a trace without the causes in rows of why.csv.

    ``base``: the length of the windows ``seen`` of ``spans``; ``place``: the path, GPU and process of each window;
    ``known``: the places that the replay explains. Each row of ``waits`` belongs to the row of why.csv whose ``number``
    is its ``of``.
    """

    network: Network
    wholes: Wholes
    spans: Spans
    seen: AnyInts
    base: Ints
    place: AnyInts
    known: frozenset[int]
    waits: pd.DataFrame
    of: AnyInts
    number: Ints

    def gain(self, rows: Sequence[int]) -> float | None:
        """Return the mean saving (ns) per window of a path without the cause of these rows, or None if unknown."""
        waits = self.waits[np.isin(self.of, self.number[[*rows]])]
        [at] = set(self.place[waits["window"]].tolist()) or {-1}
        if at not in self.known:
            return None
        edited = self.network.copy()
        edits.remove(edited, cause_of(self.wholes, waits))
        shorter = self.base - self.spans.lengths(edited)[self.seen]
        return max(float(shorter[self.place == at].mean()), 0.0)


def removals_of(
    facts: Facts,
    windows: Windows,
    chosen: AnyInts | None,
    frame: pd.DataFrame,
    rows: pd.DataFrame,
    waits_of: Callable[[], pd.DataFrame],
) -> tuple[Removals | None, str]:
    """Make the `Removals` of a result, or return why there are none; near-linear in ops and calls.

    ``windows`` are all windows of the paths, ``chosen`` their rows in the result (None: all), ``frame`` the windows of
    the result, ``rows`` its rows, and ``waits_of`` the function that returns its waits. A path on a GPU is known if a
    replay that keeps only the lengths of GPU ops has a median error of at most `MAX_RESIDUAL`.
    """
    trace = facts.attribution.trace
    if not rows["ceiling_ns"].notna().any():
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
    place = frame.groupby([*PLACE]).ngroup().to_numpy()
    off = spans.residual(network)[seen]
    known = {at for at in range(int(place.max()) + 1) if np.median(off[place == at]) <= MAX_RESIDUAL}
    waits = waits_of()
    first, of = distinct(place[waits["window"]], *(waits[name].cat.codes.to_numpy() for name in WAIT_KEYS))
    head = waits.iloc[first]
    names = frame[[*PLACE]].iloc[head["window"]].to_numpy().tolist()
    keys = zip(names, head[[*WAIT_KEYS]].to_numpy(object).tolist(), strict=True)
    number = {(*where, *what): at for at, (where, what) in enumerate(keys)}
    keyed = rows[[*PLACE, *WAIT_KEYS]].to_numpy(object).tolist()
    numbers = np.array([number.get(tuple(row), -1) for row in keyed], np.int64)
    base = (windows.end - windows.start)[seen]  # as replayed without a change
    return Removals(network, Wholes(facts), spans, seen, base, place, frozenset(known), waits, of, numbers), ""


def forecast_ceilings(rows: pd.DataFrame, removals: Removals | None) -> pd.DataFrame:
    """Replace bounds among the ceilings of why.csv with forecasts if possible; see `removals_of`.

    Replays take at most `MAX_NODES` steps. Rows with the same culprit that differ only in ``meanwhile`` are removed
    together; each row gains at most its wait.
    """
    ceiling = rows["ceiling_ns"].to_numpy(np.float64).copy()
    forecasts, waited = np.zeros(len(ceiling), bool), rows["per_instance_ns"].to_numpy(np.float64)
    wanted = np.flatnonzero(~np.isnan(ceiling) & (rows["share_of_span"] >= MIN_SHARE))
    wanted = wanted[np.argsort(-rows["waited_ns"].to_numpy()[wanted], kind="stable")]
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
            ceiling[row], forecasts[row] = min(gain, waited[row]), True
    basis = np.where(forecasts, FORECAST, np.where(np.isnan(ceiling), "", BOUND))
    return rows.assign(ceiling_ns=ceiling, ceiling_basis=basis)
