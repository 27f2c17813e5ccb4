"""What the README of `training` says, each figure from the sweep, ledger or run that has it."""

import json
from collections.abc import Iterator

import numpy as np
import pandas as pd

from nsysprof.bench.words import ratio_cell
from nsysprof.core.units import format_bytes, format_ns, format_ratio
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE
from tests.kit.prose_claims import percent, row, span, sweep
from tests.kit.study_figures import ANALYSIS


def claims_of_training() -> Iterator[str]:
    """Steps, their ledger, losses, and gradients of attention alone."""
    block, gpt = sweep("training/block"), sweep("training/gpt")
    [model], kernels = gpt.shapes, ("flash", "cudnn", "flash_attn_4")
    shapes = [(at, shape) for at in (block, gpt) for shape in at.shapes]
    gains = [at.pair(shape, "math", name)["speedup"] for at, shape in shapes for name in kernels]
    for each, shape in shapes:
        batch, heads, seq = (int(each.ns(shape, "math", name)) for name in ("batch", "heads", "seq"))
        problem = f"block, B{batch} H{heads} S{seq}" if each is block else f"GPT, 12 layers, B{batch} S{seq}"
        yield row(problem, format_ns(each.ns(shape, "math")), *(each.speed(shape, "math", name) for name in kernels))
    yield f"becomes {min(gains):.1f}x to {max(gains):.0f}x as fast"
    call = gpt.pair(model, "math", "flash", "eager")
    yield f"the step of the GPT is {ratio_cell(call).replace(' (', ' as fast with `flash` (')}"
    yield f"and {gpt.speed(model, 'math', 'flash_attn_4', 'eager')} as fast with `flash_attn_4`, whose launches take"
    yield f"whose launches take {gpt.launching(model, 'flash_attn_4')} of the step"
    short, middle, _, long = block.shapes
    calls, graph = (block.ns(short, "flash_attn_4", column) for column in ("median_ns", "graph_median_ns"))
    yield f"is {percent(1 - graph / calls)} of a block's step with `flash_attn_4`"
    yield f"({(calls - graph) / 1e6:.2f} of {format_ns(calls)})"
    assert FASTER not in [block.pair(short, "math", name, "eager")["verdict"] for name in kernels]
    assert block.pair(middle, "math", "flash", "eager")["verdict"] != FASTER
    yield f"the largest speed-up is {block.speed(long, 'math', 'cudnn', 'eager')}"
    yield from _ledger_of_training(*(gpt.speed(model, "math", name) for name in ("flash", "flash_attn_4")))
    yield from _losses_of_training()
    peak = {name: at.ns(shape, name, "peak_bytes") for at, shape in ((block, long),) for name in ("math", *kernels)}
    most, *others = (peak[name] for name in ("math", *kernels))
    yield f"takes {format_bytes(most)} with `math` and {span(each / 2**20 for each in others)} MiB"
    most, *others = (gpt.ns(model, name, "peak_bytes") for name in ("math", *kernels))
    yield f"takes {format_bytes(most)} with `math` and {span((each / 2**30 for each in others), 1)} GiB"
    batch, seq, vocab = (int(gpt.ns(model, "math", name)) for name in ("batch", "seq", "vocab"))
    yield (
        f"including {batch * seq * vocab * 4 / 2**30:.1f} GiB for one matrix of logits in float32 ({batch}"
        f" x {seq:,} x {vocab:,} x 4 bytes)"
    )
    yield f"softmax over a vocabulary of {vocab:,} tokens"
    yield from _backward()


def _ledger_of_training(whole: str, fourth: str) -> Iterator[str]:
    rows = pd.read_csv(ANALYSIS / "training" / "ledger" / "gap.csv").set_index("cause")
    busy = rows[~rows.index.str.startswith("idle")]
    math, flash = (busy[f"{side}_ns"].sum() / 1e6 for side in ("base", "new"))
    fused = rows["new_ns"][["fused attention", "fused attention backward", "attention helper backward"]].sum() / 1e6
    own, fraction = math - flash + fused, f"{math:.1f} / ({math:.1f} − {math - flash + fused:.1f})"
    yield f"attention takes [{percent(own / math)} of the GPT's step](ledger/gap.csv): {own:.1f} ms of {math:.1f} ms"
    yield f"With `flash`, attention takes {fused:.1f} ms"
    yield f"attention becomes {format_ratio(own / fused)} as fast, but the whole step becomes only {whole} as fast"
    limit = round(math, 1) / (round(math, 1) - round(own, 1))
    yield f"would be {format_ratio(limit)} ({fraction}); `flash_attn_4` reaches {fourth}"
    yield f"With `flash`, {flash:.1f} ms of the step remain"
    parts = [rows["new_ns"][names].sum() / 1e6 / flash for names in (["gemm"], ["log-softmax", "log-softmax backward"])]
    yield f"{percent(parts[0])} of this time is spent in matrix products of the layers, {percent(parts[1])} in the loss"
    optimizer = rows["new_ns"]["optimizer"] / 1e6 / flash
    yield f"{percent(fused / flash)} in attention, and {percent(optimizer)} in the optimizer"
    yield f"Causes of the {rows['delta_ns'].sum() / -1e6:.0f} ms"
    back, ahead = rows["share"]["gemm"], rows["share"][["Q·Kᵀ GEMM", "P·V GEMM"]].sum()
    yield f"cause {percent(back + ahead)} of the difference ({percent(back)} in the gradients, shown as"
    yield f"and {percent(ahead)} in the forward pass"


def _losses_of_training() -> Iterator[str]:
    every = [json.loads((ANALYSIS / "training" / f"losses-{at}.json").read_text("utf-8")) for at in (1, 2)]
    runs = {(run["backend"], at): np.array(run["losses"]) for at, each in enumerate(every) for run in each["runs"]}
    base = runs["math", 0]
    away = {key: abs(losses - base) for key, losses in runs.items()}
    yield (
        f"losses differ by at most {percent(max((each / base).max() for each in away.values()), 1)} from "
        "the losses of `math`"
    )
    yield f"with {every[0]['batch']} x {every[0]['seq']:,} tokens per step"
    for at, each in enumerate(every):
        for run in each["runs"]:
            far = away[run["backend"], at]
            shown = [far[:46].max(), far[46], far[47:].max()]
            apart = [f"{float(f'{most:.1g}' if most < 0.01 else f'{most:.2g}'):g}" for most in shown]
            step, size = np.median(run["step_ns"]) / 1e6, run["peak_bytes"] / 2**30
            own = [f"{step:.1f} ms", f"{run['tokens_per_s']:,}", f"{size:.1f} GiB"]
            own += [f"{np.mean(run['losses'][-20:]):.3f}"]
            yield row(f"{run['backend']}, machine {at + 1}", *own, *apart)
    assert max(each[:46].max() for each in away.values()) < 5e-4
    yield f"jump to {span((losses[46] for losses in runs.values()), 1)} for one step"
    assert (runs["math", 1] == base).all()
    apart = [abs(runs[name, 0] - runs[name, 1])[47:].max() for name in ("flash", "cudnn")]
    yield f"of `flash` differ by up to {apart[0]:.3f} and the two runs of `cudnn` by up to {apart[1]:.3f}"
    behind = [each[47:].max() for (name, _), each in away.items() if name != "math"]
    yield f"largest difference from `math` is {span(behind, 3)} in the four runs"
    yield f"differ by up to {max(behind):.2f}. With `math`"
    jump = json.loads((ANALYSIS / "training" / "jump.json").read_text("utf-8"))
    before, after = (jump["weights_on_pieces"][step].values() for step in ("45", "46"))
    yield f"is {span(before, 2)} before the update of step 45, and {span(after, 2)} after the update"
    quarter, half, whole = (jump["along"][part] for part in ("0.25", "0.5", "1"))
    yield f"the loss is {quarter[0]:.2f}; with half of the update, the loss is {half[0]:.2f}"
    first, *others = jump["layers"].values()
    yield (f"the loss is {first:.2f}; if any other single layer is updated, nothing changes ({span(others, 3)})")
    yield f"(mean cosine {jump['along']['0'][1]:.3f})"
    yield f"After the update, the mean cosine is {whole[1]:.3f}"
    named = jump["variants"]
    for name, each in named.items():
        said = name.replace("as in gpt2.py", "nothing"), f"{each['highest_after_20']:.2f}", each["at_step"]
        yield row(*said, "yes" if each["jump"] else "no")[:-2]
    last = [named[name]["last_10"] for name in ("gradients clipped at 1", "20 steps of warm-up", "as in gpt2.py")]
    yield f"losses is {last[0]:.2f} and {last[1]:.2f}, respectively, instead of {last[2]:.2f})"
    assert "AdamW with beta2 0.95" in named
    yield "with beta2 0.95"


def _backward() -> Iterator[str]:
    at, fixed = sweep("training/backward"), sweep("training/deterministic")
    [shape] = fixed.shapes
    names = ("efficient", "flash", "cudnn", "flash_attn_4", "tiled_o6")
    for each in at.shapes:
        cells = [f"{at.ns(each, name) / 1e3:.1f}" for name in names]
        cells += [f"{at.ns(each, name, 'median_ns') / 1e3:.0f}" for name in names]
        yield row(int(at.ns(each, "flash", "seq")), *cells)
    yield f"(`tiled_o6` is {at.between('flash_attn_4', 'tiled_o6', at.shapes[:3])} as fast)"
    yield f"than FlashAttention 4 at S=4096 ({at.speed(at.shapes[3], 'flash_attn_4', 'tiled_o6')} as fast)"
    assert at.pair(at.shapes[4], "flash_attn_4", "tiled_o6")["verdict"] == NO_CLEAR_CHANGE
    yield f"`tiled_o6` is faster than `flash` ({at.speed(at.shapes[4], 'flash', 'tiled_o6', 'eager')})"
    sizes = [format_bytes(at.ns(at.shapes[4], name, "temporary_bytes")).replace("768 KiB", "0.75 MiB")
             for name in ("tiled_o6", "cudnn", "flash_attn_4", "flash")]  # fmt: skip
    yield f"needs only {sizes[0]} in addition"
    yield f"`cudnn` needs {sizes[1]}, `flash_attn_4` {sizes[2]}, and `flash` {sizes[3]}"
    yield f"queries takes {8 * 8192 * 64 * 4 >> 20} MiB in float32"
    ours, free = (each.ns(shape, "flash") for each in (fixed, at))
    yield f"`flash` takes {ours / free:.1f}x as long**: a CUDA graph replay takes {format_ns(ours)} at S=2048"
    yield f"against {format_ns(free)} in the sweep"
    sizes = [f"{each.ns(shape, 'flash', 'temporary_bytes') / 2**20:.1f} MiB" for each in (fixed, at)]
    yield f"`flash` needs {sizes[0]} of temporary memory instead of {sizes[1]}"
    times = [format_ns(each.ns(shape, "flash_attn_4")) for each in (fixed, at)]
    ratio = fixed.speed(shape, "flash", "flash_attn_4", digits=1)
    yield f"takes {times[0]} instead of {times[1]}, and is {ratio} as fast"
