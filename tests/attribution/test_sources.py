"""Which ranges count: `--ranges`."""

from pathlib import Path

import numpy as np
import pytest

import nsysprof
from nsysprof.attribution.paths import range_paths
from nsysprof.attribution.sources import choose_ranges, read_sources
from nsysprof.trace.details import OtherRanges, RangeName
from nsysprof.trace.nsys.reader import NsysReader
from nsysprof.trace.trace import MPI, OPENACC, RANGE_KINDS, Trace
from tests.conftest import MakeTrace
from tests.kit.reports import attributed
from tests.kit.trace import Range, launch_kernel

NAMES = [RangeName("MPI_Wait", "MPI"), RangeName("compute", "OpenACC")]


def other_ranges(reader: NsysReader, trace: Trace, sources: frozenset[str]) -> OtherRanges:
    """A call of MPI on the thread of the first launch, and a construct of OpenACC on a thread of another process."""
    rows = [row for row, source in enumerate(("mpi", "openacc")) if source in sources]
    thread = np.array([trace.threads[0], (9 << 24) + 9])[rows]
    start, end = np.array([8, 5])[rows], np.array([17, 500])[rows]
    return OtherRanges(
        thread, start, end, np.array([MPI, OPENACC], np.uint8)[rows], np.array([0, 1], np.int32)[rows], NAMES
    )


@pytest.fixture
def with_others(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report with an NVTX range, and, as far as its reader goes, ranges of MPI and OpenACC."""
    monkeypatch.setattr(NsysReader, "other_ranges", other_ranges)
    return trace(Range("step", 0, 100), *launch_kernel("kernel", (10, 12), (20, 24), id=1))


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ("auto", [("step", "push_pop")]),
        ("nvtx", [("step", "push_pop")]),
        ("mpi", [("MPI_Wait", "mpi")]),
        ("nvtx, mpi", [("step", "push_pop"), ("step/MPI_Wait", "mpi")]),
        ("openacc", [("compute", "openacc")]),
        ("found", []),
    ],
)
def test_ranges_of_the_sources_that_are_asked_for(
    with_others: Path, ranges: str, expected: list[tuple[str, str]]
) -> None:
    """Each kind nests by time on its thread and owns what is launched inside, also beside the others."""
    attribution = attributed(with_others, ranges=ranges)
    paths, kind = range_paths(attribution), attribution.trace.ranges.kind
    texts = [paths.texts()[at] for at in paths.of.tolist()]
    assert list(zip(texts, [RANGE_KINDS[code] for code in kind.tolist()], strict=True)) == expected
    owner = attribution.op_owner.tolist()
    assert [texts[at] for at in owner if at >= 0] == [text for text, _ in expected if "step" in text or "MPI" in text][
        -1:
    ]
    assert attribution.trace.session_end >= 500 or "openacc" not in ranges


def test_auto_takes_the_others_where_there_is_no_nvtx(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report without NVTX ranges has those of MPI and OpenACC, and a process that only these are of."""
    path = trace(*launch_kernel("kernel", (10, 12), (20, 24), id=1))
    monkeypatch.setattr(NsysReader, "other_ranges", other_ranges)
    with nsysprof.open_report(path) as report:
        found = nsysprof.attribute(report).trace
        plain = choose_ranges(nsysprof.read_tables(report), "nvtx")
    assert sorted(found.range_names[code].text for code in found.ranges.name.tolist()) == ["MPI_Wait", "compute"]
    assert len(found.processes) == len(plain.processes) + 1
    devices = [[int(each.processes[device.process]) for device in each.devices] for each in (found, plain)]
    assert devices[0] == devices[1]


def test_an_unknown_source_is_refused_before_anything_is_read() -> None:
    """The message names it, and the hint what there is."""
    with pytest.raises(nsysprof.NsysprofError, match="unknown ranges: 'mip'") as error:
        read_sources("nvtx,mip")
    assert "nvtx,mpi,openacc,ops,modules,found" in (error.value.hint or "")
