"""What holds for every chart of every room: its place and caption, its texts, its title, its size, and its plan."""

import importlib
import pickle
import pkgutil
import re
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import nsysprof
from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.charts import analysis_charts
from nsysprof.analyze.text import summary
from nsysprof.bench.charts import BENCH_CHARTS, SELECTION
from nsysprof.bench.report import bench_report
from nsysprof.bench.results import read_bench_results
from nsysprof.bench.text import bench_summary
from nsysprof.charts.chart import Chart, files_of, save_charts
from nsysprof.charts.drawing import draw, picture
from nsysprof.charts.marks import Heading, Message
from nsysprof.compare.charts import CHARTS
from nsysprof.compare.comparison import compare
from nsysprof.compare.text import comparison_text
from nsysprof.errors import NsysprofError
from nsysprof.fleet.answer import fleet_answer
from nsysprof.fleet.charts import FLEET_CHARTS
from nsysprof.fleet.text import fleet_text
from nsysprof.forecast.charts import CHARTS as FORECAST_CHARTS
from nsysprof.forecast.forecast import forecast
from nsysprof.forecast.text import forecast_text
from nsysprof.history.charts import CHARTS as HISTORY_CHARTS
from nsysprof.history.history import judge_runs
from nsysprof.history.text import history_text
from nsysprof.hotspots.charts import CHARTS as HOTSPOTS_CHARTS
from nsysprof.hotspots.hotspots import hotspots
from nsysprof.hotspots.text import hotspots_text
from nsysprof.page.template import figures
from nsysprof.steps.charts import CHARTS as STEPS_CHARTS
from nsysprof.steps.steps import steps as judge_steps
from nsysprof.steps.text import steps_text
from nsysprof.why.charts import CHARTS as WHY_CHARTS
from nsysprof.why.text import why_text
from nsysprof.why.why import why
from tests.compare.conftest import ASKED
from tests.fleet.test_parts import examined, ranked, steps
from tests.kit.bench_samples import SPEED, made_up, merged, write_samples
from tests.kit.figures import check_texts, title_of
from tests.kit.reports import attributed, broken_down
from tests.kit.runs import made_run, made_runs
from tests.kit.trace import Items, Range, launch_kernel, write

ROOT = Path(__file__).parents[2]
TRACES, TILED = ROOT / "traces", ROOT / "analysis" / "tiled-attention" / "tiled.sqlite"
Make = Callable[[Path], Any]
_ALL = ("math", "flash", "efficient", "cudnn", "auto")


@cache
def attribution(path: Path) -> Any:
    """The attribution of a shipped report."""
    return attributed(path)


def analysed(name: str, **how: Any) -> Make:
    return lambda _: break_down(attribution(TRACES / f"{name}.sqlite"), **how)


def crowded(folder: Path) -> Any:
    """Four processes with three threads each: more lanes than keep their height."""
    items: list[Items] = []
    for number in range(36):
        process, thread, at = 1 + number // 9, number // 3 % 3, 1000 * (number % 3)
        where: Any = {"process": process, "thread": 100 * process + thread}
        items += [Range(f"forward {number}", at, at + 900, **where)]
        items += [Range(f"inner block {number}", at + 10, at + 800, **where)]
        op = (at + 100, at + 700)
        items.append(launch_kernel("gemm", (at + 20, at + 30), op, id=number, stream=thread, device=process, **where))
    return broken_down(write(folder / "crowded.sqlite", items))


def compared(path: Path, base: str, new: str) -> Make:
    return lambda _: compare(attribution(path), base=base, new=new)


def benched(*parts: dict[str, Any], memory: int | None = None) -> Make:
    def make(folder: Path) -> Any:
        SPEED.update(dict.fromkeys(("mine", "theirs"), (9_000, 2e14)))
        data = merged(*(made_up(**{"samples": 12, **part}) for part in parts))
        if memory:
            data["environment"]["workload"]["memory_bytes"] = memory
        return read_bench_results(write_samples(folder, data))

    return make


@cache
def study(name: str) -> Make:
    return lambda _: read_bench_results(ROOT / "analysis" / name)


def fleet(ranks: int, count: int = 6) -> Make:
    def make(folder: Path) -> Any:
        usual, slow = (
            examined(write(folder / f"{compute}.sqlite", steps(count, compute=compute, waits=350 - compute)))
            for compute in (200, 300)
        )
        return fleet_answer([ranked(f"job/{rank}", rank, slow if rank == 1 else usual) for rank in range(ranks)])

    return make


def followed(*levels: float, series: int = 1) -> Make:
    """A history of eight runs at each level in ms, on so many GPUs in turn."""
    times = [1e6 * (ms + 0.01 * (run % 3)) for ms in levels for run in range(8)]
    runs = [made_run(at, time, {"GPU": f"NVIDIA H{at % series}"}) for at, time in enumerate(times)]
    return lambda _: judge_runs(runs)


def two_ranks(_: Path) -> Any:
    folder = ROOT / "analysis" / "two-ranks"
    return fleet_answer([ranked(f"rank_{at}", at, examined(folder / f"rank_{at}.sqlite")) for at in range(2)])


def explained(path: Path, select: str | None = None) -> Make:
    return lambda _: why(attribution(path), select)


def judged(path: Path, per: str | None = None) -> Make:
    return lambda _: judge_steps(attribution(path), per)


def hottest(by: str) -> Make:
    return lambda _: hotspots(attribution(TRACES / "run.sqlite"), by=by)


def forecast_of(**changes: Any) -> Make:
    return lambda _: forecast(attribution(TRACES / "block.sqlite"), "RUN::math::S1024/iter*", **changes)


def nothing_ran(folder: Path) -> Any:
    return why(attributed(write(folder / "host.sqlite", [Range("step", 0, 100)])))


SWEEP = benched({"backends": _ALL, "seqs": (256, 512, 1024, 2048, 4096), "samples": 40})
TILED_PAIR = TILED, "RUN::tiled_o0::*", "RUN::tiled_o3::*"
ROOMS: dict[str, tuple[tuple[Chart[Any], ...], dict[str, Make]]] = {
    "analyze": (
        analysis_charts(),
        {
            "run": analysed("run"),
            "measured": analysed("run", select="RUN::*"),
            "step": analysed("block"),
            "processes": analysed("two-processes", by="process"),
            "crowded": crowded,
        },
    ),
    "compare": (
        CHARTS,
        {
            name: compared(TRACES / f"{of}.sqlite", base, new)
            for name, (of, base, new) in ASKED.items()
            if name not in ("S1024", "same")
        }
        | {"counters": compared(*TILED_PAIR)},
    ),
    "selection": (
        (SELECTION,),
        {
            "sweep": SWEEP,
            "few": benched({"backends": ("math", "auto"), "seqs": (256, 512), "samples": 4, "device": "cpu"}),
            **{name: study(name) for name in ("baseline", "long", "scaling")},
        },
    ),
    "bench": (
        BENCH_CHARTS,
        {
            "sweep": SWEEP,
            "sweeps": benched(
                {"backends": _ALL, "seqs": (128, 512, 2048), "batch": 32},
                *({"backends": _ALL, "seqs": (512,), "batch": batch} for batch in (8, 64)),
                *({"backends": _ALL, "seqs": (512,), "batch": 32, "heads": heads} for heads in (4, 16)),
            ),
            "dtypes": benched(
                {
                    "dtypes": {"fp32": ("naive", "auto"), "fp16": ("naive", "auto", "flash")},
                    "seqs": (4096, 8192, 16384, 32768),
                    "batch": 8,
                    "workload": "transformer_block",
                },
                memory=150_000_000_000,
            ),
            "strangers": benched({"backends": ("mine", "theirs"), "samples": 8}),
            "one sample": benched({"seqs": (1024,), "backends": ("flash",), "samples": 1}),
            "nothing": benched({"dtypes": {"fp32": ("flash",)}, "samples": 3}),
            "no GPU": benched({"seqs": (64, 128), "device": "cpu"}),
            **{name: study(name) for name in ("scaling", "tiled-attention/bench")},
        },
    ),
    "why": (
        WHY_CHARTS,
        {
            "healthy": explained(TRACES / "run.sqlite"),
            "short": explained(TRACES / "run.sqlite", "RUN::flash::S1024/iter*"),
            "step": explained(TRACES / "block.sqlite"),
            "whole": explained(TRACES / "two-processes.sqlite", "*"),
            "ranks": explained(ROOT / "analysis" / "two-ranks" / "rank_0.sqlite"),
            "nothing": nothing_ran,
        },
    ),
    "steps": (
        STEPS_CHARTS,
        {
            "slow": judged(TRACES / "run.sqlite"),
            "one": judged(TRACES / "run.sqlite", "RUN::auto::S2048/iter*"),
            "steady": judged(TRACES / "block.sqlite"),
            "few": judged(ROOT / "analysis" / "two-ranks" / "rank_0.sqlite"),
        },
    ),
    "hotspots": (HOTSPOTS_CHARTS, {"kernels": hottest("kernel"), "families": hottest("family")}),
    "history": (
        HISTORY_CHARTS,
        {
            "slower": followed(10, 12, 11, 15, 15.5, 30),
            "steady": followed(10, 10),
            "series": followed(10, 90, 50, series=5),
            "one": lambda _: judge_runs(made_runs([1e6])),
        },
    ),
    "forecast": (
        FORECAST_CHARTS,
        {
            "graph": forecast_of(graph=["backward"]),
            "scale": forecast_of(scale=["*gemm*=0.5"]),
            "unclear": forecast_of(scale=["*gemm*=0.99"]),
        },
    ),
    "fleet": (FLEET_CHARTS, {"two": two_ranks, "one": fleet(1), "six": fleet(6), "seventy": fleet(70, 2)}),
}
FILES = {
    "analyze": "kernel_counts.png kernel_breakdown.png timeline.png",
    "compare": "gap.png compare.png roofline.png",
    "bench": "latency.png speedup.png memory.png throughput.png roofline.png samples.png",
    "selection": "selection.png",
    "why": "why.png",
    "steps": "steps.png",
    "hotspots": "hotspots.png",
    "history": "history.png",
    "forecast": "forecast.png",
    "fleet": "fleet_heatmap.png fleet_timeline.png",
}
EVERY = [
    pytest.param(room, chart, name, id=f"{room}-{chart.file}-{name}")
    for room, (charts, answers) in ROOMS.items()
    for name in answers
    for chart in charts
]
# What each room prints of an answer, all of it.
TEXTS: dict[str, Callable[[Any], str]] = {
    "analyze": lambda answer: summary(answer, 1000, full=True, width=500),
    "compare": lambda answer: comparison_text(answer, top=100, every=True),
    "bench": lambda answer: bench_summary(answer) + bench_report(answer),
    "selection": lambda answer: bench_summary(answer) + bench_report(answer),
    "why": lambda answer: why_text(answer, full=True),
    "steps": lambda answer: steps_text(answer, full=True),
    "hotspots": lambda answer: hotspots_text(answer, full=True),
    "history": lambda answer: history_text(answer, full=True),
    "fleet": lambda answer: fleet_text(answer, full=True),
    "forecast": forecast_text,
}
VERDICTS = [
    *("no clear change", "no clear difference", "too few samples", "nothing to gain", "is slow"),
    *("is a straggler", "straggler: rank", "no rank is shown", "take turns"),
    *("hardly wait", "compared with themselves"),
]
# Figures of these titles are of the picture alone: its longest wait, parts of its largest row, sums and spreads.
OF_THEIR_OWN = ("timeline.png", "kernel_breakdown.png", "gap.png", "throughput.png", "roofline.png", "samples.png")


FOLDERS: list[tempfile.TemporaryDirectory[str]] = []  # of reports, which are read until the end


@cache
def answer_of(make: Make) -> Any:
    """An answer, made once: several rooms draw charts of one."""
    FOLDERS.append(tempfile.TemporaryDirectory())
    return make(Path(FOLDERS[-1].name))


@cache
def text_of(room: str, name: str) -> str:
    """What is printed of an answer, with common spaces."""
    return " ".join(TEXTS[room](answer_of(ROOMS[room][1][name])).replace("\u00a0", " ").split())


@pytest.mark.parametrize(("room", "chart", "name"), EVERY)
def test_every_chart_keeps_the_rules(room: str, chart: Chart[Any], name: str) -> None:
    """A plain and small plan; a finding as title; the common width; texts inside of the picture and apart.

    Ratios and verdicts of a title stand in the text and its tables too, and so do other figures that both have.
    """
    plan = chart.plan(answer_of(ROOMS[room][1][name]))
    data = pickle.dumps(plan)
    assert len(data) < 500_000
    assert b"pandas" not in data
    assert b"matplotlib" not in data
    figure = draw(pickle.loads(data))
    width, height = figure.canvas.get_width_height()
    assert width == 1920
    assert 200 < height < 6000
    title = title_of(figure)
    assert title not in ("", chart.caption)
    assert isinstance(plan, Message) or re.search(
        r"\d|as fast as|straggler|Nothing|is not known|is unknown|of each rank", title
    ), title
    check_texts(figure)
    title, text = plan.heading.title.replace("\u00a0", " "), text_of(room, name)
    unit = "x" if chart.file in OF_THEIR_OWN else "(?:x| %| [nµm]?s| [KMG]iB)"
    assert [figure for figure in re.findall(rf"\d[\d,.]*{unit}(?!\w)", title) if figure not in text] == []
    assert [words for words in VERDICTS if words in title.lower() and words not in text.lower()] == []


def test_every_chart_of_every_room_is_here() -> None:
    """The charts that the modules of the package hold are those of `ROOMS`, whose answers they are drawn of above."""
    here = {chart.file for charts, _ in ROOMS.values() for chart in charts}
    for module in pkgutil.walk_packages(nsysprof.__path__, "nsysprof."):
        if module.name.endswith(".charts") and module.ispkg is False:
            for value in vars(importlib.import_module(module.name)).values():
                for chart in value if isinstance(value, tuple) else (value,):
                    if isinstance(chart, Chart) and chart.file not in here:
                        room = module.name.split(".")[1]
                        pytest.fail(
                            f"tests/charts/test_conformance.py: add {room!r} with {chart.file} of {module.name} to"
                            " ROOMS, FILES and TEXTS"
                        )


@pytest.mark.parametrize("room", ROOMS)
def test_every_chart_has_a_file_and_a_caption(room: str) -> None:
    """Said once, and told apart from those of the others; on a page every picture stands with its caption."""
    charts, _ = ROOMS[room]
    assert " ".join(files_of(charts)) == FILES[room]
    assert len({chart.caption for chart in charts if chart.caption.strip()}) == len(charts)
    drawn = picture(Message(Heading("A title", "about it"), ["Some words."]))
    found = figures(charts, [drawn] * len(charts))
    assert [each["caption"] for each in found] == [chart.caption for chart in charts]
    assert figures(charts, []) == []
    with pytest.raises(ValueError, match="zip"):
        figures(charts, [drawn] * (len(charts) + 1))


@pytest.mark.parametrize(("room", "name"), [("analyze", "measured"), ("compare", "S4096"), ("bench", "sweep")])
def test_charts_are_saved_whole(room: str, name: str, tmp_path: Path) -> None:
    """The folder is made, nothing else lies in it, and failures are one line."""
    charts, found = ROOMS[room][0][:2], answer_of(ROOMS[room][1][name])
    paths = save_charts(charts, found, tmp_path / "a" / "b")
    assert sorted((tmp_path / "a" / "b").iterdir()) == sorted(paths)
    again = save_charts(charts, found, tmp_path / "c")
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    for path in paths:
        head = path.read_bytes()[:24]
        assert head.startswith(b"\x89PNG")
        assert struct.unpack(">I", head[16:20]) == (1920,)
    (tmp_path / "file").write_text("")
    with pytest.raises(NsysprofError, match="cannot write charts into"):
        save_charts(charts, found, tmp_path / "file")
