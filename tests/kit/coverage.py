"""How often 95 % intervals hold the truth, and how often the same is called different, for docs/coverage.md.

    python -m tests.kit.coverage [one] [three] [unequal]

simulates the cells of all tables, or of these, with two processes and fixed seeds, and writes them into the page; that
takes some nine minutes, nearly all for `one`. A cell is a source of samples and their number n.

One run: n samples; the truth is the median of what the run was drawn from, given the regimes that it went through,
because an interval within a run claims no more. Both sides of a comparison are taken in turn, so that regimes and drift
of the machine hit both. Three runs: a sweep of 12 points, n samples of each in three runs together, whose levels vary
by 1 % from run to run; the truth is the mean of the logarithm of the median over all runs that there could be. Unequal:
such sweeps by the medians of their runs alone, in which one point, or all, differ from run to run in another way.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.signal import lfilter

from nsysprof.core.arrays import Floats
from nsysprof.statistics.contrast import FASTER, SLOWER, Rules, contrast, holm
from nsysprof.statistics.runs import LEAST_PER_RUN, over_runs, rounding_of
from nsysprof.statistics.summary import summarize

Rng = np.random.Generator

SIZES = (10, 20, 30, 50, 100, 200, 500)
POINTS, RUNS, BETWEEN = 12, 3, 0.01
STEP, LEVEL = 32.0, 5_000.0  # of the clock, and of the kernel that it times, in ns
# Where fewer runs than this get an interval the cell says that there is none.
LEAST_GIVEN = 0.25
_ANY_SIZE = Rules(least_effect=0)
TABLES = ("one", "three", "unequal")
_BEGIN, _END = "<!-- made by: python -m tests.kit.coverage {} -->", "<!-- end -->"


def _regimes(rng: Rng, n: int) -> Floats:
    """One of two states for each sample, which last 40 samples on average."""
    changes = rng.random(n) < 1 / 40
    return ((np.cumsum(changes) + rng.integers(2)) % 2).astype(np.float64)


def _autoregression(rng: Rng, n: int, phi: float) -> Floats:
    news = rng.normal(size=n) * np.sqrt(1 - phi**2)
    return lfilter([1], [1, -phi], news, zi=[phi * rng.normal()])[0]


def _bimodal(rng: Rng, n: int) -> Floats:
    return np.where(rng.random(n) < 0.3, 0.18, 0.0) + 0.02 * rng.normal(size=n)


class Source(NamedTuple):
    """``machine``: what hits all samples of the time alike, on a logarithm; ``own``: the rest, of each side."""

    name: str
    own: Callable[[Rng, int], Floats]
    machine: Callable[[Rng, int], Floats] = lambda _, n: np.zeros(n)
    step: float = 0.0


SOURCES = (
    Source("independent, skewed", lambda rng, n: 0.1 * rng.normal(size=n)),
    Source("autoregression 0.3", lambda rng, n: 0.1 * _autoregression(rng, n, 0.3)),
    Source("autoregression 0.6", lambda rng, n: 0.1 * _autoregression(rng, n, 0.6)),
    Source("autoregression 0.9", lambda rng, n: 0.1 * _autoregression(rng, n, 0.9)),
    Source(
        "regimes of 40 samples, 10 % apart",
        lambda rng, n: 0.03 * rng.normal(size=n),
        lambda rng, n: 0.1 * _regimes(rng, n),
    ),
    Source("drift of 10 %", lambda rng, n: 0.03 * rng.normal(size=n), lambda _, n: np.linspace(-0.05, 0.05, n)),
    Source("bimodal, 30 % of samples 20 % up", _bimodal),
    Source("clock steps of 32 ns, 5 µs", lambda rng, n: 0.004 * rng.normal(size=n), step=STEP),
)


class Cell(NamedTuple):
    """Shares: of runs that get an interval, of such intervals that hold the truth, and of A/A verdicts."""

    given: float
    held: float
    different: float


def _read(source: Source, logs: Floats) -> Floats:
    """The times that the clock shows."""
    times: Floats = LEVEL * np.exp(logs)
    return np.maximum(np.round(times / source.step), 1) * source.step if source.step else times


def _truth(source: Source, machine: Floats, seed: int) -> float:
    """The median of samples of a machine in these states, by drawing many."""
    rng = np.random.default_rng(seed)
    often = machine[rng.integers(0, len(machine), 20_000)]
    return float(np.median(often + source.own(rng, 20_000) if source.name[:4] != "auto" else np.zeros(1)))


def one_run(source: Source, n: int, times: int, compared: int, seed: int = 1) -> Cell:
    """The cell of one run."""
    rng = np.random.default_rng([seed, n, *source.name.encode()])
    given = held = different = 0
    truths: dict[float, float] = {}  # by the mean of what the machine went through, which tells all of it
    for number in range(times):
        machine, level = source.machine(rng, n), rng.uniform(-0.005, 0.005)
        values = _read(source, level + machine + source.own(rng, n))
        found = summarize(values, step=source.step, resamples=400, seed=number)
        if found.sure:
            given += 1
            if (went := float(machine.mean())) not in truths:
                truths[went] = _truth(source, machine, number)
            held += found.interval.holds(LEVEL * np.exp(level + truths[went]))
    for number in range(compared):
        machine = source.machine(rng, n)
        sides = [_read(source, machine + source.own(rng, n)) for _ in range(2)]
        verdict = contrast(sides[0], sides[1], _ANY_SIZE, resamples=300, seed=number).verdict
        different += verdict in (FASTER, SLOWER)
    return Cell(given / times, held / given if given else np.nan, different / compared)


def three_runs(source: Source, n: int, times: int, seed: int = 2) -> Cell:
    """The cell of `RUNS` runs of a sweep."""
    rng = np.random.default_rng([seed, n, *source.name.encode()])
    each = -(-n // RUNS)
    if each < LEAST_PER_RUN:  # neither an interval nor a verdict
        return Cell(0.0, np.nan, 0.0)

    def median(own: Floats, machine: Floats, level: float) -> float:
        return float(np.log(np.median(_read(source, level + machine + own)) / LEVEL))

    many = [np.median(source.machine(rng, each) + source.own(rng, each)) for _ in range(6_000)]
    truth, held, different = float(np.mean(many)), 0, 0
    roundings = [rounding_of(source.step, LEVEL)] * POINTS
    for _ in range(times):
        levels, runs, ratios = rng.uniform(-0.005, 0.005, POINTS), [], []
        for level in levels:
            first, second = [], []
            for _ in range(RUNS):
                machine, at = source.machine(rng, each), level + BETWEEN * rng.normal()
                first.append(median(source.own(rng, each), machine, at))
                second.append(median(source.own(rng, each), machine, at))
            runs.append(first)
            ratios.append([new - base for base, new in zip(first, second, strict=True)])
        for level, found in zip(levels, over_runs(runs, roundings), strict=True):
            held += abs(found.mean - level - truth) <= found.half()
        for found in over_runs(ratios, [each * np.sqrt(2) for each in roundings]):
            different += found.p < 0.05 and not found.interval().holds(1)
    return Cell(1.0, held / times / POINTS, different / times / POINTS)


def _moved(part: float, by: float) -> Callable[[Rng, tuple[int, ...]], Floats]:
    """Normal medians, a part of them moved by so many standard deviations; their mean over all runs is 0."""
    return lambda rng, size: rng.normal(size=size) + by * (rng.random(size) < part) - by * part


UNEQUAL: dict[str, Callable[[Rng, tuple[int, ...]], Floats]] = {
    "as the others": lambda rng, size: rng.normal(size=size),
    "2x as much": lambda rng, size: 2 * rng.normal(size=size),
    "4x as much": lambda rng, size: 4 * rng.normal(size=size),
    "10x as much": lambda rng, size: 10 * rng.normal(size=size),
    "heavy tails (t, 3 degrees of freedom)": lambda rng, size: rng.standard_t(3, size),
    "two modes, 2 σ apart": _moved(0.5, 2),
    "two modes, 6 σ apart": _moved(0.5, 6),
    "two modes, 20 σ apart": _moved(0.5, 20),
    "one run in six 3 σ higher": _moved(1 / 6, 3),
    "one run in six 10 σ higher": _moved(1 / 6, 10),
}


def unequal(how: str, number: int, times: int, seed: int = 3) -> tuple[float, float, float, float]:
    """Sweeps of which so many points vary in this way, the others normally: shares of intervals of such points and of
    others that hold the truth, of sweeps in which a point is called different after Holm's correction, and of intervals
    of such points that hold it by Student's t of their own runs alone.
    """
    rng = np.random.default_rng([seed, number, *how.encode()])
    logs = rng.normal(size=(times, POINTS, RUNS))
    logs[:, :number] = UNEQUAL[how](rng, (times, number, RUNS))
    held, alone, different = np.zeros(POINTS), 0, 0
    for sweep in (BETWEEN * logs).tolist():
        found = over_runs(sweep)
        held += np.array([abs(each.mean) <= each.half() for each in found])
        different += min(holm([each.p for each in found])) < 0.05
        [single] = over_runs(sweep[:1])
        alone += abs(single.mean) <= single.half()
    others = float(held[number:].mean()) if number < POINTS else np.nan
    return float(held[:number].mean()) / times, others / times, different / times, alone / times


def _cell(asked: tuple[str, int, int]) -> Cell | tuple[float, ...]:
    table, place, n = asked
    if table == "unequal":
        return unequal(list(UNEQUAL)[place], n, 6000)
    return one_run(SOURCES[place], n, 4000, 2000) if table == "one" else three_runs(SOURCES[place], n, 1000)


def table_lines(table: str, cells: dict[tuple[str, int, int], Any]) -> Iterator[str]:
    """A table of the page."""
    if table == "unequal":
        yield from ("", "Three runs, 12 points: % of intervals that contain the true value.", "")
        sweeps = "sweeps with a difference | all 12 points vary this way | plain t"
        yield f"| variation between runs | one point varies this way | the 11 other points | {sweeps} |"
        yield f"| --- |{' ---: |' * 5}"
        for place, name in enumerate(UNEQUAL):
            one, every = (cells[table, place, number] for number in (1, POINTS))
            texts = (f"{100 * share:.1f}" for share in (*one[:3], every[0], one[3]))
            yield f"| {name} | {' | '.join(texts)} |"
        return
    title = {"one": "One run", "three": "Three runs, n samples in total"}[table]
    yield from ("", f"{title}: % of intervals that contain the true value · % of A/A pairs called different.", "")
    yield from (f"| source | {' | '.join(f'n = {n}' for n in SIZES)} |", f"| --- |{' ---: |' * len(SIZES)}")
    for number, source in enumerate(SOURCES):
        yield f"| {source.name} | {' | '.join(_text(cells[table, number, n]) for n in SIZES)} |"


def _text(cell: Cell) -> str:
    different = f"{100 * cell.different:.1f}"
    if cell.given < LEAST_GIVEN:
        return f"none · {different}"
    return f"{100 * cell.held:.1f} · {different}"


def main(tables: Sequence[str]) -> None:
    """Simulate all cells of these tables, and write them."""
    page = Path(__file__).parents[2] / "docs" / "coverage.md"
    rows = {"one": (len(SOURCES), SIZES), "three": (len(SOURCES), SIZES), "unequal": (len(UNEQUAL), (1, POINTS))}
    places = [
        (table, number, n) for table in tables for n in reversed(rows[table][1]) for number in range(rows[table][0])
    ]
    with ProcessPoolExecutor(2) as pool:
        cells = dict(zip(places, pool.map(_cell, places), strict=True))
    text = page.read_text(encoding="utf-8")
    for table in tables:
        begin = _BEGIN.format(table)
        before, _, rest = text.partition(begin)
        text = "\n".join([before + begin, *table_lines(table, cells), "", _END]) + rest.partition(_END)[2]
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] or TABLES)
