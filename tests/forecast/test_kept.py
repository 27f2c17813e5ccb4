"""Numbers of forecasts: of each change, alone and with others, to programs that launch, copy, wait and allocate."""

import random
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nsysprof
from nsysprof.forecast import forecast as forecasts
from nsysprof.forecast import page
from nsysprof.forecast.charts import overview, plan_forecast
from nsysprof.forecast.files import forecast_document
from nsysprof.forecast.forecast import MAX_OVERLAP, MIN_BLOCKS, PUBLISHED
from nsysprof.forecast.path import PARTS, PathParts
from nsysprof.forecast.profiler import _best_cost
from nsysprof.forecast.text import change_words, facts_of, forecast_sentence, forecast_text, parts_table
from nsysprof.waits.replay import replay
from tests.conftest import MakeTrace
from tests.kit.kept import hold
from tests.kit.program import MS, US, Program
from tests.kit.random_waits import random_waits
from tests.kit.reports import BLOCK, TRACES, TWO
from tests.kit.trace import Item

RANK, TILED, LOADER = (
    TRACES.parent / f"{name}.sqlite"
    for name in ("analysis/two-ranks/rank_0", "analysis/tiled-attention/tiled", "docs/gallery/loader")
)
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


SHIPPED: dict[str, tuple[Path, str | None, dict[str, Any]]] = {
    "graph": (BLOCK, "RUN::math::S1024/iter*", {"graph": ["backward"]}),
    "scale": (BLOCK, "RUN::math::S1024/iter*", {"scale": ["*gemm*=0.7"]}),
    "cause": (BLOCK, "RUN::math::S1024/iter*", {"remove": ["code in backward"]}),
    "ranks": (RANK, None, {"scale": ["*nccl*=0.5"], "delay": ["*=20us"]}),
    "processes": (TWO, None, {"remove": ["launch*", "code*"]}),
    "loader": (LOADER, None, {"remove_code": ["*"]}),
    "other paths": (TILED, None, {"set": ["*tiled*=1us"]}),
}
STEPS: tuple[list[int], ...] = [1], [1, 2], [3, 3, 4], [0]
ODD: list[dict[str, Any]] = [{"scale": ["*=0.5"]}, {"delay": ["*=5us"]}, {"graph": ["step*"]}, {"remove": ["code*"]}]


@pytest.fixture(autouse=True)
def fixed_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of earlier forecasts widens intervals, and changes with each study."""
    record = {"graph": (0.01, 0.12, 0.1, 17), "delay": (0.02, 0.09, 0.07, 8), "remove": (0.04, 0.6, 0.5, 5)}
    monkeypatch.setattr(forecasts, "PUBLISHED", record)
    monkeypatch.setattr(page, "answer_page", lambda attribution, *parts, basis: (*parts, basis))


def held(path: Path, case: str, select: str | None, **changes: Any) -> None:
    """Whether the document, each step, the chart and the numbers in all texts of a forecast are as they were."""
    with nsysprof.open_report(path) as report:
        try:
            answer = nsysprof.forecast(nsysprof.attribute(report), select, **changes)
        except nsysprof.NsysprofError as error:
            return hold(__file__, case, [error.exit_code, error.message])
        texts = [forecast_text(answer, full=full, markdown=not full) for full in (True, False)]
        views = plan_forecast(answer), page.forecast_page(answer), [*overview(answer).details()], texts
        overlap = forecasts._overlap(answer.case, replay(answer.case.program.network))
        hold(__file__, case, [forecast_document(answer), answer.base, answer.forecast, answer.starts, views, overlap])


@pytest.mark.parametrize("case", CHANGES)
def test_numbers_are_as_they_were(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Of the program as it was recorded."""
    path = trace(*program())
    monkeypatch.chdir(path.parent)
    held(Path(path.name), case, "step", as_profiled=True, **CHANGES[case])


@pytest.mark.parametrize("case", SHIPPED)
def test_numbers_of_shipped_reports_are_as_they_were(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Those with a record beside them as they are without a profiler."""
    path, select, changes = SHIPPED[case]
    monkeypatch.chdir(path.parent)
    held(Path(path.name), f"plain {case}", select, **changes)


@pytest.mark.parametrize("change", range(len(ODD)))
@pytest.mark.parametrize("seed", [22, 51, 55, 85, 99, 115, 123])
def test_odd_programs_are_answered_or_refused_as_they_were(
    trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, seed: int, change: int
) -> None:
    """Streams, threads, processes and GPUs that wait for one another, some ops without a launch."""
    path = trace(*random_waits(seed))
    monkeypatch.chdir(path.parent)
    held(Path(path.name), f"odd {seed} {change}", None, **ODD[change])


def test_words_of_any_outcome_are_as_they_were(trace: MakeTrace) -> None:
    """Sentences, facts, tables and charts of gains, losses and no change, of one step or several, of odd parts."""
    with nsysprof.open_report(trace(*program())) as report:
        answer = nsysprof.forecast(nsysprof.attribute(report), "step", as_profiled=True, scale=["gemm=0.5"])
    rng, said = random.Random(5), []
    for _ in range(240):
        base = rng.choice((90, 7_000, 10**4, 10**5, 10**6, 10**9)) * np.array(rng.choice(STEPS), np.int64)
        new = (base * rng.choice((0, 0.1, 0.4, 0.9, 0.999, 0.9995, 1, 1.0004, 1.3, 3))).astype(np.int64)
        middle = float(np.median(new))
        before, after = (_parts(rng, int(np.median(each) * rng.choice((1, 1, 1, 0.3)))) for each in (base, new))
        paths = [(f"path {at}", at % 2, 1e6, 1e6 * rng.choice((1, 2))) for at in range(rng.choice((0, 1, 9, 12)))]
        removed = {"remove": ["copy"]} if rng.random() < 0.3 else {}
        changed: dict[str, Any] = {
            **{"base": base, "forecast": new, "before": before, "after": after, "others": tuple(paths)},
            **{"low_ns": middle * rng.choice((1, 0.9)), "high_ns": middle * rng.choice((1, 1.1, 1.7))},
            **{"level": rng.choice((0, 0.95)), "widened": rng.choice((0, 0.12)), "question": removed},
            "per_call_ns": rng.choice((None, -300.0, 0.0, 4e6)),
        }
        case = replace(answer, **changed)
        words = change_words(case)
        said.append(
            [words, words[-4:], forecast_sentence(case), facts_of(case), parts_table(case), plan_forecast(case)]
        )
    hold(__file__, "words", said)


def _parts(rng: random.Random, total: int) -> PathParts:
    """The parts of a critical path of that length, some of which are 0."""
    cuts = sorted(rng.choice((0, total, rng.randint(0, total))) for _ in range(len(PARTS) - 1))
    return PathParts(tuple(b - a for a, b in pairwise((0, *cuts, total))))


def test_published_errors_and_costs_of_recording_are_as_they_were() -> None:
    """Of each kind of change; and of calls whose steps get shorter by a line, or not by one, or hardly."""
    hold(__file__, "published", [PUBLISHED, [MAX_OVERLAP, MIN_BLOCKS]])

    def tries(at: int, by: float, to: int) -> list[int]:
        asked: list[int] = []  # each is a replay

        @cache
        def missed(cost: int) -> float:
            asked.append(cost)
            return float(((at - cost) / by) ** to)

        return [_best_cost(missed), *asked]

    ways = ((1e4, 1), (1e6, 1), (5e6, 1), (1e5, 3))
    costs = [tries(at, *way) for at in range(0, 24_001, 1_500) for way in ways]
    hold(__file__, "costs", costs)
