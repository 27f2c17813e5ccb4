"""What READMEs of studies say in their text, each figure from the file that has it: sweeps of kernels and backends."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.bench.pairs import speedups_of
from nsysprof.core.units import format_bytes, format_ns, format_ratio, format_share
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER
from tests.kit.study_figures import ANALYSIS, kept_table

TILED = ("tiled_o5", "tiled_o6")
COUNTS = tuple(re.findall(r"\w+", "none one two three four five six seven eight nine ten eleven twelve thirteen"))


class Sweep:
    """A benchmark in the folder of a study, by configuration and backend."""

    def __init__(self, folder: str) -> None:
        """Read its tables."""
        self.results = pd.read_csv(ANALYSIS / folder / "results.csv").set_index(["configuration", "backend"])
        self.pairs = speedups_of(pd.read_csv(kept_table(ANALYSIS / folder / "comparisons.csv")))
        self.shapes = list(dict.fromkeys(self.results.index.get_level_values(0)))

    def ns(self, shape: str, backend: str, column: str = "graph_median_ns") -> float:
        """A figure of the results."""
        return float(self.results[column][shape, backend])

    def pair(self, shape: str, base: str, new: str, kind: str = "graph") -> dict[str, Any]:
        """How many times as fast new is, with its verdict."""
        return self.pairs[kind, shape, base, new]

    def speed(self, shape: str, base: str, new: str, kind: str = "graph", digits: int | None = None) -> str:
        """`1.18x`."""
        found = self.pair(shape, base, new, kind)["speedup"]
        return format_ratio(found) if digits is None else f"{found:.{digits}f}x"

    def between(self, base: str, new: str, shapes: list[str], kind: str = "graph") -> str:
        """`1.68x to 3.01x`: the least and the most of these shapes."""
        every = [self.pair(shape, base, new, kind)["speedup"] for shape in shapes]
        return f"{format_ratio(min(every))} to {format_ratio(max(every))}"

    def times(self, shapes: list[str], backend: str, column: str = "graph_median_ns") -> str:
        """`19.7, 42.4 and 119` µs."""
        *most, last = (format_ns(self.ns(shape, backend, column)).removesuffix(" µs") for shape in shapes)
        return f"{', '.join(most)} and {last} µs"

    def launching(self, shape: str, backend: str) -> str:
        """`91 %` of a call."""
        return format_share(1 - self.ns(shape, backend) / self.ns(shape, backend, "median_ns"))


def row(*cells: object) -> str:
    """A row of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def percent(share: float, digits: int = 0) -> str:
    """`2 %`, with fewer digits than tables have."""
    return f"{100 * share:.{digits}f} %"


def span(values: Iterable[float], digits: int = 0) -> str:
    """`24 to 56`: the least and the most."""
    every = list(values)
    return f"{min(every):,.{digits}f} to {max(every):,.{digits}f}"


def reported(study: str, name: str) -> str:
    """`700 W`: what the report of a benchmark says of its machine."""
    [found] = re.findall(rf"^\| {name} \| (.*) \|$", (ANALYSIS / study / "report.md").read_text("utf-8"), re.M)
    return str(found)


@cache
def sweep(folder: str) -> Sweep:
    """The benchmark in a folder of `analysis`."""
    return Sweep(folder)


def claims_of_best_kernels() -> Iterator[str]:
    """Thirteen problems, and the package of flash."""
    at, others = sweep("best-kernels"), ("flash", "cudnn", "flash_attn_4")
    small, usual, *large = (at.shapes[which] for which in (1, 4, 9, 10))
    best: Any = pd.read_csv(ANALYSIS / "best-kernels" / "decisions.csv").set_index("kind")
    alone = best[(best["best"] == "tiled_o6") & best["as_good"].isna()]["best"]
    yield f"`tiled_o6` is the fastest in {COUNTS[len(alone['graph'])]} problems**"
    assert all(at.pair(shape, name, "tiled_o6")["verdict"] == FASTER for shape, name in product(at.shapes, others))
    ranges = [at.between(name, "tiled_o6", at.shapes) for name in others]
    yield f"`flash` ({ranges[0]}), `cudnn` ({ranges[1]}) and FlashAttention 4 ({ranges[2]}) in all thirteen"
    known = [shape for shape in at.shapes if ("graph", shape, "tiled_o5", "tiled_o6") in at.pairs]
    won = [shape for shape in known if at.pair(shape, "tiled_o5", "tiled_o6")["verdict"] == FASTER]
    yield f"`tiled_o5` in {COUNTS[len(won)]} of the {COUNTS[len(known)]}"
    for shape, first, level in zip(best.loc["graph", "configuration"], best.loc["graph", "best"],
                                   best.loc["graph", "as_good"].fillna(""), strict=True):  # fmt: skip
        times = {name: "" if np.isnan(ns := at.ns(shape, name)) else f"{ns / 1e3:.1f}" for name in (*others, *TILED)}
        problem = shape.replace(".fp16", "").replace(".x", ", σ = ").replace("full", "no mask").replace(".", " ")
        said = [f"**{time}**" if name in (first, *level.split()) else time for name, time in times.items()]
        yield row(re.sub(r"bf16 (\w+)", r"\1 bf16", problem), *said)
    yield f"{at.pair(usual, 'tiled_o5', 'tiled_o6')['speedup']:.3f}x as fast as `tiled_o5` at σ = 1"
    narrow = at.pair(f"{usual}.x3", "tiled_o5", "tiled_o6")
    yield f"{narrow['speedup']:.3f}x as fast ({narrow['speedup_low']:.3f}–{narrow['speedup_high']:.3f}) at σ = 3"
    yield f"is probably {percent(1 - narrow['speedup'])} slower"
    yield f"launch overhead is {at.launching(small, 'flash_attn_4')} of a call of `flash_attn_4`"
    half = (at.ns(small, "flash", "high_ns") - at.ns(small, "flash", "low_ns")) / 2 / at.ns(small, "flash", "median_ns")
    yield f"takes {at.ns(small, 'flash', 'median_ns') / 1e3:.0f} µs (± {percent(half)})"
    yield f"the kernel takes only {at.ns(small, 'flash') / 1e3:.0f} µs"
    verdicts = [at.pair(small, "flash", name, "eager")["verdict"] for name in ("cudnn", "flash_attn_4", *TILED)]
    assert (verdicts.count(SLOWER), verdicts.count(NO_CLEAR_CHANGE)) == (3, 1)
    yield f"In {COUNTS[len(alone['eager'])]} problems (B4 H16 S4096 and B2 H16 S8192, both with D128)"
    ahead = at.speed(f"{usual}.x3", "tiled_o6", "tiled_o5", "eager")
    yield f"At σ = 3, `tiled_o5` is faster to call than `tiled_o6` ({ahead})"
    calls = [at.speed(shape, "flash_attn_4", "cudnn", "eager") for shape in large]
    kernels = [at.speed(shape, "flash_attn_4", "cudnn") for shape in large]
    yield f"({calls[0]} with D64, {calls[1]} with D128), although the kernel"
    yield f"of `cudnn` is slower ({kernels[0]} and {kernels[1]})"
    wide = [f"{usual}{factor}" for factor in ("", ".x3", ".x10", ".x30")]
    more = {name: [at.ns(shape, name) / at.ns(usual, name) - 1 for shape in wide] for name in (*others, *TILED)}
    moved = {name: percent(max(map(abs, each))) for name, each in more.items()}
    assert moved["cudnn"] == moved["flash_attn_4"]
    yield f"`flash_attn_4` by at most {moved['cudnn']}, and the median of `flash` by at most {moved['flash']}"
    yield f"At σ = 30, `tiled_o5` takes {percent(round(more['tiled_o5'][3], 1))} longer"  # 39.3 %
    yield f"`tiled_o6` takes {percent(more['tiled_o6'][3])} longer"
    of = sweep("best-kernels/flash-attn")
    yield f"the package takes {of.times(of.shapes, 'flash_attn')} at S=1024, 2048 and 4096"
    yield f"`flash` takes {of.times(of.shapes, 'flash')}."
    yield f"The package is {percent(of.pair(of.shapes[0], 'flash', 'flash_attn')['speedup'] - 1)} faster at S=1024"
    yield f"package takes {of.between('flash_attn', 'flash', of.shapes, 'eager')} as long"
    apart = [of.ns(shape, "flash_attn", "median_ns") - of.ns(shape, "flash", "median_ns") for shape in of.shapes]
    yield f"({span(each / 1e3 for each in apart)} µs more)"


def claims_of_short_block() -> Iterator[str]:
    """A block at five lengths."""
    at, fused = sweep("short-block"), ("flash", "cudnn", "auto")
    every = list(product(at.shapes, fused))
    eager, graph = ([at.ns(*each, column) / 1e3 for each in every] for column in ("median_ns", "graph_median_ns"))
    yield f"kernel takes {span(eager)} µs at all lengths. Replayed as a CUDA graph, a"
    yield f"block with a fused kernel takes {span(graph)} µs"
    for shape in at.shapes:
        said = [f"{at.ns(shape, name, 'median_ns') / 1e3:.0f} µs" for name in ("naive", *fused)]
        said += [f"{at.ns(shape, name) / 1e3:.1f} µs" for name in ("naive", *fused)]
        yield row(int(at.ns(shape, "naive", "seq")), *said)
    short, *_, long = at.shapes
    assert at.launching(short, "naive") == at.launching(short, "cudnn")
    yield f"At S=32, launch overhead is {at.launching(short, 'cudnn')} of each call of `cudnn` and `naive`"
    shares = sorted(at.launching(long, name) for name in fused)
    yield f"At S=512, launch overhead is {shares[0]} to {shares[-1]} of each call of the fused backends"
    yield f"and {at.launching(long, 'naive')} for `naive`"
    gains = [f"{span((at.pair(shape, 'naive', new, 'eager')['speedup'] for shape, new in every), 1)}"]
    gains += [span((at.pair(shape, "naive", new)["speedup"] for new in fused), 1) for shape in (short, long)]
    gains += [span((one / other for one, other in zip(eager, graph, strict=True)), 1)]
    first, second, third, fourth = (each.replace(" ", "x ", 1) + "x" for each in gains)
    yield f"only {first} as fast"
    yield f"kernels alone are {second} as fast as `naive` at S=32 and {third} at S=512"
    yield f"saves more time: a replay is {fourth} as fast as"
    by_name = [at.speed(shape, "auto", "cudnn") for shape in at.shapes]
    yield f"`cudnn` is {by_name[0]} as fast as `auto` at S=32 and {by_name[2]} as fast at S=128"
    yield f"difference of {percent(abs(at.pair(short, 'auto', 'cudnn')['speedup'] - 1))} within one run"


def claims_of_decoding() -> Iterator[str]:
    """The prompt, and a token behind it."""
    at, decode = sweep("decoding/prefill"), sweep("decoding/decode-graph")
    [shape], [token] = at.shapes, decode.shapes
    yield f"vocabulary of {int(at.ns(shape, 'math', 'vocab')):,}"
    seq, every, three = int(at.ns(shape, "math", "seq")), ("math", "flash", "cudnn", "auto"), ("math", "flash", "cudnn")
    for head, column in ((f"prefill of {seq:,} tokens, as a CUDA graph", "graph_median_ns"),
                         (f"prefill of {seq:,} tokens, called from Python", "median_ns")):  # fmt: skip
        yield row(head, *(format_ns(at.ns(shape, name, column)) for name in every))
    sizes = [format_bytes(at.ns(shape, name, "temporary_bytes")) for name in every]
    yield row("memory in addition to weights and inputs", *sizes)
    times = [format_ns(decode.ns(token, name, "median_ns")) for name in three]
    yield f"decoding a token after {seq:,} tokens, as a CUDA graph | {' | '.join(times)} |"
    rates = [f"{decode.ns(token, name, 'tokens_per_s'):,.0f}" for name in three]
    yield f"tokens per second, in all 8 sequences | {' | '.join(rates)} |"
    names = ("flash", "cudnn")
    prompt = [at.speed(shape, "math", name, digits=1) for name in names]
    decoded = [decode.speed(token, "math", name, "eager", 1) for name in names]
    yield f"prefill is {prompt[0]} as fast with `flash` as with `math`, and {prompt[1]} as fast with `cudnn`"
    yield f"`cudnn` is {at.speed(shape, 'flash', 'cudnn')} as fast as `flash`. Called"
    calls = {at.speed(shape, "math", name, "eager", 1) for name in names}
    yield f"Called from Python, `flash` and `cudnn` are {' '.join(calls)} as fast as `math`"
    yield f"(effective n = {span(at.results['n_effective'])})"
    yield f"decoding is {decoded[0]} as fast with `flash` and {decoded[1]} as fast with `cudnn`**"
    yield f"(`cudnn` is {decode.speed(token, 'flash', 'cudnn', 'eager')} as fast as `flash`)"
    yield f"takes {decode.ns(token, 'cudnn', 'least_ns') / 1e3:.0f} µs at peak bandwidth"
    step, share = (decode.ns(token, "cudnn", column) for column in ("median_ns", "share_of_bandwidth"))
    yield f"a step takes {format_ns(step)} with `cudnn`, and so reaches only {format_share(share)} of the peak"


def claims_of_selection() -> Iterator[str]:
    """What the choice costs, and what it was chosen from."""
    at, usual = sweep("selection/cost"), "B2.H16.S{}.D64.fp16.causal{}"
    verdicts = {kind: {shape: [each["verdict"] for (of, where, base, _), each in at.pairs.items()
                               if (of, where, base) == (kind, shape, "auto")] for shape in at.shapes}
                for kind in ("graph", "eager")}  # fmt: skip
    slow = {kind: [shape for shape in at.shapes if FASTER in verdicts[kind][shape]] for kind in verdicts}
    most = max(each["speedup"] for (kind, _, base, _), each in at.pairs.items() if (kind, base) == ("graph", "auto"))
    yield f"PyTorch's choice in {len(slow['graph'])} of {len(at.shapes)} shapes (up to {most:.1f}x as fast)"
    yield f"n the other {len(at.shapes) - len(slow['graph'])} shapes"
    yield f"another backend in {len(slow['eager'])} of {len(at.shapes)} shapes (window, padding and"
    assert slow["eager"] == [usual.format(4096, mask) for mask in (".window:256", ".padding", ".bool")]
    window = usual.format(4096, ".window:256")
    chosen, fourth, flex = (at.ns(window, name) / 1e3 for name in ("auto", "flash_attn_4", "flex"))
    yield f"choice takes {chosen:.0f} µs, FlashAttention 4 takes {fourth:.0f} µs and FlexAttention {flex:.0f} µs"
    masks, digits = (".padding", ".bool", ".float"), {4096: (1, 1, 1), 512: (1, 1, 2)}
    long, short = ([at.speed(usual.format(seq, mask), "auto", "flex", digits=shown)
                    for mask, shown in zip(masks, digits[seq], strict=True)] for seq in (4096, 512))  # fmt: skip
    yield f"FlexAttention is {long[0]} as fast as PyTorch's choice for padding, {long[1]} for a boolean mask"
    yield f"and {long[2]} for a float mask"
    yield f"is {short[0]} (padding), {short[1]} (boolean mask) and {short[2]} (float mask) as fast"
    cases = [usual.format("{}", ".KV4"), usual, usual.replace("fp16", "bf16"), "B2.H16.S{}.D64.fp16.full"]
    long, slower = ([at.speed(each.format(seq, ""), "auto", "flash_attn_4") for each in cases] for seq in (4096, 512))
    assert long[1] == long[2]
    yield f"FlashAttention 4 is {long[0]} as fast for 16 query heads with 4 key/value heads"
    yield f"{long[1]} for a causal call"
    yield f"and {long[3]} for a non-causal call"
    yield f"is only {min(slower)} to {max(slower)} as fast as"
    calls = pd.read_csv(ANALYSIS / "selection" / "selection.csv")
    computed = calls[calls["status"] == "computed"]
    words, page = {"computed": "yes", "unsupported": "no"}, (ANALYSIS / "selection" / "README.md").read_text("utf-8")
    for (shape, call, fixed), each in calls.groupby(["configuration", "call", "deterministic"]):
        head, of = f"| `{shape}` | {call}{', deterministic' if fixed else ''} |", each.set_index("backend")
        if head in page:
            names = ("flash", "efficient", "cudnn", "flex", "flash_attn_4")
            said = " | ".join(words.get(of["status"].get(name, ""), "") for name in names)
            yield f"{head} {of['picked']['auto']} | {said} |"
    assert set(calls["picked"][calls["deterministic"]].dropna()) == {"flash"}
    assert set(calls["picked"][~calls["deterministic"]].dropna()) == {"cudnn"}
    yield f"{(calls['status'] == 'unsupported').sum()} of {len(calls)} calls were refused"
    worst = (computed["error"] / computed["tolerance"]).max()
    yield f"at most {percent(worst)} of the tolerance in all {len(computed)} calls"
    held = computed.set_index(["configuration", "backend"])["temporary_bytes"].astype(float)
    same = ("efficient", "cudnn", "flex")
    sizes = {mask: [re.sub(r"\.0+ ", " ", format_bytes(held[usual.format(512, f".{mask}"), name])) for name in same]
             for mask in ("bool", "window:256", "padding", "float")}  # fmt: skip
    yield f"need {sizes['bool'][0]} in addition"
    assert sizes["bool"] == sizes["window:256"]
    yield f"For padding, `cudnn` and `efficient` need {sizes['padding'][0]}"
    yield f"`flex` needs {sizes['float'][2]} for every mask"
    yield f"K1024 means {int(at.results['kv_seq'].max()):,} keys"
