"""What READMEs of studies say in their text, each figure from the file that has it: sweeps of kernels and backends."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.bench.pairs import speedups_of
from nsysprof.bench.words import ratio_cell
from nsysprof.core.units import format_bytes, format_ns, format_ratio, format_share
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER
from tests.kit.study_figures import ANALYSIS

TILED = ("tiled_o5", "tiled_o6")
COUNTS = tuple(re.findall(r"\w+", "none one two three four five six seven eight nine ten eleven twelve thirteen"))


class Sweep:
    """A benchmark in the folder of a study, by configuration and backend."""

    def __init__(self, folder: str) -> None:
        """Read its tables."""
        self.results = pd.read_csv(ANALYSIS / folder / "results.csv").set_index(["configuration", "backend"])
        self.pairs = speedups_of(pd.read_csv(ANALYSIS / folder / "comparisons.csv"))
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
    yield f"`tiled_o6` is the fastest in {COUNTS[len(alone['graph'])]}**"
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
    yield f"{at.pair(usual, 'tiled_o5', 'tiled_o6')['speedup']:.3f}x as fast (σ = 1)"
    narrow = at.pair(f"{usual}.x3", "tiled_o5", "tiled_o6")
    yield f"{narrow['speedup']:.3f}x ({narrow['speedup_low']:.3f}–{narrow['speedup_high']:.3f}; σ = 3)"
    yield f"it is probably {percent(1 - narrow['speedup'])} slower"
    yield f"launching takes {at.launching(small, 'flash_attn_4')} of a call of `flash_attn_4`"
    half = (at.ns(small, "flash", "high_ns") - at.ns(small, "flash", "low_ns")) / 2 / at.ns(small, "flash", "median_ns")
    yield f"takes {at.ns(small, 'flash', 'median_ns') / 1e3:.0f} µs (± {percent(half)})"
    yield f"for a kernel of {at.ns(small, 'flash') / 1e3:.0f} µs"
    verdicts = [at.pair(small, "flash", name, "eager")["verdict"] for name in ("cudnn", "flash_attn_4", *TILED)]
    assert (verdicts.count(SLOWER), verdicts.count(NO_CLEAR_CHANGE)) == (3, 1)
    yield f"alone is the fastest to call in {COUNTS[len(alone['eager'])]} problems"
    yield f"is at σ = 3 ({at.speed(f'{usual}.x3', 'tiled_o6', 'tiled_o5', 'eager')})"
    calls, kernels = (
        [at.speed(shape, "flash_attn_4", "cudnn", kind) for shape in large] for kind in ("eager", "graph")
    )
    yield f"({calls[0]} with D64, {calls[1]} with D128), although its kernel is slower ({kernels[0]} and {kernels[1]})"
    wide = [f"{usual}{factor}" for factor in ("", ".x3", ".x10", ".x30")]
    more = {name: [at.ns(shape, name) / at.ns(usual, name) - 1 for shape in wide] for name in (*others, *TILED)}
    moved = {name: percent(max(map(abs, each))) for name, each in more.items()}
    assert moved["cudnn"] == moved["flash_attn_4"]
    yield f"`flash_attn_4` by {moved['cudnn']}, and the median of `flash` by {moved['flash']}"
    yield f"At σ = 30 `tiled_o5` takes {percent(round(more['tiled_o5'][3], 1))} longer"  # 39.3 %
    yield f"`tiled_o6` takes {percent(more['tiled_o6'][3])} longer"
    of = sweep("best-kernels/flash-attn")
    yield f"it takes {of.times(of.shapes, 'flash_attn')} at S=1024, 2048 and 4096"
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
    yield f"a block takes {span(eager)} µs at all lengths. Replayed as a CUDA graph, it takes {span(graph)} µs"
    for shape in at.shapes:
        cells = [
            [at.ns(shape, name, column) for name in ("naive", *fused)] for column in ("median_ns", "graph_median_ns")
        ]
        said = [f"{ns / 1e3:.0f} µs" for ns in cells[0]] + [f"{ns / 1e3:.1f} µs" for ns in cells[1]]
        yield row(int(at.ns(shape, "naive", "seq")), *said)
    short, *_, long = at.shapes
    yield f"takes {at.launching(short, 'cudnn')} of a call of `cudnn` at S=32"
    shares = sorted(at.launching(long, name) for name in fused)
    yield f"{shares[0]} to {shares[-1]} of a call of the fused backends at S=512"
    yield f"(`naive`: {at.launching(short, 'naive')} and {at.launching(long, 'naive')})"
    gains = [f"{span((at.pair(shape, 'naive', new, 'eager')['speedup'] for shape, new in every), 1)}"]
    gains += [span((at.pair(shape, "naive", new)["speedup"] for new in fused), 1) for shape in (short, long)]
    gains += [span((one / other for one, other in zip(eager, graph, strict=True)), 1)]
    first, second, third, fourth = (each.replace(" ", "x ", 1) + "x" for each in gains)
    yield f"only {first} as fast"
    yield f"kernels alone are {second} as fast at S=32 and {third} at S=512"
    yield f"gains more: {fourth} (ratios"
    by_name = [at.speed(shape, "auto", "cudnn") for shape in at.shapes]
    yield f"it is {by_name[0]} as fast as `auto` at S=32 and {by_name[2]} at S=128"
    yield f"difference of {percent(abs(at.pair(short, 'auto', 'cudnn')['speedup'] - 1))} within one run"


def claims_of_decoding() -> Iterator[str]:
    """The prompt, and a token behind it."""
    at, decode = sweep("decoding/prefill"), sweep("decoding/decode-graph")
    [shape], [token] = at.shapes, decode.shapes
    yield f"{int(at.ns(shape, 'math', 'vocab')):,} words"
    seq, every, three = int(at.ns(shape, "math", "seq")), ("math", "flash", "cudnn", "auto"), ("math", "flash", "cudnn")
    for head, column in ((f"prompt of {seq:,} tokens, without launches", "graph_median_ns"),
                         ("the same, with launches", "median_ns")):  # fmt: skip
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
    yield f"the prompt is {prompt[0]} as fast with `flash` as with `math`, and {prompt[1]} with `cudnn`"
    yield f"`cudnn` is {at.speed(shape, 'flash', 'cudnn')} as fast as `flash`. Called"
    calls = {at.speed(shape, "math", name, "eager", 1) for name in names}
    yield f"Called from Python, both are {' '.join(calls)} as fast as `math`"
    yield f"worth only {span(at.results['n_effective'])} independent"
    yield f"Decoding is {decoded[0]} as fast with `flash` and {decoded[1]} with `cudnn`**"
    yield f"(`cudnn` is {decode.speed(token, 'flash', 'cudnn', 'eager')} as fast as `flash`)"
    yield f"takes {decode.ns(token, 'cudnn', 'least_ns') / 1e3:.0f} µs at peak bandwidth"
    step, share = (decode.ns(token, "cudnn", column) for column in ("median_ns", "share_of_bandwidth"))
    yield f"A step takes {format_ns(step)} with `cudnn` ({format_share(share)} of the peak)"


def claims_of_selection() -> Iterator[str]:
    """What the choice costs, and what it was chosen from."""
    at, usual = sweep("selection/cost"), "B2.H16.S{}.D64.fp16.causal{}"
    verdicts = {kind: {shape: [each["verdict"] for (of, where, base, _), each in at.pairs.items()
                               if (of, where, base) == (kind, shape, "auto")] for shape in at.shapes}
                for kind in ("graph", "eager")}  # fmt: skip
    slow = {kind: [shape for shape in at.shapes if FASTER in verdicts[kind][shape]] for kind in verdicts}
    most = max(each["speedup"] for (kind, _, base, _), each in at.pairs.items() if (kind, base) == ("graph", "auto"))
    yield f"PyTorch's choice in {len(slow['graph'])} of {len(at.shapes)} shapes, by up to {most:.1f}x"
    yield f"In the other {len(at.shapes) - len(slow['graph'])} shapes"
    yield f"another backend in {len(slow['eager'])} of {len(at.shapes)} shapes (window, padding and"
    assert slow["eager"] == [usual.format(4096, mask) for mask in (".window:256", ".padding", ".bool")]
    window = usual.format(4096, ".window:256")
    chosen, fourth, flex = (at.ns(window, name) / 1e3 for name in ("auto", "flash_attn_4", "flex"))
    yield f"choice takes {chosen:.0f} µs, FlashAttention 4 takes {fourth:.0f} µs and FlexAttention {flex:.0f} µs"
    masks, digits = (".padding", ".bool", ".float"), {4096: (1, 1, 1), 512: (1, 1, 2)}
    long, short = ([at.speed(usual.format(seq, mask), "auto", "flex", digits=shown)
                    for mask, shown in zip(masks, digits[seq], strict=True)] for seq in (4096, 512))  # fmt: skip
    yield f"FlexAttention is {long[0]} as fast as the choice for padding, {long[1]} for a boolean mask"
    yield f"and {long[2]} for a float mask (at S=512: {short[0]}, {short[1]} and {short[2]})"
    cases = [usual.format("{}", ".KV4"), usual, usual.replace("fp16", "bf16"), "B2.H16.S{}.D64.fp16.full"]
    long, slower = ([at.speed(each.format(seq, ""), "auto", "flash_attn_4") for each in cases] for seq in (4096, 512))
    assert long[1] == long[2]
    yield f"FlashAttention 4 is {long[0]} as fast for 16 query heads with 4 key heads, {long[1]} for a causal call"
    yield f"and {long[3]} for a call that is not causal"
    yield f"reaches only {min(slower)} to {max(slower)} in these three"
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
    yield f"need {sizes['padding'][0]} for padding"
    yield f"`flex` needs {sizes['float'][2]} for every mask"
    yield f"K1024 means {int(at.results['kv_seq'].max()):,} keys"


def claims_of_training() -> Iterator[str]:
    """Steps, their ledger, losses, and gradients of attention alone."""
    block, gpt = sweep("training/block"), sweep("training/gpt")
    [model], kernels = gpt.shapes, ("flash", "cudnn", "flash_attn_4")
    gains = [
        each.pair(shape, "math", name)["speedup"] for each in (block, gpt) for shape in each.shapes for name in kernels
    ]
    for each, shape in ((at, shape) for at in (block, gpt) for shape in at.shapes):
        batch, heads, seq = (int(each.ns(shape, "math", name)) for name in ("batch", "heads", "seq"))
        problem = f"block, B{batch} H{heads} S{seq}" if each is block else f"GPT, 12 layers, B{batch} S{seq}"
        yield row(problem, format_ns(each.ns(shape, "math")), *(each.speed(shape, "math", name) for name in kernels))
    yield f"becomes {min(gains):.1f}x to {max(gains):.0f}x as fast"
    call = gpt.pair(model, "math", "flash", "eager")
    yield f"GPT's step is {ratio_cell(call).replace(' (', ' as fast with `flash` (')}"
    yield f"and {gpt.speed(model, 'math', 'flash_attn_4', 'eager')} with `flash_attn_4`, whose launches take"
    yield f"whose launches take {gpt.launching(model, 'flash_attn_4')} of the step"
    short, middle, _, long = block.shapes
    calls, graph = (block.ns(short, "flash_attn_4", column) for column in ("median_ns", "graph_median_ns"))
    yield f"take {percent(1 - graph / calls)} of a block's step with `flash_attn_4`"
    yield f"({(calls - graph) / 1e6:.2f} of {format_ns(calls)})"
    assert FASTER not in [block.pair(short, "math", name, "eager")["verdict"] for name in kernels]
    assert block.pair(middle, "math", "flash", "eager")["verdict"] != FASTER
    yield f"the largest speed-up, {block.speed(long, 'math', 'cudnn', 'eager')}"
    yield from _ledger_of_training(*(gpt.speed(model, "math", name) for name in ("flash", "flash_attn_4")))
    yield from _losses_of_training()
    peak = {name: at.ns(shape, name, "peak_bytes") for at, shape in ((block, long),) for name in ("math", *kernels)}
    most, *others = (peak[name] for name in ("math", *kernels))
    yield f"takes {format_bytes(most)} with `math` and {span(each / 2**20 for each in others)} MiB"
    most, *others = (gpt.ns(model, name, "peak_bytes") for name in ("math", *kernels))
    yield f"takes {format_bytes(most)} with `math` and {span((each / 2**30 for each in others), 1)} GiB"
    batch, seq, vocab = (int(gpt.ns(model, "math", name)) for name in ("batch", "seq", "vocab"))
    yield f"takes {batch * seq * vocab * 4 / 2**30:.1f} GiB of it ({batch} x {seq:,} x {vocab:,} x 4 bytes)"
    yield f"softmax over {vocab:,} words"
    yield from _backward()


def _ledger_of_training(whole: str, fourth: str) -> Iterator[str]:
    rows = pd.read_csv(ANALYSIS / "training" / "ledger" / "gap.csv").set_index("cause")
    busy = rows[~rows.index.str.startswith("idle")]
    math, flash = (busy[f"{side}_ns"].sum() / 1e6 for side in ("base", "new"))
    fused = rows["new_ns"][["fused attention", "fused attention backward", "attention helper backward"]].sum() / 1e6
    own, fraction = math - flash + fused, f"{math:.1f} / ({math:.1f} − {math - flash + fused:.1f})"
    yield f"attention takes [{percent(own / math)} of the GPT's step](ledger/gap.csv): {own:.1f} ms of {math:.1f} ms"
    yield f"With `flash`, attention takes {fused:.1f} ms"
    yield f"attention becomes {format_ratio(own / fused)} as fast, but the whole step only {whole}"
    limit = round(math, 1) / (round(math, 1) - round(own, 1))
    yield f"would be {format_ratio(limit)} ({fraction}); `flash_attn_4` reaches {fourth}"
    yield f"With `flash`, {flash:.1f} ms remain"
    parts = [rows["new_ns"][names].sum() / 1e6 / flash for names in (["gemm"], ["log-softmax", "log-softmax backward"])]
    yield f"matrix products take {percent(parts[0])} of this time"
    yield f"and its gradient {percent(parts[1])}, attention {percent(fused / flash)}, and the optimizer"
    yield f"and the optimizer {percent(rows['new_ns']['optimizer'] / 1e6 / flash)}"
    yield f"Causes of the {rows['delta_ns'].sum() / -1e6:.0f} ms"
    back, ahead = rows["share"]["gemm"], rows["share"][["Q·Kᵀ GEMM", "P·V GEMM"]].sum()
    yield f"cause {percent(back + ahead)} of the difference: {percent(back)} (`gemm`)"
    yield f"in the gradients and {percent(ahead)} in the forward pass"


def _losses_of_training() -> Iterator[str]:
    every = [json.loads((ANALYSIS / "training" / f"losses-{at}.json").read_text("utf-8")) for at in (1, 2)]
    runs = {(run["backend"], at): np.array(run["losses"]) for at, each in enumerate(every) for run in each["runs"]}
    base = runs["math", 0]
    away = {key: abs(losses - base) for key, losses in runs.items()}
    yield f"at most {percent(max((each / base).max() for each in away.values()), 1)} from the losses of `math`"
    yield f"with {every[0]['batch']} x {every[0]['seq']:,} tokens per step"
    for at, each in enumerate(every):
        for run in each["runs"]:
            far = away[run["backend"], at]
            shown = [far[:46].max(), far[46], far[47:].max()]
            apart = [f"{float(f'{most:.1g}' if most < 0.01 else f'{most:.2g}'):g}" for most in shown]
            step, size = np.median(run["step_ns"]) / 1e6, run["peak_bytes"] / 2**30
            own = [
                f"{step:.1f} ms",
                f"{run['tokens_per_s']:,}",
                f"{size:.1f} GiB",
                f"{np.mean(run['losses'][-20:]):.3f}",
            ]
            yield row(f"{run['backend']}, machine {at + 1}", *own, *apart)
    assert max(each[:46].max() for each in away.values()) < 5e-4
    yield f"jump to {span((losses[46] for losses in runs.values()), 1)} for one step"
    assert (runs["math", 1] == base).all()
    apart = [abs(runs[name, 0] - runs[name, 1])[47:].max() for name in ("flash", "cudnn")]
    yield f"of `flash` differ by up to {apart[0]:.3f} and the two runs of `cudnn` by up to {apart[1]:.3f}"
    behind = [each[47:].max() for (name, _), each in away.items() if name != "math"]
    yield f"All four runs are {span(behind, 3)} from `math`"
    yield f"differ by up to {max(behind):.2f}. `math` gives"
    jump = json.loads((ANALYSIS / "training" / "jump.json").read_text("utf-8"))
    before, after = (jump["weights_on_pieces"][step].values() for step in ("45", "46"))
    yield f"is {span(before, 2)} before that update, and {span(after, 2)} after it"
    quarter, half, whole = (jump["along"][part] for part in ("0.25", "0.5", "1"))
    yield f"gives a loss of {quarter[0]:.2f}, and half of the update {half[0]:.2f}"
    first, *others = jump["layers"].values()
    yield f"only the first layer gives {first:.2f}; updating any other single layer changes nothing ({span(others, 3)})"
    yield f"(mean cosine {jump['along']['0'][1]:.3f}:"
    yield f"After the update the cosine is {whole[1]:.3f}"
    named = jump["variants"]
    for name, each in named.items():
        said = name.replace("as in gpt2.py", "nothing"), f"{each['highest_after_20']:.2f}", each["at_step"]
        yield row(*said, "yes" if each["jump"] else "no")[:-2]
    last = [named[name]["last_10"] for name in ("gradients clipped at 1", "20 steps of warm-up", "as in gpt2.py")]
    yield f"(last ten losses {last[0]:.2f} and {last[1]:.2f} instead of {last[2]:.2f})"
    assert "AdamW with beta2 0.95" in named
    yield "with beta2 0.95"


def _backward() -> Iterator[str]:
    at, fixed = sweep("training/backward"), sweep("training/deterministic")
    [shape] = fixed.shapes
    names = ("efficient", "flash", "cudnn", "flash_attn_4", "tiled_o6")
    for each in at.shapes:
        graph, eager = (
            [at.ns(each, name, column) / 1e3 for name in names] for column in ("graph_median_ns", "median_ns")
        )
        yield row(int(at.ns(each, "flash", "seq")), *(f"{us:.1f}" for us in graph), *(f"{us:.0f}" for us in eager))
    yield f"(`tiled_o6` reaches {at.between('flash_attn_4', 'tiled_o6', at.shapes[:3])})"
    yield f"faster at S=4096 ({at.speed(at.shapes[3], 'flash_attn_4', 'tiled_o6')})"
    assert at.pair(at.shapes[4], "flash_attn_4", "tiled_o6")["verdict"] == NO_CLEAR_CHANGE
    yield f"`tiled_o6` is faster than `flash` ({at.speed(at.shapes[4], 'flash', 'tiled_o6', 'eager')})"
    sizes = [format_bytes(at.ns(at.shapes[4], name, "temporary_bytes")).replace("768 KiB", "0.75 MiB")
             for name in ("tiled_o6", "cudnn", "flash_attn_4", "flash")]  # fmt: skip
    yield f"needs only {sizes[0]} in addition"
    yield f"`cudnn` needs {sizes[1]}, `flash_attn_4` {sizes[2]}, and `flash` {sizes[3]}"
    yield f"queries takes {8 * 8192 * 64 * 4 >> 20} MiB in float32"
    ours, free = (each.ns(shape, "flash") for each in (fixed, at))
    yield f"takes {ours / free:.1f}x as long with deterministic gradients**: {format_ns(ours)} at S=2048"
    yield f"against {format_ns(free)} in the sweep"
    sizes = [f"{each.ns(shape, 'flash', 'temporary_bytes') / 2**20:.1f} MiB" for each in (fixed, at)]
    yield f"It needs {sizes[0]} instead of {sizes[1]}"
    times = [format_ns(each.ns(shape, "flash_attn_4")) for each in (fixed, at)]
    ratio = fixed.speed(shape, "flash", "flash_attn_4", digits=1)
    yield f"takes {times[0]} instead of {times[1]} and is {ratio} as fast"


PROSE: dict[str, Callable[[], Iterator[str]]] = {
    "best-kernels": claims_of_best_kernels,
    "short-block": claims_of_short_block,
    "decoding": claims_of_decoding,
    "selection": claims_of_selection,
    "training": claims_of_training,
}
