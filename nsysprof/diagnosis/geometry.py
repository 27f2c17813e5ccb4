"""Find kernels that use a small part of the GPU: few blocks or threads, a nearly empty last wave, or low occupancy."""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from nsysprof.core.arrays import AnyInts, Floats, Index, Ints, Mask
from nsysprof.core.columns import distinct
from nsysprof.core.intervals import covered, merge
from nsysprof.core.text import one_line, plural
from nsysprof.core.units import format_bytes, format_share
from nsysprof.diagnosis.busy import Busy
from nsysprof.diagnosis.finding import NAME, Finding
from nsysprof.diagnosis.fusion import norms_of_layout
from nsysprof.diagnosis.kinds import dialect_text
from nsysprof.diagnosis.page_fault import MANY_FAULTS, fault_share, known_fault_share
from nsysprof.diagnosis.reached import MEMORY, least_part, roofs_of, shares_of
from nsysprof.hardware.occupancy import LIMITERS
from nsysprof.kernels.launches import Launches
from nsysprof.kernels.names import short_name

MIN_EMPTY = 0.2  # of the GPU: 128 blocks on 132 multiprocessors are nothing to change
_MIN_TAIL = 0.2  # of all waves: an H200 gained 0.14 of 0.22, and 0.42 of 0.44
_NARROW = 128  # threads of a block: to advise no less
FULL = 64  # threads of a block: 32 such blocks, as many as a multiprocessor holds, fill it
# Warps of a multiprocessor that hide most latency: dependent arithmetic needs four for each of its four schedulers,
# loads of memory need 8 to 32 by how many each thread has on their way.
ENOUGH_WARPS = 16
FEW_WARPS = 12  # from here down
# Up to half of all warps are few, too, for kernels that are sampled and reach less than this of any peak: they wait.
MOST_WARPS, WAITING = 0.5, 0.4
_WARP = 32
_DRAWS = 1.75  # times its share of the bandwidth: 64 of 132 multiprocessors of an H100 read weights at 83 % of it
_MAX_WAVES = 3  # of more, blocks of unequal length fill the last one
_LONG_WAVE_NS = 10_000
_MAX_HELD = 2  # blocks of an SM: of more, those of the last wave have its units and the memory to themselves
# Kernels that keep few warps by design, as they wait for nothing: of libraries that pipeline copies and matrix units.
PIPELINED = ("gemm", "attention")
_MANY = {
    "cuda": "launch at least {blocks:,} blocks of {wide:,} threads ({each} per multiprocessor): give each thread"
    " less work",
    "pytorch": "give the kernel more parallel work: a larger batch, or a kernel that splits the work over more blocks"
    " (the GPU has {sms} multiprocessors)",
    "openacc": "spread the loops over at least {blocks:,} gangs (parallel loop gang vector, with collapse for nested"
    " loops), each with {wide:,} threads",
}
# The second stage of a reduction, which the compiler runs in one block.
_STAGE, _SELDOM = re.compile(r"_gpu__red\Z"), "compute this reduction only in the steps that use its result"
# Where all threads are enough for all multiprocessors, but lie in few large blocks.
_SMALLER = "use smaller blocks (128 threads), so that the threads spread over all {sms} multiprocessors"
_WIDE = "use blocks of 128 to 256 threads: smaller blocks leave multiprocessors mostly idle"
# Whose blocks no author sets, also where a program in CUDA C++ calls the library.
_OF_LIBRARY = re.compile(
    r"(?:void )?(?:(?:ampere|volta|turing|maxwell|fermi|sm\d+|nvjet)_|cutlass|cublas|cudnn"
    r"|gemv(?:2[NT]|NSP)_kernel|gemm(?:SN|k1)_|gemm_kernel\dx\d_|(?:.*internal::)?gemvx::)"
)
# Of vectors, random numbers, sparse matrices, sorting and sums: libraries lay out their blocks by the size of the data.
_CALLED = re.compile(
    r"(?:void )?(?:[a-z]\w+_kernel\w*<.*\bcublas\w+Params|gen_sequenced<|(?:\w+::)?(?:cub|thrust|cusparse)::)"
)
_SEED = re.compile(r"(?:void )?generate_seed_pseudo\w*<")
_FEWER_CALLS = "call this library function in fewer steps, or on more data at once: the library chooses the grid"
_REUSE = "create the cuRAND generator once and reuse it: each new generator runs this kernel"
_SAME, _SOME = 1.25, 3  # times as long, of so many launches: as long with many blocks as with few
_EVEN = "launch a multiple of {wave} blocks, or only {wave} blocks that loop over the work"
_UNSPILLED = "keep values in registers ({registers}): smaller tiles, less unrolling, or a higher register limit"
_FULLER = {
    "shared memory": "use less shared memory per block ({shared:,} bytes), so that a multiprocessor holds more blocks",
    "registers": "use fewer registers per thread ({registers}): smaller tiles, or __launch_bounds__; do not change"
    " tiled matrix products, which need many registers",
    "warps": "use blocks of 128 to 256 threads, so that more blocks fit on a multiprocessor",
    "blocks": "use blocks of 128 to 256 threads, so that more warps fit on a multiprocessor",
}


def geometry_findings(busy: Busy) -> Iterator[Finding]:
    """Yield kernels whose grid or blocks are too small. A full GPU would save the kernel time × the idle share of the
    GPU.
    """
    found = busy.case.launches
    if found is None or not found.sms or not len(busy.op):
        return
    faults = fault_share(busy.case)  # the time of a kernel may be that of its page faults
    row = found.of[busy.op]
    known = (found.blocks > 0) & (found.threads > 0)
    laid_out = np.isin(np.arange(len(busy.op)), norms_of_layout(busy)[1])  # another layout has other kernels
    used = part_used(found)
    few = few_blocks(found)
    same = same_time(busy, found, few[row])
    small = few[row] & ~laid_out & ~same
    whole, own = _beside_small(busy, small)
    beside = max(int(whole[small].sum()) / max(int(own[small].sum()), 1), 1.0)  # so many of these run at a time
    idle = {"small-grid": np.where(small, np.maximum(1 - used[row] * beside, 0), 0.0)}
    names = busy.case.facts.attribution.trace.op_names
    idle["small-grid"][small & busy.matches(lambda code: _SEED.match(names[code]) is not None)] = 1  # run no more
    if faults < MANY_FAULTS:
        tiny = known & ~few & (found.threads < FULL)
        of_library = busy.matches(lambda code: any(each.match(names[code]) for each in (_OF_LIBRARY, _CALLED, _SEED)))
        empty = 1 - np.minimum(used, np.nan_to_num(found.held.occupancy, nan=1.0) * _lanes(found))
        idle["tiny-blocks"] = np.where(tiny[row] & ~of_library & ~same, empty[row], 0.0)
        unpiped = ~busy.matches(lambda code: busy.case.facts.kinds.family[code] in PIPELINED)
        rest = unpiped & ~laid_out & (known & ~few & ~tiny)[row]
        tail = np.where(busy.length >= _LONG_WAVE_NS * np.ceil(np.nan_to_num(found.waves))[row], _tail(found)[row], 0.0)
        idle["tail-wave"] = np.where(rest, tail, 0.0)
        idle["spills"] = _spilling(busy, found)
        idle["low-occupancy"] = np.where(rest & (tail == 0), _waiting(busy, found, used)[row], 0.0)
    for kind, share in idle.items():
        runs = (whole, own) if kind == "small-grid" else (busy.alone, busy.alone)
        yield from _worst(busy, found, kind, share, faults, runs)


def few_blocks(found: Launches) -> Mask:
    """Mark launches whose blocks leave a large share of the multiprocessors empty."""
    return (found.blocks > 0) & (found.threads > 0) & (found.blocks <= (1 - MIN_EMPTY) * found.sms)


def same_time(busy: Busy, found: Launches, few: Mask) -> Mask:
    """Mark kernels that take as long with ``few`` blocks as with more blocks than multiprocessors: the time of one
    block determines their time, so more blocks would not help.
    """
    if dialect_text(busy.case, _MANY) == _MANY["pytorch"]:
        return np.zeros(len(few), bool)  # a larger batch helps these the more
    row = found.of[busy.op]
    piped = busy.matches(lambda code: busy.case.facts.kinds.family[code] in PIPELINED)
    many = (found.blocks > found.sms)[row] & ~piped
    kernel, out = distinct(busy.name, found.threads[row])[1], np.zeros(len(few), bool)
    for code in np.intersect1d(kernel[few], kernel[many]).tolist():
        mine = kernel == code
        here, there = busy.length[mine & few], busy.length[mine & many]
        if min(len(here), len(there)) >= _SOME and np.median(there) <= _SAME * np.median(here):
            out |= mine
    return out


def _beside_small(busy: Busy, small: Mask) -> tuple[Ints, Ints]:
    """For how long each kernel runs beside no kernels but ``small`` ones; and the same where an earlier one did not."""
    ops = busy.case.facts.attribution.trace.ops
    start, end = ops.start[busy.op], ops.end[busy.op]
    others = merge(start[~small], end[~small])
    reach = np.clip(np.maximum.accumulate(np.append(0, np.where(small, end, 0)[:-1])), start, end)
    return end - start - covered(others, start, end), end - reach - covered(others, reach, end)


def held_warps(found: Launches) -> Floats:
    """Return how many warps of each launch fit on a multiprocessor; infinite if unknown."""
    held: Floats = np.where(found.held.blocks > 0, found.held.blocks, np.inf)
    return held * _warps(found)


def part_used(found: Launches) -> Floats:
    """Return the share of the GPU that each launch keeps busy: share of SMs × share of warps × share of lanes."""
    of_block = _warps(found)
    each = found.blocks / max(found.sms, 1)
    warps = np.minimum(np.maximum(each, 1) * of_block, np.where(each < 1, np.inf, held_warps(found)))
    part: Floats = np.minimum(each, 1) * np.minimum(warps / ENOUGH_WARPS, 1)
    return part * _lanes(found)


def _warps(found: Launches) -> Ints:
    """The warps of a block."""
    return -(-np.maximum(found.threads, 1) // _WARP)


def _lanes(found: Launches) -> Floats:
    """The share of the lanes of its warps that a block uses."""
    return found.threads / (_WARP * _warps(found))


def _waiting(busy: Busy, found: Launches, used: Floats) -> Floats:
    """The part of its time that each launch may wait for memory, with few warps to run meanwhile."""
    # With all blocks on the GPU at once, as of persistent kernels, no more of them are left to hold.
    some, part = (found.held.blocks > 0) & (np.nan_to_num(found.waves) > 1), found.held.occupancy
    sampled = busy.place.gpu in busy.case.facts.attribution.trace.samples
    more = some & (part <= MOST_WARPS) & sampled
    return np.where(some & (held_warps(found) <= FEW_WARPS), 1 - used, np.where(more, 1 - part, 0))


def _spilling(busy: Busy, found: Launches) -> Floats:
    """The part of its time in which each kernel writes and reads the local memory of its threads, once each."""
    rate = roofs_of(busy.case, busy.place).bytes_per_s
    row, spilled = found.of[busy.op], 2.0 * np.maximum(found.local_memory, 0) * found.threads * found.blocks
    part: Floats = spilled[row] / rate * 1e9 / np.maximum(busy.length, 1)
    return np.minimum(np.nan_to_num(part), 1.0)


def _tail(found: Launches) -> Floats:
    """The part of its time in which each launch leaves the GPU empty behind the last whole wave; 0 for little."""
    waves = np.nan_to_num(found.waves)
    whole = np.ceil(waves)
    uneven = (waves > 1) & (whole <= _MAX_WAVES) & (found.held.blocks <= _MAX_HELD)
    return np.where(uneven & (found.tail >= _MIN_TAIL * whole), found.tail / np.maximum(whole, 1), 0.0)


def _worst(
    busy: Busy, found: Launches, kind: str, share: Floats, faults: float, runs: tuple[Ints, Ints]
) -> Iterator[Finding]:
    """The finding about the kernel that would gain most from a full GPU, if it is worth telling.

    ``runs``: how long each kernel runs, and how much of this time counts. If page faults may explain the time, the
    finding has no gain.
    """
    trace, (whole, own) = busy.case.facts.attribution.trace, runs
    lost = np.rint(own * share).astype(np.int64)
    total = np.bincount(busy.name, lost, len(trace.op_names)).astype(np.int64)
    name = trace.largest_name(total)
    if not busy.enough(int(total[name])):
        return
    mine = np.flatnonzero((busy.name == name) & (share > 0))
    launches = found.of[busy.op[mine]]
    if kind == "low-occupancy":  # what limits some launches of a kernel need not limit others
        limiter = found.held.limiter[launches]
        alike = limiter == np.argmax(np.bincount(limiter, lost[mine]))
        mine, launches = mine[alike], launches[alike]
    shares = shares_of(busy, mine)
    held = held_warps(found)[found.of[busy.op[mine]]].max()
    if kind == "low-occupancy" and held > FEW_WARPS and max(shares.values(), default=1.0) > WAITING:
        return
    free = 1 - least_part(shares or _drawn(busy, found, mine))  # a full GPU still has to move what the kernel moves
    shorter, less = (np.rint(each[mine] * np.minimum(share[mine], free)).astype(np.int64) for each in runs)
    gain = busy.gained(busy.op[mine], shorter, int(less.sum()))
    if not busy.enough(gain):
        return
    most = int(launches[np.argmax(whole[mine])])
    if kind == "low-occupancy":
        most = int(np.argmax(np.bincount(launches, whole[mine])))
    cause = one_line(short_name(trace.op_names[name]), NAME)
    shape = _shape(found, kind, most, launches)
    text = f"{cause.replace('{', '{{').replace('}', '}}')} runs {shape}: {{amount}}"
    told = busy.finding(
        kind, cause, text, _remedy(busy, found, kind, most, name), gain, busy.op[mine], int(own[mine].sum())
    )
    if kind == "small-grid":  # few blocks are slow by themselves, too
        faults = known_fault_share(busy.case, busy.place)
    yield told.untried(remedy="") if faults >= MANY_FAULTS and found.blocks[most] > 1 else told


def _drawn(busy: Busy, found: Launches, mine: Index) -> Mapping[str, float]:
    """The share of the memory bandwidth that matrix products may reach, if nothing is known of what they move."""
    row = found.of[busy.op[mine]]
    if busy.case.facts.kinds.family[busy.name[mine[0]]] not in PIPELINED or found.threads[row].max() < FULL:
        return {}
    return {MEMORY: _DRAWS * float(found.blocks[row].max()) / found.sms}


def _shape(found: Launches, kind: str, row: int, every: AnyInts) -> str:
    """How a kernel runs: in ``every`` launch, or for low occupancy in one, ``row``."""
    if kind in ("small-grid", "tiny-blocks", "tail-wave"):
        shape = f"{_from_to(found.blocks[every], 'block')} of {_from_to(found.threads[every], 'thread')}"
        shape += f" on {found.sms:,} multiprocessors"
        if kind != "tail-wave":
            return shape
        waves, tail = found.waves[every], found.tail[every]
        low, high = f"{waves.min():.2f}", f"{waves.max():.2f}"
        up_to = "up to " * bool(tail.min() < tail.max())
        shape += f" in {low}{f' to {high}' * (low != high)} waves, and the last wave leaves"
        return f"{shape} {up_to}{format_share(float(tail.max()))} of the GPU idle"
    if kind == "spills":
        spilled = found.local_memory[every]
        size = f"{'up to ' * bool(spilled.min() < spilled.max())}{format_bytes(int(spilled.max()))}"
        return f"with {size} of local memory per thread, because registers spill"
    limiter = LIMITERS[int(found.held.limiter[row])]
    return f"at {format_share(float(found.held.occupancy[row]))} occupancy, limited by {limiter}"


def _from_to(values: Ints, word: str) -> str:
    low, high = int(values.min()), int(values.max())
    return plural(high, word) if low == high else f"{low:,} to {high:,} {word}s"


def _remedy(busy: Busy, found: Launches, kind: str, row: int, code: int) -> str:
    threads = int(found.threads[row])
    values = {"sms": found.sms, "threads": threads, "shared": int(found.shared[row])}
    values["registers"] = int(found.registers[row])
    little = int(found.blocks[row]) * threads < found.sms * _NARROW  # larger blocks would be too few
    if kind == "tiny-blocks" and not little:
        return _WIDE.format(**values)
    if kind in ("small-grid", "tiny-blocks"):
        wide = max(threads, _NARROW)
        each = max(-(-ENOUGH_WARPS * _WARP // wide), 1)
        values |= {"wide": wide, "each": each, "blocks": each * found.sms}
        spread = int(found.blocks[row]) * threads >= FEW_WARPS * _WARP * found.sms
        name = busy.case.facts.attribution.trace.op_names[code]
        if _STAGE.search(name) or _SEED.match(name):
            return _REUSE if _SEED.match(name) else _SELDOM
        texts = {"cuda": _MANY["pytorch"]} if _OF_LIBRARY.match(name) else _MANY
        if texts is _MANY and _CALLED.match(name):
            texts = {"cuda": _FEWER_CALLS, "pytorch": _MANY["pytorch"]}
        text = dialect_text(busy.case, texts)
        return (_SMALLER if spread and text == _MANY["cuda"] else text).format(**values)
    if kind == "tail-wave":
        return _EVEN.format(wave=f"{int(found.held.blocks[row]) * found.sms:,}")
    if kind == "spills":
        return _UNSPILLED.format(**values)
    return _FULLER[LIMITERS[int(found.held.limiter[row])]].format(**values)
