"""What the README of `tiled-attention` says, as benchmarks, ledgers, counters and checks have it."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from nsysprof.core.units import format_bytes, format_ns, format_ratio, format_share
from nsysprof.statistics.confidence import LEVEL
from nsysprof.statistics.contrast import NO_CLEAR_CHANGE
from tests.kit.study_figures import ANALYSIS, StepFigures, StudyFigures, step_figures, study_figures

STUDY = "tiled-attention"
STAGES = tuple(f"tiled_o{number}" for number in range(6))
TILED_STEPS = tuple(f"o{number}-o{number + 1}" for number in range(5))
OTHERS = ("math", "flash", "efficient", "cudnn")
LENGTHS = (512, 1024, 2048, 4096, 8192)
FUSED, LATENCY = "fused attention", "idle: latency"
# Published: a first fp32 kernel, flash and math on a GTX 1060, ms by L, one head.
PUBLISHED_1060 = {
    512: ("3–4", 0.10, 0.25),
    1024: ("11–12", 0.20, 0.54),
    1536: ("23–25", 0.30, 1.1),
    2048: ("36–38", 0.45, 1.9),
}
# What the kernels' files predict for S=4096, in their words and in those of the README.
PREDICTED = {
    "tiled_o0": ("5 to 6 ms", "5 to 6 ms"),
    "tiled_o1": ("2.5 ms at S = 4096", "2.5 ms"),
    "tiled_o2": ("0.62 ms at S = 4096 if", "0.62 to 0.88 ms"),
    "tiled_o3": ("at 60 % of it 430 us", "430 µs"),
    "tiled_o5": ("end of the launch: 35 us", "35 µs"),
}


def bench() -> StudyFigures:
    """The main benchmark."""
    return study_figures(f"{STUDY}/bench")


def graph_ns(backend: str, seq: int = 4096) -> float:
    """Nanoseconds of a call without its launch."""
    return float(bench().row(backend, seq)["graph_median_ns"])


def faster(base: str, new: str, seq: int = 4096) -> str:
    """`2.72x`, without launches; the interval has to leave 1 out."""
    found = bench().pair(base, new, seq, graph=True)
    assert found["verdict"] == "faster", (base, new, seq)
    return format_ratio(graph_ns(base, seq) / graph_ns(new, seq))


def step(number: int) -> StepFigures:
    """The ledger from a stage to the next."""
    return step_figures(TILED_STEPS[number], STUDY)


def counted() -> dict[str, dict[str, Any]]:
    """What the hardware counted in one call at S=4096, by backend."""
    rows = pd.read_csv(ANALYSIS / STUDY / "tiled.counters.csv").to_dict("records")
    return {row["range"].split("::")[1]: {str(name): value for name, value in row.items()} for row in rows}


def row_of(*cells: str) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def claims_of_tiled_attention() -> Iterator[str]:
    """Rows and phrases of the README."""
    yield from rows_of_latency()
    yield from rows_of_memory()
    yield from rows_of_steps()
    yield from rows_of_counters()
    yield from rows_of_predictions()
    yield from rows_of_single_head()
    yield from rows_of_head_dim_128()
    yield from rows_of_other_problems()
    yield from rows_of_the_roof()
    yield from rows_of_checks()
    yield from _findings()
    yield from _targets()
    yield from _reasons()
    yield from _oddities()


def rows_of_latency() -> Iterator[str]:
    """Both tables of latency: without launches, and with them."""
    for graph in (True, False):
        for name in (*OTHERS, *STAGES):
            yield row_of(name, *(bench().time(name, seq, graph=graph) for seq in LENGTHS))


def rows_of_memory() -> Iterator[str]:
    """The peak of a call."""
    for name in OTHERS:
        yield row_of(name, *(bench().size(name, seq) for seq in LENGTHS))
    for name in STAGES:
        rows = [bench().row(name, seq) for seq in LENGTHS]
        assert [row["temporary_bytes"] for row in rows] == [0] * len(LENGTHS)
        assert all(row["peak_bytes"] == row["inputs_bytes"] + row["outputs_bytes"] for row in rows)
    yield row_of("each stage", *(bench().size("tiled_o0", seq) for seq in LENGTHS))


def rows_of_steps() -> Iterator[str]:
    """The ledgers in one table: the causes, the total, and how many times as fast by span and by busy."""
    for number in range(5):
        at = step(number)
        assert all(cause in (FUSED, LATENCY) or cause.startswith("idle: host") for cause in at.causes())
        for seq in (1024, 4096):
            pair, cells = at.pairs[seq], at.cells(seq)
            total = f"{pair['base_mean_ns'] / 1000:,.1f} → {pair['new_mean_ns'] / 1000:,.1f}"
            causes = [cells.get(cause, "") for cause in (FUSED, LATENCY)]
            host = [f"{at.host(seq)[f'{side}_ns'] / 1000:.1f}" for side in ("base", "new")]
            waits = " → ".join("0" if each == "0.0" else each for each in host) if any(map(float, host)) else ""
            yield row_of(f"o{number} → o{number + 1}", str(seq), *causes, waits, total, at.ratio(seq))


def rows_of_counters() -> Iterator[str]:
    """The table of counters."""
    for name, row in counted().items():
        flops = [row[f"{kind}_flops"] / 1e9 for kind in ("tensor", "fp32", "fp16")]
        cells = [f"{each:.1f}" if each >= 0.05 else "0" for each in flops]
        each = row["tensor_flops"] / row["tensor_instructions"] if row["tensor_instructions"] else 0
        cells += [f"{each:,.0f}" if each else "", format_bytes(row["l2_bytes"])]
        cells += [format_share(row[f"{what}_percent"] / 100) for what in ("occupancy", "sm")]
        blocks = all_of(row["grid"])
        yield row_of(name, *cells, f"{blocks} × {all_of(row['block'])}")


def all_of(text: str) -> int:
    """`8x256x1` is 2,048."""
    sizes = [int(each) for each in text.split("x")]
    return sizes[0] * sizes[1] * sizes[2]


def rows_of_predictions() -> Iterator[str]:
    """What the files say before, and what came out, without launches and without a cold cache."""
    for number, name in enumerate(STAGES):
        source = (ANALYSIS.parent / "workloads" / "kernels" / f"{name}.cu").read_text(encoding="utf-8")
        top = " ".join(line.removeprefix("//").strip() for line in source.splitlines()[:40])
        words, said = PREDICTED.get(name, ("", "none written down"))
        assert words in top
        side, at = ("new", step(number - 1)) if number else ("base", step(0))
        busy = at.pairs[4096][f"{side}_busy_ns"]
        yield row_of(name, said, bench().time(name, 4096, graph=True), format_ns(busy))


def rows_of_single_head() -> Iterator[str]:
    """The classic table beside ours."""
    at = study_figures(f"{STUDY}/single-head")
    for seq, (first, flash, math) in PUBLISHED_1060.items():
        cells = [str(seq), first, f"{flash:.2f}", f"{math:.3g}" if math > 1 else f"{math:.2f}"]
        names = (*STAGES[:4], "efficient", "math", "naive")
        yield row_of(*cells, *(at.time(name, seq, "fp32") for name in names))
        yield row_of(str(seq), *(at.time(name, seq, "fp32", graph=True) for name in names))
    assert (at.results["error_of_tolerance"].dropna() < 1).all()


def rows_of_head_dim_128() -> Iterator[str]:
    """Without launches."""
    at = study_figures(f"{STUDY}/head-dim-128")
    for seq in (1024, 4096):
        yield row_of(str(seq), *(at.time(name, seq, graph=True) for name in ("flash", "cudnn", *STAGES[2:])))


def rows_of_other_problems() -> Iterator[str]:
    """More heads, and no mask; without launches."""
    for study, said in (("many-heads", "B8 H16, causal"), ("not-causal", "B1 H8, not causal")):
        at = study_figures(f"{STUDY}/{study}")
        for seq in sorted(set(at.results["seq"])):
            names = ("flash", "cudnn", *STAGES[3:])
            yield row_of(said, str(seq), *(at.time(name, seq, graph=True) for name in names))
    many, full = (study_figures(f"{STUDY}/{study}") for study in ("many-heads", "not-causal"))
    assert {many.pair("flash", "tiled_o4", seq, graph=True)["verdict"] for seq in (512, 2048)} == {"faster"}
    assert many.pair("cudnn", "tiled_o5", 512, graph=True)["verdict"] == "slower"
    assert many.pair("cudnn", "tiled_o5", 2048, graph=True)["verdict"] == "faster"
    for seq in (2048, 4096):
        assert full.pair("cudnn", "tiled_o4", seq, graph=True)["verdict"] == "slower"
    for seq in (1024, 2048, 4096):
        assert full.pair("flash", "tiled_o4", seq, graph=True)["verdict"] == "faster"
        assert full.pair("cudnn", "tiled_o5", seq, graph=True)["verdict"] == "faster"
    yield f"takes {many.time('tiled_o4', 2048, graph=True)} for B8 H16 at S=2048"


def rows_of_the_roof() -> Iterator[str]:
    """Rates without launches, of what the units could do and of what a large product reaches."""
    measured = float(bench().row("flash", 4096)["measured_peak_tflops"])
    for name in ("flash", "cudnn", "tiled_o3", "tiled_o4", "tiled_o5"):
        cells = [name]
        for seq in (4096, 8192):
            rate = bench().row(name, seq)["graph_tflops"]
            cells += [bench().rate(name, seq, "graph_tflops")]
            cells += [bench().share(name, seq, "graph_share_of_peak"), format_share(rate / measured)]
        yield row_of(*cells)


def rows_of_checks() -> Iterator[str]:
    """Cases against float64, and what compute-sanitizer says."""
    for name in STAGES:
        text = (ANALYSIS / STUDY / "checks" / f"{name}.txt").read_text(encoding="utf-8")
        found = re.search(r"(\d+) cases, 0 wrong; fp16 up to (\S+?)(?:, fp32 up to (\S+))?\s", text)
        assert found
        memory, races = (
            (ANALYSIS / STUDY / "sanitizer" / f"{name}-{tool}check.txt").read_text(encoding="utf-8")
            for tool in ("mem", "race")
        )
        assert "ERROR SUMMARY: 0 errors" in memory
        [hazards] = re.findall(r"RACECHECK SUMMARY: (\d+) hazards displayed", races)
        yield row_of(name, found[1], found[2], found[3] or "", "0", hazards)
    for name, lines in (("tiled_o4", {("289", "124"), ("289", "99")}), ("tiled_o5", {("437", "463")})):
        control = (ANALYSIS / STUDY / "sanitizer" / "control" / f"{name}-racecheck.txt").read_text(encoding="utf-8")
        assert lines_of_races(control) >= lines


def lines_of_races(text: str) -> set[tuple[str, str]]:
    """The lines of the source between which races are reported, the write of each pair first."""
    found: Counter[tuple[str, str]] = Counter()
    for part in text.split("Race reported between ")[1:]:
        (kind, first), *others = re.findall(r"(Write|Read) access at .*?\.cu:(\d+)", part)
        for _, other in others:
            found[(first, other) if kind == "Write" else (other, first)] += 1
    return set(found)


def eager_more(backend: str, seq: int = 4096) -> str:
    """What an eager call takes longer than its replay."""
    row = bench().row(backend, seq)
    return format_ns(row["median_ns"] - row["graph_median_ns"])


def _findings() -> Iterator[str]:
    whole, first = graph_ns("tiled_o0"), graph_ns("tiled_o5")
    yield f"from {format_ns(whole)} to {format_ns(first)} at S=4096, a speed-up of {format_ratio(whole / first)}"
    yield f"`tiled_o0` takes {format_ratio(whole / graph_ns('math'))} as long as `math`"
    math, own = (bench().row(name, 4096)["peak_bytes"] for name in ("math", "tiled_o0"))
    yield f"although it needs {format_ratio(math / own)} less memory"
    yield f"`tiled_o5` is {faster('flash', 'tiled_o5')} as fast as `flash`"
    yield f"and {faster('cudnn', 'tiled_o5')} as fast as `cudnn`"
    for seq in LENGTHS:
        assert faster("cudnn", "tiled_o5", seq)
        assert faster("flash", "tiled_o5", seq)
    yield f"{bench().rate('tiled_o5', 8192, 'graph_tflops')} TFLOP/s at S=8192"
    measured = float(bench().row("flash", 4096)["measured_peak_tflops"])
    share = format_share(bench().row("tiled_o5", 8192)["graph_tflops"] / measured)
    yield f"{share} of the throughput of a large matrix product on the same GPU"
    for seq, verdict in ((512, "slower"), (1024, "slower"), (2048, NO_CLEAR_CHANGE), (4096, "faster")):
        assert bench().pair("tiled_o4", "tiled_o5", seq)["verdict"] == verdict
    yield f"`tiled_o4` takes {bench().time('tiled_o4', 4096)} and `tiled_o5` takes {bench().time('tiled_o5', 4096)}"
    assert bench().pair("tiled_o4", "tiled_o5", 8192)["verdict"] == "faster"
    yield f"At S=8192, `tiled_o5` is {_eager('tiled_o4', 'tiled_o5', 8192)} as fast as `tiled_o4` if called from Python"
    yield f"and {faster('tiled_o4', 'tiled_o5', 8192)} as fast if replayed as a CUDA graph"
    yield f"At S=4096, {bench().launching('tiled_o5', 4096)} of a call of `tiled_o5` is launch overhead"


def _targets() -> Iterator[str]:
    steps = [faster(STAGES[number], STAGES[number + 1]) for number in range(5)]
    yield f"yes ({steps[0]}, {steps[1]}, {steps[2]}, {steps[3]})"
    yield f"o5 is {steps[4]} as fast as o4"
    lead = [faster("math", "tiled_o3", seq) for seq in LENGTHS[1:]]
    yield f"it is {lead[0]}, {lead[1]}, {lead[2]}, {lead[3]} as fast (eager {_eager('math', 'tiled_o3', 1024)} to"
    yield f"{_eager('math', 'tiled_o3', 8192)}"
    ours, theirs = format_ns(graph_ns("tiled_o4")), format_ns(graph_ns("flash"))
    yield f"exceeded ({ours} against {theirs}, {faster('flash', 'tiled_o4')} as fast"
    ours, theirs = format_ns(graph_ns("tiled_o5")), format_ns(graph_ns("cudnn"))
    yield f"faster than both ({ours} against {format_ns(graph_ns('flash'))} and {theirs}"
    yield f"`flash` needs {bench().size('flash', 4096, 'temporary')} more at S=4096"


def _eager(base: str, new: str, seq: int) -> str:
    return format_ratio(bench().row(base, seq)["median_ns"] / bench().row(new, seq)["median_ns"])


def _reasons() -> Iterator[str]:
    rows = counted()
    flops = {name: sum(row[f"{kind}_flops"] for kind in ("tensor", "fp32", "fp16")) / 1e9 for name, row in rows.items()}
    sizes = {name: format_bytes(row["l2_bytes"]) for name, row in rows.items()}
    shares = {name: format_share(row["sm_percent"] / 100) for name, row in rows.items()}
    yield f"FLOPs fall from {flops['tiled_o0']:.1f} G to {flops['tiled_o1']:.1f} G"
    yield f"L2 traffic falls from {sizes['tiled_o0']} to {sizes['tiled_o1']}"
    yield f"busiest unit rises from {shares['tiled_o0']} to {shares['tiled_o1']}"
    yield f"L2 traffic falls from {sizes['tiled_o1']} to {sizes['tiled_o2']}"
    half = [rows[name]["fp16_flops"] / 1e9 for name in ("tiled_o1", "tiled_o2", "tiled_o3")]
    yield f"({half[0]:.1f} G → {half[1]:.1f} G)"
    yield f"falls to {half[2]:.1f} G again"
    yield f"although L2 traffic ({sizes['tiled_o3']}) is higher"
    rate = bench().row("tiled_o3", 4096)["graph_tflops"]
    product = 52.4
    text = (ANALYSIS / STUDY / "bench" / "report.md").read_text(encoding="utf-8")
    assert f"| fp32 product, measured | {product} TFLOP/s |" in text
    yield f"{rate:.1f} TFLOP/s, {format_share(rate / product)} of the {product} TFLOP/s"
    of_tensor = [format_share(rows[name]["tensor_flops"] / 1e9 / flops[name]) for name in ("tiled_o4", "tiled_o5")]
    assert of_tensor[0] == of_tensor[1]
    yield f"{of_tensor[0]} of {flops['tiled_o4']:.1f} G FLOP"
    yield f"L2 traffic falls from {sizes['tiled_o3']} to {sizes['tiled_o4']}"
    count = rows["tiled_o4"]["tensor_instructions"] / rows["tiled_o5"]["tensor_instructions"]
    yield f"{count:.1f} times fewer tensor instructions"
    saved = 1 - rows["tiled_o5"]["tensor_flops"] / rows["tiled_o4"]["tensor_flops"]
    yield f"Tensor cores run {format_share(saved)} fewer FLOPs"
    waits = step(4).host(4096)["new_ns"]
    yield f"waits for the host for {format_ns(waits)} of every call"


def _oddities() -> Iterator[str]:
    same = bench().pair("tiled_o1", "tiled_o2", 1024, graph=True)
    assert same["verdict"] == NO_CLEAR_CHANGE
    yield f"{bench().time('tiled_o1', 1024, graph=True)} and {bench().time('tiled_o2', 1024, graph=True)} at S=1024"
    assert bench().pair("tiled_o1", "tiled_o2", 512, graph=True)["verdict"] == "slower"
    yield f"{bench().time('tiled_o1', 512, graph=True)} and {bench().time('tiled_o2', 512, graph=True)} at S=512"
    warm = format_ns(step(0).pairs[1024]["base_busy_ns"])
    yield f"{bench().time('tiled_o0', 1024, graph=True)} in the benchmark and {warm} in the trace"
    assert bench().pair("cudnn", "tiled_o4", 8192, graph=True)["verdict"] == NO_CLEAR_CHANGE
    yield f"`tiled_o4` takes about as long as `cudnn` ({bench().time('tiled_o4', 8192, graph=True)} and"
    yield f"{bench().time('cudnn', 8192, graph=True)}"
    more = [eager_more(name) for name in ("tiled_o4", "flash", "tiled_o5", "cudnn")]
    yield f"by {more[0]} for `tiled_o4`, {more[1]} for `flash`, {more[2]} for `tiled_o5` and {more[3]} for `cudnn`"
    shares = [bench().launching(name, 1024) for name in ("tiled_o4", "tiled_o5")]
    yield f"launch overhead is {shares[0]} of a call of `tiled_o4` and {shares[1]} of a call of `tiled_o5`"
    clocks = [format_ns(step(4).clock("CPU", 1024)[f"{side}_median_ns"]) for side in ("base", "new")]
    yield f"{clocks[0]} and {clocks[1]} of CPU time, under nsys"
    differ = bench().results[bench().results["aa_verdict"] != NO_CLEAR_CHANGE]
    [odd] = differ.to_dict("records")
    assert (odd["backend"], odd["seq"]) == ("tiled_o4", 512)
    yield f"About 1 pair in {round(1 / (1 - LEVEL))} would differ significantly by chance"
    yield (
        f"1 of {len(bench().results)} pairs differs significantly: `tiled_o4` at S=512, by "
        f"{format_share(abs(1 - odd['aa_ratio']))}"
    )
    at = study_figures(f"{STUDY}/head-dim-128")
    ours, theirs = (at.row(name, 4096)["graph_median_ns"] for name in ("tiled_o5", "cudnn"))
    yield f"With D=128, `tiled_o5` is {format_ratio(theirs / ours)} as fast as `cudnn` at S=4096"
    floor = bench().row("flash", 4096)
    took = floor["flops"] / floor["measured_peak_tflops"] / 1e3
    moved = floor["compulsory_bytes"] / floor["measured_gb_per_s"]
    yield f"{floor['flops'] / 1e9:.1f} GFLOP take {format_ns(took)} at {floor['measured_peak_tflops']:.0f} TFLOP/s"
    size = bench().size("tiled_o5", 4096)
    yield f"{size} of inputs and output take {format_ns(moved)} at {floor['measured_gb_per_s']:,.0f} GB/s (measured"
    yield f"`tiled_o5` takes {format_ratio(graph_ns('tiled_o5') / took)} as long"
