"""Figures of the studies as their READMEs quote them: read from the CSVs, in the words of the tables."""

import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from nsysprof.bench.pairs import speedups_of
from nsysprof.bench.words import exponent_words, ratio_cell, tflops_text
from nsysprof.compare.gap_ledger import apportion
from nsysprof.core.units import format_bytes, format_ns, format_ratio, format_share
from nsysprof.statistics.contrast import NO_CLEAR_CHANGE, TOO_FEW_SAMPLES

ANALYSIS = Path(__file__).parents[2] / "analysis"
TABLES = ("results", "comparisons", "decisions", "exponents")


@dataclass(frozen=True)
class StudyFigures:
    """The tables of a study; methods give texts."""

    results: pd.DataFrame
    comparisons: pd.DataFrame
    decisions: pd.DataFrame
    exponents: pd.DataFrame

    def row(self, backend: str, seq: int, dtype: str = "fp16", **sizes: int) -> dict[str, Any]:
        """The one row of the results with these sizes; batch and heads are those of most rows unless said."""
        found = self.results
        for name, value in {"backend": backend, "seq": seq, "dtype": dtype, **self._usual(), **sizes}.items():
            found = found[found[name] == value]
        [row] = found.to_dict("records")
        return {str(name): value for name, value in row.items()}

    def _usual(self) -> dict[str, int]:
        return {name: int(self.results[name].mode()[0]) for name in ("batch", "heads")}

    def time(self, backend: str, seq: int, dtype: str = "fp16", *, graph: bool = False) -> str:
        """`41.8 µs`."""
        return format_ns(self.row(backend, seq, dtype)["graph_median_ns" if graph else "median_ns"])

    def width(self, backend: str, seq: int, dtype: str = "fp16") -> str:
        """Half the interval of the eager median: `7.0 %`."""
        row = self.row(backend, seq, dtype)
        return format_share((row["high_ns"] - row["low_ns"]) / 2 / row["median_ns"])

    def times(self, base: str, new: str, seq: int, dtype: str = "fp16", *, graph: bool = False) -> str:
        """How many times as fast new is: `7.57x (7.41–7.70)`."""
        return ratio_cell(self.pair(base, new, seq, dtype, graph=graph))

    def pair(self, base: str, new: str, seq: int, dtype: str = "fp16", *, graph: bool = False) -> dict[str, Any]:
        """The comparison of two backends."""
        configuration = self.row(base, seq, dtype)["configuration"]
        return speedups_of(self.comparisons)["graph" if graph else "eager", configuration, base, new]

    def mixed(self, base: str, base_dtype: str, new: str, new_dtype: str, seq: int) -> str:
        """The same of two dtypes."""
        found = self.comparisons[
            (self.comparisons["kind"] == "eager")
            & (self.comparisons["base"] == base)
            & (self.comparisons["base_dtype"] == base_dtype)
            & (self.comparisons["new"] == new)
            & (self.comparisons["new_dtype"] == new_dtype)
            & (self.comparisons["seq"] == seq)
        ]
        [row] = found.to_dict("records")
        return ratio_cell(row)

    def size(self, backend: str, seq: int, part: str = "peak", dtype: str = "fp16") -> str:
        """`8.09 MiB`."""
        return format_bytes(self.row(backend, seq, dtype)[f"{part}_bytes"])

    def share(self, backend: str, seq: int, column: str = "share_of_peak", dtype: str = "fp16") -> str:
        """`43 %`."""
        return format_share(self.row(backend, seq, dtype)[column])

    def rate(self, backend: str, seq: int, column: str = "tflops", dtype: str = "fp16") -> str:
        """`120`, in 10^12 FLOP/s."""
        return tflops_text(self.row(backend, seq, dtype)[column])

    def launching(self, backend: str, seq: int) -> str:
        """How much of an eager call a graph does without: `60 %`."""
        row = self.row(backend, seq)
        return format_share(1 - row["graph_median_ns"] / row["median_ns"])

    def exponent(self, backend: str, metric: str = "temporary memory", dtype: str = "fp16") -> str:
        """`S^1.95 (1.84–2.06)`."""
        found = self.exponents
        found = found[(found["backend"] == backend) & (found["metric"] == metric) & (found["dtype"] == dtype)]
        [row] = found.to_dict("records")
        return exponent_words(row, "S")


@cache
def study_figures(name: str) -> StudyFigures:
    """The tables in the folder of a study."""
    return StudyFigures(*(pd.read_csv(kept_table(ANALYSIS / name / f"{table}.csv")) for table in TABLES))


def kept_table(path: Path) -> Path:
    """The table of a study, or the same compressed, as large ones are kept."""
    return path if path.exists() else path.with_name(f"{path.name}.xz")


@dataclass(frozen=True)
class StepFigures:
    """The ``gap.json`` of a comparison of two backends at several S; methods give texts unless they say otherwise."""

    pairs: dict[int, dict[str, Any]]

    def cause(self, name: str, seq: int) -> dict[str, Any]:
        """The row of a cause in the ledger; of nothing where it has none."""
        [row] = [row for row in self.pairs[seq]["gaps"] if row["cause"] == name] or [
            {"base_ns": 0, "new_ns": 0, "delta_ns": 0, "share": 0.0}
        ]
        return dict(row)

    def host(self, seq: int) -> dict[str, int]:
        """``base_ns``, ``new_ns`` and ``delta_ns`` of all causes that are the host's."""
        rows = [row for row in self.pairs[seq]["gaps"] if row["cause"].startswith("idle: host")]
        return {name: sum(row[name] for row in rows) for name in ("base_ns", "new_ns", "delta_ns")}

    def clock(self, name: str, seq: int) -> dict[str, Any]:
        """The medians by a clock, and what comes of them."""
        [row] = [row for row in self.pairs[seq]["clocks"] if row["clock"] == name]
        return dict(row)

    def ratio(self, seq: int) -> str:
        """Ratio of the median spans and busy times: `1.37x, 2.11x`; the former in brackets without a verdict."""
        span, busy = (format_ratio(self.clock(kind, seq)["ratio"]) for kind in ("span", "busy"))
        unclear = self.clock("span", seq)["verdict"] in (NO_CLEAR_CHANGE, TOO_FEW_SAMPLES)
        return f"{f'({span})' if unclear else span}, {busy}"

    def causes(self) -> list[str]:
        """All of them, by how much they change at the longest S."""
        return sorted(
            {row["cause"] for pair in self.pairs.values() for row in pair["gaps"]},
            key=lambda cause: [-abs(self.cause(cause, seq)["delta_ns"]) for seq in sorted(self.pairs)[::-1]],
        )

    def cells(self, seq: int) -> dict[str, str]:
        """`508.2 → 81.7` µs by cause, rounded as `compare` does, so that they add up; empty where neither has any."""
        rows = [self.cause(cause, seq) for cause in self.causes()]
        base, new = (apportion([row[f"{side}_ns"] for row in rows], 100) for side in ("base", "new"))
        texts = [
            " → ".join(f"{tenths / 10:,.1f}" if tenths else "0" for tenths in both) if any(both) else ""
            for both in zip(base, new, strict=True)
        ]
        return dict(zip(self.causes(), texts, strict=True))

    def ledger(self) -> list[str]:
        """The rows of a Markdown table: cause, both sides at each S, share of the difference at the longest."""
        columns = [self.cells(seq) for seq in self.pairs]
        rows = []
        for cause in self.causes():
            share = self.cause(cause, max(self.pairs))["share"]
            said = format_share(share).replace("-", "−") if abs(share) >= 0.001 else ""
            rows.append(f"| {' | '.join([cause, *(column[cause] for column in columns), said])} |")
        sums = [
            " → ".join(f"{pair[f'{side}_span_ns'] / 1000:,.1f}" for side in ("base", "new"))
            for pair in self.pairs.values()
        ]
        return [*rows, f"| total | {' | '.join(sums)} | 100 % |"]


@cache
def step_figures(name: str, study: str = "why-math-is-slow") -> StepFigures:
    """A step of a study with ledgers, by its folder."""
    pairs = json.loads(kept_gap(study, name))["pairs"]
    return StepFigures({pair["base_model"]["seq"]: pair for pair in pairs})


def kept_gap(study: str, step: str) -> bytes:
    """The ``gap.json`` of a ledger, which is kept compressed."""
    return lzma.decompress((ANALYSIS / study / step / "gap.json.xz").read_bytes())
