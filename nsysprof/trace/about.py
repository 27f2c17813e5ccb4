"""Report metadata: versions, GPUs, the command, and problems that the recorder noted."""

from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["warning", "error"]
Generation = Literal["none", "EXPORT_META_DATA", "META_DATA_EXPORT"]


@dataclass(frozen=True)
class Gpu:
    """One GPU of the machine; fields are None if the report does not record them.

    ``clock_hz`` is the highest SM clock; ``bandwidth_bytes_per_s`` is the bandwidth of the memory. ``is_cuda`` is False
    for a GPU that CUDA cannot use, such as an integrated GPU or the "Microsoft Basic Render Driver" that Windows lists.
    """

    id: int
    name: str
    sm_count: int | None = None
    memory_bytes: int | None = None
    bandwidth_bytes_per_s: int | None = None
    clock_hz: int | None = None
    compute_capability: tuple[int, int] | None = None
    l2_bytes: int | None = None
    chip: str | None = None
    uuid: str | None = None
    is_cuda: bool = True


@dataclass(frozen=True)
class Diagnostic:
    """A warning or error of nsys, with the recorded ``count`` and the part of nsys that raised it."""

    severity: Severity
    source: str
    text: str
    count: int


@dataclass(frozen=True)
class About:
    """The metadata of a report; fields are None or empty if not recorded.

    ``nsys_version`` is the version that recorded the report (``recorder_version``) if known, otherwise the version that
    exported the report; ``processes`` maps globalPid to a name; ``options`` are the options of the profiler, if
    recorded; ``warnings`` are nsysprof's own warnings about this metadata.
    """

    nsys_version: str | None = None
    recorder_version: str | None = None
    export_version: str | None = None
    schema_version: str | None = None
    generation: Generation = "none"
    duration_ns: int | None = None
    start_utc: str | None = None
    gpus: tuple[Gpu, ...] = ()
    driver_version: str | None = None
    cuda_version: str | None = None
    os: str | None = None
    cpu: str | None = None
    command: str | None = None
    processes: dict[int, str] = field(default_factory=dict)
    diagnostics: tuple[Diagnostic, ...] = ()
    options: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def cuda_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that CUDA can use."""
        return tuple(gpu for gpu in self.gpus if gpu.is_cuda)
