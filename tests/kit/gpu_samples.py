"""Samples of GPU metrics as rows for the trace builder: names, ids and tables as nsys 2025 writes them, or 2022."""

import json
from collections.abc import Mapping, Sequence

from tests.kit.trace import Row

STEP_NS = 100_000
NEW = {
    "clock_hz": "GPC Clock Frequency [MHz]",
    "sm_active": "SMs Active [Throughput %]",
    "dram_read": "DRAM Read Bandwidth [Throughput %]",
    "dram_write": "DRAM Write Bandwidth [Throughput %]",
}
OLD = {
    "clock_hz": "GPC Clock Frequency",
    "sm_active": "SM Active",
    "dram_read": "DRAM Read Throughput",
    "dram_write": "DRAM Write Throughput",
}


def type_id(gpu: int) -> int:
    """The typeId of a GPU's samples."""
    return (1 << 48) + (1 << 32) + gpu


def gpu_samples(
    values: Mapping[str, Sequence[int]],
    *,
    gpu: int = 0,
    times: Sequence[int] | None = None,
    first_id: int = 0,
    names: Mapping[str, str] = NEW,
) -> tuple[Row, ...]:
    """Rows of GPU_METRICS and of the names in TARGET_INFO_GPU_METRICS; a sample every 100 µs from 0 on."""
    count = len(next(iter(values.values())))
    times = [STEP_NS * at for at in range(count)] if times is None else times
    kind = type_id(gpu)
    named = [
        Row(
            "TARGET_INFO_GPU_METRICS",
            {"typeId": kind, "sourceId": kind, "typeName": "", "metricId": id_, "metricName": names.get(name, name)},
        )
        for id_, name in enumerate(values, first_id)
    ]
    return (
        *named,
        *(
            Row("GPU_METRICS", {"timestamp": time, "typeId": kind, "metricId": id_, "value": value})
            for at, time in enumerate(times)
            for id_, value in enumerate((each[at] for each in values.values()), first_id)
        ),
    )


def gpu_events(values: Mapping[str, Sequence[int]], *, gpu: int = 0) -> tuple[Row, ...]:
    """The same as generic events, whose data is JSON."""
    kind = type_id(gpu)
    fields = {"Name": "", "Fields": [{"Name": OLD[name]} for name in values]}
    count = len(next(iter(values.values())))
    return (
        Row("GENERIC_EVENT_TYPES", {"typeId": kind, "sourceId": kind, "data": json.dumps(fields)}),
        *(
            Row(
                "GENERIC_EVENTS",
                {
                    "rawTimestamp": STEP_NS * at,
                    "timestamp": None,
                    "typeId": kind,
                    "data": json.dumps({OLD[name]: str(each[at]) for name, each in values.items()}),
                },
            )
            for at in range(count)
        ),
    )
