"""One program under nsys and under PyTorch's profiler on one GPU: the same kernels in the same ranges."""

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import nsysprof
from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.backward import find_backward, forward_of_launches
from nsysprof.attribution.paths import range_paths
from tests.kit.reports import attributed

PAIR = Path(__file__).parents[2] / "traces" / "pair"
NSYS, TORCH = PAIR / "pair.sqlite", PAIR / "pair-torch.json.gz"
OWN = re.compile(r"warm-up|step\d|forward|backward|optimizer")
Path_ = tuple[str, ...]


def plain_name(name: str) -> str:
    """A kernel's name without what demanglers spell differently: parameters, casts, suffixes of numbers, blanks."""
    name = name.replace("<unnamed>", "~").replace("(anonymous namespace)", "~")
    name = re.sub(r"\[lambda\(.*?\) \(instance (\d+)\)\]", r"{lambda#\1}", name)
    name = name.replace("(bool)1", "true").replace("(bool)0", "false")
    name = re.sub(r"\b(\d+)u?l?l?\b", r"\1", name)
    before = ""
    while name != before:
        before, name = (name, re.sub(r"\([^()]*\)", "", re.sub(r"\{lambda\([^(){}]*\)#(\d+)\}", r"{lambda#\1}", name)))
    return re.sub(r"\s+(const\b)?", "", re.sub(r"\bvoid (?=[\w~:]+[<:])", "", name))


def in_ranges(found: Attribution) -> tuple[dict[Path_, Counter[str]], Counter[Path_]]:
    """What ran in each range that the program opened, and how long per range with steps together."""
    trace, names = found.trace, [name.text for name in found.trace.range_names]
    kernels: dict[Path_, Counter[str]] = defaultdict(Counter)
    sums: Counter[Path_] = Counter()
    for op, owner in enumerate(found.op_owner.tolist()):
        path: list[str] = []
        while owner >= 0:
            name = names[trace.ranges.name[owner]]
            path[:0] = [name] if OWN.fullmatch(name) else []
            owner = int(found.parent[owner])
        for depth in range(len(path) + 1):
            kernels[tuple(path[:depth])][plain_name(trace.op_names[trace.ops.name[op]])] += 1
            merged = tuple(re.sub(r"\d+", "*", each) for each in path[:depth])
            sums[merged] += int(trace.ops.end[op] - trace.ops.start[op])
    return dict(kernels), sums


@pytest.mark.parametrize("ranges", ["auto", "ops"])
def test_both_recorders_see_the_same_kernels_in_each_range(ranges: str) -> None:
    """Equal counts of each kernel in every range, and sums within 1 %; also where operators are ranges in both."""
    with nsysprof.open_report(NSYS) as nsys, nsysprof.open_report(TORCH) as torch:
        one, one_sums = in_ranges(nsysprof.attribute(nsys))
        other, other_sums = in_ranges(nsysprof.attribute(torch, ranges=ranges))
    assert one == other
    assert len(one) == 21
    assert sum(one[()].values()) == 412
    assert one["step2", "backward"]["memset"] == 4
    assert {path: pytest.approx(ns, rel=0.01) for path, ns in one_sums.items()} == other_sums


def forward_paths(path: Path, ranges: str) -> Counter[tuple[str, str]]:
    """Each kernel of backward with the operator of forward that it answers."""
    found = attributed(path, ranges=ranges)
    paths, trace = range_paths(found), found.trace
    texts, forward = paths.texts(), forward_of_launches(found, find_backward(found))
    out: Counter[tuple[str, str]] = Counter()
    for name, launch in zip(trace.ops.name.tolist(), trace.ops.launch.tolist(), strict=True):
        if launch >= 0 and forward[launch] >= 0:
            of = re.sub(r", (seq|op_id) = [^/]*", "", texts[paths.of[forward[launch]]])
            out[plain_name(trace.op_names[name]), of] += 1
    return out


def test_backward_belongs_to_the_same_operators_of_forward() -> None:
    """By the numbers of `emit_nvtx` in the one and by Kineto's in the other: all kernels of four steps of backward."""
    nsys, torch = forward_paths(NSYS, "auto"), forward_paths(TORCH, "ops")
    assert nsys == Counter({key: n for key, n in torch.items() if not key[1].startswith("warm-up")})
    assert nsys.total() == 4 * 18
    assert {of.partition("/")[2] for _, of in nsys} == {
        *("forward/aten::linear/aten::addmm", "forward/aten::gelu", "forward/aten::mse_loss"),
        "forward/aten::layer_norm/aten::native_layer_norm",
    }
