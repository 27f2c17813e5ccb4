"""Find kernels that pass data via memory although one kernel could do all: attention, pointwise chains, layouts."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.arrays import Floats, Index, Ints, Ints32, Mask
from nsysprof.core.intervals import union_length
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.busy import Busy
from nsysprof.diagnosis.case import Case
from nsysprof.diagnosis.finding import EVERY, OFTEN_SO, ONCE, Finding
from nsysprof.diagnosis.kinds import dialect_text, often
from nsysprof.diagnosis.launch_bound import updates, without_waits
from nsysprof.diagnosis.reached import least_part, shares_of
from nsysprof.kernels.classify import OTHER_SOFTMAX
from nsysprof.trace.trace import KERNEL

_ATTENTION = "attention in separate kernels"
_SDPA = {
    "pytorch": "call torch.nn.functional.scaled_dot_product_attention, which runs attention in one kernel",
    "cuda": "fuse matrix product, softmax and matrix product into an attention kernel (FlashAttention, or cuDNN's)",
    "jax": "call jax.nn.dot_product_attention with implementation='cudnn', which runs attention in one kernel",
}
_CHAINS = "pointwise kernels in a row"
_COMPILE = {
    "pytorch": "fuse these kernels with torch.compile",
    "cuda": "fuse these kernels into one that reads and writes each element once",
    "jax": "jit the function with these kernels, so that XLA fuses them",
}
_LAYOUT = "conversions between channels-first and channels-last"
_CHANNELS_LAST = {
    "pytorch": "keep model and input in channels-last: .to(memory_format=torch.channels_last)",
    "cuda": "pass tensors to cuDNN in NHWC, the layout of its tensor-core kernels",
}
# channels_last is for images, channels_last_3d for volumes, as convolutions and norms name them. Tensors of five
# dimensions prove nothing (a group norm of nvFuser splits channels), and pooling little: it also reduces other axes.
_DIMENSIONS = re.compile(r"(?i)(?:conv(?:_?(?:transpose|depthwise))?|norm)_?([23])d|n(?:cdhw|dhwc)\b")
_POOLS = re.compile(r"(?i)pool_?3d|trilinear3d")
_TRAINS = "batch norm in training mode without a backward pass"
_EVAL = {
    "cuda": "call model.eval() before inference, so that the norm needs no statistics and torch.compile folds it away"
}
_FILLS = "kernels that fill memory with a constant"
_EMPTY = {
    "pytorch": "use torch.empty for memory that is overwritten anyway, and let zero_grad set gradients to None",
    "cuda": "do not fill memory (cudaMemset, fill kernels) that is overwritten before it is read",
}
_CASTS = "kernels that only convert between types"
_ONE_TYPE = {
    "pytorch": (
        "keep weights and inputs in the data type of the matrix products (model.to(torch.bfloat16)), or "
        "fuse the casts with torch.compile"
    ),
    "cuda": "store the data in the type that the next kernel reads, or convert the data in that kernel",
    "jax": "keep parameters and inputs in the data type of the matrix products (such as jnp.bfloat16)",
}
_IN_TRAINING = re.compile(r"(?i)bn_fw_tr|batch_norm_collect_statistics")
_BACKWARD = re.compile(r"(?i)backward|[dw]grad|bn_bw|multi_tensor_apply|addcdiv")
_CONVERTS = re.compile(r"(?i)nchw_?to_?nhwc|nhwc_?to_?nchw|nchw2nhwc|nhwc2nchw")
# Pointwise kernels that no compiler of the program fuses: of optimizers over lists, around convolutions, of loaders.
_OF_LIBRARIES = re.compile(rf"{_CONVERTS.pattern}|multi_tensor|tensor_kernel_scan|cudnn::|\bdali::")
# Batch norm that knows mean and variance scales and shifts each element, so a compiler fuses it, too.
_INFERS = re.compile(r"bn_fw_inf|batch_norm_transform_input")
# A block per channel, however few there are: in channels-last as many blocks as fit share the rows.
_NCHW_NORM = re.compile(r"bn_(?:fw|bw)\w*1C11")
_NORM_SAVES = 0.5  # of their time, where nothing says what they move: 0.8 of it on an H200 with 64 channels
# What lies between the two products of attention: scale, mask, dropout, casts, copies of its score matrix.
_BETWEEN = ("elementwise", "mask", "copy", "fill", "rng", "softmax", "reduction", "memcpy", "memset")
_POINTWISE = ("elementwise", "mask", "copy", "fill")
_IN_ROWS = (*_POINTWISE, "reduction")  # as in a norm made of its parts: between pointwise kernels of as much memory
_NOT_CHAINED = ("optimizer", "gather/scatter", "embedding", "embedding backward", "scan")
_REDUCES = 0.1  # of the time of a chain: with so much of reductions they are named
# Of the time of both products what a fused kernel takes: 103 of 313 µs in half precision (64 heads of 2,048 × 64).
_FUSED = 1 / 3
_ALIKE = 0.8  # of the time of all fills
_LONGEST, _SHORTEST = 24, 3  # kernels between two products; in a row
_AGAIN = 0.9  # of the kernels of a row: so many have the name of the kernel a period before
_SOME = 0.25  # of the time of pointwise kernels: so much of the optimizer has a remedy of its own
_TINY = "tiny kernels in a row"
_ONE_KERNEL = {
    "pytorch": "run these kernels as one: fuse them with torch.compile, or capture them in a CUDA graph",
    "cuda": "run these kernels as one: fuse them, or move the loop that launches them into one kernel",
    "jax": "run these kernels as one: put their loop under one jax.jit (lax.scan or lax.fori_loop)",
}
# A kernel takes less time than the launch of the next, which follows soon; so many in a row.
_TINY_NS, _APART_NS, _MANY = 4_000, 20_000, 8
_LEAST = 0.04  # of the steps, of tiny kernels: a replay shows what these gain in each
_UNEQUAL = 8  # kernels of a row that work on as many elements take less than so many times as long as the shortest


def fusion_findings(busy: Busy) -> Iterator[Finding]:
    """Yield findings about kernels that one kernel could replace; a replay shows the gain."""
    ops = busy.with_copies
    used = np.zeros(len(ops), bool)
    for finder in (_attention, _chains, _tiny):
        yield from finder(busy, ops, used)
    names, infers = busy.case.facts.attribution.trace.op_names, _only_infers(busy.case)
    trains = busy.matches(lambda code: infers and _IN_TRAINING.search(names[code]) is not None)
    casts = _of_cause(busy, busy.op, ("cast",)) & ~np.isin(busy.op, ops[used])
    for kind, cause, mine, texts in (
        ("training-mode", _TRAINS, trains, _EVAL),
        ("memset", _FILLS, _fills(busy), _EMPTY),
        ("casts", _CASTS, casts, _ONE_TYPE),
    ):
        gain = busy.gained(busy.op[mine], busy.length[mine]) if busy.enough(int(busy.length[mine].sum())) else 0
        if gain >= OFTEN_SO * busy.place.total_ns * (kind == "casts") and busy.enough(gain):
            yield busy.finding(kind, cause, f"{cause}: {{amount}}", dialect_text(busy.case, texts), gain, busy.op[mine])
    converts, norms = norms_of_layout(busy)
    shorter = np.zeros(len(busy.op), np.int64)
    shorter[converts] = busy.length[converts]
    if busy.enough(int(shorter.sum() + busy.length[norms].sum())):
        shares = shares_of(busy, norms)  # a norm in channels-last still moves what this one moves
        saves = 1 - least_part(shares) if shares else np.minimum(_NORM_SAVES, _idle_part(busy, norms))
        shorter[norms] = np.rint(busy.length[norms] * saves)
        norms = norms[shorter[norms] > 0]
        gain = busy.gained(busy.op, shorter)
        if busy.enough(gain):
            text = f"{_LAYOUT}{', and norms in channels-first' * bool(len(norms))}: {{amount}}"
            remedy = dialect_text(busy.case, _CHANNELS_LAST)
            trace = busy.case.facts.attribution.trace
            named = (*names, *(each.text for each in trace.range_names))
            said = {match[1] or "3" for match in map(_DIMENSIONS.search, named) if match}
            if said == {"3"}:
                remedy = remedy.replace("torch.channels_last", "torch.channels_last_3d").replace("NHWC", "NDHWC")
            elif len(said) == 2 or (not said and any(map(_POOLS.search, named))):
                remedy += f" (volumes: {'torch.channels_last_3d' if busy.case.dialect == 'pytorch' else 'NDHWC'})"
            ns = int(busy.length[converts].sum() + busy.length[norms].sum())
            both = busy.op[np.concatenate([converts, norms])]
            yield busy.finding("channels-last", _LAYOUT, text, remedy, gain, both, ns)


def _only_infers(case: Case) -> bool:
    """Whether a program of PyTorch runs no backward pass."""
    return case.dialect == "pytorch" and not any(map(_BACKWARD.search, case.facts.attribution.trace.op_names))


def _fills(busy: Busy) -> Mask:
    """Kernels that fill memory; none where no step repeats and most are alike: a benchmark flushes caches with them."""
    mine, found = _of_family(busy, busy.op, ("fill",)), busy.case.launches
    if busy.place.path == WHOLE and found is not None and mine.any():
        of_shape = np.bincount(found.of[busy.op[mine]], busy.length[mine])
        mine &= bool(of_shape.max() < _ALIKE * of_shape.sum())
    return mine


def _idle_part(busy: Busy, at: Index) -> Floats:
    """The part of the GPU that each of these kernels leaves without a block; all of it if that is unknown."""
    found = busy.case.launches
    if found is None or not found.sms:
        return np.ones(len(at))
    blocks = found.blocks[found.of[busy.op[at]]]
    return np.where(blocks > 0, np.maximum(1 - blocks / found.sms, 0), 1)


def _tiny(busy: Busy, ops: Index, used: Mask) -> Iterator[Finding]:
    """Kernels one behind the other that take less time than their launches: as one kernel they need one launch."""
    places, ops_of = busy.case.places, busy.case.facts.attribution.trace.ops
    if busy.place is not next(place for place in places if place.path == busy.place.path):
        return  # of a finding one GPU is told: the one with the longest steps, as a replay of each takes time
    start, end, stream = ops_of.start[ops], ops_of.end[ops], ops_of.stream[ops]
    step = np.searchsorted(np.sort(busy.case.windows.start[busy.place.windows]), start, side="right")
    tiny = (end - start < _TINY_NS) & (ops_of.kind[ops] == KERNEL) & ~used
    near = (stream[1:] == stream[:-1]) & (step[1:] == step[:-1]) & (start[1:] - end[:-1] < _APART_NS)
    first = ~np.append(False, tiny[1:] & tiny[:-1] & near)[: len(ops)]
    row = np.cumsum(first) - 1
    mine = np.flatnonzero(tiny & (np.bincount(row, tiny, minlength=1)[row] >= _MANY))
    if len(mine) < _MANY * busy.place.steps:
        return
    begins = np.flatnonzero(first[mine])
    last = np.append(begins[1:], len(mine)) - 1
    longest = np.maximum.reduceat((end - start)[mine], begins)
    ns = int((end[mine[last]] - start[mine[begins]] - longest).sum())
    if busy.enough(ns, _LEAST):
        gain = busy.merged(ops[mine], first[mine], np.repeat(longest, last - begins + 1), ns)
        if busy.enough(gain, _LEAST):
            count, each = len(mine) / len(np.unique(step[mine])), format_ns(float(np.median((end - start)[mine])))
            graph = ops_of.from_graph[ops[mine]]
            graphed = 2 * int(graph.sum()) > len(mine)
            how = "in a CUDA graph" if graphed else "with its own launch"
            how = f"most {how}" if len(np.unique(graph)) > 1 else how if graphed else f"each {how}"
            text = f"{count:,.0f} tiny kernels (median {each}) run one after another, {how}: {{amount}}"
            within = np.flatnonzero(np.isin(busy.case.pieces["op"], ops[mine[~first[mine]]]))
            remedy = dialect_text(busy.case, _COMPILE if graphed else _ONE_KERNEL)
            remedy = without_waits(busy.case, busy.place, remedy, within)
            yield busy.finding("launch-latency", _TINY, text, remedy, gain, ops[mine])


def norms_of_layout(busy: Busy) -> tuple[Index, Index]:
    """Return the kernels that convert between layouts and, if there are any, cuDNN's batch norms in channels-first
    format.
    """
    names = busy.case.facts.attribution.trace.op_names
    family = busy.case.facts.kinds.family
    converts = np.flatnonzero(busy.matches(lambda code: family[code] != "gemm" and bool(_CONVERTS.search(names[code]))))
    norms = np.flatnonzero(busy.matches(lambda code: bool(_NCHW_NORM.search(names[code]))))
    return converts, norms if len(converts) else converts


def _of_family(busy: Busy, ops: Index, families: tuple[str, ...]) -> Mask:
    kinds, trace = busy.case.facts.kinds, busy.case.facts.attribution.trace
    table = np.array([family in families for family in kinds.family], bool)
    return table[trace.ops.name[ops]]


def _of_cause(busy: Busy, ops: Index, causes: tuple[str, ...]) -> Mask:
    kinds, trace = busy.case.facts.kinds, busy.case.facts.attribution.trace
    return np.array([cause.startswith(causes) for cause in kinds.cause], bool)[trace.ops.name[ops]]


def _attention(busy: Busy, ops: Index, used: Mask) -> Iterator[Finding]:
    """Products with a softmax between them: one kernel does the products alone, without their scores in memory."""
    trace = busy.case.facts.attribution.trace
    at = np.arange(len(ops))
    product = _of_family(busy, ops, ("gemm",))
    softmax = _of_family(busy, ops, ("softmax",)) & ~_of_cause(busy, ops, OTHER_SOFTMAX)
    if not softmax.any() or not product.any():
        return
    before = np.maximum.accumulate(np.where(product, at, -1))
    after = np.minimum.accumulate(np.where(product, at, len(ops))[::-1])[::-1]
    strange = np.append(0, np.cumsum(~product & ~_of_family(busy, ops, _BETWEEN)))
    low, high = before[softmax], after[softmax]
    good = (low >= 0) & (high < len(ops)) & (high - low <= _LONGEST)
    low, high = low[good], high[good]
    stream = trace.ops.stream[ops]
    good = (strange[high] == strange[low]) & (stream[high] == stream[low])
    low, high = np.unique(np.stack([low[good], high[good]]), axis=1)
    apart = np.append(True, low[1:] > high[:-1])[: len(low)]  # of two that share a product the first counts
    low, high = low[apart], high[apart]
    region = np.zeros(len(ops) + 1, np.int64)
    np.add.at(region, low, 1)
    np.add.at(region, high + 1, -1)
    inside = np.cumsum(region)[:-1] > 0
    used |= inside
    mine = np.flatnonzero(inside)
    length = trace.ops.end[ops[mine]] - trace.ops.start[ops[mine]]
    if not busy.enough(int(length.sum())):
        return
    first = np.isin(mine, low)
    products = np.append(0, np.cumsum((trace.ops.end[ops] - trace.ops.start[ops]) * product))
    fused = np.zeros(len(mine), np.int64)
    fused[first] = np.rint((products[high + 1] - products[low]) * _FUSED).astype(np.int64)
    gain = busy.merged(ops[mine], first, fused)
    if busy.enough(gain):
        text = f"{_ATTENTION}, with its score matrix in memory between them: {{amount}}"
        remedy = dialect_text(busy.case, _SDPA)
        yield busy.finding("unfused-attention", _ATTENTION, text, remedy, gain, ops[mine], int(length.sum()))


def _again(name: Ints32, row: Ints) -> Mask:
    """Mark the kernels of a row at which the names begin again, as for the next parameter or the next head: what is
    computed of other data stays a kernel of its own.
    """
    out, whole = np.zeros(len(name), bool), np.zeros(len(name), bool)
    count = np.bincount(row, minlength=1)
    position = np.arange(len(name)) - (np.cumsum(count) - count)[row]
    for period in range(_SHORTEST, min(_LONGEST, int(count.max()) // 2) + 1):
        same = np.append(np.zeros(period, bool), name[period:] == name[:-period])[: len(name)] & (position >= period)
        of_row = np.bincount(row, same, minlength=1)
        cut = (of_row >= _AGAIN * (count - period)) & (count >= 2 * period)
        out |= cut[row] & ~whole & (position % period == 0)
        whole |= cut[row]
    return out


def _chains(busy: Busy, ops: Index, used: Mask) -> Iterator[Finding]:
    """Pointwise kernels one behind the other: as one kernel they take as long as the longest of them."""
    trace = busy.case.facts.attribution.trace
    length = trace.ops.end[ops] - trace.ops.start[ops]
    fits = _of_family(busy, ops, _IN_ROWS) & ~_of_cause(busy, ops, _NOT_CHAINED) & ~used
    name = trace.ops.name[ops]
    for code in np.unique(name[fits]).tolist():
        if _OF_LIBRARIES.search(trace.op_names[code]):
            fits &= name != code
    norms = [code for code in np.unique(name).tolist() if _INFERS.search(trace.op_names[code])]
    norm = np.isin(name, norms) & _only_infers(busy.case) & ~used
    fits |= norm
    windows = busy.case.windows.take(busy.place.windows)
    step = np.searchsorted(np.sort(windows.start), trace.ops.start[ops], side="right")
    stream = trace.ops.stream[ops]
    near = np.maximum(length[1:], length[:-1]) < _UNEQUAL * np.maximum(np.minimum(length[1:], length[:-1]), 1)
    near &= (stream[1:] == stream[:-1]) & (step[1:] == step[:-1])
    first = ~np.append(False, fits[1:] & fits[:-1] & near)[: len(ops)]
    first |= _again(name, np.cumsum(first) - 1)
    row = np.cumsum(first) - 1
    changes = np.append(False, name[1:] != name[:-1])[: len(ops)] & ~first
    count, several = np.bincount(row, minlength=1)[row], np.bincount(row, changes, minlength=1)[row] > 0
    normed = np.bincount(row, norm, minlength=1)[row] > 0  # with an activation behind it: two kernels are a row
    mine = np.flatnonzero(fits & (count >= _SHORTEST - normed) & several)  # one kernel again and again is a loop
    if not len(mine):
        return
    starts = first[mine]
    most = np.maximum.reduceat(length[mine], np.flatnonzero(starts))
    several = np.diff(np.append(np.flatnonzero(starts), len(mine)))
    fused = np.repeat(most, several)
    ns = int(length[mine].sum())
    if not busy.enough(ns - int(most.sum())):
        return
    gain = busy.merged(ops[mine], starts, fused)
    if busy.enough(gain):
        used[mine] = True
        low, high, steps = int(several.min()), int(several.max()), len(np.unique(step[mine]))
        rows = f"chains of {low:,}" + f" to {high:,}" * (low < high) if len(several) > steps else "a row"
        which = often(busy.place, np.bincount(step[mine] - 1, length[mine], busy.place.steps))
        shown = union_length(trace.ops.start[ops[mine]], trace.ops.end[ops[mine]])
        amount = "{amount}" if which == EVERY else f"{format_ns(shown)} {'in ' * (which != ONCE)}{which}"
        reduces = int(length[mine][_of_family(busy, ops[mine], ("reduction",))].sum()) >= _REDUCES * ns
        what = f"pointwise{' and reduction' * reduces} kernels{' (with batch norms)' * bool(norm[mine].any())}"
        text = f"{len(mine) / steps:,.0f} {what} in {rows} each read and write memory: {amount}"
        remedy, updated = dialect_text(busy.case, _COMPILE), updates(busy.case)[ops[mine]]
        of_optimizer = int(length[mine][updated].sum()) / ns
        if remedy == _COMPILE["pytorch"] and of_optimizer >= _SOME:
            part = f"the optimizer ({format_share(of_optimizer)} of their time)"
            remedy += f"; for {part}, use a torch.optim optimizer with fused=True"
        yield replace(busy.finding("pointwise", _CHAINS, text, remedy, gain, ops[mine], shown), often=which)
