"""Samples of GPU metrics: found by name, on a clock of their own, and unknown where they cannot be."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.trace.details import GpuSamples
from nsysprof.trace.report import open_report, read_tables
from tests.conftest import MakeTrace
from tests.kit.gpu_samples import OLD, STEP_NS, gpu_events, gpu_samples, type_id
from tests.kit.trace import Gpu, Row, launch_kernel

KERNEL = launch_kernel("k", (1, 2), (3, 4), id=9999)
VALUES = {"clock_hz": [1_980_000_000] * 5, "sm_active": [0, 10, 20, 30, 40], "dram_read": [5, 4, 3, 2, 1]}


def samples_of(path: Path) -> dict[int, GpuSamples]:
    """What the trace of a report offers."""
    with open_report(path) as report:
        return read_tables(report).samples


def test_metrics_are_found_by_name_whatever_their_ids(trace: MakeTrace) -> None:
    """Ids, units and the words of names differ between versions of nsys; a metric that nobody reads is left out."""
    new = samples_of(trace(KERNEL, gpu_samples({"Pixel Warps in Flight [Avg]": [7] * 5, **VALUES})))[0]
    old = samples_of(trace(KERNEL, gpu_samples(VALUES, first_id=40, names=OLD)))[0]
    assert set(new.values) == set(VALUES)
    assert new.start.tolist() == [at * STEP_NS for at in range(5)]
    assert new.end.tolist() == [(at + 1) * STEP_NS for at in range(5)]
    for name, values in VALUES.items():
        assert new.values[name].tolist() == old.values[name].tolist() == values
    assert new.notes == old.notes == ()


def test_generic_events_of_older_exports_are_read(trace: MakeTrace) -> None:
    """Their data is JSON with texts for numbers."""
    found = samples_of(trace(KERNEL, gpu_events(VALUES)))[0]
    assert {name: values.tolist() for name, values in found.values.items()} == VALUES


def test_events_of_one_form_are_read_as_their_json_says(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits in names, values of all kinds, other keys and orders, broken texts: what a JSON parser finds in each."""
    random.seed(32)
    names = ["SM Active", "DRAM Read Throughput", "PCIe RX Throughput", "NVLink RX 0", 'L2 "0" Hits', "Caf\u00e9 7"]
    values: list[Any] = ["0", "7", "12", 5, "-3", "", "1.5", "100", None, "1e2", "9" * 25, True, [1, 2], {"a": "3"}]
    rows = []
    for at in range(600):
        usual = at % 300 > 40  # so that a block has several forms
        keys = names if usual else random.sample(names, random.randint(1, 6))
        event = {key: str(random.randint(0, 120)) if usual else random.choice(values) for key in keys}
        text = json.dumps(event, indent=4)[: -2 if at % 50 == 49 else None]
        rows.append(Row("GENERIC_EVENTS", {"rawTimestamp": STEP_NS * at, "typeId": type_id(0), "data": text}))
    path = trace(KERNEL, gpu_events({"sm_active": [1]})[0], *rows)
    found = samples_of(path)[0]
    monkeypatch.setattr("nsysprof.trace.nsys.metrics._MOST_FORMS", 0)
    parsed = samples_of(path)[0]
    assert list(found.values) == ["sm_active", "dram_read", "pcie_rx", "nvlink_rx"]
    assert found.start.tolist() == parsed.start.tolist()
    assert found.notes == parsed.notes
    for name, each in parsed.values.items():
        assert np.array_equal(found.values[name], each, equal_nan=True), name


def test_rows_that_say_nothing_are_left_out(trace: MakeTrace) -> None:
    """A stamp or a value that is NULL, a metric or a type that no name is known for, data that is no JSON."""
    row: dict[str, Any] = {"timestamp": 50_000, "typeId": type_id(0), "metricId": 1, "value": 99}
    odd: list[dict[str, Any]] = [
        {"timestamp": None},
        {"value": None},
        {"metricId": 77},
        {"metricId": -1},
        {"metricId": 300},
        {"typeId": 5},
    ]
    path = trace(KERNEL, gpu_samples(VALUES), *(Row("GPU_METRICS", {**row, **each}) for each in odd))
    found = samples_of(path)[0]
    assert found.start.tolist() == [at * STEP_NS for at in range(5)]
    assert found.values["sm_active"].tolist() == VALUES["sm_active"]
    events = [
        Row("GENERIC_EVENTS", {"rawTimestamp": 7, "timestamp": None, "typeId": type_id(0), "data": data})
        for data in ("{no JSON", "[]", '{"SM Active": "much"}', "1e999", "{}")
    ]
    assert samples_of(trace(KERNEL, gpu_events(VALUES), *events))[0].start.tolist() == found.start.tolist()


def test_nothing_sampled_is_nothing(trace: MakeTrace) -> None:
    """Without names, values cannot be read either."""
    assert samples_of(trace(KERNEL)) == {}
    nameless = [row for row in gpu_samples(VALUES) if row.table == "GPU_METRICS"]
    assert samples_of(trace(KERNEL, *nameless)) == {}


def test_each_gpu_has_samples_of_its_own(trace: MakeTrace) -> None:
    """The low byte of a typeId is the GPU; one of two may have been sampled, at times of its own."""
    other = launch_kernel("k", (1, 2), (3, 4), id=1, device=1)
    path = trace(KERNEL, other, gpu_samples(VALUES, gpu=1, times=[7 + STEP_NS * at for at in range(5)]))
    found = samples_of(path)
    assert list(found) == [1]
    assert found[1].start[0] == 7
    both = samples_of(trace(KERNEL, other, gpu_samples(VALUES), gpu_samples({"sm_active": [1, 2]}, gpu=1)))
    assert both[1].values["sm_active"].tolist() == [1, 2]
    assert both[0].values["sm_active"].tolist() == VALUES["sm_active"]


def test_a_part_of_a_gpu_is_unknown(trace: MakeTrace) -> None:
    """Samples of a MIG instance do not say whose they are."""
    mig = samples_of(trace(KERNEL, Gpu(0, "NVIDIA A100-SXM4-40GB MIG 1g.5gb"), gpu_samples(VALUES)))[0]
    twice = [Row(row.table, {**row.values, "typeId": type_id(256)}) for row in gpu_samples(VALUES)]
    two = samples_of(trace(KERNEL, gpu_samples(VALUES), *twice))[0]
    for found in (mig, two):
        assert found.values == {}
        assert "MIG" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("sm_active", -1), ("sm_active", 101), ("clock_hz", -1_670_273_642), ("clock_hz", 0), ("clock_hz", 4_000_000_000)],
)
def test_a_value_that_cannot_be_is_unknown(trace: MakeTrace, name: str, wrong: int) -> None:
    """Counters wrap, shares pass 100 %, clocks pass what the GPU has: never a number, and a note says so."""
    values = {each: [*some] for each, some in VALUES.items()}
    values[name][2] = wrong
    found = samples_of(trace(KERNEL, gpu_samples(values)))[0]
    assert np.isnan(found.values[name]).tolist() == [False, False, True, False, False]
    assert found.notes == (f"1 value of {name} out of range",)


def test_parts_of_a_link_add_up(trace: MakeTrace) -> None:
    """Metrics of NVLink come in parts: requests and responses, user data and protocol."""
    names = [
        f"NVLink RX {what} {part} Data [Throughput %]"
        for what in ("Requests", "Responses")
        for part in ("User", "Protocol")
    ]
    found = samples_of(trace(KERNEL, gpu_samples({name: [10, 30, 20] for name in names})))[0]
    assert found.values["nvlink_rx"].tolist()[::2] == [40, 80]
    assert np.isnan(found.values["nvlink_rx"][1])  # 120 %


def test_reads_and_writes_share_one_bandwidth(trace: MakeTrace) -> None:
    """Together more than all of it is unknown, as neither is known to be right; rounding alone is not more."""
    values = {"sm_active": [99] * 3, "dram_read": [60, 80, 30], "dram_write": [42, 70, 20]}
    found = samples_of(trace(KERNEL, gpu_samples(values)))[0]
    for name in ("dram_read", "dram_write"):
        assert np.isnan(found.values[name]).tolist() == [False, True, False]
    assert found.notes == ("1 sum of dram_read and dram_write out of range",)


def test_a_gap_in_time_is_unknown(trace: MakeTrace) -> None:
    """What was lost is not what was before it; the clock of an idle GPU may change the time between samples."""
    lost = samples_of(trace(KERNEL, gpu_samples(VALUES, times=[0, 100, 200, 400, 500])))[0]
    assert np.isnan(lost.values["sm_active"]).tolist() == [False, False, True, False, False]
    assert (lost.end - lost.start).tolist() == [100] * 5
    assert lost.notes == ("1 gap in time",)
    slow = samples_of(trace(KERNEL, gpu_samples(VALUES, times=[0, 160, 320, 420, 520])))[0]
    assert slow.notes == ()


def test_rows_in_any_order_are_the_same(trace: MakeTrace) -> None:
    """nsys promises none, and one metric may lack a sample."""
    rows = list(gpu_samples(VALUES))
    random.Random(1).shuffle(rows)
    sorted_, shuffled = (samples_of(trace(KERNEL, *each))[0] for each in (gpu_samples(VALUES), rows))
    for name, values in sorted_.values.items():
        assert np.array_equal(shuffled.values[name], values)
    without = [row for row in rows if (row.values.get("timestamp"), row.values["metricId"]) != (STEP_NS, 1)]
    assert np.isnan(samples_of(trace(KERNEL, *without))[0].values["sm_active"]).tolist() == [False, True, *[False] * 3]
