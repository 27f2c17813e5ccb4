"""Makes files of hardware counters for tests: a few numbers per kernel become the table and its record."""

import csv
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COLUMNS = (
    *("range", "order", "pid", "kernel", "grid", "block", "duration_ns"),
    *("dram_read_bytes", "dram_write_bytes", "l2_bytes", "tensor_instructions", "tensor_flops"),
    *("fp32_flops", "fp16_flops", "fp64_flops"),
    *("occupancy_percent", "dram_percent", "sm_percent", "l2_percent"),
)
H200: dict[str, Any] = {"gpus": [{"name": "NVIDIA H200"}], "driver": "580"}


@dataclass(frozen=True)
class Counted:
    """One launch in a range; ``more`` fills any other column."""

    range: str
    kernel: str
    read: int | None = None
    write: int | None = None
    grid: str = "1x1x1"
    pid: int = 1
    more: dict[str, Any] = field(default_factory=dict)


def write_counters(
    path: Path, rows: Sequence[Counted], *, environment: dict[str, Any] | None = None, **record: Any
) -> Path:
    """Write a table and the record beside it, that of an H200 unless told; returns the path of the table."""
    seen: dict[tuple[str, int], int] = {}
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        for row in rows:
            order = seen.get((row.range, row.pid), 0)
            seen[row.range, row.pid] = order + 1
            cells = {"dram_read_bytes": row.read, "dram_write_bytes": row.write, **row.more}
            named = {"range": row.range, "order": order, "pid": row.pid, "kernel": row.kernel, "grid": row.grid}
            table.writerow({**named, "block": "128x1x1", **cells})
    document = {
        "schema": "nsysprof-counters/1",
        "csv": {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
        "environment": H200 if environment is None else environment,
        **record,
    }
    path.with_suffix(".json").write_text(json.dumps(document), encoding="utf-8")
    return path
