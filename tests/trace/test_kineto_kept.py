"""What is read of made-up traces of PyTorch beside ranges and GPU ops, spoiled ones too, is what it was."""

import random
from pathlib import Path

import pytest

import nsysprof
from tests.kit.kept import hold
from tests.kit.kineto import collective, trace_text
from tests.kit.mutations import _by_events, some_trace

OF_TRACE = ("op_details", "collectives", "autograd", "operator_calls", "dependencies", "host_activity")
OF_FILE = ("memory", "grids", "call_list", "steps", "job")


@pytest.mark.parametrize("seed", range(10))
def test_numbers_are_as_they_were(tmp_path: Path, seed: int) -> None:
    """Dependencies, what the host did, operators, collectives, memory, grids; and how many events had faults."""
    rng = random.Random(seed)
    events = some_trace(rng) + collective("allreduce", (1, 2), (50, 90), 7001, elements=3 * seed, dtype="BFloat16")
    if seed % 2:
        _by_events(rng, events)
    path = tmp_path / "t.json"
    path.write_text(trace_text(events, cuda_driver_version=12040 + seed), encoding="utf-8")
    with nsysprof.open_report(path) as report:
        attribution = nsysprof.attribute(report, ranges="ops" if seed % 3 else "auto")
        trace, reader = attribution.trace, report.reader
        columns = [trace.ranges, trace.launches, trace.ops, trace.copies, trace.op_gpu, trace.op_process]
        read = [getattr(reader, name)(trace) for name in OF_TRACE], [getattr(reader, name)() for name in OF_FILE]
        hold(__file__, f"kineto {seed}", [columns, read, report.about, len(trace.warnings)])
