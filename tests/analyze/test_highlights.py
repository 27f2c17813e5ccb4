"""Which ranges and kernels are shown first, as a reader would pick them, and how idle GPUs are in them."""

import math
import statistics
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.chart_rows import chart_rows
from nsysprof.analyze.highlights import LAUNCH_BOUND_IDLE, idle_shares, top_rows
from nsysprof.analyze.ledger import slow_starts
from nsysprof.analyze.text import summary
from tests.analyze.conftest import Made, broken_once, referred
from tests.conftest import MakeTrace
from tests.kit.reference import Op, Reference
from tests.kit.reports import BLOCK, RUN, broken_down
from tests.kit.trace import Items, Kernel, Range, launch_kernel

DEEP = 1009
LATE = 1_000_000  # the end of the session, so that no range seems to end with it


def paths(breakdown: Breakdown, count: int) -> list[str]:
    """The merged paths of the rows shown."""
    return breakdown.merged["merged_path"].iloc[top_rows(breakdown, count)].tolist()


def work(name: str, at: int, length: int, id: int, **where: Any) -> Items:
    """A kernel of some length, launched at a time."""
    return launch_kernel(name, (at, at + 1), (at + 2, at + 2 + length), id=id, **where)


def steps(lengths: Sequence[int], start: int = 0, name: str = "step", id: int = 1, **where: Any) -> list[Items]:
    """`step 0`, `step 1` … every 10 µs, each with one kernel of the given length."""
    items: list[Items] = []
    for number, length in enumerate(lengths):
        at = start + number * 10_000
        items.append(Range(f"{name} {number}", at, at + 9000, **where))
        items.append(work("k", at + 10, length, id + number, **where))
    return items


def warned(path: Path, **how: Any) -> list[str]:
    """What is said of slow starts."""
    found = broken_down(path, **how)
    return list(slow_starts(found.columns("merged"), found.instances_of, found.by))


def three_phases() -> list[Items]:
    """Load (5 ns), train (60 ns in two steps and 10 ns beside them) and save (20 ns, all of it in `write`)."""
    return [
        Range("load", 0, 99),
        work("k1", 10, 5, 1),
        Range("train", 100, 499),
        Range("step 0", 110, 199),
        work("k2", 120, 40, 2),
        Range("step 1", 210, 299),
        work("k2", 220, 20, 3),
        work("k3", 400, 10, 4),
        Range("save", 500, 599),
        Range("write", 510, 589),
        work("k4", 520, 20, 5),
        work("k5", 700, 3, 6),
    ]


def test_the_busiest_ranges_come_in_the_order_of_the_program(trace: MakeTrace) -> None:
    """By busy time they are chosen, by first appearance they stand, and parents stand before children."""
    answer = broken_down(trace(*three_phases(), duration=10_000))
    assert paths(answer, 1) == ["train"]
    assert paths(answer, 2) == ["train", "train/step*"]
    assert paths(answer, 3) == ["train", "train/step*", "save", "save/write"]
    assert paths(answer, 9) == ["load", "train", "train/step*", "save", "save/write"]


def test_a_range_around_a_shown_one_is_shown(trace: MakeTrace) -> None:
    """Whatever is shown has its ancestors shown, on shipped reports and on a tree, for every count."""
    tree = broken_down(trace(*three_phases()), merge=None)
    for answer in (broken_down(RUN), broken_down(BLOCK), tree):
        parent = answer.merged["parent"].tolist()
        for count in (1, 2, 5, 500):
            shown = top_rows(answer, count).tolist()
            assert len(shown) == len(set(shown))
            for place, row in enumerate(shown):
                assert parent[row] == -1 or parent[row] in shown[:place]


def test_all_work_of_the_parent_is_not_counted() -> None:
    """`iter*`, which holds all that its `RUN::` range holds, comes along and takes no place of the count."""
    answer = broken_down(RUN)
    assert len(answer.merged) == 93
    assert paths(answer, 1) == ["RUN::math::S4096", "RUN::math::S4096/iter*"]
    busiest = ("math::S1024", "math::S2048", "math_reduced::S2048", "math::S4096", "math_reduced::S4096")
    each = [*busiest, "flash::S4096", "efficient::S4096"]
    assert paths(answer, 7) == [path for name in each for path in (f"RUN::{name}", f"RUN::{name}/iter*")]
    measured = broken_down(RUN, select="RUN::*")
    assert len(paths(measured, 18)) == len(paths(measured, 500)) == 36


def test_the_ends_of_a_long_chain_stand_for_it(trace: MakeTrace) -> None:
    """Of 1,009 ranges that hold one another and the same work, the two outermost and the two innermost are shown."""
    nested = [Range(f"r{depth}", depth, 9000 - depth) for depth in range(DEEP)]
    answer = broken_down(trace(*nested, work("k", 2000, 5, 1), duration=10_000))
    names = [path.rsplit("/", 1)[-1] for path in paths(answer, 20)]
    assert names == ["r0", "r1", f"r{DEEP - 2}", f"r{DEEP - 1}"]


def test_a_short_chain_is_shown_whole(trace: MakeTrace) -> None:
    """Four ranges in each other are no more to read than the ends of a chain."""
    nested = [Range(f"r{depth}", depth, 900 - depth) for depth in range(4)]
    answer = broken_down(trace(*nested, work("k", 200, 5, 1), duration=10_000))
    assert [path.rsplit("/", 1)[-1] for path in paths(answer, 20)] == ["r0", "r1", "r2", "r3"]


def test_what_follows_a_chain_stands_below_it(trace: MakeTrace) -> None:
    """Children of a row within a chain that is left out hang on the next range shown above them."""
    nested = [Range(f"r{depth}", depth, 900 - depth) for depth in range(8)]
    inner = [Range("x", 100, 110), work("k", 101, 5, 1), Range("y", 120, 130), work("k", 121, 7, 2)]
    answer = broken_down(trace(*nested, *inner, duration=10_000))
    names = [path.rsplit("/", 1)[-1] for path in paths(answer, 20)]
    assert names == ["r0", "r1", "r6", "r7", "x", "y"]


def test_what_is_measured_comes_before_warm_up_and_checks(trace: MakeTrace) -> None:
    """However long they take, as long as the answer has `RUN::` ranges; a program's own CHECK:: is a range like any."""
    items = [
        *(Range("CHECK::a::S8", 0, 9_000), Range("REFERENCE::S8", 100, 8_000), work("k", 200, 7_000, 1)),
        *(Range("WARMUP::a::S8", 10_000, 19_000), work("k", 10_010, 800, 2)),
        *(Range("RUN::a::S8", 20_000, 29_000), work("k", 20_010, 100, 3)),
        *(Range("other", 30_000, 39_000), work("k", 30_010, 50, 4)),
    ]
    found = broken_down(trace(*items))
    assert paths(found, 2) == ["RUN::a::S8", "other"]
    assert paths(found, 3) == ["CHECK::a::S8", "CHECK::a::S8/REFERENCE::S8", "RUN::a::S8", "other"]
    rows = chart_rows(found, top=10)
    assert rows is not None
    assert rows.labels == ["RUN::a::S8", "other", "… and 2 more ranges"]
    own = broken_down(trace(*items[:5]))
    assert paths(own, 1) == ["CHECK::a::S8", "CHECK::a::S8/REFERENCE::S8"]


def test_without_ranges_nothing_is_shown(trace: MakeTrace) -> None:
    """A report without NVTX has no rows, and that is no error."""
    assert paths(broken_down(trace(work("k", 1, 2, 1))), 5) == []


SLOW = "the first of 6 instances of step* spans 4.00 µs (median 10 ns; --skip 1 excludes the first)"


def test_a_slow_first_of_many_is_told(trace: MakeTrace) -> None:
    """The sentence has how many there are, the first one's span, the median one's, and the option that helps."""
    assert warned(trace(*steps([4000, 10, 10, 11, 9, 10]), duration=LATE)) == [SLOW]


def test_what_is_skipped_is_not_told(trace: MakeTrace) -> None:
    """With the warm-up left out nothing is slow any more; a second slow one is the first of those that are left."""
    path = trace(*steps([4000, 10, 10, 11, 9, 10]), duration=LATE)
    assert warned(path, skip=1) == []
    assert warned(trace(*steps([4000, 4000, 10, 10, 10, 10, 10, 10]), duration=LATE), skip=1) == [
        "the first of 7 instances of step* spans 4.00 µs (median 10 ns; --skip 1 excludes the first)"
    ]


@pytest.mark.parametrize(
    "lengths",
    [
        [10, 10, 10, 10, 10, 10],  # equal ones
        [10, 4000, 10, 10, 10, 10],  # the slow one is another
        [10, 10, 10, 10, 10, 4000],
        [4000, 4000, 4000, 10, 4000, 4000],  # slow is the rule
        [4000, 10, 10],  # too few to say what is usual
        [50, 10, 10, 10],  # five times the median is not more than that
        [60, 10, 10, 10, 10, 10, 10],  # half of all is not most of it
        [4000, 0, 0, 0, 0, 0],  # no usual span to compare with
        [0, 0, 0, 0, 0, 0],
    ],
)
def test_other_starts_are_not_told(lengths: list[int], trace: MakeTrace) -> None:
    """Only a first one, of at least four, far above the median and more than all others together, is a slow start."""
    assert warned(trace(*steps(lengths), duration=LATE)) == []


@pytest.mark.parametrize("lengths", [[4000, 10, 10, 10], [51, 10, 10, 10], [61, 10, 10, 10, 10, 10, 10]])
def test_the_least_that_is_told(lengths: list[int], trace: MakeTrace) -> None:
    """Four instances are enough, and so is 1 ns beyond five times the median, or beyond half of all."""
    [sentence] = warned(trace(*steps(lengths), duration=LATE))
    assert sentence.startswith(f"the first of {len(lengths)} instances of step* spans ")


def test_every_thread_has_a_first_instance(trace: MakeTrace) -> None:
    """Ranks and threads start slowly each for itself, wherever the rows stand in the file."""
    slow = steps([4000, 10, 10, 11, 9, 10], thread=9, id=100)
    fast = steps([10, 10, 11, 9, 10], start=100)
    assert warned(trace(*fast, *slow, duration=LATE)) == [SLOW]
    alone = steps([4000], start=90_000, thread=9, id=100)
    assert warned(trace(*alone, *fast, duration=LATE)) == []


def test_only_the_outermost_repetition_is_told(trace: MakeTrace) -> None:
    """What repeats inside a slow first step is slow there too and needs no sentence of its own."""
    items = [Range("train", 0, 90_000), *steps([4000, 10, 10, 11, 9, 10])]
    items += [Range("forward", number * 10_000 + 5, number * 10_000 + 500) for number in range(6)]
    path = trace(*items, duration=LATE)
    assert paths(broken_down(path), 9) == ["train", "train/step*", "train/step*/forward"]
    assert warned(path) == [SLOW]
    assert warned(path, select="forward") == [SLOW.replace("step*", "forward")]


def test_each_part_is_told_apart(trace: MakeTrace) -> None:
    """Split by process, each has a start of its own; ranges without work have none."""
    path = trace(
        *steps([4000, 10, 10, 11, 9, 10], process=7),
        *steps([10, 10, 10, 10], process=8),
        *steps([4000, 30, 30, 30], process=9, name="iter"),
        *[Range("idle", 70_000 + 100 * number, 70_050 + 100 * number) for number in range(9)],
        duration=LATE,
    )
    assert warned(path, by="process") == [
        SLOW.replace("step*", "step* of process 7"),
        "the first of 4 instances of iter* of process 9 spans 4.00 µs (median 30 ns; --skip 1 excludes the first)",
    ]


def test_nothing_starts_slowly_where_nothing_is(trace: MakeTrace) -> None:
    """Reports without ranges, or without work, and shipped ones have no slow start."""
    assert warned(trace(work("k", 1, 2, 1))) == []
    assert warned(trace(*[Range("step", 10 * number, 10 * number + 5) for number in range(9)])) == []
    assert warned(RUN) == warned(BLOCK) == []


def run_at(at: int, length: int, id: int, **where: Any) -> Items:
    """A kernel of some length, launched 2 ns before."""
    return launch_kernel("k", (at - 2, at - 1), (at, at + length), id=id, **where)


def shares(path: Path, **how: Any) -> dict[str, float]:
    """The idle share of each merged path."""
    answer = broken_down(path, **how)
    found = idle_shares(answer, range(len(answer.merged)))
    return dict(zip(answer.merged["merged_path"], found.tolist(), strict=True))


def marked(path: Path, name: str) -> bool:
    """Whether the summary marks a range as launch-bound."""
    text = summary(broken_down(path), full=True, width=500)
    [line] = [line for line in text[text.index("\nrange ") :].splitlines() if line.startswith(f"{name} ")]
    return line.endswith(" *")


def moments(ops: Iterable[Op]) -> dict[object, set[int]]:
    """For each GPU every ns in which it runs something."""
    out: dict[object, set[int]] = {}
    for op in ops:
        if not op.migrates:  # pages that the driver moves are no work
            out.setdefault(op.gpu, set()).update(range(op.start, op.end))
    return out


def idle_share(mine: Sequence[Op], runs: dict[object, set[int]]) -> Fraction | None:
    """The share of the span of some ops, on each GPU of theirs, in which that GPU runs nothing; None without a span."""
    if not mine:
        return None
    span = range(min(op.start for op in mine), max(op.end for op in mine))
    gpus = {op.gpu for op in mine}
    idle = sum(moment not in runs[gpu] for gpu in gpus for moment in span)
    return Fraction(idle, len(gpus) * len(span)) if span else None


def median(found: Iterable[Fraction | None]) -> float:
    """The median of those that have a share, NaN where none has."""
    known = [share for share in found if share is not None]
    return float(statistics.median(known)) if known else math.nan


def launched_in(reference: Reference, instance: int) -> list[Op]:
    """The ops inside a range instance."""
    calls = reference.totals[instance].calls
    return [op for op in reference.ops if (op.process, op.correlation) in calls]


@pytest.mark.parametrize("first_seed", [0, 20, 40])
def test_idle_shares_equal_a_count_of_every_ns(first_seed: int, made: Made) -> None:
    """Path by path on reports by chance, with several GPUs, processes and threads that run beside one another."""
    partly, on_two, filled = 0, 0, 0
    for seed in range(first_seed, first_seed + 20):
        path = made(seed)
        answer, reference = broken_once(path, merge=None), referred(path)
        instances: dict[object, list[int]] = {}
        for at, chain in enumerate(reference.paths):
            domainless = tuple((name, kind) for name, _, kind in chain)
            instances.setdefault(domainless, []).append(at)
        found = idle_shares(answer, range(len(answer.merged))).tolist()
        assert len(found) == len(instances), seed
        runs = moments(reference.ops)
        for rows, share in zip(instances.values(), found, strict=True):
            mine = [launched_in(reference, row) for row in rows]
            expected = median(idle_share(ops, runs) for ops in mine)
            assert share == pytest.approx(expected, abs=1e-12, nan_ok=True), (seed, rows)
            partly += 0 < expected < 1
            on_two += any(len({op.gpu for op in ops}) > 1 for ops in mine)
            filled += expected < median(idle_share(ops, moments(ops)) for ops in mine)
    assert min(partly, on_two, filled) > 20


@pytest.mark.parametrize("by", ["process", "device"])
@pytest.mark.parametrize("how", [{}, {"skip": 1}, {"select": "*[aw]*"}])
def test_idle_shares_of_parts(by: str, how: dict[str, Any], made: Made) -> None:
    """A row by process has its instances, one by device only their ops there; what others run there counts still."""
    compared = 0
    for seed in range(60, 80):
        path = made(seed, Range("a", 0, 0))
        answer, reference = broken_once(path, by=by, **how), referred(path)
        runs = moments(reference.ops)
        found = idle_shares(answer, range(len(answer.merged))).tolist()
        for row, share in enumerate(found):
            rows = answer.instances_of(row)[1].tolist()
            mine = [launched_in(reference, instance) for instance in rows]
            if by == "device":
                label = answer.merged["device"][row]
                mine = [[op for op in ops if device_label(op) == label] for ops in mine]
            expected = median(idle_share(ops, runs) for ops in mine)
            assert share == pytest.approx(expected, abs=1e-12, nan_ok=True), (seed, row)
            compared += 0 < expected < 1
    assert compared > 20


def device_label(op: Op) -> str:
    """What the rows of a GPU are called."""
    if isinstance(op.gpu, tuple):
        _, process, device = op.gpu
        return f"device {device} of pid {process >> 24 & 0xFFFFFF}"
    return f"GPU {op.gpu}"


def test_gaps_that_another_range_fills_are_not_idle(trace: MakeTrace) -> None:
    """A range whose own ops take a tenth of its span is not launch-bound while the GPU works for another one."""
    path = trace(
        Range("waits its turn", 0, 200),
        run_at(10, 5, 1),
        run_at(105, 5, 2),
        Range("works", 0, 200, thread=2),
        run_at(15, 90, 3, thread=2, stream=8),
        duration=LATE,
    )
    assert shares(path) == {"waits its turn": 0.0, "works": 0.0}
    assert not marked(path, "waits its turn")


def test_gaps_that_nobody_fills_are_idle(trace: MakeTrace) -> None:
    """The same range without the other one is launch-bound: 90 of 100 ns nothing runs."""
    path = trace(Range("waits", 0, 200), run_at(10, 5, 1), run_at(105, 5, 2), duration=LATE)
    assert shares(path) == {"waits": pytest.approx(0.9)}
    assert marked(path, "waits")


def test_what_nobody_owns_fills_gaps_too(trace: MakeTrace) -> None:
    """Ops of other processes on the same GPU, and ops without a launch, keep it at work."""
    own = [Range("a", 0, 200), run_at(10, 10, 1), run_at(100, 10, 2)]
    assert shares(trace(*own, run_at(20, 60, 1, process=2), duration=LATE))["a"] == pytest.approx(0.2)
    assert shares(trace(*own, Kernel("lost", 20, 70, 99), duration=LATE))["a"] == pytest.approx(0.3)


def test_what_another_gpu_runs_fills_no_gap(trace: MakeTrace) -> None:
    """An op on GPU 1 leaves GPU 0 as idle as it is."""
    path = trace(Range("a", 0, 200), run_at(10, 10, 1), run_at(100, 10, 2), run_at(20, 80, 3, thread=2, device=1))
    answer = broken_down(path, by="device")
    assert answer.merged["device"].tolist() == ["GPU 0", "GPU 1"]  # thread 2 follows `a`
    assert idle_shares(answer, [0, 1]).tolist() == [pytest.approx(0.8), 0.0]
    strict = trace(
        Range("a", 0, 200),
        run_at(10, 10, 1),
        run_at(100, 10, 2),
        Range("b", 0, 200, thread=2),
        run_at(20, 80, 3, thread=2, device=1),
        duration=LATE,
    )
    assert shares(strict) == {"a": pytest.approx(0.8), "b": 0.0}


def test_all_gpus_of_a_range_count(trace: MakeTrace) -> None:
    """Two GPUs have the span of the range each: one at work throughout and one for a fifth of it idle for 40 %."""
    path = trace(
        Range("a", 0, 200), run_at(10, 100, 1, device=0), run_at(10, 20, 2, device=1), run_at(40, 1, 3), duration=LATE
    )
    assert shares(path) == {"a": pytest.approx(0.4)}


def test_the_median_instance_decides(trace: MakeTrace) -> None:
    """One slow start among three does not make a range launch-bound, and an instance without ops does not count."""
    items: list[Items] = []
    for number, gap in enumerate((900, 20, 0)):
        at = 1000 + number * 2000
        items += [Range(f"step{number}", at - 10, at + 1500)]
        items += [run_at(at, 40, 2 * number + 1), run_at(at + 40 + gap, 40, 2 * number + 2)]
    path = trace(*items, duration=LATE)
    assert shares(path) == {"step*": pytest.approx(20 / 100)}
    assert not marked(path, "step*")
    without_ops = Range("step3", 9000, 9010)
    assert shares(trace(*items, without_ops, duration=LATE)) == {"step*": pytest.approx(20 / 100)}


def test_without_a_span_there_is_no_share(trace: MakeTrace) -> None:
    """Ranges without ops, with an op of no length, or with one that ends before it starts have none, and no mark."""
    path = trace(
        Range("empty", 0, 9),
        Range("moment", 10, 19),
        run_at(13, 0, 1),
        Range("backwards", 20, 29),
        run_at(25, -10, 2),
        duration=LATE,
    )
    assert all(math.isnan(share) for share in shares(path).values())
    assert not any(marked(path, name) for name in ("empty", "moment", "backwards"))
    assert len(idle_shares(broken_down(path), [])) == 0


def test_rows_are_those_that_were_asked_for(trace: MakeTrace) -> None:
    """The answer has the order of the rows asked for, not that of the frame."""
    path = trace(
        Range("a", 0, 90),
        run_at(10, 10, 1),
        run_at(30, 10, 2),
        Range("b", 100, 190),
        run_at(110, 10, 3),
        run_at(160, 10, 4),
        duration=LATE,
    )
    answer = broken_down(path)
    assert answer.merged["name"].tolist() == ["a", "b"]
    assert idle_shares(answer, [1, 0, 1]).tolist() == [
        pytest.approx(40 / 60),
        pytest.approx(10 / 30),
        pytest.approx(40 / 60),
    ]


def test_the_limit_is_half() -> None:
    """What is called launch-bound idles for more than half of the span."""
    assert LAUNCH_BOUND_IDLE == 0.5
