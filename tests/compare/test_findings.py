"""Sentences about a pair: what they say, and when they are silent."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nsysprof.compare.attention_model import Models, expected
from nsysprof.compare.clocks import CLOCKS
from nsysprof.compare.findings import Difference, speed
from nsysprof.compare.gap_ledger import Entry, SideLedger, no_shares_reason
from nsysprof.compare.op_causes import CAST_UP, FUSED, QK
from nsysprof.formats.run_record import RecordedRun
from nsysprof.statistics.contrast import FASTER, NO_CLEAR_CHANGE, SLOWER, TOO_FEW_SAMPLES
from nsysprof.trace.details import CODE, LAUNCHING
from nsysprof.waits.causes import LATENCY, WAITING_FOR

PAIR: dict[str, Any] = {
    "base_name": "math", "new_name": "flash", "place": "S=1024", "base_calls": 20, "new_calls": 20,
    "clock": "span", "base_mean_ns": 400_000, "new_mean_ns": 50_000, "delta_ns": -350_000,
    "base_busy_ns": 390_000, "new_busy_ns": 49_000,
    "base_n": 20, "new_n": 20, "base_median_ns": 400_000, "new_median_ns": 50_000, "verdict": FASTER,
}  # fmt: skip
GAPS = pd.DataFrame(
    {
        "cause": ["softmax", "gemm", "cast up", FUSED, WAITING_FOR[LATENCY]],
        "base_kernels": [1.0, 2.0, 1.0, 0.0, 0.0],
        "new_kernels": [0.0, 0.0, 0.0, 1.0, 0.0],
        "base_ns": [200_000, 150_000, 40_000, 0, 10_000],
        "new_ns": [0, 0, 0, 49_000, 1000],
        "delta_ns": [-200_000, -150_000, -40_000, 49_000, -9_000],
        "share": [0.57, 0.43, 0.11, -0.14, 0.03],
    }
)
EVIDENCE = pd.DataFrame(
    {
        "side": ["base", "base", "new"],
        "kernel": ["sgemm", "add", "flash_fwd_kernel<half>"],
        "math_unit": ["FP32 FMA", "unknown", "tensor core"],
        "sum_ns": [10, 90, 20],
    }
)


def clocks(**span: Any) -> pd.DataFrame:
    """A row per clock: all agree with the span, and CUDA events were not recorded."""
    known: dict[str, Any] = {
        "base_median_ns": 400_000, "new_median_ns": 50_000, "ratio": 8.0, "ratio_low": 7.9, "ratio_high": 8.1,
        "level": 0.95, "verdict": FASTER, "reason": "p = 1e-07",
    }  # fmt: skip
    none: dict[str, Any] = {name: "" if name in ("verdict", "reason") else np.nan for name in known}
    rows: dict[str, dict[str, Any]] = {**dict.fromkeys(CLOCKS, known), "CUDA events": none, "span": {**known, **span}}
    return pd.DataFrame([{"clock": clock, **row} for clock, row in rows.items() if clock != "step"])


def sentences(
    gaps: pd.DataFrame = GAPS,
    frame: pd.DataFrame | None = None,
    evidence: pd.DataFrame = EVIDENCE,
    models: Models = (None, None),
    **pair: Any,
) -> list[str]:
    """The sentences of the pair with some things changed."""
    gaps = gaps.assign(delta_ns=gaps["new_ns"] - gaps["base_ns"])
    waits = [dict(zip(gaps["cause"], gaps[f"{side}_ns"], strict=True)) for side in ("base", "new")]
    sides = [
        SimpleNamespace(
            gaps=SimpleNamespace(total_ns=lambda kind, of=of: of.get(WAITING_FOR[kind], 0)),
            ledger=SimpleNamespace(calls=1),
            clock_hz=float("nan"),
        )
        for of in waits
    ]
    stand_in: Any = SimpleNamespace(one_report=True, sides=sides, names=("math", "flash"), new_name="flash")
    frames = (gaps, clocks() if frame is None else frame, evidence, pd.DataFrame(), pd.DataFrame())
    return [*Difference(stand_in, {**PAIR, **pair}, *frames, models, (None, None), None).findings]


def test_what_a_clear_difference_amounts_to() -> None:
    """The headline, the test, the largest causes, and the kernels with their units; nothing about idling."""
    assert sentences() == [
        "math is 8.00x slower than flash at S=1024 by span: 400 µs against 50.0 µs, median call (n = 20)",
        "verdict: flash is faster; the median call takes 8.00x as long in math (95 % interval 7.90x to 8.10x);"
        " p = 1e-07",
        "57 % of the difference is softmax, 43 % gemm and 11 % cast up",
        "per call math runs 4 kernels, flash runs 1; matrix products run on FP32 units (CUDA cores) in "
        "math and on tensor cores (FP16) in flash",
    ]


@pytest.mark.parametrize(
    ("base", "new", "words"),
    [(242, 10, "24.2x slower than"), (10, 15, "1.50x faster than"), (10, 10, "as fast as"), (0, 10, "as fast as")],
)
def test_speeds_in_words(base: int, new: int, words: str) -> None:
    """Above 1 whichever side is slower."""
    assert speed(base, new) == words


def test_no_clear_change_is_the_headline() -> None:
    """Where the test finds nothing, the headline does not claim that one side is slower."""
    frame = clocks(verdict=NO_CLEAR_CHANGE, reason="the interval of the ratio includes 1")
    headline, verdict, *_ = sentences(frame=frame, verdict=NO_CLEAR_CHANGE)
    assert headline == (
        "no clear change from math to flash at S=1024 by span: 400 µs against 50.0 µs, median call (n = 20)"
    )
    assert not any("of the difference" in line for line in sentences(frame=frame, verdict=NO_CLEAR_CHANGE))
    assert verdict.startswith("verdict: no clear change; the median call")


def test_too_few_samples_are_reported() -> None:
    """The numbers stand, with what they are worth; different counts are both named."""
    frame = clocks(verdict=TOO_FEW_SAMPLES, reason="2 samples, of which it takes 8 on either side", level=0.25)
    headline, verdict, *_ = sentences(frame=frame, verdict=TOO_FEW_SAMPLES, new_n=3)
    assert headline == (
        "math is 8.00x slower than flash at S=1024 by span, with too few samples for a verdict:"
        " 400 µs against 50.0 µs, median call (n = 20 and 3)"
    )
    assert verdict == "no verdict: 2 samples, of which it takes 8 on either side"


def test_a_launch_bound_side_makes_the_clocks_disagree() -> None:
    """flash waits for the host most of its span: by span the sides are far closer than by busy time."""
    gaps = pd.concat(
        [
            GAPS,
            pd.DataFrame(
                {
                    "cause": [WAITING_FOR[LAUNCHING], WAITING_FOR[CODE]],
                    "base_ns": [0, 0],
                    "new_ns": [7_000, 26_000],
                    "share": [-0.05, -0.05],
                }
            ),
        ]
    ).fillna({"base_kernels": 0.0, "new_kernels": 0.0})
    frame = clocks()
    frame.loc[frame["clock"] == "busy", "ratio"] = 22.9
    lines = sentences(gaps, frame, new_busy_ns=17_000)
    ratios = "so the ratio is 8.00x by span, but 22.9x by busy time"
    assert f"flash at S=1024 is launch-bound: the GPU is busy for 34 % of span, {ratios}" in lines


def test_a_side_that_idles_for_another_reason_is_reported_too() -> None:
    """Idle, but not for the host; and where both sides idle alike, the ratios agree and are not repeated."""
    only = "keeps the GPU busy for only 50 % of its span"
    assert f"math at S=1024 {only}; flash {only}" in sentences(base_busy_ns=200_000, new_busy_ns=25_000)


def test_cuda_events_that_tell_something_else_are_named() -> None:
    """Events and span may differ where the profiler gets between launches."""
    frame = clocks()
    events = frame["clock"] == "CUDA events"
    frame.loc[events, ["base_median_ns", "new_median_ns", "ratio"]] = [400_000, 100_000, 4.0]
    assert sentences(frame=frame)[-1] == (
        "CUDA events give a ratio of 4.00x, including profiling overhead: 400 µs against 100 µs"
    )


def test_a_mean_that_is_no_typical_call_is_reported() -> None:
    """The ledger adds up to the mean; a few slow calls move that away from the median."""
    assert sentences(frame=clocks(base_median_ns=300_000))[-1] == (
        "math has a few slow calls: its mean of 400 µs (the sum of the causes) exceeds its median of 300 µs by 33 %"
    )


def test_headline_and_causes_are_about_one_difference() -> None:
    """Seven calls of ten got slower, and three very slow ones became fast: the mean falls, the median call rises."""
    pair: dict[str, Any] = {"base_median_ns": 40_000, "new_median_ns": 50_000, "verdict": SLOWER}
    lines = sentences(frame=clocks(base_median_ns=40_000, verdict=SLOWER), **pair)
    assert lines[0].startswith("math is 1.25x faster than flash")
    assert not any("of the difference" in line for line in lines)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"verdict": TOO_FEW_SAMPLES}, ""),
        ({"verdict": NO_CLEAR_CHANGE}, "the change is not clear, so causes are shown without shares"),
        (
            {"base_median_ns": 40_000},
            "means and medians change in opposite directions, so causes are shown without shares",
        ),
    ],
)
def test_shares_of_what_is_no_difference_are_not_told(changed: dict[str, Any], why: str) -> None:
    """Only of a difference that the verdict does not deny, and that medians and means agree on."""
    pair = {**PAIR, **changed}
    assert no_shares_reason(pair, GAPS) == why
    much = GAPS.assign(delta_ns=[-500_000, -150_000, -40_000, 349_000, -9_000])  # 1,048 for a difference of 350
    assert no_shares_reason(pair, much) == (
        why or "gains and losses mostly cancel each other, so causes are shown without shares"
    )


def test_idle_causes_are_put_into_words() -> None:
    """A row's short name becomes part of a sentence."""
    gaps = GAPS.assign(cause=[WAITING_FOR[CODE], *GAPS["cause"][1:]])
    assert sentences(gaps)[2] == "57 % of the difference is waiting for CPU code, 43 % gemm and 11 % cast up"


def test_without_a_difference_no_cause_is_named() -> None:
    """No share, no sentence."""
    assert not any("of the difference" in line for line in sentences(GAPS.assign(share=np.nan)))


def test_the_same_units_on_both_sides_are_not_news() -> None:
    """Units are named where they differ; where nobody knows them, they are not."""
    both = EVIDENCE.assign(math_unit="tensor core", kernel="hgemm")
    line = sentences(evidence=both)[3]
    assert line == "per call math runs 4 kernels, flash runs 1"


def test_traffic_is_reported_where_both_shapes_are_known() -> None:
    """Bytes by the model; how often the score matrix goes by says why."""
    run = RecordedRun((), 1, 8, 4096, 64, "fp16", True, False)
    models = (
        expected(run, SideLedger({QK: Entry(1, 1, 1), CAST_UP: Entry(3, 3, 1)}, 2, 1)),
        expected(run, SideLedger({FUSED: Entry(1, 1, 1)}, 1, 1)),
    )
    lines = sentences(models=models)
    assert lines[-1] == (
        "expected memory traffic per call at B=1 H=8 S=4096 D=64, fp16, causal: math 564 MiB (1.1 times its score"
        " matrix of 512 MiB), flash 16.0 MiB"
    )
    assert len(sentences(models=(models[0], None))) == len(lines) - 1
