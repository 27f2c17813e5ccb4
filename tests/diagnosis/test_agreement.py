"""One diagnosis for all commands: the same findings and gains, in a stable order, each in the guide."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

import nsysprof
from nsysprof.analyze import breakdown
from nsysprof.analyze.analyze import break_down
from nsysprof.diagnosis import diagnose, tried
from nsysprof.diagnosis.case import NOT_ASKED
from nsysprof.diagnosis.catalogue import KINDS, OF_KERNELS, OF_STEPS
from nsysprof.diagnosis.finding import REPLAYED, UNTRIED, ranked
from nsysprof.diagnosis.text import diagnosis_members, findings_text, gain_text
from nsysprof.hotspots import hotspots
from nsysprof.steps import steps as steps_room
from nsysprof.waits import program
from nsysprof.why import ceilings, why
from tests.conftest import MakeTrace
from tests.diagnosis.test_kinds import (
    ADD,
    GELU,
    SCALE,
    Act,
    call,
    code,
    copy,
    diagnosis_of,
    in_a_row,
    kernel,
    launching,
    nothing,
    os,
    read_back,
    steps,
)
from tests.house.test_docs import anchors
from tests.kit.command_line import quietly
from tests.kit.program import MS, US, Program
from tests.kit.reports import attributed

GUIDE = Path(__file__).parents[2] / "docs/fixes.md"
EVERY = {kind.name for kind in KINDS} | {"paced", "cold-start", "failed-calls"}
EVERY |= {name for names in (*OF_STEPS, *OF_KERNELS) for name in names.split(", ")}


def tiny(program: Program) -> None:
    """Tiny kernels, launched while a long one runs."""
    program.launch("gemm", 3 * MS)
    for _ in range(200):
        program.launch("relu", 2 * US)


PLANTED = [code, os("nanosleep"), call("cudaMalloc"), call("cudaHostAlloc"), copy(1, host=1), read_back]


@pytest.mark.parametrize("act", PLANTED)
def test_commands_agree_on_what_a_cause_costs(trace: MakeTrace, act: Act) -> None:
    """analyze and why have equal findings, and forecast the same gain where the cause is removed."""
    attribution = attributed(trace(*steps(act).items))
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


@pytest.mark.parametrize("most", [diagnose.MAX_OPS, 20], ids=["whole", "stretches"])
@pytest.mark.parametrize("act", [read_back, code, launching(40), copy(1, host=0), call("cudaMalloc"), tiny])
def test_without_a_replay_gains_are_estimates(
    trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, act: Act, most: int
) -> None:
    """With --no-replay all commands name the same causes and remedies, build no network, and say so."""

    def never(*_: Any) -> NoReturn:
        raise AssertionError("a network is built")

    path = trace(*steps(act, count=40).items)
    for room in (diagnose, breakdown, why, steps_room, hotspots):
        monkeypatch.setattr(room, "MAX_OPS", most)
    tried = diagnosis_of(path).findings
    monkeypatch.setattr(program, "network_of", never)
    monkeypatch.setattr(ceilings, "network_of", never)
    attribution = attributed(path)
    waits = nsysprof.why(attribution, replay=False)
    assert waits.diagnosis is not None
    assert waits.bounds == waits.diagnosis.doubt == NOT_ASKED
    assert not waits.columns("rows").texts("ceiling_basis").equal("forecast").any()
    found = waits.diagnosis.findings
    assert {each.id for each in tried if each.remedy} <= {each.id for each in found if each.remedy}
    assert found[0].id == tried[0].id
    assert not any(each.basis == REPLAYED for each in found)
    assert [each for each in found if each.change] == [each for each in found if each.estimated]
    assert found[0].estimated is bool(tried[0].change)
    assert gain_text(found[0]).endswith(", not tried") is found[0].estimated
    spots, of_steps = nsysprof.hotspots(attribution, replay=False), nsysprof.steps(attribution, replay=False)
    assert of_steps.diagnosis is not None
    for same in (break_down(attribution, replay=False).diagnosis, of_steps.diagnosis, spots.diagnosis):
        assert same.findings == found
    assert {spot.gain_basis for spot in spots.spots} <= {"bound", ""}
    for most_told in (None, 3):
        assert findings_text(waits.diagnosis, path, "why", most_told).endswith(f"in a replay: {NOT_ASKED}.")
    assert diagnosis_members(waits.diagnosis, path, "why")["not_replayed"] == NOT_ASKED


@pytest.mark.parametrize("command", ["analyze", "why", "steps", "hotspots"])
def test_commands_take_no_replay(trace: MakeTrace, command: str) -> None:
    """The option reaches the diagnosis of each command; its document and its page say so."""
    path = trace(*steps(read_back).items)
    for option, reason in (("--no-replay", NOT_ASKED), ("--replay", None)):
        done = quietly(command, path, "--json", "--html", option, "-o", path.parent / command, "--force")
        assert json.loads(done.out)["not_replayed"] == reason
        page = (path.parent / command / "report.html").read_text(encoding="utf-8")
        assert (NOT_ASKED in page) is (reason is not None and command != "steps")


def test_a_recording_without_findings_says_that_none_was_tried(trace: MakeTrace) -> None:
    """Also where nothing runs on the GPU."""
    path = trace(*steps(nothing).items)
    for answer in (nsysprof.why(attributed(path), replay=False), break_down(attributed(path), replay=False)):
        assert answer.diagnosis is not None
        assert not answer.diagnosis.findings
        assert f"in a replay: {NOT_ASKED}.\n" in findings_text(answer.diagnosis, path, "why", 3)


def test_commands_agree_on_what_is_no_kernel(trace: MakeTrace) -> None:
    """A memset between pointwise kernels is none of them, in any command."""

    def act(program: Program) -> None:
        in_a_row(SCALE, ADD, GELU)(program)
        program.memset(1 << 20, MS // 2)
        in_a_row(SCALE, ADD, GELU)(program)

    attribution = attributed(trace(*steps(act).items))
    answer = nsysprof.why(attribution)
    assert answer.diagnosis is not None
    assert break_down(attribution).findings == answer.diagnosis.findings
    assert "6 pointwise kernels" in answer.diagnosis.findings[0].text


def test_findings_are_sorted_and_have_stable_ids(trace: MakeTrace) -> None:
    """Best first, those without a remedy behind; asked twice, the same ones come."""
    path = trace(*steps(launching(40)).items)
    first, again = (diagnosis_of(path).findings for _ in range(2))
    assert first == again
    assert list(first) == ranked(first)
    assert len({each.id for each in first}) == len(first) > 1
    tried = [each.likely_ns for each in first if each.basis != UNTRIED]
    assert tried == sorted(tried, reverse=True)


@pytest.mark.parametrize("act", [code, kernel("add", 1)])
def test_a_large_recording_is_diagnosed_by_stretches(
    trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, act: Act
) -> None:
    """Of steps that are all alike a stretch says what the whole recording does."""
    path = trace(*steps(act, count=40).items)
    whole = diagnosis_of(path)
    monkeypatch.setattr(diagnose, "MAX_OPS", 100)
    part = diagnosis_of(path)
    assert [each.id for each in part.findings] == [each.id for each in whole.findings]
    for some, every in zip(part.findings, whole.findings, strict=True):
        assert some.steps == every.steps
        assert some.gain_ns == pytest.approx(every.gain_ns, rel=0.02)


def test_every_kind_has_a_section_in_the_guide() -> None:
    """What findings link to exists: a row of the guide, which leads to a section of the kind."""
    rows = dict(re.findall(r'<a id="([a-z-]+)"></a>\[[a-z-]+\]\((.*?)\)', GUIDE.read_text(encoding="utf-8")))
    for name in sorted(EVERY - {*rows}):
        pytest.fail(f'docs/fixes.md: add a row `<a id="{name}"></a>` that leads to a section of a page in docs/fixes/')
    assert rows.keys() == EVERY
    for name, target in rows.items():
        page, _, section = target.partition("#")
        assert section == name
        assert name in anchors((GUIDE.parent / page).read_text(encoding="utf-8"))


def test_every_kind_has_a_test() -> None:
    """A kind is named where programs have it."""
    tests = (Path(__file__).parent / "test_kinds.py").read_text(encoding="utf-8")
    without = EVERY - set(re.findall(r'"([a-z-]+)"', tests))
    for name in sorted(without):
        pytest.fail(f"tests/diagnosis/test_kinds.py: add a row to HAS for a program that has {name}")


@pytest.mark.parametrize("place", ["claims", "codes", "words", "whole", "remedies"])
def test_a_faulty_kind_is_left_out(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The others answer, and the warning, which fails a test that does not expect it, names the line that is wrong."""

    def faulty(*_: object) -> Any:
        return 1 // 0  # wrong

    path = trace(*steps(code).items)
    whole = diagnosis_of(path).findings
    first = next(kind for kind in KINDS if kind.name == "cpu-code")
    wrong: dict[str, Any] = {place: faulty}
    broken = tuple(replace(kind, **wrong) if kind is first else kind for kind in KINDS)
    monkeypatch.setattr(tried, "KINDS", broken)
    with pytest.warns(UserWarning, match=r"cpu-code findings .*\(line \d+ of test_agreement.py: return 1 // 0"):
        found = diagnosis_of(path).findings
    assert [each.id for each in found] == [each.id for each in whole if each.kind != "cpu-code"]
