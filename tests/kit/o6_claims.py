"""What the README of `tiled-attention/o5-o6` says, each figure from the sweep, run, counter or check that has it."""

import re
from collections.abc import Iterator
from statistics import median

import numpy as np

from nsysprof.bench.words import ratio_cell
from nsysprof.core.units import format_ns
from nsysprof.statistics.contrast import DEFAULT_RULES
from tests.kit.prose_claims import percent, row, span, sweep
from tests.kit.record_claims import table, written
from tests.kit.study_figures import ANALYSIS

KERNELS: tuple[str, ...] = ("flash", "cudnn", "flash_attn_4", "tiled_o5", "tiled_o6")
SOME, SIZES = ("flash", "cudnn", "tiled_o6"), ((64, ""), (128, "-128"))
O6, TWO = "tiled-attention/o5-o6", "tiled_o6, two warpgroups in queries"
# The problems of the tables of outcomes: as they are called there, and in the files.
SMALL, USUAL, LONG, FULL = (f"B1 H8 {sizes}" for sizes in ("S1024 D64", "S4096 D64", "S8192 D64", "S4096 D64, no mask"))
SIGMA = {f"the same, scores of σ = {factor}": f"{USUAL} causal fp16 x{factor}" for factor in (10, 30)}
D64, D128 = "B4 H16 S4096 D64", "B4 H16 S4096 D128"
DENSE, BF16 = "B16 H16 S1024 D128, no mask", "B2 H16 S8192 D128 bf16"
SHORT, MIDDLE = "B8 H16 S512 D64", "B8 H16 S2048 D64"


def known_as(problem: str) -> str:
    """The problem as `times.csv` calls it."""
    name, full = problem.removesuffix(", no mask"), problem.endswith(", no mask")
    dtype = "bf16" if name.endswith("bf16") else "fp16"
    return SIGMA.get(problem) or f"{name.removesuffix(' bf16')} {'full' if full else 'causal'} {dtype}"


def time(run: str, build: str, problem: str) -> float:
    """The median of a single run, in µs."""
    found = table(f"{O6}/times")
    [us] = found["median_us"][(found["run"] == run) & (found["build"] == build) & (found["problem"] == problem)]
    return float(us)


def claims_of_o6() -> Iterator[str]:
    """Rows and phrases of the README."""
    yield from _outcome()
    yield from _second_prediction()
    yield from _tried()
    yield from _counters()
    yield from _gradients()
    yield from _fences()


def _outcome() -> Iterator[str]:
    at = sweep("best-kernels")
    text = (ANALYSIS / O6 / "README.md").read_text("utf-8")
    rows = [line.split(" | ") for line in text.partition("## Outcome")[0].splitlines() if line.startswith("| ")]
    said, saved = {cells[0].removeprefix("| "): cells[3] for cells in rows}, []
    for problem in (SMALL, USUAL, *SIGMA, LONG, FULL, D64, SHORT, MIDDLE, D128, DENSE, BF16):
        where = known_as(problem)
        shape = re.sub(r"(causal|full) (\w+16)", r"\2 \1", where).replace(" ", ".")
        times = [at.ns(shape, name) / 1e3 for name in KERNELS]
        best = float(np.nanmin(times[:4]))
        predicted = said[problem].split()[0]
        ahead = "level" if problem == USUAL else percent(best / times[4] - 1)
        cells = ["" if np.isnan(each) else f"{each:.1f}" for each in times]
        yield row(problem, *cells, predicted, f"{time('landed', 'tiled_o6', where):.1f}", ahead)
        saved += [100 - 100 * times[4] / float(predicted)] if "H16" in problem else []
    yield f"take {span(saved)} % less time than predicted"
    usual, wide = "B1.H8.S4096.D64.fp16.causal", "B1.H8.S4096.D64.fp16.causal.x{}"
    level, narrow = (at.pair(shape, "tiled_o5", "tiled_o6") for shape in (usual, wide.format(3)))
    yield (
        f"there is no clear change ({level['speedup']:.3f}x; detectable difference: {percent(level['detectable'], 1)})"
    )
    yield (f"at B1 H8 S4096 with σ = 3, `tiled_o6` is probably {percent(1 - narrow['speedup'])} slower than `tiled_o5`")
    yield f"{narrow['speedup']:.3f}x ({narrow['speedup_low']:.3f}–{narrow['speedup_high']:.3f})"
    rate = at.ns("B2.H16.S8192.D128.bf16.causal", "tiled_o6", "graph_tflops")
    yield f"In bf16, `tiled_o6` reaches {rate:.0f} TFLOP/s"
    single = "B1 H8 S4096 D128 causal fp16"
    yield f"takes {time('now', 'tiled_o6', single)} µs and `tiled_o5` takes {time('now', 'tiled_o5', single)} µs"
    heads = [f"{problem} causal fp16 x30" for problem in (D128, D64)]
    now = [time("now", "tiled_o6", each) for each in heads]
    yield f"takes {now[0]} µs at D=128 and {now[1]} µs at D=64"
    others = [[time(run, "flash_attn_4", each) for run in ("others", "builds")] for each in heads]
    yield f"took {span(others[0], 1)} µs at D=128 and {span(others[1], 1)} µs at D=64; the next"
    plain = time("now", "tiled_o6", f"{D128} causal fp16")
    yield (
        f"at D=128, `tiled_o6` takes {percent(now[0] / plain - 1)} longer with σ = 30 than with σ = 1 "
        f"({now[0]:.0f} against {plain:.0f} µs in run `now`"
    )
    more = [at.ns(wide.format(30), name) / at.ns(usual, name) - 1 for name in ("tiled_o6", "tiled_o5")]
    yield f"At B1 H8 D64, `tiled_o6` takes {percent(more[0])} longer with σ = 30 than with σ = 1"
    yield f"`tiled_o5` takes {percent(round(more[1], 1))} longer)"
    wide_ones = {"σ = 3": "wide/sigma-3", **{f"D{size} causal, σ = 30": f"wide/sigma-30{end}" for size, end in SIZES}}
    backward = {f"{D64} causal": "backward/fp16", f"{D128} causal": "backward/fp16", "causal bf16": "backward/bf16"}
    for head, folder in {**wide_ones, **backward}.items():
        names, beaten = (KERNELS, ("tiled_o5", "flash_attn_4")) if head in wide_ones else (SOME, SOME[:2])
        of = sweep(f"{O6}/{folder}")
        [shape] = [each for each in of.shapes if len(of.shapes) == 1 or f".{head.split()[3]}." in each]
        us = [f"{of.ns(shape, name) / 1e3:.1f}" for name in names]
        ratios = [ratio_cell(of.pair(shape, name, "tiled_o6")) for name in beaten]
        yield f"{head} | {' | '.join([*us, *ratios])} |"
    slow = [sweep(f"{O6}/wide/{name}") for name in ("sigma-3", "sigma-30")]
    pairs = [each.pair(each.shapes[0], base, "tiled_o6")
             for each, base in zip(slow, ("tiled_o5", "flash_attn_4"), strict=True)]  # fmt: skip
    assert {each["verdict"] for each in pairs} == {"slower"}
    [lost] = {percent(1 - each["speedup"]) for each in pairs}
    yield (
        f"significantly slower than `tiled_o5` (by {lost}). With D=64, many heads and σ = 30, `tiled_o6` is "
        f"significantly slower than FlashAttention 4 (by {lost})"
    )


def _second_prediction() -> Iterator[str]:
    builds = ("tiled_o5", "tiled_o6", "brief", "early", "quartered", "remember", "early, remember")
    at: dict[str, list[float]] = {}
    for problem in (SMALL, USUAL, f"{USUAL} x10", f"{USUAL} x30", D64, f"{D64} x30", D128, f"{D128} x30"):
        name, _, factor = problem.partition(" x")
        where = f"{name} causal fp16{f' x{factor}' if factor else ''}"
        at[problem] = [*(time("prologue", build, where) for build in builds), time("now", "tiled_o6", where)]
        yield row(f"the same, σ = {factor}" if factor else name, *at[problem])
    first = {problem: dict(zip(builds, times[:-1], strict=True)) for problem, times in at.items()}
    saved = [each["tiled_o6"] - each["early"] for problem, each in first.items() if problem.startswith("B1")]
    yield f"`early` saves {span(saved, 1)} µs at B1 H8"
    yield f"saves {first[D64]['tiled_o6'] - first[D64]['early']:.0f} µs with many heads"
    small = first[SMALL]
    yield f"**another {small['early'] - small['quartered']:.0f} µs** at S=1024"
    yield f"({small['quartered']} against {small['early']}"
    wide = [first[f"{problem} x30"] for problem in (D128, D64)]
    yield f"improves from {wide[0]['tiled_o6']} to {wide[0]['remember']} µs"
    one, both = wide[1]["remember"], wide[1]["early, remember"]
    yield f"improves from {wide[1]['tiled_o6']} to {one} µs, and to {both} µs with"


def _tried() -> Iterator[str]:
    others = ("cudnn", "flash_attn_4", "tiled_o5")
    kinds = "turns, maximum always; maximum always; turns, wary maximum; turns, maximum always, 176 keys;"
    kinds += " turns, maximum always, dealt as tiled_o5; no overlap, wary maximum; shared keys; shared keys, dealt as"
    kinds += " tiled_o5; own rows; own rows, changing places; own rows, overlap, maximum always; 3 warpgroups, overlap,"
    kinds += " 128 keys, maximum always; 2 warpgroups, overlap, turns, wary maximum"
    large, small = (
        [f"D128, {kind}" for kind in kinds.split("; ")[:6]],
        [f"D64, {kind}" for kind in kinds.split("; ")[6:]],
    )
    times = table(f"{O6}/times")
    every = times[times["run"] == "builds"].pivot(index="problem", columns="build", values="median_us")
    yield f"We compared {sum(name.startswith('D') for name in every)} builds"
    count = {*times["samples"][times["run"] == "builds"]}
    yield f"medians of {count.pop()} CUDA graph replays"
    for problem in every.index:
        for builds in (large, small):
            cells = every.loc[problem, [*others, *builds]]
            if cells[builds].notna().all():
                said = ["" if np.isnan(each) else f"{each:.1f}" for each in cells]
                bold = [f"**{each}**" if each == f"{cells.min():.1f}" else each for each in said]
                yield f"| {' | '.join(bold)} |".replace("|  |", "| |")
    d128, d64, b512, b8 = (every.loc[f"{problem} causal fp16"] for problem in (D128, D64, SHORT, MIDDLE))
    few = every.index.str.startswith("B1 ")

    def less(frame: object, new: str, base: str) -> float:
        return 1 - frame[new] / frame[base]  # type: ignore[index]

    yield f"saves {percent(less(d128, large[0], large[4]))} of the time at B4 H16 S4096 D128, and"
    yield (f"and {percent(less(d64, *small[:2]))} and {percent(less(b8, *small[:2]))} at D=64 with S=4096 and S=2048")
    yield f"At S=512, assigning tiles head by head takes {percent(-less(b512, *small[:2]))} longer"
    full = [less(every.loc[known_as(problem)], large[2], large[0]) for problem in (D128, DENSE, BF16)]
    yield f"saves {span(100 * each for each in full)} % at D=128 if the problem"
    wide = every.loc[f"{D128} causal fp16 x30"]
    yield f"At σ = 30, omitting the maximum takes {percent(-less(wide, large[2], large[0]))} longer"
    heads = every.loc[f"{D64} causal fp16 x30"]
    yield f"({heads[small[4]]} and {heads[small[5]]} against {heads[small[3]]} µs)"
    moved = [100 * less(each, small[3], small[2]) for each in (d64, b512, b8)]
    yield f"saves {span(moved)} % with many heads and a small spread"
    shared = (every[small[0]] / every["tiled_o5"] - 1)[few].dropna()
    yield f"builds were {span(100 * shared[shared > 0])} % slower than `tiled_o5`"
    yield f"slower than `tiled_o5` ({percent(shared[f'{USUAL} causal fp16'])} at S=4096)"


def _counters() -> Iterator[str]:
    rows = table(f"{O6}/counters")
    shares = ["sm__pipe_tensor_cycles_active.avg", "sm__inst_executed_pipe_xu.avg", "sm__inst_issued.avg"]
    busy = rows[[f"{name}.pct_of_peak_sustained_active" for name in shares]]
    for (_, cells), each in zip(busy.iterrows(), rows.to_dict("records"), strict=True):
        sizes = [f"{each[name] / 1e6:,.0f} MB" for name in ("dram__bytes_read.sum", "lts__t_bytes.sum")]
        said = [*(f"{cell:.0f} %" for cell in cells), *sizes, f"{each['lts__t_sector_hit_rate.pct']:.0f} %"]
        yield row(f"`{each['kernel']}`", *said, format_ns(each["gpu__time_duration.sum"]))
    narrow = busy[rows["problem"].str.contains("D64")].iloc[:, :2]
    yield f"for at most about {round(narrow.max().max(), -1):.0f} % of the time"
    text = (ANALYSIS / O6 / "check.txt").read_text("utf-8")
    assert "240 cases, 0 wrong; fp16 up to 2.9e-04, bf16 up to 2.3e-03" in text
    yield "in all 240 cases"
    [most] = written("../tests/workloads/test_tiled_dealer.py", r"(1\.04|0\.04)")
    yield f"within {percent(float(most) % 1)} of the mean"


def _gradients() -> Iterator[str]:
    us = table(f"{O6}/gradients").set_index(["run", "problem", "backend", "part"])["us"].sort_index() + 1e-6
    both, backward = {}, {}
    for problem in dict.fromkeys(us.loc["landed"].index.get_level_values(0)):
        for name in ("tiled_o6", "cudnn", "flash"):
            both[problem, name] = us["landed", problem, name, "forward and backward"]
            backward[problem, name] = both[problem, name] - us["landed", problem, name, "forward"]
        first = us.get(("first build", problem, "tiled_o6", "forward and backward"))
        cells = [each[problem, name] for each in (both, backward) for name in ("tiled_o6", "cudnn", "flash")]
        said = [f"{each:,.0f}" if each >= 100 else f"{each:.1f}" for each in (*cells, *([first] if first else []))]
        shown = problem.removesuffix(" fp16") if "causal" in problem else problem.replace(" fp16", ", no mask")
        yield f"| {shown} | {' | '.join([*said, *([''] if not first else [])])} |"
    d64, d128 = (f"B4 H16 S4096 D{size} causal fp16" for size in (64, 128))
    of = {"D=64, first build": ("first build", d64, "tiled_o6"),
          "D=64, two warpgroups for dQ (shipped)": ("landed", d64, TWO),
          "D=64, three warpgroups for dQ": ("landed", d64, "tiled_o6"), "D=128": ("landed", d128, "tiled_o6"),
          "D=128, first build": ("first build", d128, "tiled_o6")}  # fmt: skip
    parts = {name: us[key][["rows", "keys", "queries"]] for name, key in of.items()}
    for name, each in parts.items():
        yield row(name, f"{each['rows']:.1f}", f"{each['keys']:.0f}", f"{each['queries']:.0f}")
    summed = parts["D=64, first build"].sum() + us["first build", d64, "tiled_o6", "forward, eager"]
    eager = us["first build", d64, "tiled_o6", "forward and backward, eager"]
    was, now = us["first build", d128, "tiled_o6", "forward and backward"], [both[at, "tiled_o6"] for at in (d64, d128)]
    yield f"first build took {was:,.0f} µs with D=128"
    yield f"add up to {summed:,.0f} µs ({eager:,.0f} µs called from Python"
    yield f"we predicted 970 and 1,830 µs, and it takes {now[0]:,.0f} and {now[1]:,.0f} µs"
    yield (
        f"is only {percent(1 - now[0] / summed)} faster than the first build ({percent(1 - 970 / summed)} predicted)"
    )
    yield f"saves {was - now[1]:.0f} µs ({was - 1830:.0f} µs predicted)"
    wide, small = "B2 H16 S8192 D128 causal bf16", "B1 H8 S1024 D64 causal fp16"
    more = {(each, name): took[each, "tiled_o6"] / took[each, "cudnn"] - 1 for each in (wide, small)
            for name, took in (("both", both), ("backward", backward))}  # fmt: skip
    yield f"B2 H16 S8192 D128 bf16, by {percent(more[wide, 'both'], 1)}"
    yield f"is {percent(more[wide, 'backward'])} faster at {wide.replace(' causal', '')}"
    yield f"and {percent(more[small, 'backward'])} faster at B1 H8 S1024"
    yield f"{us['first build', small, 'tiled_o6', 'forward and backward']:.1f} µs for forward and backward"
    checks = (ANALYSIS / O6 / "gradients.txt").read_text("utf-8")
    yield f"time limit of {re.findall('until ([0-9]+) s', checks)[0]} s allowed only"
    cases = dict(re.findall(r"CHECK (\w+ 128) (\d+) cases 0 wrong", checks))
    yield f"allowed only {cases['fp16 128']} (fp16) and {cases['bf16 128']} (bf16) of 76 cases"
    at = sweep("training/backward")
    times = [at.ns(at.shapes[3], name) / 1e3 for name in ("tiled_o6", "cudnn", "flash_attn_4")]
    yield f"{times[0]:.1f} µs at S=4096 (`cudnn` {times[1]:.1f}, FlashAttention 4 {times[2]:.1f})"


def _fences() -> Iterator[str]:
    builds = table(f"{O6}/gradients-builds").pivot(index=["problem", "run"], columns="build", values="median_us")
    names = ["without", "copying thread", "fence", "each", "fence, each"]
    over = 100 * (builds.div(builds["without"], axis=0) - 1).drop(columns="without")
    last = [4, 5, 6]
    for begin in ("B1 H8 S1024", "B1 H8 S4096", "B4 H16 S4096 D64", "B4 H16 S4096 D128", "B16", "B2 "):
        [problem] = {each for each, _ in builds.index if each.startswith(begin)}
        yield row(problem, *(f"{median(builds.loc[problem].loc[last, name]):,.1f}" for name in names))
    runs_of, runs = (over.index.get_level_values(level) for level in (0, 1))
    wide, half, small = (runs_of.str.contains(part) for part in ("D128", "bf16", "B1 H8 S1024"))
    first = over.drop(columns="copying thread")[runs <= 3]
    groups = [first[mask[runs <= 3]].stack() for mask in (~wide, wide & ~half, half)]
    yield f"takes {groups[0].min():.1f} to {groups[0].max():.1f} % longer at D=64, {span(groups[1])} % longer at D=128"
    yield f"and at most {groups[2].max():.0f} % longer in bf16"
    copying, later = over["copying thread"], runs >= 4
    yield f"B1 H8 S1024 takes {span(copying[small & later], 1)} % longer"
    apart = (builds["copying thread"] - builds["without"])[small & later].mean()
    yield f"({apart:.1f} µs; **missed**"
    yield f"{apart:.1f} µs at one size"
    rest = copying[~small & later]
    yield f"differ by {f'{rest.min():.1f} to {rest.max():.1f} %'.replace('-', '−')}"
    again = sweep(f"{O6}/backward/bf16")
    [lost] = [again.pair(shape, "tiled_o6", "cudnn", "eager") for shape in again.shapes]
    assert lost["verdict"] == "faster"
    yield f"Differences below {percent(DEFAULT_RULES.least_effect)} count as no clear change"
    yield f"Including launches, `cudnn` is {percent(lost['speedup'] - 1)} faster"
    yield f"D=128 in fp16 would take {span(over['each'][wide & ~half & later])} % longer"
