"""Ceilings are forecasts: what windows get shorter by without the culprit; and bounds where nobody knows."""

import numpy as np
import pytest

import nsysprof
from nsysprof.attribution.paths import read_instances
from nsysprof.why import ceilings
from tests.conftest import MakeTrace
from tests.kit.reports import BLOCK, TWO, attributed
from tests.kit.trace import EventRecord, Items, Range, StreamWait, launch_kernel, launch_memcpy
from tests.why.test_why import why_of


def late_launch(copied: int, unit: int = 1, at: int = 0) -> list[Items]:
    """A kernel that is launched 80 ns late, and waits for a copy of another stream, which ends at ``copied``."""

    def times(*some: int) -> tuple[int, int]:
        first, second = (at + unit * each for each in some)
        return first, second

    return [
        Range("step", *times(0, 200)),
        Range("log", *times(12, 89)),
        launch_kernel("k", times(0, 10), times(12, 20), id=at + 1),
        launch_memcpy(times(10, 11), times(12, copied), id=at + 2, stream=9),
        EventRecord(9, at + 11 * unit, id=at + 3),
        StreamWait(7, at + 90 * unit, id=at + 4),
        launch_kernel("k", times(98, 100), times(102, 200), id=at + 5),
    ]


@pytest.mark.parametrize(("copied", "least", "most"), [(20, 69, 69), (80, 10, 22)])
def test_a_ceiling_is_what_the_window_gets_shorter_by(trace: MakeTrace, copied: int, least: int, most: int) -> None:
    """Code of 69 ns is in the way; without it the copy is, as long as that runs, and the window gains what is left."""
    rows = why_of(trace(*late_launch(copied))).rows
    code = rows[rows["culprit"] == "code in log"]
    assert code["waited_ns"].sum() == 69
    assert set(code["ceiling_basis"]) == {"forecast"}
    assert least <= code["ceiling_ns"].max() <= most


def test_the_ceiling_of_latency_is_all_of_it(trace: MakeTrace) -> None:
    """Twenty kernels that were launched early could follow one another at once."""
    items: list[Items] = [Range("step", 0, 50)]
    for number in range(20):
        begin = 100 + 100 * number + (60 if number > 9 else 0)
        items.append(launch_kernel("k", (2 * number, 2 * number + 1), (begin, begin + 98), id=number + 1))
    rows = why_of(trace(*items)).rows
    [latency] = rows[rows["cause"] == "latency"].to_dict("records")
    assert (latency["ceiling_ns"], latency["ceiling_basis"]) == (latency["waited_ns"], "forecast")


def test_the_ceiling_of_a_chosen_instance_is_its_own(trace: MakeTrace) -> None:
    """The first step has no code in the way, the second has."""
    before: list[Items] = [Range("step", 0, 200), launch_kernel("k", (0, 10), (12, 200), id=11)]
    rows = nsysprof.why(
        attributed(trace(*before, *late_launch(20, at=1000))), "step", instances=read_instances("1")
    ).rows
    [code] = rows[rows["culprit"] == "code in log"].to_dict("records")
    assert (code["ceiling_ns"], code["ceiling_basis"]) == (69, "forecast")


def test_a_launch_call_and_a_hand_over_take_their_time_along() -> None:
    """All that a host-bound step waits for in code of backward, whichever thread runs it, and in its launches."""
    rows = why_of(BLOCK, "RUN::math::S1024/iter*").rows
    host = rows[(rows["cause"] == "host") & (rows["share_of_span"] > 0.01)]
    assert len(host) >= 6
    assert (host["ceiling_basis"] == "forecast").all()
    assert np.isclose(host["ceiling_ns"], host["per_instance_ns"], rtol=0.01).all()
    [latency] = rows[(rows["cause"] == "latency") & (rows["meanwhile"] == "nothing")].to_dict("records")
    assert latency["per_instance_ns"] > 50_000
    assert latency["ceiling_ns"] < 100  # the host is as late without it


def test_a_ceiling_is_what_forecast_says() -> None:
    """The same number as from `nsysprof forecast --remove`, where each step has the same."""
    path, culprit = BLOCK.parent.parent / "docs/gallery/item.sqlite", "code in log"
    attribution = attributed(path)
    answer = nsysprof.forecast(attribution, "step*", as_profiled=True, remove=[culprit])
    rows = why_of(path, "step*").rows
    [row] = rows[rows["culprit"] == culprit].to_dict("records")
    assert row["ceiling_ns"] == pytest.approx(np.mean(answer.base - answer.forecast))
    assert row["ceiling_ns"] > 100_000


def test_no_ceiling_is_more_than_its_row_waited() -> None:
    """Copies ran during a part of the code in these steps: two rows of one culprit, which goes with both."""
    rows = why_of(BLOCK.with_name("run.sqlite"), None).rows.dropna(subset="ceiling_ns")
    assert (rows["ceiling_ns"] <= rows["per_instance_ns"] * (1 + 1e-9)).all()
    assert (rows["ceiling_ns"] >= 0).all()
    key = ["path", "cause", "activity", "culprit", "exposed_by", "claim"]
    assert rows.loc[rows["ceiling_basis"] == "forecast", key].duplicated().any()


def test_a_finding_says_what_is_gained_where_that_is_less(trace: MakeTrace) -> None:
    """The copy takes the place of most of the code that is gone, so the whole wait would promise too much."""
    for copied, less in ((80, True), (20, False)):
        answer = why_of(trace(*late_launch(copied, 10_000)))
        [found] = [each for each in answer.findings["step"] if each.cause == "CPU time in log"]
        code = answer.rows[answer.rows["culprit"] == "code in log"].iloc[0]
        assert found.gain_ns == found.lost_ns >= round(code["ceiling_ns"])
        assert (found.gain_ns < 0.5 * code["waited_ns"]) == less


@pytest.mark.parametrize("limit", ["MAX_OPS", "MAX_NODES"])
def test_what_is_not_replayed_keeps_its_bound(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    """Of large reports, and of the shorter waits of those with many."""
    monkeypatch.setattr(ceilings, limit, 0)
    answer = why_of(trace(*late_launch(20)))
    waits = answer.rows[answer.rows["cause"] != "compute"]
    assert (waits["ceiling_ns"] == waits["per_instance_ns"]).all()
    assert set(waits["ceiling_basis"]) == {"bound"}
    assert bool(answer.bounds) == (limit == "MAX_OPS")


def test_processes_that_share_a_gpu_have_bounds() -> None:
    """Nobody knows how they slow each other; the answer says so."""
    answer = why_of(TWO, None)
    assert "2 processes share GPU 0" in answer.bounds
    assert set(answer.rows["ceiling_basis"]) == {"bound", ""}
    assert (answer.rows["ceiling_ns"].isna() == (answer.rows["ceiling_basis"] == "")).all()
