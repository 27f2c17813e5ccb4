"""Why nothing of a range runs between two of its ops: what each gap waited for."""

from pathlib import Path

import numpy as np
import pytest

from nsysprof.attribution.attribute import Attribution
from nsysprof.attribution.range_work import index_work, range_work
from nsysprof.core.intervals import cover_before
from nsysprof.kernels.classify import classify, load_rules
from nsysprof.waits.causes import CAUSE_BEFORE, WAITING_FOR, Gaps, WaitFacts, find_gaps, wait_facts
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reports import attributed
from tests.kit.trace import EventRecord, Launch, OsCall, Range, StreamWait, launch_kernel, launch_memcpy

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def facts_of(attribution: Attribution) -> WaitFacts:
    """What the walk needs, with the shipped rules."""
    families = classify(load_rules(None), attribution.trace.op_names).family
    return wait_facts(attribution.trace, np.array([family == "communication" for family in families], bool))


def gaps_of(path: Path, name: str = "run", calls: str | None = None) -> Gaps:
    """The gaps of the range of that name."""
    attribution = attributed(path)
    facts = facts_of(attribution)
    trace = attribution.trace
    texts = np.array([trace.range_names[code].text for code in trace.ranges.name.tolist()], object)
    index = index_work(attribution, np.arange(len(texts)))
    inner = None if calls is None else np.flatnonzero(texts == calls)
    return find_gaps(index, range_work(index, np.flatnonzero(texts == name), inner), facts)


def rows(gaps: Gaps) -> list[tuple[int, int, str]]:
    """Start, end and reason of each piece of a gap."""
    kinds = [WAITING_FOR[kind].removeprefix("idle: ") for kind in gaps.kind.tolist()]
    assert sum(gaps.total_ns(kind) for kind in range(len(WAITING_FOR))) == int((gaps.end - gaps.start).sum())
    return list(zip(gaps.start.tolist(), gaps.end.tolist(), kinds, strict=True))


def test_a_gap_before_an_op_that_was_not_launched_yet_waits_for_the_host(trace: MakeTrace) -> None:
    """The GPU is done at 40, the host calls at 60 and returns at 65; from then on it is latency."""
    path = trace(
        Range("run", 0, 100), launch_kernel("a", (10, 15), (20, 40), id=1), launch_kernel("b", (60, 65), (70, 90), id=2)
    )
    found = [(40, 60, "host: code"), (60, 65, "host: launch calls"), (65, 70, "latency")]
    assert rows(gaps_of(path)) == found


def test_a_gap_between_ops_that_were_launched_in_time_is_latency(trace: MakeTrace) -> None:
    """Both kernels were launched long before: what remains is the GPU's own pause between them."""
    path = trace(
        Range("run", 0, 100),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        launch_kernel("b", (16, 19), (41, 60), id=2),
        launch_kernel("c", (20, 24), (60, 70), id=3),
    )
    assert rows(gaps_of(path)) == [(40, 41, "latency")]


def test_the_host_is_split_by_what_it_does(trace: MakeTrace) -> None:
    """A synchronization that returns late, an allocation, a read, and code between them."""
    path = trace(
        Range("run", 0, 200),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        Launch(16, 45, 9, api="cudaStreamSynchronize_v3020"),
        Launch(50, 58, 8, api="cudaMalloc_v3020"),
        OsCall("read", 60, 70),
        launch_kernel("b", (75, 80), (80, 90), id=2),
    )
    assert rows(gaps_of(path)) == [
        (40, 45, "host: synchronizing calls"),
        (45, 50, "host: code"),
        (50, 58, "host: other CUDA calls"),
        (58, 60, "host: code"),
        (60, 70, "host: OS calls"),
        (70, 75, "host: code"),
        (75, 80, "host: launch calls"),
    ]


def test_the_work_of_other_ranges_is_named_where_the_next_op_depends_on_it(trace: MakeTrace) -> None:
    """A kernel or copy of another range in the same stream, and a collective in another stream that it waits for."""
    path = trace(
        Range("run", 0, 30),
        launch_kernel("a", (1, 2), (20, 40), id=1),
        launch_kernel("b", (25, 26), (60, 70), id=2),
        launch_kernel("c", (27, 28), (100, 110), id=3),
        StreamWait(7, 29, id=12, thread=2, event=2),
        Range("other", 0, 300, thread=2),
        launch_kernel("theirs", (3, 4), (40, 60), id=4, thread=2),
        launch_kernel(NCCL, (5, 6), (50, 100), id=5, thread=2, stream=9),
        EventRecord(9, 7, id=11, thread=2),
        StreamWait(7, 26, id=13, thread=2),
    )
    assert rows(gaps_of(path)) == [(40, 60, "others' GPU ops"), (70, 100, "communication")]
    copied = trace(
        Range("run", 0, 30),
        launch_kernel("a", (1, 2), (20, 40), id=1),
        launch_kernel("b", (25, 26), (60, 70), id=2),
        Range("other", 0, 300, thread=2),
        launch_memcpy((3, 4), (40, 60), id=4, thread=2),
    )
    assert rows(gaps_of(copied)) == [(40, 60, "copy")]


def test_what_others_run_meanwhile_is_no_reason(trace: MakeTrace) -> None:
    """Another process computes in the gap, but the next op is launched late."""
    path = trace(
        Range("run", 0, 100),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        launch_kernel("b", (60, 65), (65, 90), id=2),
        Range("other", 0, 100, process=2),
        launch_kernel("c", (10, 15), (35, 60), id=1, process=2),
    )
    assert rows(gaps_of(path)) == [(40, 60, "host: code"), (60, 65, "host: launch calls")]


def test_every_cause_has_the_name_that_it_had_before() -> None:
    """For one version of `gap.csv`."""
    assert set(CAUSE_BEFORE) == set(WAITING_FOR)
    assert {cause for cause, before in CAUSE_BEFORE.items() if before == "idle: others' ops running"} == {
        "idle: communication",
        "idle: copy",
        "idle: others' GPU ops",
    }


def test_ops_that_overlap_leave_no_gap(trace: MakeTrace) -> None:
    """A long op on another stream covers what would be a gap; after it there is one."""
    path = trace(
        Range("run", 0, 200),
        launch_kernel("long", (5, 6), (10, 60), id=1, stream=8),
        launch_kernel("a", (7, 8), (12, 20), id=2),
        launch_kernel("b", (9, 10), (40, 50), id=3),
        launch_kernel("c", (100, 105), (110, 120), id=4),
    )
    assert rows(gaps_of(path))[0] == (60, 100, "host: code")


def test_gaps_between_calls_are_reported_from_those_within(trace: MakeTrace) -> None:
    """The GPU waits once inside the first call and once from that to the second."""
    path = trace(
        Range("run", 0, 300),
        Range("step", 5, 100),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        launch_kernel("b", (60, 65), (70, 80), id=2),
        Range("step", 110, 200),
        launch_kernel("c", (120, 125), (130, 140), id=3),
    )
    assert gaps_of(path, calls="step").between_calls.tolist() == [False] * 3 + [True] * 3


def test_windows_do_not_see_each_other(trace: MakeTrace) -> None:
    """What passes between two instances of a range is nobody's gap."""
    path = trace(
        Range("run", 0, 50),
        launch_kernel("a", (10, 15), (20, 30), id=1),
        Range("run", 100, 150),
        launch_kernel("b", (110, 115), (120, 130), id=2),
    )
    assert rows(gaps_of(path)) == []


@pytest.mark.parametrize("seed", range(40))
def test_gaps_and_busy_time_make_the_span(seed: int, trace: MakeTrace) -> None:
    """On random reports, for every range at once: span − gaps is the union of its ops."""
    attribution = attributed(trace(*random_report(seed)))
    facts = facts_of(attribution)
    every = np.arange(len(attribution.trace.ranges))
    index = index_work(attribution, every)
    work = range_work(index, every)
    gaps = find_gaps(index, work, facts)
    for window in work.windows.tolist():
        mine = work.window == window
        moments = {at for a, b in zip(work.start[mine], work.end[mine], strict=True) for at in range(a, b)}
        gap_moments = {
            at
            for a, b, behind in zip(gaps.start, gaps.end, gaps.behind, strict=True)
            if work.window[behind] == window
            for at in range(a, b)
        }
        first, last = int(work.start[mine].min()), int(work.end[mine].max())
        assert moments | gap_moments == set(range(first, last))
        assert not moments & gap_moments


def test_covered_time_before_moments() -> None:
    """Against a count of covered units, before, inside, between and behind the intervals."""
    start, end = np.array([2, 10, 11]), np.array([5, 11, 14])
    covered = {2, 3, 4, 10, 11, 12, 13}
    moments = np.arange(-1, 20)
    expected = [sum(unit < moment for unit in covered) for moment in moments.tolist()]
    assert cover_before(start, end, moments).tolist() == expected
    none = np.empty(0, np.int64)
    assert cover_before(none, none, moments).tolist() == [0] * len(moments)
