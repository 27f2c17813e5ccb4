"""The result of a benchmark: measurements, conclusions, and problems."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from nsysprof.bench import pairs
from nsysprof.bench.pairs import Speedups
from nsysprof.bench.rows import result_frame
from nsysprof.bench.scaling import BenchSweep, crossover_frame, exponent_frame, find_sweeps
from nsysprof.formats.samples import BenchSamples, BenchShape, read_bench_samples
from nsysprof.formats.workload import Described
from nsysprof.statistics.contrast import DEFAULT_RULES, FASTER, SLOWER, TOO_FEW_SAMPLES, Rules


@dataclass(frozen=True)
class BenchResults:
    """The results of one ``samples.json``.

    ``results``: a row per configuration and backend (`nsysprof.bench.rows`). ``comparisons``, ``decisions``, ``auto``,
    ``speedups``: see `nsysprof.bench.pairs`. ``exponents``, ``crossovers``, ``sweeps``: see `nsysprof.bench.scaling`.
    ``aa_compared``: the number of backends with enough samples that were compared with themselves; ``aa_different``:
    the number of these backends that seemed to differ from themselves. ``repeats``: backends without results of their
    own (`auto`, if all its choices were also measured by name). ``warnings``: one line each.
    """

    samples: BenchSamples
    rules: Rules
    results: pd.DataFrame
    comparisons: pd.DataFrame
    speedups: Speedups
    decisions: pd.DataFrame
    auto: pd.DataFrame
    exponents: pd.DataFrame
    crossovers: pd.DataFrame
    sweeps: tuple[BenchSweep, ...]
    aa_compared: int
    aa_different: int
    repeats: frozenset[str]
    warnings: tuple[str, ...]

    @property
    def about(self) -> Described:
        """The workload."""
        return self.samples.described

    @cached_property
    def backends(self) -> list[str]:
        """Return the names of all backends, in the order of the file."""
        return [str(name) for name in self.results["backend"].unique()]

    @cached_property
    def base(self) -> str:
        """Return the baseline of speed-ups and memory reductions."""
        return self.base_of(self.results)

    def base_of(self, rows: pd.DataFrame) -> str:
        """Return the baseline among the given rows: the workload's choice, or the first backend."""
        backends = [str(name) for name in rows["backend"].unique()]
        return next((name for name in self.about.base if name in backends), backends[0])

    @cached_property
    def shapes(self) -> tuple[str, dict[str, str]]:
        """The `shape_labels` of all configurations."""
        return shape_labels(list({point.shape.id: point.shape for point in self.samples.points}.values()))

    @property
    def labels(self) -> dict[str, str]:
        """Return, by the id of the configuration, the parts in which each configuration differs from the others."""
        return self.shapes[1]

    def own(self, rows: pd.DataFrame, column: str = "backend") -> pd.DataFrame:
        """Return the rows, except rows of backends that only repeat others."""
        return rows[~rows[column].isin(self.repeats)]

    def rows_of(self, sweep: BenchSweep) -> pd.DataFrame:
        """Return the results of a sweep, in the order of its axis."""
        return self.results.loc[list(sweep.rows)]

    def decided(self, kind: str = "eager") -> pd.DataFrame:
        """Return the decisions for one kind of samples ("eager" or "graph")."""
        return self.decisions[self.decisions["kind"] == kind]

    def speedup(self, configuration: str, base: str, new: str, kind: str = "eager") -> dict[str, Any] | None:
        """Return the speed-up of new over base with interval and verdict, or None if they were not compared."""
        return self.speedups.get((kind, configuration, base, new))

    def backend_name(self, backend: str, configurations: Iterable[str]) -> str:
        """Return the backend's name; `auto` includes its choice if it always chose one backend: `auto (cudnn)`."""
        picked = {self.samples.auto.get(name) for name in configurations} if backend == pairs.AUTO else set()
        [pick] = picked if len(picked) == 1 else [None]
        return f"{backend} ({pick})" if pick else backend

    def who(self, row: Any, column: str = "backend") -> str:
        """Return the `backend_name` of a row at its configuration."""
        return self.backend_name(row[column], [row["configuration"]])


def shape_labels(shapes: Sequence[BenchShape]) -> tuple[str, dict[str, str]]:
    """Return the part that all shapes have in common (`B1 H8 D64 fp16 causal`), and for each shape the other parts
    (`S1024`).

    The second result is a mapping from the shape's id; `default` means that the differing parts have their default
    values.
    """
    texts = [each.parts for each in shapes]
    same = [len(shapes) > 1 and len(set(column)) == 1 for column in zip(*texts, strict=True)]
    own = {
        each.id: " ".join(part for part, shared in zip(parts, same, strict=True) if part and not shared) or "default"
        for each, parts in zip(shapes, texts, strict=True)
    }
    shared = [part for part, shared in zip(texts[0], same, strict=True) if part and shared] if texts else []
    return " ".join(shared), own


def read_bench_results(path: Path) -> BenchResults:
    """Return the results of a ``samples.json`` or its folder; raises like `read_bench_samples`."""
    return results_of_samples(read_bench_samples(path))


def results_of_samples(samples: BenchSamples, rules: Rules = DEFAULT_RULES) -> BenchResults:
    """Compute the results of samples; ``rules`` decide when one backend is faster than another."""
    about = samples.described
    results, warnings = result_frame(samples, rules)
    comparisons = pairs.comparison_frame(samples, results, rules)
    speedups = pairs.speedups_of(comparisons)
    sweeps = find_sweeps(results, about)
    aa = results["aa_verdict"]
    again = results["median_ns"].isna() | pairs.repeating(samples, results)
    auto = results["backend"] == pairs.AUTO
    return BenchResults(
        samples=samples,
        rules=rules,
        results=results,
        comparisons=comparisons,
        speedups=speedups,
        decisions=pairs.decision_frame(samples, results, speedups),
        auto=pairs.auto_frame(samples, results, speedups),
        exponents=exponent_frame(results, sweeps, about),
        crossovers=crossover_frame(results, comparisons, sweeps, about),
        sweeps=tuple(sweeps),
        aa_compared=int((aa.notna() & (aa != TOO_FEW_SAMPLES)).sum()),
        aa_different=int(aa.isin([FASTER, SLOWER]).sum()),
        repeats=frozenset([pairs.AUTO]) if auto.any() and again[auto].all() else frozenset(),
        warnings=(*_whole_run(samples, results), *warnings),
    )


def _whole_run(samples: BenchSamples, results: pd.DataFrame) -> list[str]:
    warnings = []
    missing = samples.planned - len(samples.points)
    if missing > 0:
        warnings.append(f"{missing} of {samples.planned} points are not measured yet: nsysprof bench --resume")
    if not len(samples.measured):
        warnings.append(
            "nothing was measured: every point was unsupported, ran out of memory, gave a wrong result or was left out"
        )
    for row in results[results["status"] == "wrong"].to_dict("records"):
        where = f"{row['backend']} at {row['configuration']}"
        warnings.append(f"{where} gives a wrong result and was not timed: {row['reason']}")
    watch = samples.gpu_watch
    if samples.device == "cuda" and watch is not None and not watch.get("answers"):
        warnings.append(
            f"clocks and throttling were not monitored ({watch.get('reason')}): some samples may be from a "
            "throttled GPU"
        )
    return warnings
