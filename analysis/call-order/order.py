"""How long a call takes after which other call: from the samples of the benchmarks beside this folder.

    python analysis/call-order/order.py [FOLDER]

writes ``order.csv`` and ``order.png`` into FOLDER (default: this one). The samples say in which round and at which
place of it each was taken. The order within the rounds, that of the A/A twins included, was drawn from the seed of the
run and can be drawn again; it must put every sample at its recorded place, or nothing is written.

Columns of ``order.csv``: study, configuration, kind (eager, graph), backend, after (the backend of the call before), n,
median_ns with its 95 % interval low_ns and high_ns, and, for eager calls and from 10 samples a side on, over_self: the
median over that after a call of the same backend, with its interval.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.ticker import MaxNLocator

from nsysprof.bench.lines import LOOKS
from nsysprof.charts.drawing import figure_png
from nsysprof.charts.marks import Heading
from nsysprof.charts.style import TEXT, draw_axis, panel_grid, style
from nsysprof.formats.samples import samples_content, samples_file
from nsysprof.statistics.contrast import contrast
from nsysprof.statistics.summary import LEAST_SAMPLES, summarize

STUDIES = ("math-vs-flash", "baseline", "long", "scaling")
SETS = {"eager": ("latency_ns", "aa_latency_ns"), "graph": ("graph_latency_ns",)}
RESAMPLES = 2000
SHOWN = ("efficient", "flash", "cudnn")
Points = Mapping[str, Mapping[str, Any]]


def main() -> int:
    """Write both files."""
    here = Path(__file__).parent
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else here
    rows = [row for study in STUDIES for row in study_rows(study, here.parent / study)]
    frame = pd.DataFrame(rows)
    times = [name for name in frame.columns if name.endswith("_ns")]
    frame[times] = frame[times].round(1)
    frame.round(4).to_csv(folder / "order.csv", index=False, lineterminator="\n")
    (folder / "order.png").write_bytes(chart(frame))
    return 0


def study_rows(study: str, folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of one benchmark."""
    data = json.loads(samples_content(samples_file(folder)))
    shapes: dict[str, dict[str, Any]] = defaultdict(dict)
    for point in data["points"]:
        if point["latency_ns"]:
            shapes[point["configuration"]["id"]][point["backend"]] = point
    seed = data["plan"]["seed"]
    for name, points in shapes.items():
        if len(points) < 2 or any(point["alone_reason"] for point in points.values()):
            continue  # not sampled in turn
        backends = put_on_gpu(seed, name, points)
        for kind in SETS:
            for row in shape_rows(kind, drawn(seed, name, kind, backends, points), points):
                yield {"study": study, "configuration": name, **row}


def put_on_gpu(seed: int, name: str, points: Points) -> list[str]:
    """The backends in the order in which they were put on the GPU: the one that draws the places that are recorded."""
    [some, *_] = points
    others = list(points[some]["sampled_with"])
    for at in range(len(others) + 1):
        found = [*others[:at], some, *others[at:]]
        orders = drawn(seed, name, "eager", found, points)
        places = {each: [order.index((each, 0)) for order in orders] for each in found}
        if all(places[each] == points[each]["place_in_round"] for each in found):
            return found
    raise SystemExit(f"{name}: no order of {', '.join(points)} draws the places at which they were sampled")


def drawn(seed: int, name: str, kind: str, backends: Sequence[str], points: Points) -> list[list[tuple[str, int]]]:
    """The rounds of a configuration: backends, each with the number of its set (1: the A/A twin)."""
    series = [(backend, number) for backend in backends for number in range(len(SETS[kind]))]
    source = random.Random(f"{seed} {name} {kind}")
    rounds = len(points[backends[0]]["latency_ns"])
    return [source.sample(series, len(series)) for _ in range(-1, rounds)][1:]  # the first one was not kept


def shape_rows(kind: str, orders: Sequence[Sequence[tuple[str, int]]], points: Points) -> Iterator[dict[str, Any]]:
    """A row per backend and backend before it."""
    cells: dict[tuple[str, str], list[float]] = defaultdict(list)
    before = ""
    for number, order in enumerate(orders):
        for backend, which in order:
            if before:
                cells[backend, before].append(points[backend][SETS[kind][which]][number])
            before = backend
    for (backend, after), values in sorted(cells.items()):
        summary = summarize(values, resamples=RESAMPLES)
        row = {
            "kind": kind,
            "backend": backend,
            "after": after,
            "n": len(values),
            "median_ns": summary.median,
            "low_ns": summary.interval.low,
            "high_ns": summary.interval.high,
        }
        own = cells.get((backend, backend), [])
        if kind == "eager" and after != backend and min(len(own), len(values)) >= LEAST_SAMPLES:
            found = contrast(own, values, resamples=RESAMPLES)
            row["over_self"] = found.ratio
            row["over_self_low"], row["over_self_high"] = found.ratio_interval.low, found.ratio_interval.high
        yield row


def chart(frame: pd.DataFrame) -> bytes:
    """The fused backends of `math-vs-flash` after each of the others, eager and as graphs."""
    frame = frame[(frame["study"] == STUDIES[0]) & frame["backend"].isin(SHOWN)]
    after = ["cudnn", "auto", "flash", "efficient", "math_reduced", "math"]
    names = list(dict.fromkeys(frame["configuration"]))
    heading = Heading(
        "An eager call of cudnn takes up to 1.5x as long after math as after itself; graphs hardly differ",
        "math-vs-flash · attention forward (B1 H8 D64 fp16 causal) · NVIDIA H200 · cold L2 cache, CUDA events",
        [(name, LOOKS[name][0]) for name in SHOWN],
        ["filled: eager calls, with the 95 % interval of the median", "hollow: CUDA graphs"],
    )
    with style():
        figure, panels = panel_grid(heading, len(names), high=3.0, left=1.5, right=0.35)
        for axes, name in zip(panels, names, strict=True):
            part = frame[frame["configuration"] == name]
            for row in part.to_dict("records"):
                colour, marker = LOOKS[row["backend"]]
                y = after.index(row["after"]) + (SHOWN.index(row["backend"]) - 1) * 0.2
                eager = row["kind"] == "eager"
                if eager:
                    axes.plot([row["low_ns"] / 1e3, row["high_ns"] / 1e3], [y, y], color=colour, linewidth=1.5)
                axes.plot(
                    [row["median_ns"] / 1e3],
                    [y],
                    marker,
                    color=colour,
                    markersize=5.5,
                    mfc=colour if eager else "white",
                )
            for place, each in enumerate(after):
                axes.text(-0.03, place, f"after {each}", transform=axes.get_yaxis_transform(), ha="right", va="center")
            axes.set_ylim(len(after) - 0.5, -0.5)
            axes.set_xlim(0, 1.06 * part["high_ns"].max() / 1e3)
            axes.set_title(name.split(".")[2], loc="left", fontsize=TEXT + 0.5, weight="bold")
            ticks = MaxNLocator(5).tick_values(*axes.get_xlim())
            draw_axis(axes, ticks, "{:,.10g}".format, "latency of a call, µs", gap=4)
        return figure_png(figure)


if __name__ == "__main__":
    sys.exit(main())
