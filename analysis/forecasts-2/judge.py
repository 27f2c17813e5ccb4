"""Compares forecasts.csv with outcomes.csv: writes results.csv and results.png, and prints the README's tables.

    python analysis/forecasts-2/judge.py [-o DIR]

A gain is the share of a step that a change saves. The measured gain is 1 - good / bad, of the medians of three rounds.
"""

from __future__ import annotations

import csv
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
Row = dict[str, Any]
COLUMNS = ("program", "recorder", "kind", "basis", "same", "gain", "gain_low", "gain_high", "measured",
           "measured_least", "measured_most", "error", "verdict")  # fmt: skip
KERNELS = ("zeros", "streams", "serialcopy", "fp32", "misaligned", "pointwise", "channels", "layernorm",
           "crossattention", "tailwave", "occupancy", "columns", "histogram", "fewblocks", "cupychain")  # fmt: skip
COLORS = {"nsys": "#2f6fb0", "torch": "#e08a00"}


def rows(name: str) -> list[Row]:
    """Return the rows of a CSV file of this folder."""
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def measured() -> dict[str, tuple[float, float, float]]:
    """Return each program's measured gain: of the medians, and the least and most that pairs of rounds give."""
    rounds: dict[tuple[str, str], list[float]] = {}
    for row in rows("outcomes.csv"):
        rounds.setdefault((row["program"], row["variant"]), []).append(float(row["ms"]))
    gains = {}
    for name, variant in rounds:
        bad, good = rounds[name, "bad"], rounds.get((name, "good"), [])
        if variant == "good":
            pairs = [1 - g / b for g in good for b in bad]
            gains[name] = (1 - statistics.median(good) / statistics.median(bad), min(pairs), max(pairs))
        elif not good:
            gains[name] = (0.0, 0.0, 0.0)  # nothing to gain, by construction
    return gains


def verdict(row: Row, gain: float) -> str:
    """Return how a forecast did; where nothing is to gain, a finding is a false alarm."""
    if not row["gain"]:
        return "refused"
    if row["same"] == "nothing":
        return "false alarm" if float(row["gain"]) > 0 else "rightly silent"
    if row["same"] == "no":
        return "no finding" if row["basis"] == "none" else "another cause"
    return "held" if float(row["gain_low"]) <= gain <= float(row["gain_high"]) else "missed"


def judged() -> list[Row]:
    """Return a row per forecast: the gain it gives, the gain measured, and the verdict."""
    gains, out = measured(), []
    for row in rows("forecasts.csv"):
        found = {name: row.get(name, "") for name in COLUMNS}
        gain, least, most = gains[row["program"]]
        found |= {"measured": round(gain, 4), "measured_least": round(least, 4), "measured_most": round(most, 4)}
        found["verdict"] = verdict(row, gain)
        if found["verdict"] in ("held", "missed"):
            found["error"] = round(float(row["gain"]) - gain, 4)
        out.append(found)
    return out


def group(row: Row) -> str:
    """Return the row label for a judged forecast."""
    if row["kind"] == "diagnosis":
        return f"first finding, {row['basis']}"
    if row["program"] in KERNELS:
        return "remedy: kernel times (computed by arithmetic)"
    return "remedy: waits, host code, copies and launches"


def table(found: list[Row]) -> str:
    """Return the errors per kind and recorder, in points of a step, as Markdown."""
    lines = ["| forecast | recorder | forecasts | median error | within 5 points | within 10 points | largest error | "
             "intervals that contain the outcome |",
             "|---|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    judgeable = [row for row in found if row["verdict"] in ("held", "missed")]
    for name in [*sorted({group(row) for row in judgeable}, reverse=True), "all"]:
        for recorder in COLORS:
            mine = [row for row in judgeable if name in (group(row), "all") and row["recorder"] == recorder]
            errors = sorted(abs(row["error"]) for row in mine)
            held = sum(row["verdict"] == "held" for row in mine)
            near = " | ".join(str(sum(error <= most for error in errors)) for most in (0.05, 0.1))
            lines.append(f"| {name} | {recorder} | {len(mine)} | {100 * statistics.median(errors):.1f} | {near} | "
                         f"{100 * errors[-1]:.0f} | {held} |")  # fmt: skip
    return "\n".join(lines)


def first_findings(found: list[Row]) -> str:
    """Return how often the first finding names the remedy, as Markdown."""
    lines = ["| recorder | names the remedy | names another cause | no finding | no finding (correct) | false alarm |",
             "|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    for recorder in COLORS:
        mine = [row["verdict"] for row in found if row["kind"] == "diagnosis" and row["recorder"] == recorder]
        counts = [mine.count(name) for name in ("another cause", "no finding", "rightly silent", "false alarm")]
        right = mine.count("held") + mine.count("missed")
        lines.append(f"| {recorder} | {right} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def under_nsys(found: list[Row]) -> str:
    """Return how far remedies forecast from nsys are off where the good variant is recorded by nsys, too."""
    gains = {row["program"]: 1 - float(row["good_ms"]) / float(row["bad_ms"]) for row in rows("recorded.csv")}
    mine = [row for row in found if row["kind"] == "remedy" and row["recorder"] == "nsys" and row["error"] != ""]
    mine = [row for row in mine if row["program"] in gains]
    lines = ["| remedies forecast from nsys | forecasts | median error |", "|---|---:|---:|"]
    for label, names in (
        ("waits, host code, copies and launches", gains.keys() - {*KERNELS}),
        ("kernel times", {*KERNELS}),
    ):
        own = [row for row in mine if row["program"] in names]
        for against, errors in (("recorded with nsys", [float(row["gain"]) - gains[row["program"]] for row in own]),
                                ("without a profiler", [row["error"] for row in own])):  # fmt: skip
            off = 100 * statistics.median(map(abs, errors))
            lines.append(f"| {label} (program after the fix, {against}) | {len(own)} | {off:.1f} |")
    return "\n".join(lines)


def picture(found: list[Row], path: Path) -> None:
    """Draw for each program the measured gain, and what was forecast for the remedy with its interval."""
    remedies = [row for row in found if row["kind"] == "remedy"]
    names = sorted({row["program"] for row in remedies}, key=lambda name: next(
        row["measured"] for row in remedies if row["program"] == name))  # fmt: skip
    figure, axes = plt.subplots(figsize=(9, 9.5), layout="constrained")
    for row in remedies:
        y = names.index(row["program"])
        if row["recorder"] == "nsys":
            axes.barh(y, 100 * row["measured"], height=0.72, color="#d9dde2", zorder=1,
                      label="measured, without a profiler" if y == 0 else None)  # fmt: skip
        if row["verdict"] == "refused":
            continue
        at = y + (0.17 if row["recorder"] == "nsys" else -0.17)
        low, gain, high = (100 * float(row[name]) for name in ("gain_low", "gain", "gain_high"))
        color, hit = COLORS[row["recorder"]], row["verdict"] == "held"
        axes.plot([low, high], [at, at], color=color, linewidth=2, alpha=0.55, zorder=2, solid_capstyle="butt")
        axes.plot(gain, at, "o", color=color, markersize=6, markerfacecolor=color if hit else "white", zorder=3)
    for recorder, color in COLORS.items():
        name = "nsys" if recorder == "nsys" else "PyTorch's profiler"
        axes.plot([], [], "o-", color=color, label=f"forecast from {name}, 90 % interval")
    axes.plot([], [], "o", color="#555555", markerfacecolor="white", label="interval misses the measured gain")
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.set_xlim(-40, 100)
    axes.set_xlabel("gain (% of a step)")
    axes.set_title("What the known remedy saves: forecast from a recording, and measured", loc="left", fontsize=12)
    axes.grid(axis="x", color="#eeeeee")
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(loc="lower right", frameon=True, framealpha=1, edgecolor="white", fontsize=9)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    """Write the results, and print the tables."""
    out = Path(sys.argv[sys.argv.index("-o") + 1]) if "-o" in sys.argv else HERE
    found = judged()
    with (out / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    picture(found, out / "results.png")
    print(table(found), "", under_nsys(found), "", first_findings(found), "", sep="\n")


if __name__ == "__main__":
    main()
