"""Numbers of forecasts: of each change, alone and with others, to programs that launch, copy, wait and allocate."""

from pathlib import Path
from typing import Any

import pytest

import nsysprof
from nsysprof.forecast import forecast as forecasts
from nsysprof.forecast.charts import plan_forecast
from nsysprof.forecast.files import forecast_document
from tests.conftest import MakeTrace
from tests.kit.kept import hold
from tests.kit.program import MS, US, Program
from tests.kit.reports import BLOCK
from tests.kit.trace import Item

CHANGES: dict[str, dict[str, Any]] = {
    "scale": {"scale": ["gemm=0.5"]},
    "set": {"set": ["norm=10us"]},
    "graph": {"graph": ["layers"]},
    "fuse": {"fuse": ["layers"]},
    "drop-sync": {"drop_sync": ["loss"]},
    "async": {"async_copies": True, "delay": ["loss=50us"]},
    "pinned": {"pinned": True},
    "calls": {"remove_calls": ["cudaMalloc"], "gpu_delay": ["layers=30us"]},
    "code": {"remove_code": ["data"], "scale": ["gemm=1.5"]},
    "copies": {"remove": ["pageable copies to the GPU of 4.00 MiB in data"]},
}


def program() -> list[Item]:
    """Steps of all that changes are for, a little longer from one to the next."""
    made = Program()
    for step in range(8):
        with made.range("step"):
            with made.range("data"):
                made.code((80 + 7 * step) * US)
                made.copy(1, 4 << 20, 900 * US, host=0, blocks=True)
                made.call("cudaMalloc", 60 * US)
            with made.range("layers"):
                for number in range(12):
                    made.code((9 + step) * US)
                    made.launch("norm" if number % 3 else "gemm", (15 + 10 * (number % 4)) * US)
                made.stream_waits(made.record(7), 9)
                made.launch("side", 200 * US, stream=9)
                made.stream_waits(made.record(9), 7)
            with made.range("loss"):
                made.copy(2, 4, 2 * US)
                made.wait()
        made.code(MS // 5)
    return made.items


@pytest.fixture(autouse=True)
def nothing_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of earlier forecasts widens intervals, and changes with each study."""
    monkeypatch.setattr(forecasts, "PUBLISHED", {})


def held(path: Path, case: str, select: str, **changes: Any) -> None:
    """Whether the document, each step and the chart of a forecast are as they were."""
    with nsysprof.open_report(path) as report:
        answer = nsysprof.forecast(nsysprof.attribute(report), select, **changes)
        document = forecast_document(answer)
        hold(__file__, case, [document, answer.base, answer.forecast, answer.starts, plan_forecast(answer)])


@pytest.mark.parametrize("case", CHANGES)
def test_numbers_are_as_they_were(trace: MakeTrace, case: str) -> None:
    """Of the program as it was recorded."""
    held(trace(*program()), case, "step", as_profiled=True, **CHANGES[case])


@pytest.mark.parametrize("case", ["graph", "scale"])
def test_numbers_without_a_profiler_are_as_they_were(case: str) -> None:
    """Of a shipped report, whose record says how long its steps are then."""
    change = {"graph": ["backward"]} if case == "graph" else {"scale": ["*gemm*=0.7"]}
    held(BLOCK, f"plain {case}", "RUN::math::S1024/iter*", **change)
