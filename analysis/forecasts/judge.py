"""Compares forecasts with outcomes: the error of each, how often intervals hold, and the table per kind of question.

    python analysis/forecasts/judge.py [forecasts.csv ...] [--outcomes outcomes.csv ...] [-o DIR]

Writes results.csv, results.png and ranking.csv, and prints the tables as Markdown, and what
`nsysprof.forecast.forecast.PUBLISHED` is to hold. A case without an outcome is open and counts as nothing.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cases import HERE, cases, rows, write_rows

Row = dict[str, Any]
COLUMNS = ("case", "kind", "question", "plain_ns", "measured_base_ns", "forecast_ns", "low_ns", "high_ns", "outcome_ns",
           "error", "ratio_error", "held", "verdict", "reason")  # fmt: skip
RANKING = ("program", "part", "share_of_time", "share_of_path", "forecast_gain", "measured_gain")
PACKAGE_KIND = {"absent": "swap"}  # what the package calls a question
COLORS = {"graph": "#2f6fb0", "gpu-delay": "#e08a00", "kernel": "#8a8a00", "delay": "#c03a2b", "swap": "#3a923a",
          "drop-sync": "#7d5ab5", "async-copies": "#8c564b", "remove": "#d165a4", "absent": "#17a0b0",
          "no-late-peer": "#444444"}  # fmt: skip


def judged(forecasts: Sequence[Path], outcomes: Sequence[Path]) -> list[Row]:
    """A row per forecast.

    ``error`` is forecast / outcome - 1; ``ratio_error`` the same where the forecast is scaled by how long the base took
    beside the outcome, which may be another machine; ``held`` whether the interval holds the outcome.
    """
    measured = {row["case"]: row for path in outcomes for row in rows(path)}
    must_refuse = {case.name for case in cases() if case.refused}
    out = []
    for row in (row for path in forecasts for row in rows(path)):
        found: Row = {name: row.get(name, "") for name in COLUMNS}
        outcome = measured.get(row["case"])
        if row["exit_code"] != "0":
            found["verdict"] = "refused as it must be" if row["case"] in must_refuse else "refused"
            if outcome and outcome["outcome_ns"]:
                found |= {"outcome_ns": float(outcome["outcome_ns"]), "measured_base_ns": float(outcome["base_ns"])}
        elif row["case"] in must_refuse:
            found["verdict"] = "answered, must be refused"
        elif outcome is None or not outcome["outcome_ns"]:
            found["verdict"] = "open"
        else:
            ns, base = float(outcome["outcome_ns"]), float(outcome["base_ns"])
            forecast, now = float(row["forecast_ns"]), float(row["base_ns"])
            held = float(row["low_ns"]) <= ns <= float(row["high_ns"])
            found |= {"outcome_ns": ns, "measured_base_ns": base, "error": round(forecast / ns - 1, 5),
                      "ratio_error": round(forecast / now * base / ns - 1, 5), "held": int(held),
                      "verdict": "held" if held else "missed"}  # fmt: skip
        out.append(found)
    return out


def errors_of(found: Sequence[Row], column: str = "error") -> list[float]:
    """How far off those forecasts were that have an outcome, smallest first."""
    return sorted(abs(float(row[column])) for row in found if row["verdict"] in ("held", "missed"))


def published(found: Sequence[Row]) -> dict[str, tuple[float, float, float, int]]:
    """Of each kind the median and the worst error, the one that nine of ten stay below, and how many there are.

    Of few errors that one is the worst and more, as of so many with exponential tails.
    """
    out = {}
    for kind in dict.fromkeys(PACKAGE_KIND.get(row["kind"], row["kind"]) for row in found):
        errors = errors_of([row for row in found if PACKAGE_KIND.get(row["kind"], row["kind"]) == kind])
        if errors:
            ninth = errors[min(int(0.9 * len(errors)), len(errors) - 1)]
            tail = math.log(10) / sum(1 / each for each in range(1, len(errors) + 1))
            most = max(ninth, errors[-1] * tail if tail > 1 else 0)
            out[kind] = (round(statistics.median(errors), 4), round(errors[-1], 4), round(most, 4), len(errors))
    return out


def table(found: Sequence[Row]) -> str:
    """The kinds of questions: how many, the median and the worst error, and how many intervals held."""
    lines = [
        "| kind | forecasts | median error | largest error | relative to the base | intervals that contain the outcome "
        "| refused |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for kind in [*dict.fromkeys(str(row["kind"]) for row in found), "all"]:
        mine = [row for row in found if kind in (row["kind"], "all")]
        errors = errors_of(mine)
        refused = sum(str(row["verdict"]).startswith("refused") for row in mine)
        if not errors:
            lines.append(f"| {kind} | 0 | – | – | – | – | {refused} |")
            continue
        held = sum(row["verdict"] == "held" for row in mine)
        ratio = statistics.median(errors_of(mine, "ratio_error"))
        off = f"{statistics.median(errors):.1%} | {errors[-1]:.1%} | {ratio:.1%}"
        lines.append(f"| {kind} | {len(errors)} | {off} | {held} | {refused} |")
    return "\n".join([*lines, "", f"PUBLISHED = {published(found)}"])


def ranking(forecasts: Sequence[Path], found: Sequence[Row]) -> list[Row]:
    """The parts that were left out: their shares, and what leaving them out brings by forecast and for real."""
    by_case = {row["case"]: row for row in found}
    out: list[Row] = []
    for row in (row for path in forecasts for row in rows(path) if row["kind"] == "absent"):
        result = by_case[row["case"]]
        if result["verdict"] in ("held", "missed"):
            program, _, part = row["case"].partition(":without=")
            now, base = float(row["base_ns"]), result["measured_base_ns"]
            gains = 1 - float(row["forecast_ns"]) / now, 1 - result["outcome_ns"] / base
            out.append(dict(zip(RANKING, (program, part, row["share_of_time"], row["share_of_path"],
                                          *(round(gain, 5) for gain in gains)), strict=True)))  # fmt: skip
    return out


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's, with mean ranks for ties; 0 where one side does not differ at all, and so ranks nothing."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [sum(v < each for v in values) + sum(v == each for v in values) / 2 for each in values]

    if len(set(one)) < 2 or len(set(other)) < 2:
        return 0.0
    return statistics.correlation(ranks(one), ranks(other))


def ranking_table(parts: Sequence[Row]) -> str:
    """The parts as Markdown, most gain first, and what the three ways to rank them are worth."""
    lines = ["| program | part | share of GPU time | share of critical path | forecast gain | measured gain |",
             "|---|---|---:|---:|---:|---:|"]  # fmt: skip
    for row in sorted(parts, key=lambda row: (row["program"], -float(row["measured_gain"]))):
        shares = " | ".join(f"{float(row[name]):.1%}" for name in RANKING[2:])
        lines.append(f"| {row['program']} | {row['part']} | {shares} |")
    lines += [
        "",
        "| program | parts | by share of GPU time | by share of critical path | by forecast gain |",
        "|---|---:|---:|---:|---:|",
    ]
    for program in [*dict.fromkeys(row["program"] for row in parts), ""]:
        mine = [row for row in parts if row["program"] == program or not program]
        gain = [float(row["measured_gain"]) for row in mine]
        if len(mine) > 2:
            worth = (f"{rank_correlation([float(row[name]) for row in mine], gain):.2f}" for name in RANKING[2:5])
            lines.append(f"| {program or 'all'} | {len(mine)} | {' | '.join(worth)} |")
    return "\n".join(lines)


def draw(found: Sequence[Row], place: Path) -> None:
    """Each forecast with its interval over its outcome, as parts of the outcome; one row of marks per kind."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    mine = [row for row in found if row["verdict"] in ("held", "missed")]
    kinds = list(dict.fromkeys(row["kind"] for row in mine))
    figure, axes = plt.subplots(figsize=(8.5, 0.5 + 0.14 * len(mine)), layout="constrained")
    at, ticks = 0.0, []
    for kind in kinds:
        begin = at
        for row in sorted((row for row in mine if row["kind"] == kind), key=lambda row: float(row["error"])):
            ns = row["outcome_ns"]
            low, high = (float(row[name]) / ns - 1 for name in ("low_ns", "high_ns"))
            held, color = row["verdict"] == "held", COLORS[kind]
            axes.plot([100 * low, 100 * high], [at, at], color=color, lw=1.6, alpha=0.55)
            axes.plot(100 * row["error"], at, "o", ms=4, color=color, mfc=color if held else "white")
            if not held:
                where = axes.get_yaxis_transform()
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
                axes.text(0.995, at, row["case"], fontsize=6, va="center", ha="right", transform=where, bbox=box)
            at += 1
        ticks.append((begin + at - 1) / 2)
        axes.axhline(at, color="#dddddd", lw=0.6)
        at += 1
    axes.axvline(0, color="#222222", lw=0.8)
    axes.set_yticks(ticks, kinds)
    axes.set_ylim(at, -1)
    axes.set_xlim(-60, 110)  # some intervals go on
    axes.grid(axis="x", color="#eeeeee")
    axes.set_xlabel("forecast against outcome, % (line: interval at 90 %; empty mark: it does not hold the outcome)")
    held = sum(row["verdict"] == "held" for row in mine)
    half = statistics.median(abs(float(row["error"])) for row in mine)
    axes.set_title(
        f"{len(mine)} forecasts and their outcomes: half are within {100 * half:.1f} %,\n"
        f"and {held} intervals at 90 % hold the outcome ({100 * held / len(mine):.0f} %)",
        loc="left",
    )
    figure.savefig(place, dpi=130)


def main() -> None:
    """Judge what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("forecasts", nargs="*", type=Path, default=[HERE / "forecasts.csv"])
    parser.add_argument("--outcomes", nargs="+", type=Path, default=[HERE / "outcomes.csv"])
    parser.add_argument("-o", "--output", type=Path, default=HERE)
    options = parser.parse_args()
    found = judged(options.forecasts, options.outcomes)
    write_rows(options.output / "results.csv", COLUMNS,
               [{key: round(value, 5) if isinstance(value, float) else value for key, value in row.items()}
                for row in found])  # fmt: skip
    print(table(found))
    parts = ranking(options.forecasts, found)
    write_rows(options.output / "ranking.csv", RANKING, parts)
    print()
    print(ranking_table(parts))
    draw(found, options.output / "results.png")


if __name__ == "__main__":
    main()
