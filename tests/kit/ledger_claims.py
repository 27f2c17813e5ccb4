"""What the README of `why-math-is-slow` says, as ledgers, counters, the run record and the benchmark have it."""

import json
from collections.abc import Iterator
from typing import Any

from nsysprof.compare.op_causes import CAST_DOWN, CAST_UP, FUSED, GUARD, MASK_ADD, MASK_BUILD, PV, QK, SCALING, SOFTMAX
from nsysprof.core.units import format_bandwidth, format_bytes, format_ns, format_ratio, format_share
from nsysprof.hardware.peaks import peak_flops
from tests.kit.study_figures import ANALYSIS, kept_gap, step_figures, study_figures

PRECISION, FUSION, KERNEL, WHOLE = STEPS = ("1-precision", "2-fusion", "3-kernel", "whole")
LENGTHS = (1024, 2048, 4096)
L2_BYTES = 60 << 20  # of the H200; the comparison names it where something fits
# The step, and its side, that holds the figures of a backend.
_SIDES = {
    "math": (WHOLE, "base"),
    "math_reduced": (PRECISION, "new"),
    "flash": (KERNEL, "base"),
    "cudnn": (KERNEL, "new"),
}
_PAIRS = {PRECISION: ("math", "math_reduced"), FUSION: ("math_reduced", "flash"), KERNEL: ("flash", "cudnn")}
# What a call of math does, in the order of its kernels, and how many of these there are.
_DOES = {
    CAST_UP: (3, "makes 32-bit copies of the inputs"),
    SCALING: (2, "multiplies queries and keys by a constant"),
    MASK_BUILD: (5, "writes the causal mask: zero, or minus infinity for later tokens"),
    QK: (1, "computes the scores of all pairs of tokens"),
    MASK_ADD: (1, "adds the mask to the scores"),
    SOFTMAX: (1, "turns each row of scores into weights"),
    GUARD: (4, "looks for fully masked rows, which it would set to zero"),
    CAST_DOWN: (2, "makes 16-bit copies of weights and output"),
    PV: (1, "averages the values by these weights"),
}


def value(backend: str, seq: int, name: str, cause: str | None = None) -> Any:
    """What the ledgers hold of a backend, or of one of its causes: `span_ns`, `dram_bytes`, …"""
    step, side = _SIDES[backend]
    if cause:
        return step_figures(step).cause(cause, seq)[f"{side}_{name}"]
    pair = step_figures(step).pairs[seq]
    return pair[f"{side}_{name}"] if f"{side}_{name}" in pair else pair[f"{side}_counters"][name]


def clock(backend: str, seq: int, name: str) -> str:
    """The median call by a clock: `184 µs`."""
    step, side = _SIDES[backend]
    return format_ns(step_figures(step).clock(name, seq)[f"{side}_median_ns"])


def kernel(backend: str, cause: str, name: str, seq: int = 4096) -> dict[str, Any]:
    """What was counted of a cause's longest kernel that is called so."""
    step, side = _SIDES[backend]
    rows = [
        row
        for row in step_figures(step).pairs[seq]["counters"]
        if row["side"] == side and row["cause"] == cause and name in row["kernel"]
    ]
    return dict(max(rows, key=lambda row: row["sum_ns"]))


def without_nsys(backend: str, seq: int) -> str:
    """The median call by CUDA events in the run without the profiler."""
    record = json.loads((ANALYSIS.parent / "traces" / "run.json").read_text(encoding="utf-8"))
    [row] = [row for row in record["overhead"]["ranges"] if row["range"] == f"RUN::{backend}::S{seq}"]
    return format_ns(row["plain_median_ns"])


def of_the_model(measured: float, expected: float) -> str:
    """`6.19 of 5.80 GiB`, measured and expected."""
    (number, unit), whole = format_bytes(measured).split(), format_bytes(expected)
    return f"{number} of {whole}" if whole.endswith(f" {unit}") else f"{number} {unit} of {whole}"


def moved(backend: str, seq: int, cause: str | None = None) -> str:
    """Memory traffic of a call in these words."""
    return of_the_model(*(value(backend, seq, name, cause) for name in ("dram_bytes", "expected_bytes")))


def claims_of_why_math_is_slow() -> Iterator[str]:
    """Rows and phrases of the README."""
    yield from _findings()
    yield from rows_of_a_call()
    yield from _a_call()
    for step in (PRECISION, FUSION, KERNEL):
        yield from step_figures(step).ledger()
    yield from _precision()
    yield from _fusion_and_kernel()
    yield from rows_of_clocks()
    yield from rows_of_benchmarks()
    yield from _launches()
    yield from rows_of_traffic()
    yield from rows_of_masks()
    yield from _caches()


def _findings() -> Iterator[str]:
    slow, fast = (value(name, 4096, "span_ns") for name in ("math", "cudnn"))
    whole = step_figures("whole").clock("span", 4096)["ratio"]
    yield f"takes {format_ratio(whole)} as long as `flash` at S=4096"
    yield f"from {format_ns(slow)} to {format_ns(fast)} at S=4096, a speed-up of {format_ratio(slow / fast)}"
    for step in STEPS:
        at = step_figures(step)
        way = format_share(at.pairs[4096]["delta_ns"] / (fast - slow))
        yield f"{' | '.join(at.ratio(seq) for seq in LENGTHS)} | {way} |"
    whole = step_figures(WHOLE)
    matrix = whole.pairs[4096]["base_model"]["score_matrix_bytes"]
    moves = value("math", 4096, "dram_bytes")
    yield f"{format_bytes(matrix)} at S=4096"
    yield (
        f"Each call of `math` moves {format_bytes(moves)} from and to GPU memory, {moves / matrix:.1f} times the "
        "size of the score matrix"
    )
    yield f"writes the score matrix to memory, and moves only {format_bytes(value('flash', 4096, 'dram_bytes'))}"
    largest = max(whole.pairs[4096]["gaps"], key=lambda row: row["share"])
    assert largest["cause"] == GUARD
    yield f"{format_share(largest['share'])} of the difference between `math` and `flash`"
    flops = [value(name, 4096, "flops") / 1e9 for name in ("math", "flash")]
    yield f"{flops[0]:.1f} G FLOP per call. `flash` skips masked blocks and computes {flops[1]:.1f} G FLOP"
    idle = 1 - value("flash", 1024, "busy_ns") / value("flash", 1024, "span_ns")
    yield f"idle for {format_share(idle)} of the span of `flash`"


def rows_of_a_call() -> Iterator[str]:
    """The table of what a call of math does."""
    columns = [step_figures(WHOLE).cells(seq) for seq in LENGTHS]
    for cause, (count, does) in _DOES.items():
        assert value("math", 4096, "kernels", cause) == count
        times = [column[cause].removesuffix(" → 0") for column in columns]
        cells = [cause, str(count), does, *times, moved("math", 4096, cause)]
        yield f"| {' | '.join([*cells, format_share(value('math', 4096, 'dram_share', cause))])} |"


def _a_call() -> Iterator[str]:
    rate = value("math", 4096, "dram_bytes_per_s", QK) / value("math", 4096, "dram_share", QK)
    yield f"*Bandwidth* is in % of {format_bandwidth(rate)}"
    for cause in _DOES:
        expected = value("math", 4096, "expected_bytes", cause)
        off = value("math", 4096, "dram_bytes", cause) / expected - 1
        if expected >= 500 << 20:
            assert (abs(off) < 0.03) == (cause != MASK_ADD)
    yield "For every cause that moves 500 MiB or more, measured and expected traffic agree within 3 %"
    others = [cause for cause in _DOES if cause not in (QK, SOFTMAX, PV)]
    spent = sum(value("math", 4096, "ns", cause) for cause in others)
    count = sum(_DOES[cause][0] for cause in others)
    share = format_share(spent / value("math", 4096, "busy_ns"))
    yield f"{count} of the 20 kernels only prepare, mask, guard or copy data; together, they take {share} of the"
    yield f"L2 cache**: a small, fast memory ({format_bytes(L2_BYTES)}"
    told = " ".join(" ".join(pair["findings"]) for pair in step_figures(WHOLE).pairs.values())
    assert f"the L2 cache ({format_bytes(L2_BYTES)})" in told


def _precision() -> Iterator[str]:
    flops = {name: value(name, 4096, "flops") for name in ("math", "math_reduced")}
    assert value("math", 4096, "tensor_flops") == 0
    share = format_share(value("math_reduced", 4096, "tensor_flops") / flops["math_reduced"])
    yield f"none of the {flops['math'] / 1e9:.1f} G FLOP of `math`"
    yield f"{share} of the {flops['math_reduced'] / 1e9:.1f} G"
    was, now = (sum(value(name, 4096, "ns", cause) for cause in (QK, PV)) for name in ("math", "math_reduced"))
    yield f"{format_ratio(was / now)} as fast: {format_ns(was)} → {format_ns(now)}"
    reached = [format_share(value("math_reduced", 4096, "dram_share", cause)) for cause in (QK, PV)]
    yield f"Q·Kᵀ reaches {reached[0]} of the peak bandwidth, and P·V reaches {reached[1]}"
    casts = sum(value("math", 4096, "ns", cause) for cause in (CAST_UP, CAST_DOWN))
    yield f"Without the conversions, a call takes {format_ns(casts)}"
    moves = [format_bytes(value(name, 4096, "dram_bytes")) for name in ("math", "math_reduced", "flash")]
    yield f"falls from {moves[0]} to {moves[1]}"
    yield f"falls from {moves[1]} to {moves[2]}"
    names = ("math", "math_reduced")
    times = [value(name, 4096, "ns", SOFTMAX) / 1000 for name in names]
    shares = [format_share(value(name, 4096, "dram_share", SOFTMAX)) for name in names]
    yield f"({times[0]:.1f} µs → {times[1]:.1f} µs; share of peak bandwidth {shares[0]} → {shares[1]})"
    gains = [
        1 - value("math_reduced", 4096, "ns", cause) / value("math", 4096, "ns", cause) for cause in (MASK_ADD, GUARD)
    ]
    yield f"Adding the mask takes only {format_share(gains[0])} less time"
    yield f"the guard takes only {format_share(gains[1])} less time"
    scalar = [kernel("math_reduced", cause, "::elementwise_kernel") for cause in (GUARD, MASK_ADD)]
    vector = kernel("math_reduced", GUARD, "::vectorized_elementwise_kernel<(int)4,")
    rates = [format_share(_of_bandwidth(row)) for row in (*scalar, vector)]
    yield f"reach {rates[0]} and {rates[1]} of the bandwidth"
    yield f"reaches {rates[2]} of the bandwidth"
    busy = [row["sm_percent"] / 100 for row in (*scalar, kernel("math_reduced", SOFTMAX, "SoftMax"))]
    yield f"reach {format_share(min(busy))} to {format_share(max(busy))} of their peak"


def _of_bandwidth(row: dict[str, Any]) -> float:
    """What a kernel moves per second of its time in the report, of what the memory can."""
    moves = (row["dram_read_bytes"] + row["dram_write_bytes"]) / (row["sum_ns"] / row["count"])
    most = value("math", 4096, "dram_bytes_per_s", QK) / value("math", 4096, "dram_share", QK)
    return float(moves * 1e9 / most)


def _fusion_and_kernel() -> Iterator[str]:
    fusion, better = step_figures(FUSION), step_figures(KERNEL)
    passes = sum(fusion.cause(cause, 4096)["share"] for cause in (GUARD, SOFTMAX, MASK_ADD))
    yield f"{format_share(passes)} of the difference at S=4096"
    fused = {(name, seq): value(name, seq, "ns", FUSED) for name in ("flash", "cudnn") for seq in LENGTHS}
    products = sum(value("math_reduced", 4096, "ns", cause) for cause in (QK, PV))
    yield f"takes {fused['flash', 4096] / 1000:.1f} µs, less than the two matrix products"
    yield f"of `math_reduced` ({format_ns(products)})"
    flops = [value(name, 4096, "flops") / 1e9 for name in ("math_reduced", "flash", "cudnn")]
    model = better.pairs[4096]["base_model"]
    yield (
        f"The number of FLOPs falls from {flops[0]:.1f} G to {flops[1]:.1f} G, of which "
        f"{model['flops'] / 1e9:.1f} G are necessary"
    )
    yield f"Inputs and output ({format_bytes(model['least_bytes'])}) stay"
    most = value("math", 4096, "dram_bytes_per_s", QK) / value("math", 4096, "dram_share", QK)
    yield f"writing the output would take {format_ns(model['least_bytes'] / most * 1e9)} at full bandwidth"
    assert f"{flops[1]:.1f}" == f"{flops[2]:.1f}"
    tensor = [
        format_share(value(name, 4096, "tensor_flops") / value(name, 4096, "flops")) for name in ("flash", "cudnn")
    ]
    assert tensor[0] == tensor[1]
    yield f"the same {flops[1]:.1f} G FLOP at S=4096, {tensor[0]} of them on tensor cores"
    each = [
        value(name, 4096, "tensor_flops", FUSED) / value(name, 4096, "tensor_instructions", FUSED)
        for name in ("flash", "cudnn")
    ]
    yield f"One tensor-core instruction of `flash` does {each[0]:,.0f} FLOP"
    yield f"does {each[1]:,.0f} FLOP on average"
    assert all(word in kernel("cudnn", FUSED, "cudnn")["kernel"] for word in ("sm90", "wgmma"))
    rates = [value(name, 4096, "flops") / fused[name, 4096] * 1e9 for name in ("flash", "cudnn")]
    peak = peak_flops("9.0", 132, 1980e6, "fp16", name="NVIDIA H200")
    shares = " and ".join(format_share(rate / peak) for rate in rates)
    yield f"from {rates[0] / 1e12:.0f} TFLOP/s to {rates[1] / 1e12:.0f} TFLOP/s ({shares} of the {peak / 1e12:,.0f}"
    yield f"of the {peak / 1e12:,.0f} TFLOP/s peak of the tensor cores"
    through = [format_bytes(value(name, 4096, "l2_bytes")) for name in ("cudnn", "flash")]
    yield f"{through[0]} instead of {through[1]}"
    both = [fused[name, 2048] / 1000 for name in ("cudnn", "flash")]
    waits = better.host(2048)["delta_ns"] / 1000
    yield f"takes {both[0]:.1f} µs and the kernel of `flash` takes {both[1]:.1f} µs"
    yield f"waits {waits:.1f} µs longer for the host"


def rows_of_clocks() -> Iterator[str]:
    """The table of clocks."""
    shown = [(1024, name) for name in _SIDES] + [(2048, "flash"), (2048, "cudnn"), (4096, "math")]
    for seq, name in shown:
        step, side = _SIDES[name]
        pair = step_figures(step).pairs[seq]
        launches = sum(row[f"{side}_launches"] for row in pair["gaps"])
        cells = [str(seq), name, f"{launches:.0f}", clock(name, seq, "CPU"), clock(name, seq, "CUDA events")]
        cells += [without_nsys(name, seq), clock(name, seq, "span"), clock(name, seq, "busy")]
        yield f"| {' | '.join([*cells, format_share(pair[f'{side}_busy_ns'] / pair[f'{side}_span_ns'])])} |"


def rows_of_benchmarks() -> Iterator[str]:
    """The table of the steps by the trace and by the benchmark."""
    at = study_figures("math-vs-flash")
    for step, (base, new) in _PAIRS.items():
        for seq in LENGTHS:
            cells = [f"{base} → {new}", str(seq), *step_figures(step).ratio(seq).split(", ")]
            cells += [at.times(base, new, seq), at.times(base, new, seq, graph=True)]
            yield f"| {' | '.join(cells)} |"


def _launches() -> Iterator[str]:
    yield f"the host finishes a call of `math` after {clock('math', 4096, 'CPU')}, but the GPU only after"
    yield f"{clock('math', 4096, 'span')}. If kernels"
    yield f"needs {clock('math_reduced', 1024, 'CPU')} for the 15 launches, and the GPU"
    yield f"{clock('math_reduced', 1024, 'busy')} for the work"
    span, busy = step_figures(PRECISION).ratio(1024).split(", ")
    yield f"by span ({span.strip('()')}) counts as no clear change. The speed-up by busy time ({busy}) is clear"
    told = json.loads(kept_gap("why-math-is-slow", PRECISION))
    [pair] = [each for each in told["pairs"] if each["pair"].endswith("math_reduced::S1024")]
    assert any("n = 34 and 37 are worth 5 and 6 independent" in text for text in pair["findings"])
    yield "n = 6 of 37"
    yield f"{without_nsys('math_reduced', 1024)}, half of the {without_nsys('math', 1024)} of `math`"
    span, busy = step_figures(KERNEL).ratio(2048).split(", ")
    yield f"{span.strip('()')} as fast as `flash` by span, but {busy} as fast by busy"


def rows_of_traffic() -> Iterator[str]:
    """The table of memory traffic."""
    for name in _SIDES:
        yield f"| {name} | {' | '.join(moved(name, seq) for seq in LENGTHS)} |"


def rows_of_masks() -> Iterator[str]:
    """The table of what adding the mask reads."""
    for seq, name in ((2048, "math_reduced"), (2048, "math"), (4096, "math_reduced"), (4096, "math")):
        size = 4 if name == "math" else 2
        mask, scores = size * seq**2, 8 * size * seq**2
        reads = value(name, seq, "dram_read_bytes", MASK_ADD)
        again = (reads - mask - scores) / (7 * mask)
        assert (again > 0.99) == (3 * mask > L2_BYTES)
        cells = [f"{name}, S={seq}", *map(format_bytes, (mask, 3 * mask, mask + scores, reads))]
        yield f"| {' | '.join(cells)} | {format_share(again)} |"


def _caches() -> Iterator[str]:
    matrix = {
        (name, seq): format_bytes(step_figures(PRECISION).pairs[seq][f"{side}_model"]["score_matrix_bytes"])
        for name, side in (("math", "base"), ("math_reduced", "new"))
        for seq in LENGTHS
    }
    yield f"{matrix['math', 1024]} in `math` and {matrix['math_reduced', 1024]} in `math_reduced`"
    yield f"the L2 cache of {format_bytes(L2_BYTES)}"
    yield f"a score matrix of {matrix['math_reduced', 2048]} or more does not fit"
    more = moved("math", 4096, MASK_ADD).replace(" of", " GiB instead of")
    yield f"at S=4096 causes more traffic than expected** ({more})"
    yield f"exceeds {format_bytes(L2_BYTES)}"
    mask = 4 * 4096**2
    yield f"7 × {format_bytes(mask)} = {format_bytes(7 * mask)}"
