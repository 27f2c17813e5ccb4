"""Find how results grow with size: sweeps, fitted exponents, and crossovers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nsysprof.bench.tables import CROSSOVERS, EXPONENTS, frame_of
from nsysprof.core.arrays import Floats
from nsysprof.formats.workload import Described
from nsysprof.statistics.contrast import FASTER, SLOWER, TOO_FEW_SAMPLES
from nsysprof.statistics.distributions import t_quantile

_METRICS = {
    "latency": "median_ns",
    "graph latency": "graph_median_ns",
    "peak memory": "peak_bytes",
    "temporary memory": "temporary_bytes",
}
CONSTANT, NO_SINGLE_POWER = "constant", "no single power"
LEVEL, UNSURE = "no clear difference", "too few samples to tell"  # of two backends
UNCLEAR, FEW_POINTS = "unclear", "too few points"
_NEAR_WHOLE = 0.1  # an exponent this close to a whole number is called by it
# The points are no line in a log-log chart below this R², or where the last step is this much steeper or flatter.
_LEAST_R_SQUARED, _LARGEST_BEND = 0.95, 0.25
_MOST_UNSURE = 0.5  # an exponent that is no surer than this is not called by any word


@dataclass(frozen=True)
class BenchSweep:
    """Configurations that differ in only one size; their dtypes may also differ.

    ``axis`` is the varying column, ``fixed`` the other columns for a title (`B1 H8 D64 causal`), ``rows`` the rows of
    the results table in the order of the axis.
    """

    axis: str
    fixed: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class PowerLaw:
    """The best fit of value = c · x^``exponent`` in logarithms, with the 95 % interval of the exponent.

    ``last`` is the slope between the two largest x, ``r_squared`` the quality of the fit, ``points`` the number of
    points. The interval is NaN for two points.
    """

    exponent: float
    low: float
    high: float
    last: float
    r_squared: float
    points: int
    x: str = "S"

    @property
    def growth(self) -> str:
        """In words: `constant`, `as S`, `as S²`, `between S and S²`, `no single power, S^1.9 at the end`, and so on."""
        if self.points < 3:
            return FEW_POINTS
        if max(abs(self.low), abs(self.high), abs(self.last)) <= _NEAR_WHOLE:
            return CONSTANT  # whatever R² is: there is nothing for the line to explain
        if self.r_squared < _LEAST_R_SQUARED or abs(self.last - self.exponent) > _LARGEST_BEND:
            return f"{NO_SINGLE_POWER}, {self.x}^{self.last:.1f} at the end"
        if self.high - self.low > 2 * _MOST_UNSURE:
            return UNCLEAR
        x, powers = self.x, {0: CONSTANT, 1: f"as {self.x}", 2: f"as {self.x}²"}
        near = [word for power, word in powers.items() if abs(self.exponent - power) <= _NEAR_WHOLE]
        held = near or [word for power, word in powers.items() if self.low <= power <= self.high]
        if held:
            return held[0] if len(held) == 1 else UNCLEAR
        between = (f"slower than {x}", f"between {x} and {x}²", f"faster than {x}²")
        return between[int(self.exponent > 1) + int(self.exponent > 2)]


def is_named(growth: str) -> bool:
    """Return whether the growth has a name: it follows one power of the size, or lies between two powers."""
    return growth not in (UNCLEAR, FEW_POINTS) and not growth.startswith(NO_SINGLE_POWER)


def find_sweeps(results: pd.DataFrame, about: Described) -> list[BenchSweep]:
    """Find the sweeps of a grid. Sweeps over S come first; shapes that no such sweep covers get sweeps over other axes.

    Each remaining shape is its own sweep. So every configuration is in at least one sweep, and a full matrix is shown
    only along S.
    """
    sweeps: list[BenchSweep] = []
    covered: set[str] = set()
    shape = [*about.shorts, *about.flag_names]
    for axis in about.shorts:
        others = [name for name in shape if name != axis]
        for _, group in results.groupby(others, sort=False):
            names = set(group["configuration"])
            if group[axis].nunique() > 1 and names - covered:
                sweeps.append(_sweep(group, axis, about))
                covered |= names
    for _, group in results[~results["configuration"].isin(covered)].groupby(shape, sort=False):
        sweeps.append(_sweep(group, about.size, about))
    return sweeps


def _sweep(group: pd.DataFrame, axis: str, about: Described) -> BenchSweep:
    first = group.iloc[0]
    sizes = [f"{short}{first[name]}" for name, short in about.shorts.items() if name != axis]
    words = [flag.on for flag in about.flags if first[flag.column]]
    words += [each.word(first[each.column]) for each in about.choices]
    fixed = " ".join(filter(None, [*sizes, *words]))
    return BenchSweep(axis, fixed, tuple(group.sort_values(axis, kind="stable").index.tolist()))


def fit_exponent(x: Floats, y: Floats, name: str = "S") -> PowerLaw:
    """Fit log y over log x by least squares, with Student's t for the interval; needs at least two positive x."""
    order = np.argsort(x, kind="stable")
    across, up = np.log(x[order]), np.log(y[order])
    if float(((up - up.mean()) ** 2).sum()) < 1e-12 * len(x):
        up = np.zeros(len(up))  # the same value everywhere: roundings, which differ by machine, are no growth
    centred = across - across.mean()
    slope = float(centred @ up / (centred @ centred))
    rest = up - up.mean() - slope * centred
    total = float(((up - up.mean()) ** 2).sum())
    last = float((up[-1] - up[-2]) / (across[-1] - across[-2]))
    freedom = len(x) - 2
    reach = np.nan
    if freedom > 0:
        reach = t_quantile(0.95, freedom) * float(np.sqrt((rest @ rest) / freedom / (centred @ centred)))
    r_squared = 1 - float(rest @ rest) / total if total else 1.0
    return PowerLaw(slope, slope - reach, slope + reach, last, r_squared, len(x), name)


def exponent_frame(results: pd.DataFrame, sweeps: Sequence[BenchSweep], about: Described) -> pd.DataFrame:
    """Make a row of `EXPONENTS` for each backend, dtype and metric of a sweep over S: the metric's `PowerLaw` in S."""
    rows, size = [], about.size
    for sweep in (each for each in sweeps if each.axis == size):
        part = results.loc[list(sweep.rows)]
        for (backend, dtype), group in part.groupby(["backend", "dtype"], sort=False):
            for metric, column in _METRICS.items():
                known = group[group[column].notna() & (group[column] > 0)]
                if known[size].nunique() < 2:
                    continue
                x, y = (known[name].to_numpy(np.float64, na_value=np.nan) for name in (size, column))
                law = fit_exponent(x, y, about.short)
                rows.append(
                    {
                        **{"sweep": sweep.fixed, "backend": backend, "dtype": dtype, "metric": metric},
                        **{"points": law.points, "exponent": law.exponent, "low": law.low, "high": law.high},
                        **{"last_exponent": law.last, "r_squared": law.r_squared, "growth": law.growth},
                    }
                )
    return frame_of(EXPONENTS, rows, about)


def crossover_frame(
    results: pd.DataFrame, comparisons: pd.DataFrame, sweeps: Sequence[BenchSweep], about: Described
) -> pd.DataFrame:
    """Make a row of `CROSSOVERS` for each kind and each pair of backends (of one dtype) in each sweep over S.

    ``from_seq`` is the smallest S from which the winner is faster at every S with both backends; ``status`` is
    "everywhere" if ``from_seq`` is the first S. There is no winner if neither backend is faster at the largest S.
    ``crossing_seq`` is interpolated in logarithms, and is NaN if the lines do not cross.
    """
    rows, size = [], about.size
    for sweep in (each for each in sweeps if each.axis == size):
        names = set(results.loc[list(sweep.rows), "configuration"])
        inside = comparisons[comparisons["configuration"].isin(names) & ~comparisons["mixed"]]
        for (kind, dtype, base, new), group in inside.groupby(["kind", "base_dtype", "base", "new"], sort=False):
            row = _crossover(str(base), str(new), group.sort_values(size), size)
            rows.append({"sweep": sweep.fixed, "kind": kind, "dtype": dtype, **row})
    return frame_of(CROSSOVERS, rows, about)


def _crossover(base: str, new: str, group: pd.DataFrame, size: str) -> dict[str, object]:
    ahead = group["verdict"].map({FASTER: 1, SLOWER: -1}).fillna(0).to_numpy(np.int64)
    seq, speedup = group[size].to_numpy(np.float64), group["speedup"].to_numpy(np.float64)
    if ahead[-1] < 0:
        base, new, ahead, speedup = new, base, -ahead, 1 / speedup
    start = len(ahead)
    while start > 0 and ahead[start - 1] == 1:
        start -= 1
    won = start < len(seq)
    level = UNSURE if group["verdict"].iloc[-1] == TOO_FEW_SAMPLES else LEVEL
    return {
        "winner": new,
        "loser": base,
        "status": "everywhere" if start == 0 else "from there on" if won else level,
        f"from_{size}": seq[start] if won else np.nan,
        f"crossing_{size}": _crossing(seq, speedup),
        f"first_{size}": int(seq[0]),
        f"last_{size}": int(seq[-1]),
        "first_speedup": speedup[0],
        "last_speedup": speedup[-1],
    }


def _crossing(x: Floats, speedup: Floats) -> float:
    """The largest x at which a speed-up rises above 1, interpolated in logarithms between measured x; NaN if none."""
    up = np.log(speedup)
    places = [place for place in range(len(x) - 1) if up[place] <= 0 < up[place + 1]]
    if not places or up[-1] <= 0:
        return float("nan")
    place = places[-1]
    part = -up[place] / (up[place + 1] - up[place])
    return float(np.exp(np.log(x[place]) + part * np.log(x[place + 1] / x[place])))
