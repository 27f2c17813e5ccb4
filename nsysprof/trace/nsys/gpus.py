"""The GPUs of a report, and which of them each CUDA device of each process is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nsysprof.trace.nsys.properties import known, named_rows, system_properties, whole
from nsysprof.trace.report import Gpu

if TYPE_CHECKING:
    from nsysprof.trace.nsys.columns import Source

__all__ = ["GpuOfDevice", "devices", "read_gpus"]

NOT_CUDA = re.compile(r"Microsoft Basic|\bIntel\b|\bAMD\b|\bRadeon\b|\bllvmpipe\b", re.IGNORECASE)
# What describes a GPU: the column of TARGET_INFO_GPU, and of TARGET_INFO_CUDA_GPU before 2021.2.
COLUMNS = (
    ("id", "deviceId"),
    ("name", "name"),
    ("smCount", "numMultiprocessors"),
    ("totalMemory", "globalMemorySize"),
    ("memoryBandwidth", "globalMemoryBandwidth"),
    ("clockRate", "coreClockRate"),
    ("l2CacheSize", "l2CacheSize"),
    ("computeMajor", "computeCapabilityMajor"),
    ("computeMinor", "computeCapabilityMinor"),
    ("chipName", "chipName"),
    ("uuid", "uuid"),
)


def read_gpus(source: Source) -> tuple[Gpu, ...]:
    """The GPUs in the order of their ids, from whichever table the exporter wrote; empty without one."""
    both = list(dict.fromkeys(name for pair in COLUMNS for name in pair))
    rows: list[dict[str, Any]] = []
    for table in ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU"):
        rows = rows or [dict(zip(both, row, strict=True)) for row in named_rows(source, table, *both)]
    found: dict[int, Gpu] = {}
    for place, row in enumerate(rows or _listed(system_properties(source).get("GpuInfo"))):
        gpu = _gpu(
            [row.get(new) if row.get(new) is not None else row.get(old) for new, old in COLUMNS], place
        )
        found.setdefault(gpu.id, gpu)
    return tuple(gpu for _, gpu in sorted(found.items()))


def _listed(info: str | None) -> list[dict[str, Any]]:
    """The GPUs of the system property ``GpuInfo`` (JSON since 2023), for reports without a table of them."""
    try:
        gpus = json.loads(info or "")["Gpus"]
        return [{name[:1].lower() + name[1:]: value for name, value in gpu.items()} for gpu in gpus]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _gpu(values: list[Any], place: int) -> Gpu:
    number, name, *sizes, chip, uuid = values
    number = whole(number)
    sms, memory, bandwidth, clock, l2, major, minor = map(_count, sizes)
    # before 2022 some rates were kHz and kB/s; no GPU is below 10 MHz or 10 GB/s
    clock = clock * 1000 if clock and clock < 10**7 else clock
    bandwidth = bandwidth * 1000 if bandwidth and bandwidth < 10**10 else bandwidth
    told = sizes[0] is not None or sizes[5] is not None  # an older table says nothing: then it is one
    named = str(name or "unknown GPU")
    return Gpu(
        id=place if number is None else number,
        name=named,
        sm_count=sms,
        memory_bytes=memory,
        bandwidth_bytes_per_s=bandwidth,
        clock_hz=clock,
        compute_capability=(major, minor or 0) if major else None,
        l2_bytes=l2,
        chip=known(chip),
        uuid=known(uuid),
        is_cuda=bool(sms or major) if told else not NOT_CUDA.search(named),
    )


def _count(value: object) -> int | None:
    """A positive whole number, whichever way it is stored; None for what says nothing."""
    number = whole(value)
    return number if number and number > 0 else None


class GpuOfDevice(Mapping[tuple[int, int], int]):
    """(process, CUDA device id) → index into `About.gpus`; the process is a globalPid or a plain pid.

    CUDA numbers devices per process, so one id may mean different GPUs in two processes. A process that the
    report does not list gets what the listed ones agree on.
    """

    def __init__(self, by_process: Mapping[tuple[int, int], int], by_device: Mapping[int, int]) -> None:
        self._by_process = dict(by_process)
        self._by_device = dict(by_device)

    def __getitem__(self, key: tuple[int, int]) -> int:
        process, device = key
        pid = (process >> 24) & 0xFFFFFF if process >> 24 else process
        found = self._by_process.get((pid, device))
        return self._by_device[device] if found is None else found

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._by_process)

    def __len__(self) -> int:
        return len(self._by_process)


def devices(source: Source) -> GpuOfDevice:
    """Which GPU each CUDA device of each process is.

    From TARGET_INFO_CUDA_DEVICE (pid, cudaId → gpuId, since 2025) where it lists the device, else the GPU
    whose id is the device's, else the n-th GPU that CUDA can use. ``cuDevice`` of TARGET_INFO_GPU is
    unreliable.
    """
    gpus = read_gpus(source)
    index = {gpu.id: place for place, gpu in enumerate(gpus)}
    by_process: dict[tuple[int, int], int] = {}
    agreed: dict[int, set[int]] = {}
    for row in named_rows(source, "TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId"):
        pid, device, gpu_id = map(whole, row)
        if gpu_id in index and device is not None:
            by_process[pid or 0, device] = index[gpu_id]
            agreed.setdefault(device, set()).add(index[gpu_id])
    usable = [(gpu.id, place) for place, gpu in enumerate(gpus) if gpu.is_cuda]
    by_device = {rank: place for rank, (_, place) in enumerate(usable)} | dict(usable)
    for device, places in agreed.items():
        by_device.pop(device, None)
        if len(places) == 1:
            by_device[device] = places.pop()
    return GpuOfDevice(by_process, by_device)
