"""Runs of one program over time: tiny reports whose steps take as long as a test says, and the same as data."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nsysprof.history.run import Run, Timed
from tests.kit.trace import Items, Range, launch_kernel, write

STEPS = 6
_KERNELS = ("gemm", "softmax_kernel", "vectorized_elementwise_kernel")
MACHINE = {"GPU": "NVIDIA H200", "GPUs in use": "1", "processes": "1", "recorder": "nsys", "driver": "580.1"}


def write_run(
    path: Path,
    step: int,
    code: int = 0,
    *,
    started: str | None = None,
    record: Mapping[str, Any] | None = None,
    **how: Any,
) -> Path:
    """A report of `STEPS` steps whose three kernels take ``step`` ns together, behind ``code`` ns of CPU time.

    ``started`` and ``record`` go into a run record beside it.
    """
    items: list[Items] = []
    at, each = 1_000, step // len(_KERNELS)
    for number in range(STEPS):
        begin = at + code
        items.append(Range(f"step{number}", at, begin + 60))
        for place, name in enumerate(_KERNELS):
            host = (begin + 10 * place, begin + 10 * place + 5)
            op = (begin + 60 + place * each, begin + 60 + (place + 1) * each)
            items.append(launch_kernel(name, host, op, id=len(_KERNELS) * number + place + 1))
        at = begin + 60 + len(_KERNELS) * each + 100
    if started or record:
        text = {"schema": "nsysprof-run/1", "started": started, **(record or {})}
        path.with_suffix(".json").write_text(json.dumps(text))
    return write(path, items, **how)


def made_run(number: int, step_ns: float, machine: Mapping[str, str] | None = None, **more: Any) -> Run:
    """A run as data, started a day after the one before; two thirds of a step are kernels, the rest is CPU time."""
    ns, third = round(step_ns), round(step_ns / 9)
    ledger = {"gemm kernels": 2 * third, "softmax kernels": 2 * third, "elementwise kernels": 2 * third}
    ledger |= more.pop("ledger", {"CPU time in data": ns - 6 * third})
    timed = Timed("step*", False, 20, ns, None, None, sum(ledger.values()), round(0.9 * ns), 3.0, ledger)
    fields: dict[str, Any] = {
        "file": f"run_{number}.sqlite",
        "started": 1_700_000_000.0 + 86_400 * number,
        "commit": "",
        "kernels": {"gemm": (60, 60 * third, 60)},
        "memory_bytes": None,
    }
    return Run(machine=MACHINE | dict(machine or {}), timed=(timed,), **fields | more)


def made_runs(times: Sequence[float]) -> list[Run]:
    """Runs as data whose steps take these times in ns."""
    return [made_run(number, time) for number, time in enumerate(times)]
