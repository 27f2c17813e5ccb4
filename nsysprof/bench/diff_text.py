"""The difference of two runs of a benchmark for a terminal, at most 110 columns wide."""

from __future__ import annotations

import math
from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from nsysprof.bench.diff import BenchDiff, regressions
from nsysprof.bench.text import plain_table
from nsysprof.bench.words import shape_labels
from nsysprof.core.terminal import one_line, visible
from nsysprof.core.units import format_bytes, format_ns, format_share
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER, TOO_FEW_SAMPLES
from nsysprof.statistics.summary import LEAST_SAMPLES

__all__ = ["diff_table", "regression_lines"]

_WIDTH = 110
_MOST_NAMED = 8


def diff_table(diff: BenchDiff) -> str:
    """``shape | backend | metric | before | after | change | overlap | effect | verdict``, and what it adds up to."""
    parts = [
        [*_head(diff)],
        [_table(diff)],
        [*_totals(diff)],
    ]
    lines = [line for part in parts if part for line in ("", *part)][1:]
    return "".join(f"{visible(line)}\n" for block in lines for line in block.split("\n"))


def regression_lines(diff: BenchDiff, max_regress: float) -> list[str]:
    """A line for each significant regression above ``max_regress``; none where there is none."""
    labels = _labels(diff)
    return [
        f"{labels[row['configuration']]} {row['backend']}: {row['metric']} {_value(row, 'before')} →"
        f" {_value(row, 'after')}, {_percent(row['change'])} (above {format_share(max_regress)})"
        for row in regressions(diff, max_regress).to_dict("records")
    ]


def _head(diff: BenchDiff) -> Iterator[str]:
    for name, samples in (("before", diff.before), ("after", diff.after)):
        yield f"{name:6}  {one_line(samples.name, 40)}  {one_line(str(samples.path), _WIDTH - 50)}"
    if diff.differences:
        yield from wrap(
            f"unlike: {'; '.join(diff.differences)}", _WIDTH, subsequent_indent="  ", break_long_words=False
        )


def _labels(diff: BenchDiff) -> dict[str, str]:
    shapes = {point.shape.id: point.shape for point in (*diff.before.points, *diff.after.points)}
    return shape_labels(list(shapes.values()))[1]


def _table(diff: BenchDiff) -> str:
    labels = _labels(diff)
    rows, before = [], ("", "")
    for row in diff.rows.to_dict("records"):
        place = one_line(labels[row["configuration"]], 24), one_line(row["backend"], 14)
        rows.append(
            [
                "" if place[0] == before[0] else place[0],
                "" if place == before else place[1],
                {"graph latency": "graph", "peak memory": "peak"}.get(row["metric"], row["metric"]),
                _value(row, "before"),
                _value(row, "after"),
                _change(row),
                "overlap" if row["overlap"] else "apart",
                _effect(row),
                row["verdict"],
            ]
        )
        before = place
    head = ["shape", "backend", "metric", "before", "after", "change", "intervals", "effect", "verdict"]
    return plain_table(head, rows, texts=3)


def _value(row: Any, name: str) -> str:
    if row["metric"] == "peak memory":
        return format_bytes(row[name])
    return format_ns(row[name])


def _percent(change: float) -> str:
    """`+5.1 %`, `-0.3 %`."""
    decimals = 0 if abs(change) >= 0.9995 else 1
    return f"{change * 100:+,.{decimals}f} %".replace("-0.0 %", "+0.0 %")


def _change(row: Any) -> str:
    """`+8.0 ± 0.4 %`; no interval of few samples, which hold less than they say."""
    if row["metric"] == "peak memory" or min(row["before_n"], row["after_n"]) < LEAST_SAMPLES:
        return _percent(row["change"])
    half = (row["change_high"] - row["change_low"]) / 2
    return f"{_percent(row['change'])[:-2]} ± {half * 100:.{0 if half >= 0.0995 else 1}f} %"


def _effect(row: Any) -> str:
    """`+0.96 large`; nothing for memory, which is no sample."""
    if math.isnan(row["adjusted_p"]):
        return ""
    return f"{row['delta']:+.2f} {row['delta_word']}".replace("-0.00", "+0.00")


def _totals(diff: BenchDiff) -> Iterator[str]:
    times = diff.rows[diff.rows["metric"] != "peak memory"]
    counts = times["verdict"].value_counts()
    some = [
        f"{counts[name]} {name}"
        for name in (FASTER, SLOWER, NO_CLEAR_CHANGE, TOO_FEW_SAMPLES)
        if name in counts
    ]
    yield (
        f"{len(times)} times compared: {', '.join(some)}; a difference counts from"
        f" {format_share(diff.rules.least_effect)} on"
    )
    yield "± 95 % interval of the change; effect: Cliff's delta. What differs from run to run is in no interval."
    for name, only in (("before", diff.only_before), ("after", diff.only_after)):
        if only:
            more = f", and {len(only) - _MOST_NAMED} more" if len(only) > _MOST_NAMED else ""
            yield from wrap(
                f"only {name}: {', '.join(only[:_MOST_NAMED])}{more}", _WIDTH, subsequent_indent="  "
            )
