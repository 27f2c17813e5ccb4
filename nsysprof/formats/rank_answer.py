"""Define the result of a worker for one report of a fleet: small to send, and kept until all workers are done."""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np

from nsysprof.core.arrays import Array, Ints, Ints32
from nsysprof.core.files import open_regular, whole_file

FORMAT = 6
# The path that stands for everything that a rank did.
WHOLE = "(whole report)"
# The parts that add up to the time of a window on a GPU; all communication, and what of the exposed the next compute
# depended on, which are no parts of that sum.
COMPUTE, EXPOSED, COPIES = "compute", "exposed", "copies"
HOST, SYNC, QUEUE = IDLE_PARTS = ("idle_host", "idle_sync", "idle_queue")
PARTS = (COMPUTE, EXPOSED, COPIES, *IDLE_PARTS)
COMMUNICATION = "communication"
BLOCKING = "blocking"
COLUMNS = ("instances", "cpu", "span", "busy", "sum", COMMUNICATION, *PARTS, BLOCKING)


@dataclass(frozen=True)
class RankPart:
    """The GPU work of one process.

    ``paths``: merged paths, outermost first, preceded by `WHOLE`. A row is an iteration of a path: ``path`` int32;
    ``label`` int32 into ``labels`` (``step12``; ``#3`` is the fourth instance of an unnumbered range; empty: all
    instances together); ``first_ns`` and ``last_ns`` of its ops; and ``columns`` as in `COLUMNS` (int64, times in ns).
    Columns are summed over the instances of the row, and the columns of `PARTS` also over GPUs. Every path has a row
    with an empty label for its totals.

    ``iteration_path`` is the path of the iterations. Collectives sorted by start: ``collective`` int32 into
    ``collective_names``, ``communicator`` int32 into ``communicators``, ``collective_start``, ``collective_end``;
    ``blocking_start`` and ``blocking_end`` bound the pieces of collectives on which the next compute depended;
    ``blocking_of`` (int32) is the collective of each piece. The columns of collectives are empty if the trace has no
    such data; ``lacks`` then names the missing data. ``timeline_ns`` (start, end) is divided into equal bins:
    ``compute_bins`` has the time of compute, ``exposed_bins`` the time of communication without compute.
    """

    pid: int
    process: str
    gpus: tuple[str, ...]
    gpu_ids: tuple[int, ...]
    iteration_path: str
    paths: tuple[str, ...]
    labels: tuple[str, ...]
    path: Ints32
    label: Ints32
    first_ns: Ints
    last_ns: Ints
    columns: Mapping[str, Ints]
    collective_names: tuple[str, ...]
    collective: Ints32
    communicators: tuple[str, ...]
    communicator: Ints32
    collective_start: Ints
    collective_end: Ints
    blocking_of: Ints32
    blocking_start: Ints
    blocking_end: Ints
    lacks: tuple[str, ...]
    timeline_ns: tuple[int, int]
    compute_bins: Ints
    exposed_bins: Ints
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class ReportAnswer:
    """A `RankPart` for each process with GPU work in a report, and the data that identify the ranks of these processes.

    ``start_utc_ns`` is the UTC time at which the clock of the report reads 0, None if not recorded; ``seconds`` and
    ``peak_bytes`` are the cost of the answer: wall time, and the peak memory of the worker so far.
    """

    report: str
    size_bytes: int
    nsys_version: str | None
    start_utc_ns: int | None
    duration_ns: int | None
    host: str | None
    record_rank: int | None
    environment_rank: int | None
    parts: tuple[RankPart, ...]
    warnings: tuple[str, ...]
    seconds: float
    peak_bytes: int


def write_answer(answer: ReportAnswer, path: Path) -> None:
    """Write an answer atomically as an ``.npz`` file (arrays, and JSON that refers to these arrays)."""
    arrays: dict[str, Any] = {}

    def place(values: Array) -> str:
        arrays[name := f"array{len(arrays)}"] = values
        return name

    # json, as names of files and ranges may be no UTF-8
    text = json.dumps(msgspec.to_builtins(answer, enc_hook=place))
    with whole_file(path) as part, part.open("wb") as file:
        np.savez(file, head=np.frombuffer(text.encode(), np.uint8), **arrays)


def read_answer(path: Path) -> ReportAnswer | None:
    """Read the answer in a file; returns None if there is no answer, or if it is damaged."""
    try:
        with open_regular(path) as file, np.load(file, allow_pickle=False) as kept:
            if sum(each.file_size for each in kept.zip.infolist()) > path.stat().st_size:
                raise ValueError("compressed content may have any size")

            def array(kind: Any, name: str) -> Array:
                values: Array = kept[name]
                if values.dtype != get_args(get_args(kind)[1])[0] or values.ndim != 1:
                    raise ValueError(f"{name} is of another type")
                return values

            return msgspec.convert(json.loads(kept["head"].tobytes()), ReportAnswer, dec_hook=array)
    except (
        *(OSError, ValueError, LookupError, AttributeError, TypeError, EOFError, MemoryError, RecursionError),
        zipfile.BadZipFile,
    ):
        return None
