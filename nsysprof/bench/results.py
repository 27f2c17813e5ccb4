"""The answer of a benchmark: what was measured, what it means, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from nsysprof.bench.pairs import AUTO, auto_frame, comparison_frame, decision_frame, repeating
from nsysprof.bench.rows import result_frame
from nsysprof.bench.samples import BenchSamples, read_bench_samples
from nsysprof.bench.scaling import BenchSweep, crossover_frame, exponent_frame, find_sweeps
from nsysprof.formats.workload import Described
from nsysprof.statistics.contrast import DEFAULT_RULES, FASTER, SLOWER, TOO_FEW_SAMPLES, Rules

__all__ = ["BenchResults", "read_bench_results", "results_of_samples"]


@dataclass(frozen=True)
class BenchResults:
    """Everything that is known of one ``samples.json``.

    ``results``: a row per configuration and backend (`nsysprof.bench.rows`). ``comparisons``, ``decisions``, ``auto``:
    see `nsysprof.bench.pairs`. ``exponents``, ``crossovers``, ``sweeps``: see `nsysprof.bench.scaling`.
    ``aa_compared`` and ``aa_different``: how many backends were held against themselves with samples enough to tell,
    and for how many of these a difference was declared although there is none. ``repeats``: backends that show nothing
    of their own, which is `auto` where all that it picked was measured by name as well. ``warnings``: a line each.
    """

    samples: BenchSamples
    rules: Rules
    results: pd.DataFrame
    comparisons: pd.DataFrame
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

    def pairs(self, kind: str = "eager") -> pd.DataFrame:
        """The comparisons of a kind."""
        return self.comparisons[self.comparisons["kind"] == kind]

    def decided(self, kind: str = "eager") -> pd.DataFrame:
        """The decisions by a kind of samples."""
        return self.decisions[self.decisions["kind"] == kind]


def read_bench_results(path: Path, rules: Rules = DEFAULT_RULES) -> BenchResults:
    """The results of a ``samples.json`` or of the folder that holds it; raises as `read_bench_samples` does."""
    return results_of_samples(read_bench_samples(path), rules)


def results_of_samples(samples: BenchSamples, rules: Rules = DEFAULT_RULES) -> BenchResults:
    """The results of samples; ``rules`` say what it takes to call one backend faster than another."""
    results, warnings = result_frame(samples, rules)
    comparisons = comparison_frame(samples, results, rules)
    aa = results["aa_verdict"]
    return BenchResults(
        samples=samples,
        rules=rules,
        results=results,
        comparisons=comparisons,
        decisions=decision_frame(samples, results, comparisons),
        auto=auto_frame(samples, results, comparisons),
        exponents=exponent_frame(results, samples.described),
        crossovers=crossover_frame(results, comparisons, samples.described),
        sweeps=tuple(find_sweeps(results, samples.described)),
        aa_compared=int((aa.notna() & (aa != TOO_FEW_SAMPLES)).sum()),
        aa_different=int(aa.isin([FASTER, SLOWER]).sum()),
        repeats=_repeats(samples, results),
        warnings=(*_whole_run(samples, results), *warnings),
    )


def _repeats(samples: BenchSamples, results: pd.DataFrame) -> frozenset[str]:
    again = results["median_ns"].isna() | repeating(samples, results)
    auto = results["backend"] == AUTO
    return frozenset([AUTO]) if auto.any() and again[auto].all() else frozenset()


def _whole_run(samples: BenchSamples, results: pd.DataFrame) -> list[str]:
    """What is to be said of the run as a whole."""
    found = []
    missing = samples.planned - len(samples.points)
    if missing > 0:
        found.append(f"{missing} of {samples.planned} points are not measured yet: nsysprof bench --resume")
    if not len(samples.measured):
        found.append("nothing was measured: every point is unsupported, out of memory, wrong or left out")
    wrong = results[results["status"] == "wrong"]
    for row in wrong.to_dict("records"):
        found.append(
            f"{row['backend']} at {row['configuration']} is wrong and was not timed: {row['reason']}"
        )
    watch = samples.gpu_watch
    if samples.device == "cuda" and watch is not None and not watch.get("answers"):
        found.append(
            f"clocks and throttling were not watched ({watch.get('reason')}): throttled samples cannot be told"
        )
    return found
