"""The critical path in a Perfetto trace: its pieces, and the arrows from culprits and to what waited."""

from pathlib import Path

import pytest

from nsysprof.export.export import export
from tests.conftest import MakeTrace
from tests.kit.perfetto_trace import ReadTrace, Slice, read_trace
from tests.kit.trace import Items, Range, launch_kernel, launch_memcpy
from tests.kit.trace_processor import TraceProcessor

pytest.importorskip("perfetto")


def step(at: int, first: int) -> list[Items]:
    """A kernel, a copy of 400 µs in its stream, a kernel that was launched long before, and one that is late."""
    return [
        Range("step", at, at + 1_600_000),
        launch_kernel("gemm", (at + 10, at + 20), (at + 100, at + 100_000), id=first),
        launch_memcpy((at + 30, at + 40), (at + 100_000, at + 500_000), id=first + 1),
        launch_kernel("gemm", (at + 50, at + 60), (at + 500_000, at + 600_000), id=first + 2),
        launch_kernel("gemm", (at + 1_200_000, at + 1_201_000), (at + 1_201_000, at + 1_600_000), id=first + 3),
    ]


def exported(path: Path, folder: Path) -> tuple[Path, ReadTrace]:
    """The trace of a report, written and read back."""
    written = export(path, "perfetto", folder / "out.pftrace")
    return written, read_trace(written)


def pieces(found: ReadTrace) -> list[Slice]:
    """The critical path of GPU 0."""
    return [each for track in found.tracks if track.name == "critical path" for each in track.slices]


def test_the_critical_path_has_its_culprits_and_arrows(trace: MakeTrace, tmp_path: Path) -> None:
    """From the copy an arrow leads to the piece in which it ran, and from the late host one to the op that waited."""
    path = trace(*(item for at in range(3) for item in step(2_000_000 * at, 10 * at + 1)))
    written, found = exported(path, tmp_path)
    ours = pieces(found)
    assert all(each.end > each.start for each in ours)
    first = [each for each in ours if each.start < 1_600_000]
    waited = sum(each.end - each.start for each in first)
    assert waited == 1_600_000 - 99_900 - 100_000 - 399_000  # the rest is compute
    copied = next(each for each in first if each.args["cause"] == "copy")
    assert (copied.start, copied.end, copied.args["claim"]) == (100_000, 500_000, "dependency")
    copies = [each for each in found.slices("memcpy") if each.flows]
    assert [each.start for each in copies] == [100_000, 2_100_000, 4_100_000]
    assert copied.last_flows == copies[0].flows
    assert "memcpy" in copied.name
    [late] = [each for each in first if each.flows and each.start >= 600_000]
    awaited = [each for each in found.slices("kernel") if set(late.flows) & set(each.last_flows)]
    assert [each.start for each in awaited] == [1_201_000]
    begun = [flow for track in found.tracks for each in track.slices for flow in each.flows]
    ended = [flow for track in found.tracks for each in track.slices for flow in each.last_flows]
    assert sorted(begun) == sorted(ended)
    assert len(set(begun)) == len(begun)
    processor = TraceProcessor()
    try:
        processor.load(written)
        query = "SELECT COUNT(*) FROM slice JOIN track ON slice.track_id = track.id WHERE track.name = 'critical path'"
        assert processor.query(query) == [(len(ours),)]
        assert processor.query("SELECT COUNT(*) FROM flow") == [(len(begun),)]
        assert processor.query("SELECT COUNT(*) FROM stats WHERE severity = 'error' AND value > 0") == [(0,)]
    finally:
        processor.close()


def test_where_nothing_is_to_be_gained_there_is_no_critical_path(trace: MakeTrace, tmp_path: Path) -> None:
    """The track and its arrows are left out."""
    items: list[Items] = []
    for n in range(3):
        at = 2_000_000 * n
        items.append(Range("step", at, at + 2_000_000))
        items.append(launch_kernel("gemm", (at + 10, at + 20), (at + 100, at + 2_000_000), id=n + 1))
    assert pieces(exported(trace(*items), tmp_path)[1]) == []
