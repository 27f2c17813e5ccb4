"""What the GPU waits for, in the most important sentences of `nsysprof why`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nsysprof.analyze import findings
from nsysprof.analyze.breakdown import Breakdown, break_down
from nsysprof.analyze.files import write_json
from nsysprof.analyze.page import analysis_page
from nsysprof.analyze.text import summary
from nsysprof.attribution.attribute import attribute
from nsysprof.trace.report import open_report
from nsysprof.why.why import why
from tests.conftest import MakeTrace
from tests.kit.reports import RUN
from tests.kit.trace import Items, OsCall, Range, launch_kernel


def answer_of(path: Path) -> Breakdown:
    """The breakdown of a report, with its waits."""
    with open_report(path) as report:
        answer = break_down(attribute(report))
        assert answer.waits is None or answer.waits.walked
        return answer


def sleepy(steps: int, slept: int = 900_000, name: str = "step") -> list[Items]:
    """Steps of a millisecond: a kernel, and for most of the rest the program sleeps."""
    out: list[Items] = []
    for number in range(steps):
        at = number * 1_000_000
        out += [
            Range(name, at, at + 999_000),
            launch_kernel("k", (at + 10, at + 20), (at + 30, at + 999_000 - slept), id=number + 1),
            OsCall("nanosleep", at + 999_000 - slept, at + 999_000),
        ]
    return out


def test_findings_are_those_of_why_with_the_most_time_first() -> None:
    """Of a shipped report: two, each of the sentences of `nsysprof why`, and no other has more time."""
    with open_report(RUN) as report:
        attribution = attribute(report)
        answer, account = break_down(attribution), why(attribution)
        waits = answer.waits
    assert waits is not None
    assert waits.walked == waits.windows == len(account.windows)
    every = [
        (each.ns * int((account.windows["path"] == path).sum()), each.text)
        for path, found in account.findings.items()
        for each in found
    ]
    assert [each.text for each in waits.findings] == [text for _, text in sorted(every, reverse=True)[:2]]


def test_a_sleep_is_named_in_text_json_and_page(trace: MakeTrace, tmp_path: Path) -> None:
    """The sentence, what helps and the command that shows all stand in each answer."""
    path = trace(*sleepy(4))
    answer = answer_of(path)
    text = summary(answer)
    assert (
        "What the GPU waits for in step:\n  - nanosleep in step: 900 µs per window, 90 % of it, in 4 waits"
        in text
    )
    assert "    → the program sleeps: take that out of the loop\n" in text
    assert f"  all of it: nsysprof why {path}\n" in text
    write_json(answer, tmp_path / "analysis.json")
    [found] = json.loads((tmp_path / "analysis.json").read_text())["findings"]
    assert (found["path"], found["cause"], found["ns"], found["instances"]) == ("step", "host", 900_000, 4)
    page = analysis_page(answer)
    assert "nanosleep in step: 900 µs per window" in page
    assert "What the GPU waits for" in page


def test_nothing_is_said_of_a_healthy_run_or_of_warm_up(trace: MakeTrace) -> None:
    """Where no wait takes a share of the steps there are no findings, and warm-up is not asked."""
    for items in (sleepy(4, slept=10), sleepy(4, name="warm-up")):
        text = summary(answer_of(trace(*items)))
        assert "waits for" not in text
        assert "nsysprof why" not in text


def test_of_many_instances_some_are_asked(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are spread evenly, as many as their GPU ops allow; the head says so, and times stay those per window."""
    monkeypatch.setattr(findings, "MAX_WALKED", 5)
    waits = answer_of(trace(*sleepy(20))).waits
    assert waits is not None
    assert waits.head == "What the GPU waits for in step, seen in 5 of 20 instances:"
    assert [(each.ns, each.culprit) for each in waits.findings] == [(900_000, "nanosleep in step")]


def test_a_large_report_is_not_asked(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a walk has to read whole is bounded: of more GPU ops, and of one window with too many, nothing is said."""
    path = trace(*sleepy(4))
    monkeypatch.setattr(findings, "MAX_OPS", 3)
    assert answer_of(path).waits is None
    monkeypatch.undo()
    monkeypatch.setattr(findings, "MAX_WALKED", 1)
    once = trace(*(item for item in sleepy(4) if not isinstance(item, Range)))
    assert answer_of(once).waits is None


def test_a_long_launch_is_loading(trace: MakeTrace) -> None:
    """A launch that takes milliseconds loads its kernel: no CUDA graph helps against that."""
    items = [
        item
        for number in range(3)
        for item in (
            Range("step", number * 9_000_000, number * 9_000_000 + 8_000_000),
            launch_kernel(
                f"k{number}",
                (number * 9_000_000 + 10, number * 9_000_000 + 7_000_000),
                (number * 9_000_000 + 7_000_010, number * 9_000_000 + 8_000_000),
                id=number + 1,
            ),
        )
    ]
    waits = answer_of(trace(*items)).waits
    assert waits is not None
    assert [each.hint.split(":")[0] for each in waits.findings] == ["kernels are loaded at first use"]
