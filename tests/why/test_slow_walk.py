"""The account of waits equals a slow one in plain Python, piece by piece."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.kernels.classify import kinds_of
from nsysprof.trace.report import open_report
from nsysprof.waits.host import HostTime, host_time
from nsysprof.waits.ranges import choose_windows, pick_windows
from nsysprof.why.why import Why, account_for
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.random_waits import random_waits
from tests.kit.reports import TRACES
from tests.kit.slow_walk import Walk

_COPY = r" \([^)]*\)(?= (in|outside|on|between) |$)"
SHIPPED = sorted([*TRACES.glob("*.sqlite"), *(TRACES.parent / "analysis").glob("*/*.sqlite")])


def account(attribution: Attribution, select: str | None, skip: int | None) -> Why:
    """`why` without what it forecasts and finds."""
    kinds = kinds_of(attribution.trace)
    chosen = choose_windows(attribution, kinds.communication, select, DEFAULT_MERGE)
    rows, _ = pick_windows(attribution.launched, chosen.windows, None, skip)
    return account_for(attribution, chosen.windows, chosen.texts, kinds, level=chosen.level, rows=rows)


def pieces(
    attribution: Attribution, select: str | None, skip: int | None, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[object, ...]]:
    """What the package finds, a row per piece in the columns of `slow_walk.Piece`; GPUs by the ops that ran there."""
    threads: list[int] = []

    def noted(*arguments: Any) -> HostTime:
        time = host_time(*arguments)
        threads.extend(attribution.trace.threads[time.thread].tolist())
        return time

    answer = account(attribution, select, skip)
    with monkeypatch.context() as patch:
        patch.setattr(import_module("nsysprof.waits.culprits"), "host_time", noted)
        waits = answer.waits
    windows = answer.windows
    gpu = windows["gpu"].to_numpy()[waits["window"]]
    row = windows["range"].to_numpy()[waits["window"]]
    texts = [waits[name].astype(str).tolist() for name in ("cause", "activity", "culprit", "range", "exposed_by")]
    out = []
    by = iter(threads)
    numbers = (gpu, row, waits["start_ns"], waits["end_ns"], waits["op"])
    for place, at, start, end, op, cause, activity, culprit, where, exposed in zip(
        *(column.tolist() for column in numbers), *texts, strict=True
    ):
        by_host = cause in ("host", "profiler")
        culprit = re.sub(_COPY, "", culprit) if by_host else ""
        exposed = re.sub(_COPY, "", exposed)
        thread = next(by) if by_host else 0
        out.append((place, at, start, end, cause, activity, op, culprit, where, exposed, thread))
    return sorted(out)


def check(path: Path, select: str | None, monkeypatch: pytest.MonkeyPatch, slow: Walk, skip: int | None = None) -> int:
    """Compare the two; GPUs are called by the number that the package gives them. Without ``skip`` no warm-up."""
    chosen = slow.repeated() if select is None else slow.outermost()
    with open_report(path) as report:
        attribution = attribute(report, ranges="nvtx")
        found = pieces(attribution, select, skip, monkeypatch)
    gpus = attribution.trace.op_gpu.tolist()
    number = {op.gpu: gpu for op, gpu in zip(slow.ops, gpus, strict=True) if gpu >= 0}
    expected = sorted((number[piece.gpu], *piece[1:]) for piece in slow.account(chosen, skip == 0))
    differ = sorted(set(found) ^ set(expected), key=lambda piece: piece[:4])
    assert not differ, [("found" if piece in set(found) else "expected", *piece) for piece in differ[:12]]
    assert found == expected
    return len(found)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_reports(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the steps that are chosen, and of all outermost ranges."""
    slow = Walk(path)
    assert check(path, None, monkeypatch, slow)
    assert check(path, "*", monkeypatch, slow)


@pytest.mark.parametrize("seed", range(0, 240, 24))
def test_random_reports(seed: int, trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of programs whose streams wait for one another, and of rows that no program leaves."""
    for number in range(seed, seed + 24):
        path = trace(*(random_report(number) if number % 4 == 3 else random_waits(number)))
        slow = Walk(path)
        outermost = number % 2 and slow.attribution.ranges
        check(path, "*" if outermost else None, monkeypatch, slow, None if number % 3 else 0)
