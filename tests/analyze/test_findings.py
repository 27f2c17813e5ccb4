"""What the GPU waits for, in the most important sentences of `nsysprof why`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from nsysprof.why.findings import Finding

from nsysprof.analyze import findings
from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.files import write_json
from nsysprof.analyze.findings import next_command
from nsysprof.analyze.page import analysis_page
from nsysprof.analyze.text import summary
from nsysprof.attribution.attribute import attribute
from nsysprof.trace.report import open_report
from nsysprof.why.why import why
from tests.conftest import MakeTrace
from tests.kit.reports import RUN
from tests.kit.trace import Gpu, Items, Launch, Memcpy, OsCall, Range, launch_kernel, launch_memcpy


def answer_of(path: Path) -> Breakdown:
    """The breakdown of a report, with its waits."""
    with open_report(path) as report:
        answer = break_down(attribute(report))
        assert answer.waits is None or bool(answer.waits.walked) == bool(answer.waits.steps)
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


def test_waits_are_those_of_why() -> None:
    """Of a shipped report: each finding about waits is of `nsysprof why`, whose replays win no more."""
    with open_report(RUN) as report:
        attribution = attribute(report)
        answer, account = break_down(attribution), why(attribution)
        waits, found = answer.waits, answer.findings
    assert waits is not None
    assert waits.walked == waits.windows == len(account.windows)
    every = [each for found in account.findings.values() for each in found]
    waits = replace(waits, findings=tuple(each for each in waits.findings if each.kind != "slow steps"))

    def plain(some: Iterable[Finding]) -> list[str]:
        return sorted(
            repr(replace(each, text=each.text.partition("; without it")[0], gain_ns=0)) for each in some
        )

    assert plain(waits.findings) == plain(every)
    bound, forecast = (
        sum(each.gain_ns for each in some if each.kind in ("launch-bound", "latency"))
        for some in (waits.findings, every)
    )
    assert sum(each.gain_ns for each in found if each.kind == "launch-bound") == bound >= forecast > 0
    assert [each.gain_ns for each in found] == sorted((each.gain_ns for each in found), reverse=True)


def test_a_sleep_is_named_in_text_json_and_page(trace: MakeTrace, tmp_path: Path) -> None:
    """The sentence, what helps and the command that shows more stand in each answer."""
    path = trace(*sleepy(4))
    answer = answer_of(path)
    text = summary(answer)
    assert (
        "What to mend first, with the time that it can win at most:\n1. 3.60 ms: step: nanosleep in step"
        in text
    )
    assert (
        "900 µs per window, 90 % of it, in 4 waits\n   → the program sleeps: take that out of the loop\n"
        in text
    )
    assert f"   $ nsysprof why {path} --range step\n" in text
    write_json(answer, tmp_path / "analysis.json")
    [found] = json.loads((tmp_path / "analysis.json").read_text())["findings"]
    assert (found["path"], found["cause"], found["ns"], found["instances"]) == ("step", "host", 900_000, 4)
    assert (found["kind"], found["gain_ns"]) == ("host", 3_600_000)
    assert found["command"] == f"nsysprof why {path} --range step"
    page = analysis_page(answer)
    assert "nanosleep in step: 900 µs per window" in page
    assert "What to mend first" in page


def test_nothing_is_said_of_a_healthy_run_or_of_warm_up(trace: MakeTrace) -> None:
    """Where nothing takes a share of the steps one line says so, and warm-up is not asked."""
    ready = [Range("step", at, at + 999_990) for at in range(4_000_000, 8_000_000, 1_000_000)]
    work = [launch_kernel("k", (each.start, each.start + 9), (each.start + 10, each.end - 10), id=each.start)
            for each in ready]  # fmt: skip
    for items in (sleepy(4, slept=10), [*sleepy(4, name="warm-up"), *ready, *work]):
        answer = answer_of(trace(*items))
        assert answer.findings == ()
        assert "Nothing to mend stands out" in summary(answer)


def test_of_many_instances_some_are_asked(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are spread evenly, as many as their GPU ops allow; a note says so, and what can be won is that of all."""
    monkeypatch.setattr(findings, "MAX_WALKED", 5)
    answer = answer_of(trace(*sleepy(20)))
    assert answer.waits is not None
    assert "Looked at 5 of 20 steps, evenly spread." in summary(answer)
    [found] = answer.findings
    assert (found.ns, found.gain_ns, found.culprit) == (900_000, 18_000_000, "nanosleep in step")


def test_a_large_report_is_not_asked(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a walk has to read whole is bounded: of more GPU ops, and of one window with too many, nothing is said."""
    path = trace(*sleepy(4))
    monkeypatch.setattr(findings, "MAX_OPS", 3)
    assert answer_of(path).waits is None
    monkeypatch.undo()
    monkeypatch.setattr(findings, "MAX_WALKED", 1)
    once = trace(*(item for item in sleepy(4) if not isinstance(item, Range)))
    answer = answer_of(once)
    assert answer.waits is None
    assert f"To see why the GPU idles: nsysprof why {once}\n" in summary(answer)


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
    assert waits.findings[0].hint.startswith("kernels are loaded at first use:")


# ---- planted faults, one of each kind, in steps of 10 ms that a kernel fills else

MS = 1_000_000
STEP, GEMM = 10 * MS, "nvjet_hsh_128x128_64x4_1x2_h_bz_coopA_TNT"


def steps(inside: Callable[[int, int], list[Items]], *, count: int = 6, kernel: str = GEMM) -> list[Items]:
    """Steps that launch a kernel of 9.9 ms for the next one to overlap, with what ``inside`` adds at a time and id."""
    out: list[Items] = []
    for number in range(count):
        at = number * STEP
        out += [Range(f"step{number}", at, at + STEP - 1000), *inside(at, 100 * number + 1)]
        call, run = (at + 10, at + 2000), (at + 50_000, at + STEP - 10_000)
        out.append(launch_kernel(kernel, call, run, id=100 * number + 99))
    return out


def found_in(path: Path) -> list[Finding]:
    """The findings of a report, each of whose commands is one that the program takes."""
    with open_report(path) as report:
        answer = break_down(attribute(report))
        for each in answer.findings:
            words = shlex.split(next_command(answer, each))
            assert words[0] == "nsysprof"
            assert words[2] == str(path)
            select = words[4] if len(words) > 3 else None
            if words[1] == "why":
                assert len(why(attribute(report), select).windows)
            else:
                assert len(break_down(attribute(report), select=select).ranges)
        return list(answer.findings)


def test_steps_that_keep_the_gpu_busy_are_healthy(trace: MakeTrace) -> None:
    """A kernel that fills each step, and short calls beside it: nothing to mend."""
    assert found_in(trace(*steps(lambda at, id: []))) == []


def test_pageable_copies_are_found_with_their_speed(trace: MakeTrace) -> None:
    """Half of the time in copies of pageable memory is a finding; the same of pinned memory is not one of that kind."""

    def copying(host: int) -> list[Items]:
        return [
            item
            for number in range(6)
            for item in (
                Range(f"step{number}", number * STEP, number * STEP + STEP - 1000),
                launch_memcpy(
                    (number * STEP + 10, number * STEP + 5 * MS),
                    (number * STEP + 1000, number * STEP + 5 * MS - 1000),
                    id=2 * number + 1,
                    bytes=10_000_000,
                    host=host,
                ),
                launch_kernel(
                    GEMM,
                    (number * STEP + 5 * MS + 100, number * STEP + 5 * MS + 3000),
                    (number * STEP + 5 * MS + 4000, number * STEP + STEP - 2000),
                    id=2 * number + 2,
                ),
            )
        ]

    [found, *_] = found_in(trace(*copying(0)))
    assert found.kind == "copies"
    assert "pageable host-to-device copies at 2.00 GB/s" in found.text
    assert "pin_memory=True" in found.hint
    assert found.gain_ns == 6 * (5 * MS - 10)  # in which the host was in the calls
    assert not any("pageable" in each.text for each in found_in(trace(*copying(1))))


def test_fp32_products_are_found_where_the_gpu_is_busy(trace: MakeTrace) -> None:
    """What tensor cores could do at most is what counts: 7/8 on an H200; not where the GPU waits, or is older."""
    sgemm = "ampere_sgemm_128x64_tn"
    [found] = found_in(trace(*steps(lambda at, id: [], kernel=sgemm)))
    busy = 6 * (STEP - 60_000)
    assert (found.kind, found.ns, found.gain_ns) == ("tensor cores", busy, round(busy * 7 / 8))
    volta = Gpu(0, name="Tesla V100", more={"computeMajor": 7, "computeMinor": 0})
    assert found_in(trace(*steps(lambda at, id: [], kernel=sgemm), volta)) == []
    idle: list[Items] = [item for item in sleepy(6, slept=900_000) if not isinstance(item, tuple)]
    idle += [
        launch_kernel(sgemm, (n * MS + 10, n * MS + 20), (n * MS + 30, n * MS + 90_000), id=n + 1)
        for n in range(6)
    ]
    assert [each.kind for each in found_in(trace(*idle))] == ["host"]


def test_loading_and_allocation_are_found_in_steps_only(trace: MakeTrace) -> None:
    """Calls that take a third of the steps are named with their range; before the first step they are no finding."""

    def calls(at: int, id: int) -> list[Items]:
        return [
            Launch(at + 3000, at + 2 * MS, id + 1, api="cuLibraryLoadData"),
            Launch(at + 2 * MS + 1, at + 3 * MS, id + 2, api="cudaMalloc_v3020"),
        ]

    found = found_in(trace(*steps(calls)))
    assert [each.kind for each in found] == ["module loading", "allocation"]
    assert [each.gain_ns for each in found] == [6 * (2 * MS - 3000), 6 * (MS - 1)]
    assert "most of all cuLibraryLoadData, most in step*" in found[0].text
    before = [Launch(1000 * MS, 1020 * MS, 9001, api="cuLibraryLoadData")]
    assert found_in(trace(*steps(lambda at, id: []), *before)) == []


def test_calls_long_before_all_gpu_work_are_a_share_of_the_recording(trace: MakeTrace) -> None:
    """An allocation that takes 90 times as long as the GPU works is less than all there is."""
    calls = [Launch(10, 90 * MS, 1, api="cudaMalloc_v3020")]
    path = trace(*calls, launch_kernel("k", (91 * MS, 92 * MS), (92 * MS, 93 * MS), id=2))
    [found] = answer_of(path).findings
    assert (found.kind, found.gain_ns) == ("allocation", 90 * MS - 10)
    assert 0.9 < found.share < 1


def test_of_two_findings_about_pageable_copies_the_larger_is_told(trace: MakeTrace) -> None:
    """A call is in the way for longer than a copy that is waited for: the sentence is that of the time to win."""
    path = trace(
        launch_memcpy((0, 100), (200, 300_000), id=1, bytes=10_000_000, host=0),
        launch_kernel("k", (200, 300), (310_000, 400_000), id=2),
        launch_memcpy((410_000, 3 * MS), (2 * MS, 2 * MS + 900_000), id=3, bytes=10_000_000, host=0, kind=2),
        launch_kernel("k", (3 * MS + 10, 3 * MS + 20), (3 * MS + 30, 3 * MS + 40), id=4),
    )
    [found] = [each for each in found_in(path) if each.kind == "copies"]
    assert found.text.startswith("cudaMemcpyAsync (DtoH pageable, 8.00 MiB): 2.59 ms")
    assert found.gain_ns == found.ns


def test_an_unusual_sibling_is_named_with_its_call(trace: MakeTrace) -> None:
    """Of four layers one takes 30 times as long on the host, inside, in a call: the innermost range is named."""

    def layers(slow: int) -> list[Items]:
        out: list[Items] = [Range("setup", 0, 200 * MS)]
        for number in range(4):
            at, length = number * 40 * MS + 1, 30 * MS if number == slow else MS
            out += [
                Range(f"layer.{number}", at, at + length + 1000),
                Range("attention", at + 10, at + length),
                Launch(at + 20, at + length - 10, 500 + number, api="cudaFuncGetAttributes_v3020"),
                launch_kernel(
                    GEMM, (at + length - 9, at + length - 2), (at + length, at + length + 500), id=number + 1
                ),
            ]
        return out

    [found, *_] = [each for each in found_in(trace(*layers(0))) if each.kind == "sibling"]
    assert found.path == "setup/layer.0/attention"
    assert "30 times as long as in its siblings; cudaFuncGetAttributes takes 30.0 ms of it" in found.text
    assert [each for each in found_in(trace(*layers(9))) if each.kind == "sibling"] == []


def test_launch_bound_steps_say_what_a_graph_would_bring(trace: MakeTrace) -> None:
    """Steps of many short kernels, each launched late: what a step takes now, and at best; of an optimizer foreach."""

    def launching(name: str) -> list[Items]:
        out: list[Items] = []
        for number in range(6):
            at = number * 901_000
            out += [Range(f"step{number}", at, at + 900_000), Range(name, at + 10, at + 890_000)]
            for each in range(50):
                call = at + 1000 + each * 17_000
                out.append(
                    launch_kernel(
                        "k", (call, call + 15_000), (call + 16_000, call + 18_000), id=100 * number + each + 1
                    )
                )
        return out

    [found] = found_in(trace(*launching("forward")))
    assert found.kind == "launch-bound"
    assert "capture a CUDA graph" in found.hint
    now, best = re.search(r"; (\d+) µs in place of (\d+) µs at best", found.text).groups()[::-1]  # type: ignore[union-attr]
    assert int(now) - int(best) == pytest.approx(found.ns / 1000, abs=1.5)
    [found] = found_in(trace(*launching("Optimizer.step#AdamW.step")))
    assert "foreach=True" in found.hint


def test_of_the_whole_trace_there_is_one(trace: MakeTrace) -> None:
    """Where no range repeats, times are those of the report, and not "of each"."""
    items = [launch_kernel("k", (at, at + 40_000), (at + 41_000, at + 43_000), id=at + 1)
             for at in range(0, 3_000_000, 50_000)]  # fmt: skip
    found = answer_of(trace(Range("a", 0, 2_000_000), *items, duration=4_000_000)).findings
    assert any(each.text.startswith("launch-bound: the GPU waits ") for each in found)
    assert not any("of each" in each.text for each in found)


def test_slow_steps_are_found(trace: MakeTrace) -> None:
    """Of 40 steps two that take ten times as long are a finding, whose command names the steps; even ones are none."""

    def of(slow: tuple[int, ...]) -> list[Items]:
        out: list[Items] = []
        at = 0
        for number in range(40):
            length = (10 * MS if number in slow else MS) + 997 * (number * 7 % 5)
            out += [Range(f"step{number}", at, at + length - 1000)]
            out.append(
                launch_kernel(GEMM, (at + 10, at + 200), (at + 300, at + length - 2000), id=number + 1)
            )
            at += length
        return out

    path = trace(*of((17, 30)))
    with open_report(path) as report:
        answer = break_down(attribute(report))
        [found] = [each for each in answer.findings if each.kind == "slow steps"]
        assert "2 of 40 steps are slow; step " in found.text
        assert found.gain_ns == pytest.approx(18 * MS, rel=0.01)
        assert next_command(answer, found) == f"nsysprof steps {path} --per 'step*'"
    with open_report(trace(*of(()))) as report:
        assert not any(each.kind == "slow steps" for each in break_down(attribute(report)).findings)


def test_faults_of_unified_memory_are_found_beside_kernels(trace: MakeTrace) -> None:
    """Kernels that run for half of their time beside migrations for page faults are named, with what helps."""
    steps = [
        (
            Range("step", at, at + 10_000_000),
            launch_kernel("stencil", (at + 10, at + 20), (at + 30, at + 9_990_000), id=at + 1),
            Memcpy(at + 1_000, at + 5_000_000, None, 1 << 26, 11, cause=2),
        )
        for at in range(0, 40_000_000, 10_000_000)
    ]
    [found] = answer_of(trace(*[item for step in steps for item in step])).findings
    assert found.text == "kernels run beside page faults of unified memory for 20.0 ms, most of all stencil"
    assert "cudaMemPrefetchAsync" in found.hint


def test_exposed_communication_is_called_so(trace: MakeTrace) -> None:
    """A wait for a collective says in words that nothing is computed meanwhile."""
    steps = [
        (
            Range("step", at, at + 2_000_000),
            launch_kernel("k", (at + 10, at + 20), (at + 30, at + 1_000_000), id=at + 1),
            launch_kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (at + 40, at + 50),
                          (at + 1_000_000, at + 1_990_000), id=at + 2),
        )
        for at in range(0, 20_000_000, 2_000_000)
    ]  # fmt: skip
    [found] = answer_of(trace(*[item for step in steps for item in step])).findings
    assert found.text.startswith(
        "step: exposed communication: ncclDevKernel_AllReduce_Sum_f32_RING_LL in step: "
    )
