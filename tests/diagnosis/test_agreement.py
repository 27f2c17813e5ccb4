"""One diagnosis for all commands: the same findings and gains, in a stable order, each in the guide."""

from __future__ import annotations

from pathlib import Path

import pytest

import nsysprof
from nsysprof.analyze.analyze import break_down
from nsysprof.diagnosis import diagnose
from nsysprof.diagnosis.catalogue import KINDS
from nsysprof.diagnosis.finding import UNTRIED, ranked
from tests.conftest import MakeTrace
from tests.diagnosis.test_kinds import Act, call, code, copy, diagnosis_of, launching, os, read_back, steps
from tests.house.test_docs import anchors

GUIDE = Path(__file__).parents[2] / "docs/fixes.md"
OF_STEPS = {"small-grid", "tiny-blocks", "page-fault", "tensor-cores", "slow-steps", "paced"}
OF_STEPS |= {"communication-exposed"}
PLANTED = [code, os("nanosleep"), call("cudaMalloc"), call("cudaHostAlloc"), copy(1, host=1), read_back]


@pytest.mark.parametrize("act", PLANTED)
def test_commands_agree_on_what_a_cause_costs(trace: MakeTrace, act: Act) -> None:
    """analyze and why have equal findings, and forecast the same gain where the cause is removed."""
    with nsysprof.open_report(trace(*steps(act).items)) as report:
        attribution = nsysprof.attribute(report)
        answer = nsysprof.why(attribution)
        assert answer.diagnosis is not None
        found = answer.diagnosis.findings
        assert break_down(attribution).findings == found
        first = found[0]
        assert first.change[0] == "--remove"
        forecast = nsysprof.forecast(attribution, "step*", as_profiled=True, remove=[first.change[1]])
    removed = int((forecast.base - forecast.forecast).sum())
    assert forecast.gain_ns == removed > 0
    if first.kind == "exposed-copy":  # overlapped, and not removed: by no more than what else the GPU does
        assert 0 < first.gain_ns < removed
    else:
        assert first.gain_ns == removed


def test_findings_are_sorted_and_have_stable_ids(trace: MakeTrace) -> None:
    """Best first, those without a remedy behind; asked twice, the same ones come."""
    path = trace(*steps(launching(40)).items)
    first, again = (diagnosis_of(path).findings for _ in range(2))
    assert first == again
    assert list(first) == ranked(first)
    assert len({each.id for each in first}) == len(first) > 1
    tried = [each.gain_ns for each in first if each.basis != UNTRIED]
    assert tried == sorted(tried, reverse=True)


def test_a_large_recording_is_diagnosed_by_stretches(
    trace: MakeTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of steps that are all alike a stretch says what the whole recording does."""
    path = trace(*steps(code, count=40).items)
    whole = diagnosis_of(path)
    monkeypatch.setattr(diagnose, "MAX_OPS", 100)
    part = diagnosis_of(path)
    assert [each.id for each in part.findings] == [each.id for each in whole.findings]
    for some, every in zip(part.findings, whole.findings, strict=True):
        assert some.steps == every.steps
        assert some.gain_ns == pytest.approx(every.gain_ns, rel=0.02)


def test_every_kind_has_a_section_in_the_guide() -> None:
    """What findings link to exists."""
    heads = anchors(GUIDE.read_text(encoding="utf-8"))
    assert {kind.name for kind in KINDS} | OF_STEPS <= heads
    assert heads - {kind.name for kind in KINDS} - OF_STEPS == {"fixes", "garbage-collection"}
