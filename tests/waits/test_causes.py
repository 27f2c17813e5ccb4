"""Why nothing of a range runs between two of its ops: what each gap waited for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nsysprof.attribution.attribute import attribute
from nsysprof.attribution.range_work import index_work, range_work
from nsysprof.core.intervals import cover_before
from nsysprof.trace.nsys.host_calls import read_waits
from nsysprof.trace.report import open_report
from nsysprof.waits.causes import EXPOSED, HOST, OTHERS, QUEUE, SYNC, Gaps, find_gaps
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reports import source_of
from tests.kit.trace import Launch, Range, launch_kernel, launch_memcpy

NAMES = {HOST: "host", SYNC: "sync", QUEUE: "queue", EXPOSED: "exposed"}


def gaps_of(path: Path, name: str = "run", calls: str | None = None) -> Gaps:
    """The gaps of the range of that name."""
    with open_report(path) as report:
        attribution = attribute(report)
        waits = read_waits(source_of(report))
    trace = attribution.trace
    texts = np.array([trace.range_names[code].text for code in trace.ranges.name.tolist()], object)
    index = index_work(attribution, np.arange(len(texts)))
    windows = np.flatnonzero(texts == name)
    inner = None if calls is None else np.flatnonzero(texts == calls)
    return find_gaps(index, range_work(index, windows, inner), windows, waits)


def rows(gaps: Gaps) -> list[tuple[int, int, str]]:
    """Start, end and reason of each gap."""
    kinds = [NAMES[kind] for kind in gaps.kind.tolist()]
    return list(zip(gaps.start.tolist(), gaps.end.tolist(), kinds, strict=True))


def test_a_gap_before_an_op_that_was_not_launched_yet_waits_for_the_host(trace: MakeTrace) -> None:
    """The GPU is done at 40, the host calls at 60: launch-bound."""
    path = trace(
        Range("run", 0, 100),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        launch_kernel("b", (60, 65), (70, 90), id=2),
    )
    assert rows(gaps_of(path)) == [(40, 70, "host")]


def test_a_gap_that_began_during_the_launch_waits_for_the_host_too(trace: MakeTrace) -> None:
    """The call had begun but not returned when the GPU ran dry: the GPU did not have its work yet."""
    path = trace(
        Range("run", 0, 100),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        launch_kernel("b", (38, 43), (46, 60), id=2),
    )
    assert rows(gaps_of(path)) == [(40, 46, "host")]


def test_a_gap_between_ops_that_were_launched_in_time_is_the_queue_s(trace: MakeTrace) -> None:
    """Both kernels were launched long before: what remains is the GPU's own pause between them."""
    path = trace(
        Range("run", 0, 100),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        launch_kernel("b", (16, 19), (41, 60), id=2),
        launch_kernel("c", (20, 24), (60, 70), id=3),
    )
    assert rows(gaps_of(path)) == [(40, 41, "queue")]


def test_a_synchronization_costs_what_it_takes_to_return(trace: MakeTrace) -> None:
    """The host waited for the GPU, which ran dry at 40; it is back at 45, and what it does until 60 is its own time."""
    path = trace(
        Range("run", 0, 200),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        Launch(16, 45, 9, api="cudaStreamSynchronize_v3020"),
        launch_kernel("b", (50, 55), (60, 90), id=2),
        launch_kernel("c", (100, 105), (110, 120), id=3),
    )
    gaps = gaps_of(path)
    assert rows(gaps) == [(40, 45, "sync"), (45, 60, "exposed"), (90, 110, "host")]
    assert [gaps.total_ns(kind) for kind in (SYNC, EXPOSED, HOST)] == [5, 15, 20]


def test_a_synchronization_that_returns_at_once_costs_nothing_and_exposes_the_host(trace: MakeTrace) -> None:
    """The call returns in the very ns in which the GPU runs dry."""
    path = trace(
        Range("run", 0, 200),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        Launch(16, 40, 9, api="cudaStreamSynchronize_v3020"),
        launch_kernel("b", (50, 55), (60, 90), id=2),
    )
    assert rows(gaps_of(path)) == [(40, 60, "exposed")]


def test_a_synchronize_call_on_an_idle_gpu_costs_nothing(trace: MakeTrace) -> None:
    """The GPU had run dry before the host came to synchronize: it waits for the host."""
    path = trace(
        Range("run", 0, 200),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        Launch(42, 45, 9, api="cudaDeviceSynchronize_v3020"),
        launch_kernel("b", (50, 55), (60, 90), id=2),
    )
    assert rows(gaps_of(path)) == [(40, 60, "host")]


def test_a_synchronize_call_of_the_range_s_thread_counts_for_what_follows_it(trace: MakeTrace) -> None:
    """The main thread reads a loss, then calls backward, whose kernels autograd's own thread launches."""
    path = trace(
        Range("run", 0, 200),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        Launch(16, 45, 9, api="cudaStreamSynchronize_v3020"),
        launch_kernel("b", (50, 55), (60, 90), id=2, thread=2),
    )
    assert rows(gaps_of(path)) == [(40, 45, "sync"), (45, 60, "exposed")]
    other = trace(
        Range("run", 0, 200),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        Launch(16, 45, 9, api="cudaStreamSynchronize_v3020", thread=3),
        launch_kernel("b", (50, 55), (60, 90), id=2),
    )
    assert rows(gaps_of(other)) == [(40, 60, "host")]


def test_a_synchronization_that_ends_after_the_launch_explains_nothing(trace: MakeTrace) -> None:
    """The thread of the range sits in it while another thread launches: the GPU waited for that one."""
    path = trace(
        Range("run", 0, 200),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        Launch(16, 46, 9, api="cudaStreamSynchronize_v3020"),
        launch_kernel("b", (42, 44), (50, 60), id=2, thread=2),
    )
    assert rows(gaps_of(path)) == [(40, 50, "host")]


def test_a_blocking_copy_was_launched_when_its_call_began(trace: MakeTrace) -> None:
    """The call lasts until the copy is done; the GPU had its work from the start. What comes after waited for it."""
    path = trace(
        Range("run", 0, 200),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        (Launch(16, 60, 2, api="cudaMemcpy_v3020"), launch_memcpy((0, 0), (42, 55), id=2)[1]),
        launch_kernel("b", (70, 75), (80, 90), id=3),
    )
    assert rows(gaps_of(path)) == [(40, 42, "queue"), (55, 60, "sync"), (60, 80, "exposed")]


def test_what_others_run_in_a_gap_is_kept_apart(trace: MakeTrace) -> None:
    """20 of the 30 ns between the range's ops the GPU works for another range; the rest waits for the host."""
    path = trace(
        Range("run", 0, 100),
        launch_kernel("a", (10, 15), (20, 40), id=1),
        launch_kernel("b", (60, 65), (70, 90), id=2),
        Range("other", 0, 100, process=2),
        launch_kernel("c", (10, 15), (35, 60), id=1, process=2),
    )
    gaps = gaps_of(path)
    assert (gaps.others_ns.tolist(), gaps.total_ns(OTHERS), gaps.total_ns(HOST)) == ([20], 20, 10)


def test_ops_that_overlap_leave_no_gap(trace: MakeTrace) -> None:
    """A long op on another stream covers what would be a gap; after it there is one."""
    path = trace(
        Range("run", 0, 200),
        launch_kernel("long", (5, 6), (10, 60), id=1, stream=8),
        launch_kernel("a", (7, 8), (12, 20), id=2),
        launch_kernel("b", (9, 10), (40, 50), id=3),
        launch_kernel("c", (100, 105), (110, 120), id=4),
    )
    assert rows(gaps_of(path)) == [(60, 110, "host")]


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
    assert gaps_of(path, calls="step").between_calls.tolist() == [False, True]


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
    """On random reports, for every range at once: span − gaps is the union of its ops, and others fit into the gaps."""
    with open_report(trace(*random_report(seed))) as report:
        attribution = attribute(report)
        waits = read_waits(source_of(report))
    every = np.arange(len(attribution.trace.ranges))
    index = index_work(attribution, every)
    work = range_work(index, every)
    gaps = find_gaps(index, work, every, waits)
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
    assert (gaps.others_ns >= 0).all()
    assert (gaps.others_ns <= gaps.length_ns).all()


def test_covered_time_before_moments() -> None:
    """Against a count of covered units, before, inside, between and behind the intervals."""
    start, end = np.array([2, 10, 11]), np.array([5, 11, 14])
    covered = {2, 3, 4, 10, 11, 12, 13}
    moments = np.arange(-1, 20)
    expected = [sum(unit < moment for unit in covered) for moment in moments.tolist()]
    assert cover_before(start, end, moments).tolist() == expected
    none = np.empty(0, np.int64)
    assert cover_before(none, none, moments).tolist() == [0] * len(moments)
