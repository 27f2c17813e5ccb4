"""The Perfetto trace, read back with the protobuf library: nothing is lost, nothing crosses, arrows pair."""

import gzip
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from nsysprof.analyze.record_source import RecordSource, record_source
from nsysprof.errors import NsysprofError
from nsysprof.export import perfetto
from nsysprof.export.export import write_export
from nsysprof.export.tracks import stream_ranges
from tests.conftest import MakeTrace
from tests.kit.gpu_samples import gpu_samples
from tests.kit.perfetto_trace import ReadTrace, Slice, read_trace
from tests.kit.random_reports import random_report
from tests.kit.reports import broken_down
from tests.kit.trace import (
    Items,
    Kernel,
    Launch,
    Process,
    Range,
    Row,
    ThreadName,
    global_pid,
    launch_graph,
    launch_kernel,
    launch_memcpy,
)

pytest.importorskip("perfetto.protos")
TRACES = Path(__file__).parents[2] / "traces"
OP_CATEGORIES = ("kernel", "memcpy", "memset", "graph", "migration")


def source_of(path: Path, threads: str = "follow") -> RecordSource:
    """What is exported of a report, whose file is closed again."""
    return record_source(broken_down(path, threads))


def written(source: RecordSource, folder: Path) -> ReadTrace:
    """The trace of a report, read back."""
    return read_trace(write_export(source, "perfetto", folder / "out.pftrace", force=True))


def made(trace: MakeTrace, folder: Path, *items: Items) -> ReadTrace:
    return written(source_of(trace(*items)), folder)


def ops_of(trace: ReadTrace) -> list[Slice]:
    """The slices of ops, in the order of their ids."""
    found = [each for category in OP_CATEGORIES for each in trace.slices(category)]
    return sorted(found, key=lambda each: each.args["op"])


def split_ranges(trace: ReadTrace) -> tuple[list[Slice], list[Slice]]:
    """The slices of ranges on the host, in the order of their ids, and those projected on the GPU."""
    host: list[Slice] = []
    projected: list[Slice] = []
    for each in trace.slices("nvtx"):
        (projected if "launches" in each.args else host).append(each)
    return sorted(host, key=lambda each: each.args["range"]), projected


def checked(source: RecordSource, trace: ReadTrace) -> None:
    """Assert what holds for the trace of any report; `read_trace` has asserted that slices nest."""
    offset = trace.about["nsysprof.time_offset_ns"]
    assert isinstance(offset, int)
    _check_ops(source, trace, offset)
    _check_calls_and_flows(source, trace, offset)
    _check_ranges(source, trace, offset)
    _check_projections(source, trace, offset)
    _check_counters(source, trace, offset)


def _check_ops(source: RecordSource, trace: ReadTrace, offset: int) -> None:
    ops, found = source.trace.ops, ops_of(trace)
    assert [each.args["op"] for each in found] == list(range(len(ops)))
    assert [each.start - offset for each in found] == ops.start.tolist()
    assert [each.end - offset for each in found] == np.maximum(ops.end, ops.start).tolist()
    assert [each.category for each in found] == [OP_CATEGORIES[kind] for kind in ops.kind.tolist()]
    full = [source.trace.op_names[name] for name in ops.name.tolist()]
    assert [each.args.get("kernel", each.name) for each in found] == full
    assert len({each.name for each in found}) == len(set(full))  # short names, but none for two kernels
    assert {each.depth for each in found} <= {0}  # ops of one stream that overlap are on lanes of their own
    ledger = source.breakdown.attribution.ledger
    assert sum(_duration(each) for each in found) == sum(row.sum_ns for row in ledger)
    fates = Counter(str(each.args.get("fate", "own thread")) for each in found)
    assert fates == Counter({row.outcome: row.ops for row in ledger if row.ops})
    path = source.of_ops(source.path)
    texts = [*source.breakdown.path_texts, None]
    assert [each.args.get("path") for each in found] == [texts[code] for code in path.tolist()]


def _duration(each: Slice) -> int:
    return int(each.args.get("duration_ns", each.end - each.start))


def _check_calls_and_flows(source: RecordSource, trace: ReadTrace, offset: int) -> None:
    calls, launches = trace.slices("cuda"), source.trace.launches
    assert len(calls) == len(source.calls)
    assert Counter(each.name for each in calls) == Counter(
        source.calls.names[name] for name in source.calls.name.tolist()
    )
    origin = {flow: each for each in calls for flow in each.flows}
    assert len(origin) == sum(len(each.flows) for each in calls)
    for each in ops_of(trace):
        launch = int(source.trace.ops.launch[int(each.args["op"])])
        flows = each.flows + each.last_flows
        assert len(flows) == (launch >= 0)
        if launch >= 0:
            call = origin.pop(flows[0])
            assert (call.start - offset, call.end - offset) == (launches.start[launch], launches.end[launch])
            assert bool(each.last_flows) == (call.start <= each.start)
    assert not origin
    linked = [each.args["launch"] for each in calls if "launch" in each.args]
    assert len(linked) == len(set(linked))
    assert set(linked) <= set(range(len(launches)))


def _check_ranges(source: RecordSource, trace: ReadTrace, offset: int) -> None:
    ranges, paths = source.trace.ranges, source.breakdown.paths
    found, _ = split_ranges(trace)
    assert [each.args["range"] for each in found] == list(range(len(ranges)))
    assert [each.start - offset for each in found] == ranges.start.tolist()
    assert [each.end - offset for each in found] == np.maximum(ranges.end, ranges.start).tolist()
    names = [source.trace.range_names[name] for name in ranges.name.tolist()]
    assert [each.name for each in found] == [name.text for name in names]
    texts = [source.breakdown.path_texts[code] for code in paths.of.tolist()]
    assert [each.args["path"] for each in found] == texts
    assert ["unclosed" in each.args for each in found] == ranges.unclosed.tolist()
    _check_nesting(source, found)


def _check_nesting(source: RecordSource, found: list[Slice]) -> None:
    """What is drawn inside a range is inside it on the host."""
    parent = source.breakdown.attribution.parent
    for each in found:
        if each.around is not None:
            assert each.around.args["range"] == parent[int(each.args["range"])]


def _check_projections(source: RecordSource, trace: ReadTrace, offset: int) -> None:
    """Over its streams a range has what it has in all."""
    _, found = split_ranges(trace)
    _check_nesting(source, found)
    inside = source.breakdown.attribution.inclusive
    working = np.flatnonzero(inside.launches > 0).tolist()
    by_range: dict[int, list[Slice]] = {row: [] for row in working}
    for each in found:
        by_range[int(each.args["range"])].append(each)
    for row, mine in by_range.items():
        assert sum(int(each.args["sum_ns"]) for each in mine) == inside.sum_ns[row]
        assert sum(int(each.args["kernels"]) for each in mine) == inside.kernels[row]
        assert min(each.start for each in mine) - offset == inside.first_op_ns[row]
        last = max(each.end for each in mine) - offset
        assert last == max(inside.last_op_ns[row], *(each.start - offset for each in mine))
        if len(mine) == 1:
            assert mine[0].args["launches"] == inside.launches[row]
            assert mine[0].args["busy_ns"] == inside.busy_ns[row]


def _check_counters(source: RecordSource, trace: ReadTrace, offset: int) -> None:
    """The kernels in flight, added up over time, are the kernels' durations, and in the end none is left."""
    ops = source.trace.ops
    kernels = ops.kind == 0
    expected = int(np.maximum(ops.end - ops.start, 0)[kernels].sum())
    total = 0
    for track in trace.tracks:
        if track.name != "kernels in flight":
            continue
        assert track.unit == "UNIT_COUNT"
        times, values = zip(*track.values, strict=True)
        assert values[-1] == 0
        assert min(values) >= 0
        assert all(a != b for a, b in pairwise(values))
        assert list(times) == sorted(set(times))
        total += sum(value * (after - now) for value, now, after in zip(values, times, times[1:], strict=False))
    assert total == expected


@pytest.mark.parametrize("name", ["run", "block", "two-processes"])
@pytest.mark.parametrize("threads", ["follow", "strict"])
def test_a_real_report_is_in_its_trace(name: str, threads: str, tmp_path: Path) -> None:
    """Every op, host call, range and arrow, and the ledger's sum of durations."""
    source = source_of(TRACES / f"{name}.sqlite", threads)
    trace = written(source, tmp_path)
    checked(source, trace)
    assert trace.about["nsysprof.threads"] == threads
    assert trace.about["nsysprof.report"] == f"{name}.sqlite"


@pytest.mark.parametrize("seed", range(30))
def test_a_made_up_report_is_in_its_trace(seed: int, trace: MakeTrace, tmp_path: Path) -> None:
    """Crossing ranges, ties, negative times, ops before their launches, streams that run two ops at once."""
    path = trace(*random_report(seed))
    for threads in ("follow", "strict"):
        source = source_of(path, threads)
        checked(source, written(source, tmp_path))


@pytest.mark.parametrize("at_once", [1, 2, 7])
def test_packets_are_the_same_however_many_are_made_at_once(
    at_once: int, trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks are a matter of memory only."""
    source = source_of(trace(*random_report(8)))
    whole = write_export(source, "perfetto", tmp_path / "whole.pftrace").read_bytes()
    monkeypatch.setattr(perfetto, "_AT_ONCE", at_once)
    parts = write_export(source, "perfetto", tmp_path / "parts.pftrace").read_bytes()
    assert len(whole) > 1000
    assert parts == whole


STEP = (
    Process(42, "python3"),
    ThreadName(42, "main", process=42),
    Range("step", 0, 100, thread=42, process=42),
    Range("forward", 10, 40, thread=42, process=42),
    *launch_kernel("gemm", (11, 15), (50, 60), id=1, thread=42, process=42, grid=(8, 4, 1), block=(256, 1, 1)),
    *launch_memcpy((20, 25), (60, 70), id=2, thread=42, process=42, bytes=0),
)  # fmt: skip


def tracks_of(trace: ReadTrace) -> list[str]:
    return [track.path for track in trace.tracks]


def test_tracks_and_their_places(trace: MakeTrace, tmp_path: Path) -> None:
    """Processes and threads by id and name, and below each GPU counters, ranges and streams."""
    found = made(trace, tmp_path, *STEP)
    assert tracks_of(found) == [
        *("python3", "python3/main", "python3/main/NVTX", "python3/main/CUDA calls"),
        *("GPU 0 · NVIDIA H200", "GPU 0 · NVIDIA H200/kernels in flight"),
        "GPU 0 · NVIDIA H200/stream 7 · NVTX · main 42",
        "GPU 0 · NVIDIA H200/stream 7",
    ]
    assert [(track.pid, track.tid) for track in found.tracks[:3]] == [(42, None), (42, 42), (None, None)]


def test_ops_say_their_cause_where_it_is_finer_than_their_family(trace: MakeTrace, tmp_path: Path) -> None:
    """A convolution of the family gemm says so; a plain product has nothing to add."""
    names = ("implicit_convolve_sgemm", "ampere_sgemm_128x64_tn")
    calls = (
        launch_kernel(name, (20 * id, 20 * id + 5), (20 * id, 20 * id + 9), id=id) for id, name in enumerate(names, 1)
    )
    found = ops_of(made(trace, tmp_path, *calls))
    assert [op.args.get("cause") for op in found] == ["convolution", None]


def test_notes_of_slices(trace: MakeTrace, tmp_path: Path) -> None:
    """Grid, block, bytes, family, math unit and owner of ops; path and totals of ranges."""
    found = made(trace, tmp_path, *STEP)
    gemm, copy = ops_of(found)
    assert gemm.args == {
        "family": "gemm", "math_unit": gemm.args["math_unit"], "grid": "8x4", "block": "256",
        "path": "step/forward", "op": 0,
    }  # fmt: skip
    assert copy.args == {
        "family": "memcpy", "math_unit": copy.args["math_unit"], "path": "step/forward", "op": 1,
        "size_bytes": 0,
    }  # fmt: skip
    host, projected = split_ranges(found)
    assert host[1].args == {"path": "step/forward", "range": 1}
    assert [(each.name, each.start, each.end, each.depth) for each in projected] == [
        ("step", 50, 70, 0), ("forward", 50, 70, 1),
    ]  # fmt: skip
    assert projected[1].args == {
        "path": "step/forward", "range": 1, "launches": 2, "kernels": 1, "busy_ns": 20, "sum_ns": 20,
    }  # fmt: skip


def test_kernels_have_short_names(trace: MakeTrace, tmp_path: Path) -> None:
    """The full one stands there too, and stands for itself where two kernels have the same short one."""
    fill = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<bool>, int>(int)"
    copies = [
        f"void at::native::vectorized_elementwise_kernel<(int){n}, at::native::X<half>, int>(int)" for n in (2, 4)
    ]
    found = made(trace, tmp_path, *(Kernel(name, n, n + 1, None) for n, name in enumerate([fill, *copies])))
    kernels = ops_of(found)
    assert [each.name for each in kernels] == ["vectorized_elementwise FillFunctor bool int", *copies]
    assert [each.args.get("kernel") for each in kernels] == [fill, None, None]


def test_a_graph_points_to_all_its_nodes(trace: MakeTrace, tmp_path: Path) -> None:
    """One launch of several ops has an arrow to each; a call that failed says so."""
    found = made(
        trace,
        tmp_path,
        Launch(0, 5, 1, api="cudaGraphLaunch_v10000"),
        *(Kernel("node", 10 + 10 * n, 15 + 10 * n, 1, graph_node=n + 1) for n in range(3)),
        *launch_graph((6, 8), (50, 90), id=2),
        Launch(95, 96, None, api="cudaMalloc_v3020", returned=2),
    )
    graph, traced, failed = found.slices("cuda")
    assert (graph.flows, traced.flows, failed.flows) == ([1, 2, 3], [4], [])
    assert [each.last_flows for each in ops_of(found)] == [[1], [2], [3], [4]]
    assert graph.args == {"launch": 0}
    assert failed.args == {"result": 2}


def test_ranges_of_two_domains_that_cross(trace: MakeTrace, tmp_path: Path) -> None:
    """What cannot nest goes to a second track of that name."""
    found = made(trace, tmp_path, Range("a", 0, 60), Range("b", 30, 100, domain=5), Launch(1, 2, 1))
    lanes = [track for track in found.tracks if track.name == "NVTX"]
    assert [[each.name for each in lane.slices] for lane in lanes] == [["a"], ["b"]]


def test_projections_that_cross(trace: MakeTrace, tmp_path: Path) -> None:
    """Work that one thread sends to a stream while another's is still queued: lanes by thread, none crosses."""
    found = made(
        trace,
        tmp_path,
        Range("one", 0, 10, thread=1),
        Range("two", 0, 10, thread=2),
        *launch_kernel("k", (1, 2), (20, 30), id=1, thread=1),
        *launch_kernel("k", (3, 4), (30, 40), id=2, thread=2),
        *launch_kernel("k", (5, 6), (40, 50), id=3, thread=1),
    )
    lanes = {
        track.name: [(each.name, each.start, each.end) for each in track.slices]
        for track in found.tracks
        if "· NVTX ·" in track.name
    }
    assert lanes == {"stream 7 · NVTX · thread 1": [("one", 20, 50)], "stream 7 · NVTX · thread 2": [("two", 30, 40)]}


def test_times_before_zero_are_moved(trace: MakeTrace, tmp_path: Path) -> None:
    """All of them, by what the trace says: trace_processor takes no negative times."""
    found = made(trace, tmp_path, Range("early", -1000, 100), *launch_kernel("k", (-5, 5), (20, 30), id=1))
    assert found.about["nsysprof.time_offset_ns"] == 1000
    [kernel] = ops_of(found)
    assert (kernel.start, kernel.end) == (1020, 1030)


def test_an_op_that_ends_before_it_starts(trace: MakeTrace, tmp_path: Path) -> None:
    """It is drawn without length and says the duration that was recorded: sums stay those of the ledger."""
    source = source_of(trace(*launch_kernel("k", (1, 2), (30, 20), id=1)))
    found = written(source, tmp_path)
    checked(source, found)
    [kernel] = ops_of(found)
    assert (kernel.start, kernel.end, kernel.args["duration_ns"]) == (30, 30, -10)


def test_sampled_metrics_are_counters(trace: MakeTrace, tmp_path: Path) -> None:
    """On their GPU, from each change on; what is not known is left out, and a GPU without work has no track."""
    samples = gpu_samples({"sm_active": [7, 7, 101, 30]}), gpu_samples({"sm_active": [1, 2]}, gpu=1)
    found = made(trace, tmp_path, launch_kernel("k", (1, 2), (30, 40), id=1), *samples)
    values = {track.path: track.values for track in found.tracks if track.unit == "UNIT_UNSPECIFIED"}
    assert values == {"GPU 0 · NVIDIA H200/sm_active": [(0, 7), (300_000, 30)]}


def test_memory_is_a_counter(trace: MakeTrace, tmp_path: Path) -> None:
    """Where the report holds it, on its GPU, in bytes; on a device without ops too."""
    row = {"globalPid": global_pid(1), "contextId": 1, "address": 64, "pc": 0, "bytes": 512, "memKind": 2}
    found = made(
        trace,
        tmp_path,
        *launch_kernel("k", (1, 2), (30, 40), id=1),
        *(
            Row("CUDA_GPU_MEMORY_USAGE_EVENTS", {**row, "start": 10 * n, "deviceId": 0, "memoryOperationType": n})
            for n in (0, 1)
        ),
        Row("CUDA_GPU_MEMORY_USAGE_EVENTS", {**row, "start": 5, "deviceId": 3, "memoryOperationType": 0}),
    )  # fmt: skip
    counters = {track.path: (track.unit, track.values) for track in found.tracks if track.unit}
    assert counters["GPU 0 · NVIDIA H200/device memory · pid 1"] == ("UNIT_SIZE_BYTES", [(0, 512), (10, 0)])
    assert counters["device 3 of pid 1/device memory · pid 1"] == ("UNIT_SIZE_BYTES", [(5, 512)])


def test_two_processes_share_a_gpu(trace: MakeTrace, tmp_path: Path) -> None:
    """Their streams have equal numbers, and names with the process."""
    found = made(
        trace,
        tmp_path,
        *launch_kernel("k", (1, 2), (30, 40), id=1, process=1),
        *launch_kernel("k", (1, 2), (35, 45), id=1, process=2),
    )
    names = [track.name for track in found.tracks if track.name.startswith("stream")]
    assert names == ["stream 7 · pid 1", "stream 7 · pid 2"]
    [counter] = [track for track in found.tracks if track.unit]
    assert counter.values == [(30, 1), (35, 2), (40, 1), (45, 0)]


def test_a_range_on_two_streams_is_projected_on_both(trace: MakeTrace, tmp_path: Path) -> None:
    """With what it has on each; sums and ops add up to what it has in all."""
    source = source_of(
        trace(
            Range("step", 0, 50),
            *launch_kernel("k", (1, 2), (30, 40), id=1, stream=7),
            *launch_kernel("k", (3, 4), (35, 55), id=2, stream=13),
        )
    )
    found = [list(stream_ranges(source.breakdown.attribution, stream)) for stream in (0, 1)]
    assert [part.inside.sum_ns.tolist() for parts in found for part in parts] == [[10], [20]]
    checked(source, written(source, tmp_path))


def test_an_empty_report_has_an_empty_trace(trace: MakeTrace, tmp_path: Path) -> None:
    """It is read all the same."""
    found = made(trace, tmp_path)
    assert found.tracks == []


def test_names_of_all_kinds(trace: MakeTrace, tmp_path: Path) -> None:
    """Empty ones, long ones, slashes, line ends and what is no text stay one name each."""
    names = ["", "a/b", "x\ny", "é" * 3000, "tab\t", '"quoted"']
    found = made(trace, tmp_path, *(Range(name, 10 * n, 10 * n + 5) for n, name in enumerate(names)))
    assert [each.name for each in split_ranges(found)[0]] == names


def test_a_name_with_gz_is_compressed(trace: MakeTrace, tmp_path: Path) -> None:
    """The same trace, and the same bytes every time."""
    source = source_of(trace(*STEP))
    plain = write_export(source, "perfetto", tmp_path / "a.pftrace").read_bytes()
    packed = [write_export(source, "perfetto", tmp_path / f"{n}.pftrace.gz").read_bytes() for n in range(2)]
    assert packed[0] == packed[1] != plain
    assert gzip.decompress(packed[0]) == plain


def test_perfetto_that_is_missing(trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name and how to install it."""
    source = source_of(trace(*STEP))
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    with pytest.raises(NsysprofError) as caught:
        write_export(source, "perfetto", tmp_path / "out.pftrace")
    assert caught.value.hint == "pip install 'nsysprof[perfetto]'"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.sqlite"]
