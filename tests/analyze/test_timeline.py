"""The timeline answer: lanes of streams and ranges, and the stretch that is shown op by op."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.analyze.charts import plan_timeline
from nsysprof.analyze.page_rows import report_timeline
from nsysprof.analyze.timeline import MAX_LANES, MAX_THREADS, START_END_LANE, Timeline, ranked_threads, timeline
from nsysprof.analyze.zoom import READABLE_OPS, Zoom
from nsysprof.charts.marks import STREAM_LEVELS, Stream
from nsysprof.core.arrays import Ints
from nsysprof.core.intervals import NOTHING, column, column_edges, union_length
from nsysprof.kernels.classify import FAMILIES
from tests.conftest import MakeTrace
from tests.kit.gpu_samples import gpu_samples
from tests.kit.reports import RUN, broken_down
from tests.kit.trace import Items, Range, allocate, launch_kernel, launch_memcpy, launch_memset

GEMM, SOFTMAX = "sm80_xmma_gemm_f32f32_f32f32_f32_tn", "void cunn_SoftMaxForward<int>"


def shown(path: Path, columns: int = 100, **options: Any) -> Timeline:
    """The timeline of a report."""
    return timeline(broken_down(path, **options), columns=columns)


def zoomed(path: Path) -> Zoom:
    """The zoom of a report that has one."""
    zoom = shown(path).zoom
    assert zoom is not None
    return zoom


def own_ops(zoom: Zoom) -> list[tuple[int, int]]:
    """Start and end of the ops that belong to the range of the zoom."""
    mine = zoom.ops["own"]
    return list(zip(zoom.ops["start"][mine].tolist(), zoom.ops["end"][mine].tolist(), strict=True))


def busy_between(start: Ints, end: Ints, low: int, high: int) -> int:
    """How long between two moments at least one interval is open."""
    return union_length(np.clip(start, low, high), np.clip(end, low, high))


@pytest.mark.parametrize(("start", "end", "columns"), [(0, 1000, 7), (-50, 13, 10), (5, 8, 100), (4, 4, 10)])
def test_columns_and_their_edges_agree(start: int, end: int, columns: int) -> None:
    """Every moment of the window lies between the edges of its column, also where columns are uneven."""
    edges = column_edges(start, end, columns)
    assert edges[0] == start
    assert edges[-1] == max(end, start + 1)
    moments = np.arange(start, edges[-1])
    place = column(moments, edges)
    assert (edges[place] <= moments).all()
    assert (moments < edges[place + 1]).all()


def test_busy_time_per_column_equals_a_brute_force(trace: MakeTrace) -> None:
    """Overlapping, touching and long ops are counted once per moment, in the columns in which they run."""
    random = np.random.default_rng(7)
    start = np.sort(random.integers(0, 9_000, 300))
    end = start + random.choice([0, 1, 10, 60, 700], 300)
    items = [
        launch_kernel(GEMM, (int(a), int(a)), (int(a), int(b)), id=n)
        for n, (a, b) in enumerate(zip(start, end, strict=True), 1)
    ]
    answer = shown(trace(*items), columns=64)
    (lane,) = answer.streams
    expected = [
        busy_between(start, end, low, high)
        for low, high in zip(answer.edges[:-1].tolist(), answer.edges[1:].tolist(), strict=True)
    ]
    assert lane.busy_ns.tolist() == expected
    assert lane.busy_ns.sum() == union_length(start, end)


def test_the_colour_of_a_column_is_what_runs_longest(trace: MakeTrace) -> None:
    """Of two families in one column the longer one counts, also where it began long before; idle ones have none."""
    answer = shown(
        trace(
            launch_kernel(GEMM, (0, 1), (0, 260), id=1),
            launch_kernel(SOFTMAX, (2, 3), (260, 300), id=2),
            launch_memset((4, 5), (390, 400), id=3),
        ),
        columns=4,
    )
    (lane,) = answer.streams
    assert lane.busy_ns.tolist() == [100, 100, 100, 10]
    assert [FAMILIES[code] for code in lane.group.tolist()] == ["gemm", "gemm", "gemm", "memset"]
    idle = shown(trace(launch_kernel(GEMM, (0, 1), (90, 100), id=1)), columns=4).streams[0]
    assert idle.group.tolist()[:3] == [NOTHING] * 3


def on_streams(devices: list[int], streams: int, **where: int) -> list[Items]:
    """A kernel on each of some streams of each device, longer on the earlier streams."""
    return [
        launch_kernel(GEMM, (0, 1), (10, 100 - stream), id=100 * device + stream, device=device, stream=stream, **where)
        for device in devices
        for stream in range(1, streams + 1)
    ]


def test_few_streams_have_a_lane_each(trace: MakeTrace) -> None:
    """Eight streams are eight lanes, GPU by GPU in the order of their numbers, whichever the file has first."""
    answer = shown(trace(*on_streams([3, 10, 0, 2], 2)))
    assert [lane.label for lane in answer.streams] == [
        f"GPU {gpu} · stream {stream}" for gpu in (0, 2, 3, 10) for stream in (1, 2)
    ]
    assert answer.notes == ()


def test_many_streams_share_the_lane_of_their_gpu(trace: MakeTrace) -> None:
    """Twenty-four streams of eight GPUs are eight lanes, in order, and each is as busy as its GPU."""
    answer = shown(trace(*on_streams([7, 1, 6, 0, 5, 2, 4, 3], 3)))
    assert [lane.label for lane in answer.streams] == [f"GPU {gpu} · 3 streams" for gpu in range(8)]
    assert [lane.streams for lane in answer.streams] == [3] * 8
    assert [int(lane.busy_ns.sum()) for lane in answer.streams] == [89] * 8
    assert answer.notes == ()


def test_processes_are_in_the_order_of_their_gpus(trace: MakeTrace) -> None:
    """Ranks whose process ids run the other way round are drawn GPU by GPU all the same; a shared GPU names its pid."""
    items = [item for pid, gpu in ((5, 2), (6, 1), (7, 0)) for item in on_streams([gpu], 1, process=pid)]
    assert [lane.label for lane in shown(trace(*items)).streams] == [f"GPU {gpu} · stream 1" for gpu in range(3)]
    shared = [item for pid in (5, 6) for item in on_streams([0], 5, process=pid)]
    assert [lane.label for lane in shown(trace(*shared)).streams] == [
        f"GPU 0 · pid {pid} · 5 streams" for pid in (5, 6)
    ]


def test_of_more_lanes_than_fit_the_busiest_are_drawn_and_every_gpu_has_one(trace: MakeTrace) -> None:
    """Eight GPUs that three processes share make sixteen lanes, with all GPUs, and a note on the other eight."""
    items: list[Items] = []
    for device in range(8):
        for pid in (1, 2, 3):
            end = 10 + (1000 if device else 10) // pid
            items.append(launch_kernel(GEMM, (0, 1), (10, end), id=device + 1, device=device, process=pid))
    answer = shown(trace(*items))
    assert len(answer.streams) == MAX_LANES
    assert {lane.label.split(" · ")[0] for lane in answer.streams} == {f"GPU {n}" for n in range(8)}
    assert any(note.startswith("8 more streams with") for note in answer.notes)


def test_ranges_are_shown_on_the_host_and_on_the_gpu(trace: MakeTrace) -> None:
    """A level has a lane for the host's times and one from the first op's start to the last op's end."""
    answer = shown(
        trace(
            Range("step", 0, 400),
            Range("inner", 100, 200),
            launch_kernel(GEMM, (110, 120), (500, 600), id=1),
            launch_kernel(GEMM, (250, 260), (700, 800), id=2),
        )
    )
    found = {
        (lane.level, lane.label.endswith("on the GPU")): (lane.start.tolist(), lane.end.tolist(), lane.count.tolist())
        for lane in answer.ranges
    }
    assert found == {
        (0, False): ([0], [400], [1]),
        (1, False): ([100], [200], [1]),
        (0, True): ([500], [800], [1]),
        (1, True): ([500], [600], [1]),
    }
    assert (answer.start_ns, answer.end_ns) == (0, 800)


def test_short_neighbours_are_one_mark(trace: MakeTrace) -> None:
    """Ten thousand short ranges in a row become at most one mark per column, and none is lost."""
    ranges = [Range("tick", 10 * n, 10 * n + 5) for n in range(10_000)]
    answer = shown(trace(*ranges, launch_kernel(GEMM, (1, 2), (3, 100_000), id=1)), columns=200)
    (host,) = [lane for lane in answer.ranges if lane.label.endswith("host")]
    assert len(host.start) <= 200
    assert host.count.sum() == 10_000
    assert host.start[0] == 0
    assert host.end[-1] == 99_995


def test_start_end_ranges_have_a_lane(trace: MakeTrace) -> None:
    """A start/end range stands in a lane of its own, apart from push/pop ranges."""
    answer = shown(trace(Range("w", 0, 90, kind="start_end"), launch_kernel(GEMM, (1, 2), (3, 100), id=1)))
    assert [(lane.level, lane.label.endswith("on the GPU")) for lane in answer.ranges] == [
        (START_END_LANE, False),
        (START_END_LANE, True),
    ]


def test_of_many_threads_each_process_has_one_lane_first(trace: MakeTrace) -> None:
    """Main threads of all processes come before helper threads, and the rest is said to be left out."""
    items: list[Items] = []
    for process in range(1, MAX_THREADS + 1):
        for thread, length in ((process, 50), (100 + process, 90)):
            number = 2 * process + (thread > 100)
            items.append(Range("step", 0, 100, thread=thread, process=process))
            items.append(
                launch_kernel(GEMM, (1, 2), (3, 3 + length), id=number, thread=thread, process=process, device=process)
            )
    answer = shown(trace(*items))
    assert {lane.label for lane in answer.ranges if lane.label.endswith("host")} == {
        f"pid {process} · level 1 · host" for process in range(1, MAX_THREADS + 1)
    }
    assert f"{MAX_THREADS} more threads have ranges that are not drawn" in answer.notes
    ranked, working = ranked_threads(answer.breakdown)  # the page shows the same ones
    processes = answer.breakdown.attribution.trace.thread_process[ranked[:MAX_THREADS]]
    assert (sorted(processes.tolist()), working) == ([*range(MAX_THREADS)], 2 * MAX_THREADS)
    assert f"{MAX_THREADS} more threads are not drawn" in report_timeline(answer.breakdown)[2]


def test_a_report_without_work_has_lanes_of_ranges_only(trace: MakeTrace) -> None:
    """Without ops there are no streams and no zoom; the ranges are there all the same."""
    answer = shown(trace(Range("step", 10, 30)))
    assert answer.streams == ()
    assert answer.zoom is None
    assert [(lane.start.tolist(), lane.end.tolist()) for lane in answer.ranges] == [([10], [30])]


def test_an_empty_report_has_an_empty_window(trace: MakeTrace) -> None:
    """Nothing at all is an answer too."""
    answer = shown(trace())
    assert (answer.streams, answer.ranges, answer.zoom) == ((), (), None)


def test_the_longest_wait_is_that_of_one_gpu(trace: MakeTrace) -> None:
    """A gap counts where a GPU runs nothing on any stream, whatever the other GPU does."""
    answer = shown(
        trace(
            launch_kernel(GEMM, (0, 1), (0, 100), id=1, stream=1),
            launch_kernel(GEMM, (2, 3), (90, 200), id=2, stream=2),
            launch_kernel(GEMM, (4, 5), (260, 300), id=3, stream=1),
            launch_kernel(GEMM, (6, 7), (0, 300), id=4, device=1),
        )
    )
    assert answer.wait_ns == 60
    assert answer.breakdown.gpu_count == 2


def test_the_zoom_of_the_shipped_report_is_a_call_of_math() -> None:
    """The range that takes longest is shown by the median of its forty calls, with all twenty kernels."""
    zoom = zoomed(RUN)
    assert zoom.what.startswith("RUN::math::S4096/iter")
    assert zoom.what.endswith(", the median of 40 by span")
    assert int(zoom.ops["own"].sum()) == 20
    assert len(zoom.launches[0]) == 20


def test_the_zoom_is_the_instance_with_the_median_span(trace: MakeTrace) -> None:
    """Of three calls the one that is neither the shortest nor the longest is shown."""
    items: list[Items] = []
    for number, length in enumerate((300, 100, 200)):
        at = 1000 * number
        items.append(Range(f"iter{number}", at, at + 500))
        items.append(launch_kernel(GEMM, (at + 1, at + 2), (at + 10, at + 20), id=2 * number + 1))
        items.append(launch_kernel(GEMM, (at + 3, at + 4), (at + 10 + length, at + 20 + length), id=2 * number + 2))
    zoom = zoomed(trace(*items))
    assert zoom.what == "iter2, the median of 3 by span"
    assert own_ops(zoom) == [(2010, 2020), (2210, 2220)]


def test_gaps_are_span_less_busy_time(trace: MakeTrace) -> None:
    """Between the first and the last op of the range all that is not busy is a gap, other ranges' ops or not."""
    zoom = zoomed(
        trace(
            Range("a", 0, 100),
            launch_kernel(GEMM, (1, 2), (10, 30), id=1),
            launch_kernel(GEMM, (3, 4), (25, 50), id=2, stream=8),
            launch_kernel(GEMM, (5, 6), (80, 90), id=3),
            launch_kernel(SOFTMAX, (101, 102), (55, 56), id=4),
        )
    )
    assert list(zip(zoom.gaps[0].tolist(), zoom.gaps[1].tolist(), strict=True)) == [(50, 80)]
    assert own_ops(zoom) == [(10, 30), (25, 50), (80, 90)]
    assert zoom.ops["start"][~zoom.ops["own"]].tolist() == [55]


def test_work_of_a_helper_thread_is_in_the_zoom(trace: MakeTrace) -> None:
    """An op that follows the range of another thread is one of the range's ops."""
    zoom = zoomed(
        trace(
            Range("backward", 0, 100),
            launch_kernel(GEMM, (1, 2), (3, 9), id=1),
            launch_kernel(GEMM, (20, 21), (30, 40), id=2, thread=5),
        )
    )
    assert own_ops(zoom) == [(3, 9), (30, 40)]


def test_a_start_end_range_can_be_the_zoom(trace: MakeTrace) -> None:
    """Where there is nothing else a window is shown, with all launches inside it."""
    zoom = zoomed(trace(Range("w", 0, 90, kind="start_end"), launch_kernel(GEMM, (1, 2), (3, 50), id=1)))
    assert zoom.what == "w"
    assert own_ops(zoom) == [(3, 50)]


def test_a_host_far_ahead_has_a_window_of_its_own(trace: MakeTrace) -> None:
    """Where the GPU runs the work long after its launch, host and GPU are not forced on one axis."""
    near = zoomed(trace(Range("a", 0, 50), launch_kernel(GEMM, (1, 2), (30, 60), id=1)))
    assert (near.ahead_ns, near.host_start_ns, near.host_end_ns) == (0, near.start_ns, near.end_ns)
    far = zoomed(trace(Range("a", 0, 5), launch_kernel(GEMM, (1, 2), (9000, 9100), id=1)))
    assert (far.host_start_ns, far.host_end_ns) == (0, 5)
    assert far.start_ns == 8998
    assert far.ahead_ns == 8998
    waits = zoomed(trace(Range("a", 0, 9000), launch_kernel(GEMM, (1, 2), (30, 60), id=1)))
    assert (waits.start_ns, waits.end_ns) == (0, 60)  # what the host does long afterwards is left out


def test_a_range_with_too_many_ops_is_shown_by_its_middle(trace: MakeTrace) -> None:
    """Of a thousand ops the middle ones are drawn, and the text says so."""
    items = [launch_kernel(GEMM, (10 * n, 10 * n + 1), (10 * n + 2, 10 * n + 9), id=n + 1) for n in range(1000)]
    zoom = zoomed(trace(Range("all", 0, 20_000), *items))
    assert int(zoom.ops["own"].sum()) == READABLE_OPS
    assert zoom.ops["start"][zoom.ops["own"]].min() == 4002
    assert (zoom.what, zoom.of) == ("all", 1000)


def test_without_ranges_the_busiest_stream_is_shown(trace: MakeTrace) -> None:
    """A report without NVTX has a zoom too."""
    zoom = zoomed(
        trace(launch_kernel(GEMM, (1, 2), (3, 5), id=1, stream=3), launch_kernel(GEMM, (1, 2), (3, 50), id=2, stream=4))
    )
    assert zoom.what == "the busiest stream"
    assert own_ops(zoom) == [(3, 50)]


def test_families_are_those_of_the_whole_report_also_with_a_selection(trace: MakeTrace) -> None:
    """Ops that a selection leaves out keep the family of their kernel: streams show everything."""
    path = trace(
        Range("a", 0, 10),
        Range("b", 10, 20),
        launch_kernel(GEMM, (1, 2), (0, 50), id=1),
        launch_kernel(SOFTMAX, (11, 12), (50, 100), id=2),
    )
    (lane,) = shown(path, columns=2, select="a").streams
    assert [FAMILIES[code] for code in lane.group.tolist()] == ["gemm", "softmax"]


def steps(count: int, at: int, *, first: int = 1, length: int = 60) -> list[Items]:
    """Steps of 100 ns with two kernels each."""
    out: list[Items] = []
    for step in range(count):
        begin, number = at + 100 * step, first + 2 * step
        out += [
            Range(f"step {step}", begin, begin + 90),
            launch_kernel(GEMM, (begin + 1, begin + 2), (begin + 10, begin + 10 + length // 2), id=number),
            launch_kernel(GEMM, (begin + 3, begin + 4), (begin + 50, begin + 50 + length // 2), id=number + 1),
        ]
    return out


def test_the_zoom_is_on_what_repeats(trace: MakeTrace) -> None:
    """Neither on a longer range that happens once, nor on one without a good part of the time."""
    once: list[Items] = [Range("load", 0, 9000), launch_kernel(GEMM, (1, 2), (10, 5000), id=900)]
    assert zoomed(trace(*once, *steps(20, 10_000))).what == "step 9, the median of 20 by span"
    rare: list[Items] = [Range("log 1", 9000, 9010), Range("log 2", 9020, 9030)]
    logs = [launch_kernel(GEMM, (at, at + 1), (at + 2, at + 4), id=at) for at in (9001, 9021)]
    assert zoomed(trace(*once, *rare, *logs)).what == "load"


@pytest.mark.parametrize("name", ["init", "model setup", "warm-up 1", "Initialization"])
def test_the_zoom_is_not_on_what_prepares(name: str, trace: MakeTrace) -> None:
    """A range that says that it prepares gives way to a shorter one, and is shown where there is no other."""
    before: list[Items] = [Range(name, 0, 900), launch_kernel(GEMM, (1, 2), (10, 800), id=1)]
    work: list[Items] = [Range("initial guess", 1000, 1900), launch_kernel(GEMM, (1001, 1002), (1010, 1300), id=2)]
    assert zoomed(trace(*before, *work)).what == "initial guess"
    assert zoomed(trace(*before)).what == name


def test_of_a_long_step_the_part_with_most_of_its_time_is_shown(trace: MakeTrace) -> None:
    """A step of more ops than can be shown gives way to the range inside that is most of it, else it is cut."""
    items: list[Items] = []
    for step in range(3):
        at = 100_000 * step
        items += [Range(f"step {step}", at, at + 90_000), Range("forward", at, at + 10_000)]
        items += [Range("backward", at + 20_000, at + 80_000)]
        for n in range(700):
            begin = at + (10 * n if n < 300 else 20_000 + 10 * n)
            items.append(launch_kernel(GEMM, (begin, begin + 1), (begin + 2, begin + 5), id=1000 * step + n + 1))
    assert zoomed(trace(*items)).what == "step 1/backward, the median of 3 by span"
    only_steps = [item for item in items if not (isinstance(item, Range) and "step" not in str(item.name))]
    zoom = zoomed(trace(*only_steps))
    assert (zoom.what, zoom.of, int(zoom.ops["own"].sum())) == ("step 1, the median of 3 by span", 700, READABLE_OPS)


def test_without_ranges_the_zoom_is_on_what_is_as_dense_as_most(trace: MakeTrace) -> None:
    """Not on the copies at the beginning, the longest wait, or the dense end: on the loop in between."""
    items: list[Items] = [launch_memcpy((10 * n, 10 * n + 1), (1000 * n, 1000 * n + 990), id=n + 1) for n in range(30)]
    for n in range(100):  # a kernel of 50 ns every 100 ns, after a wait
        at = 500_000 + 100 * n + (20_000 if n >= 50 else 0)
        items.append(launch_kernel(f"kernel_{n}", (at - 5, at - 4), (at, at + 50), id=100 + n))
    items += [
        launch_kernel(f"kernel_{at}", (540_000, 540_001), (at, at + 10), id=at) for at in range(540_100, 540_500, 10)
    ]
    zoom = zoomed(trace(*items))
    ops = own_ops(zoom)
    assert (zoom.what, zoom.of) == ("the busiest stream", 170)
    assert {end - start for start, end in ops} == {50}
    assert ops[-1][1] - ops[0][0] < 20_000


def test_a_wait_longer_than_all_the_work_is_not_in_the_zoom(trace: MakeTrace) -> None:
    """Also where there are few ops: those on the side of the wait with more work are shown."""
    zoom = zoomed(
        trace(
            launch_memcpy((0, 1), (2, 10), id=1),
            launch_kernel(GEMM, (900, 901), (1000, 1040), id=2),
            launch_kernel(GEMM, (910, 911), (1050, 1090), id=3),
        )
    )
    assert own_ops(zoom) == [(1000, 1040), (1050, 1090)]
    assert zoom.of == 3


def test_memory_has_a_lane_of_its_gpu(trace: MakeTrace) -> None:
    """The most that is live in each column, what was allocated before the window too."""
    path = trace(
        Range("step", 100, 200),
        allocate(10, 0xA, 100, id=1),
        launch_kernel("k", (100, 101), (100, 110), id=2),
        allocate(139, 0xB, 300, id=3),
        allocate(144, 0xB, 0, id=4, free=True),
        allocate(150, 0xC, 999, id=5, kind=1),
        launch_kernel("k", (190, 191), (192, 200), id=6),
    )
    answer = timeline(broken_down(path), columns=10)
    [lane] = answer.levels
    assert (lane.label, lane.full) == ("GPU 0 · memory, up to 400 B", 400)
    assert (answer.start_ns, answer.end_ns) == (100, 200)
    assert lane.level.tolist() == [100] * 3 + [400] * 2 + [100] * 5
    drawn = [each for each in plan_timeline(answer).panels[0].lanes if isinstance(each, Stream)]
    assert [each.level.max() for each in drawn if each.label == lane.label] == [STREAM_LEVELS]


def test_sampled_metrics_have_lanes_of_their_gpu(trace: MakeTrace) -> None:
    """The mean percentage per column; a full lane is 100 %, and an impossible value is no level."""
    values = {"sm_active": [0, 20, 40, 101], "dram_read": [30] * 4, "dram_write": [5] * 4}
    lanes = shown(trace(launch_kernel("k", (0, 1), (0, 400_000), id=1), gpu_samples(values)), columns=4).levels
    assert [(lane.label, lane.level.tolist(), lane.full) for lane in lanes] == [
        ("GPU 0 · SM active, up to 100 %", [0, 20, 40, 0], 100),
        ("GPU 0 · DRAM, up to 100 %", [35] * 4, 100),
    ]
    assert not shown(trace(launch_kernel("k", (0, 1), (0, 400_000), id=1), gpu_samples(values, gpu=1))).levels
    kernels = [launch_kernel("k", (0, 1), (0, 400_000), id=gpu + 1, device=gpu) for gpu in range(9)]
    samples = [gpu_samples(values, gpu=gpu, first_id=3 * gpu) for gpu in range(9)]
    answer = shown(trace(*kernels, *samples), columns=4)
    assert len(answer.levels) == MAX_LANES == 16
    assert answer.notes == ("2 more lanes of GPU metrics are not drawn",)
