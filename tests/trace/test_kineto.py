"""Traces of the PyTorch profiler: what their events become, compared with a plain reading of the same file."""

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import nsysprof
from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.errors import NsysprofError
from nsysprof.trace.details import CUDA, PROFILER
from nsysprof.trace.kineto.events import whole
from nsysprof.trace.kineto.reader import KinetoReader
from nsysprof.trace.report import open_report, read_tables
from nsysprof.trace.trace import RANGE_KINDS, tid_of
from tests.kit import plain_kineto
from tests.kit.command_line import quietly
from tests.kit.kineto import (
    GPU,
    PID,
    Event,
    annotation,
    call,
    event,
    gpu_op,
    launch,
    memory,
    module,
    operator,
    trace_text,
    wait_event,
    write_trace,
)
from tests.kit.mutations import some_trace
from tests.kit.reports import attributed

STEP = [
    annotation("ProfilerStep#1", 0, 1000),
    annotation("forward", 10, 400),
    operator("aten::mm", 20, 60),
    *launch("gemm", (30, 40), (100, 300), id=1),
    call("cudaMemcpyAsync", 420, 450, 2),
    gpu_op("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 500, 600, 2, bytes=4096),
    call("cudaDeviceSynchronize", 700, 900, 3),
    gpu_op("kernel", "launched before", 5, 50, 77),
]


def read(path: Path, ranges: str = "auto", threads: str = "strict") -> Attribution:
    """Read and attribute a trace."""
    return attributed(path, threads, ranges=ranges)


def same_as_plain(path: Path, inner: str = "") -> None:
    """Assert that ranges, ops, launches and owners are those of a plain reading."""
    found = read(path, inner or "nvtx")
    trace, launches = found.trace, found.trace.launches
    names = [trace.range_names[code].text for code in trace.ranges.name.tolist()]
    ranges, ops = plain_kineto.read(path, inner)
    assert Counter(zip(names, trace.ranges.start.tolist(), trace.ranges.end.tolist(), strict=True)) == ranges
    times = zip(
        *(values.tolist() for values in (trace.ops.start, trace.ops.end, trace.ops.launch, found.op_owner)), strict=True
    )
    assert ops == Counter(
        (
            start,
            end,
            trace.call_names[launches.name[launch]] if launch >= 0 else None,
            int(launches.start[launch]) if launch >= 0 else None,
            names[owner] if owner >= 0 else None,
        )
        for start, end, launch, owner in times
    )


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_annotations_are_ranges_and_correlations_join_launches(tmp_path: Path, name: str) -> None:
    """A GPU op belongs to the annotation in which the call of its correlation stands; one without call to nobody."""
    path = write_trace(tmp_path / name, STEP)
    same_as_plain(path)
    found = read(path)
    assert [(row.outcome, row.ops) for row in found.ledger if row.ops] == [("own thread", 2), ("no launch row", 1)]
    assert found.trace.op_names == ["gemm", "launched before", "memcpy HtoD"]
    assert [gpu.name for gpu in found.trace.report.about.gpus] == ["NVIDIA H100"]
    assert found.trace.copies.size_bytes.tolist() == [4096]


def test_operators_and_modules_are_added_to_annotations(tmp_path: Path) -> None:
    """`--ranges ops` and `modules` come beside annotations, and `auto` takes these alone."""
    path = write_trace(tmp_path / "t.json", [*STEP, module("Linear_0", 15, 70)])
    same_as_plain(path, "ops")
    assert len(read(path).trace.ranges) == 2
    both = read(path, "ops,modules")
    kinds = [both.trace.range_names[code].text for code in both.trace.ranges.name.tolist()]
    assert kinds == ["ProfilerStep#1", "forward", "nn.Module: Linear_0", "aten::mm"]


def test_steps_of_2021_are_annotations(tmp_path: Path) -> None:
    """PyTorch 1.8 wrote its own annotations as operators, with all others: they are ranges, and arrows are no news."""
    events = [
        event("Operator", "ProfilerStep#7", 0, 90),
        event("Operator", "aten::mm", 10, 20),
        {"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 1, "cat": "async", "name": "launch"},
    ]
    found = read(write_trace(tmp_path / "t.json", events)).trace
    assert [name.text for name in found.range_names] == ["ProfilerStep#7"]
    assert not any("not read" in sentence for sentence in found.warnings)


def test_modules_without_a_thread_follow_the_operators_inside(tmp_path: Path) -> None:
    """A call of a module on process 0, thread 0 belongs where all its operators are; between two threads to none."""
    inside = [operator("aten::mm", 20, 40), operator("aten::add", 50, 60), operator("aten::mm", 120, 140)]
    other = [operator("aten::mul", 130, 150, tid=200)]
    lost = {"pid": 0, "tid": 0}
    modules = [module("Net_0", 10, 70, **lost), module("Both_0", 110, 160, **lost), module("Half_0", 30, 65, **lost)]
    found = read(write_trace(tmp_path / "t.json", [*inside, *other, *modules]), "modules").trace
    assert [found.range_names[code].text for code in found.ranges.name.tolist()] == ["nn.Module: Net_0"]
    assert found.threads[found.ranges.thread[0]] & 0xFFFFFF == PID
    assert any(sentence.startswith("2 module calls are left out of the ranges") for sentence in found.warnings)


def test_times_are_exact_and_begin_with_the_first_event(tmp_path: Path) -> None:
    """Nanoseconds after years of µs are not rounded, as a float64 would."""
    base = 4_523_326_945_790_484_001
    found = read(
        write_trace(tmp_path / "t.json", [annotation("a", base, base + 7), annotation("b", base + 3, base + 4)])
    )
    assert found.trace.ranges.start.tolist() == [0, 3]
    assert found.trace.ranges.end.tolist() == [7, 4]


def test_whole_microseconds_nest_all_the_same(tmp_path: Path) -> None:
    """Where starts and durations were cut to µs, a call may seem to end up to 1 µs after the range around it."""
    cut = [annotation("step", 0, 10_000), *launch("gemm", (9_000, 11_000), (20_000, 30_000), id=1)]
    assert read(write_trace(tmp_path / "t.json", cut)).ledger[0].ops == 1
    fine = [*cut, annotation("other", 40_000, 40_001)]
    assert read(write_trace(tmp_path / "f.json", fine)).ledger[0].ops == 0


def test_waits_for_events_are_dependencies(tmp_path: Path) -> None:
    """`cuda_sync` names the record that a stream waits for; -1, as of PyTorch 2.11, names none, nor does 0."""
    known = [*STEP, call("cudaEventRecord", 300, 302, 10), *wait_event(310, 11, 9, 10, 7)]
    none = [call("cudaEventRecord", 300, 302, 0), *STEP]
    for events, waits, unnamed in (
        (known, 1, 0),
        ([*none, *wait_event(310, 11, 9, -1, 7), *wait_event(320, 12, 9, 0, 7)], 0, 2),
    ):
        with nsysprof.open_report(write_trace(tmp_path / "t.json", events)) as report:
            trace = attribute(report).trace
            found = report.reader.dependencies(trace)
        assert (len(found.waits), len(found.records), found.unnamed) == (waits, waits, unnamed)


def test_memory_of_the_allocator(tmp_path: Path) -> None:
    """What is allocated is live until released; what was there before is unknown; reserved memory is the pool's."""
    events = [
        *STEP,
        memory(10, 1, 512, 2048),
        memory(20, 2, 256, 2048),
        memory(30, 1, -512, 2048),
        memory(40, 9, -8, 4096),
    ]
    with nsysprof.open_report(write_trace(tmp_path / "t.json", events)) as report:
        found = report.reader.memory()
    by_use = {kind: (time.tolist(), size.tolist()) for (_, _, kind), (time, size) in found.by_use().items()}
    assert by_use == {"device": ([10, 20, 30], [512, 768, 256]), "pool": ([10, 40], [2048, 4096])}


def test_ids_that_are_no_small_numbers(tmp_path: Path) -> None:
    """Negative threads, as CUPTI writes them, and processes by name get numbers, and keep their names; PyTorch 1.8
    wrote numbers as texts.
    """
    far = [*launch("k", (10, 20), (30, 40), id=1, tid=-549452224), annotation("a", 0, 50, tid=-549452224)]
    found = attributed(write_trace(tmp_path / "t.json", [*far, annotation("b", 0, 5, pid="Spans", tid="x")]))
    assert found.ledger[0].ops == 1
    assert found.trace.thread_label(1) == "thread -549452224 4195904"
    beside = [annotation("a", 0, 50, tid="101"), *launch("k", (10, 20), (30, 40), id=1, tid="102")]
    found = read(write_trace(tmp_path / "s.json", beside), threads="strict")
    assert [number & 0xFFFFFF for number in found.trace.threads.tolist()] == [101, 102]
    assert found.ledger[0].ops == 0


_CATEGORY = '{"ph": "X", "cat": "%s", "ts": 1}'
_PROCESS = '{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "%s"}}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"traceEvents": []}', "is a Chrome trace, but not from the PyTorch profiler: there are no events"),
        ('{"traceEvents": [{"ph": "X", "cat": "FEE", "ts": 1}], "viztracer_metadata": {}}', "viztracer"),
        ('{"schema": "1", "nodes": []}', "a PyTorch execution trace"),
        ('{"schema": "1", "odes": []}', "JSON without traceEvents (schema, odes)"),
        ('{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}', "JSON without traceEvents (a, b, c, d)"),
        ('{"rocprofiler-sdk-tool": []}', "a result of rocprofv3"),
        ('{"resourceSpans": []}', "a trace of OpenTelemetry"),
        ('{"spans": 1, "a": 1}', "a trace of OpenTelemetry"),
        ('{"schema": "nsysprof-why/1"}', "a result of nsysprof, not a recording"),
        ('{"nsysprof": 1}', "a result of nsysprof, not a recording"),
        ('{"b": 1, "schema": "nsysprof-why/1"}', "JSON without traceEvents (b, schema)"),
        ('{"a: 1}', "ends before the JSON is complete"),
        ('[{"ph": "X", "cat": "foo", "ts": 1}]', "categories foo"),
        (f"[{', '.join(_CATEGORY % name for name in 'edcba')}]", "categories a, b, c, d"),
        ('[{"ph": "X", "name": "foo", "ts": 1}]', "the events have no category"),
        (f'{{"traceEvents": [{_CATEGORY % "a"}], "by": "nsysprof"}}', "this is an export of nsysprof"),
        (f'{{"traceEvents": [{_CATEGORY % "a"}], "by": "{" " * 4095}nsysprof"}}', "categories a"),
        (f"[{_CATEGORY % 'a'}, {_PROCESS % '/device:GPU:0'}]", "JAX or TensorFlow (XLA)"),
        (f"[{_CATEGORY % 'a'}, {_PROCESS % '/host:CPU'}]", "JAX or TensorFlow (XLA)"),
        (f'{{"traceEvents": [{_CATEGORY % "a"}], "metadata": {{"os": "Chrome"}}}}', "Chromium"),
        (f"[{_CATEGORY % 'devtools.timeline'}]", "Chromium"),
        (f"[{_CATEGORY % 'a'}, {_PROCESS % 'CPU functions'}]", "torch.autograd.profiler"),
        (f"[{_CATEGORY % 'cpu'}]", "torch.autograd.profiler"),
        (f'{{"traceEvents": [{_CATEGORY % "operator"}]}}', "categories operator"),
        ('{"a": 1}', "JSON without traceEvents (a)"),
        ("[1, 2]", "there are no events"),
    ],
)
def test_other_json_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    """A trace of another program is named."""
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(NsysprofError, match="PyTorch") as caught:
        nsysprof.open_report(path)
    assert words in caught.value.message
    assert caught.value.hint


HEAD = trace_text(STEP)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HEAD.replace('"bytes": 4096', '"bytes": NaN, "x": -Infinity, "y": nan').encode(), ""),
        (HEAD.replace('"aten::mm"', '"aten\x01\\Q::mm"').encode(), ""),
        (HEAD.replace('"ph": "X"', '"ph": "X", "ph": "X"').encode(), ""),
        (HEAD.encode("utf-16"), ""),
        (b"\xef\xbb\xbf" + HEAD.encode(), ""),
        (HEAD.replace('"aten::mm"', f'"{"m" * 3_000_000}"').encode(), ""),
        (HEAD.replace('"schemaVersion": 1', f'"deep": {"[" * 50_000}{"]" * 50_000}').encode(), ""),
        (
            HEAD.replace('"correlation": 3', f'"correlation": 3, "deep": {"[" * 50_000}{"]" * 50_000}').encode(),
            "unreadable events left out: 1",
        ),
        (
            HEAD.replace('"name": "gemm"', '"name": ["gemm"]').encode(),
            "unreadable fields, which count as not recorded: 1",
        ),
        ((HEAD + HEAD).encode(), "text after the trace"),
        (HEAD[: HEAD.index('"traceName"')].encode(), "reading stopped"),
        (HEAD[HEAD.index("[", HEAD.index("traceEvents")) : HEAD.rindex("]") + 1].encode(), ""),
    ],
    ids=["nan", "bad text", "twice", "utf-16", "bom", "long", "deep", "deep event", "no text", "two", "cut", "list"],
)
def test_odd_text_costs_nothing_else(tmp_path: Path, content: bytes, words: str) -> None:
    """Whatever is odd about some of the text, all GPU ops are read."""
    path = tmp_path / "t.json"
    path.write_bytes(content)
    found = read(path)
    assert len(found.trace.ops) == 3
    warnings = [*found.trace.report.about.warnings]
    assert any(words in sentence for sentence in warnings) if words else not warnings


@pytest.mark.parametrize("keep", [0.5, 0.75, 0.95])
@pytest.mark.parametrize("behind", [b"", b"\xff" * 90])
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_file_cut_anywhere_is_answered_as_far_as_it_goes(
    tmp_path: Path, keep: float, behind: bytes, name: str
) -> None:
    """The events before the cut, or before what is damaged, are read, and a warning says that others are missing."""
    path = write_trace(
        tmp_path / name, [each for at in range(50) for each in launch(f"k{at * at}", (at, at), (at, at), at + 1)]
    )
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)] + behind)
    found = read(path)
    assert 0 < len(found.trace.ops) <= 50
    assert "reading stopped" in found.trace.report.about.warnings[0]


def test_faults_of_events_are_counted(tmp_path: Path) -> None:
    """Events without a time are left out, impossible durations count as 0, unknown categories are named."""
    events = [
        *STEP,
        annotation("back", 50, 40),
        event("strange", "x", 1, 2),
        {"ph": "X", "cat": "cpu_op", "name": "n"},
        {"ph": "X", "cat": "cpu_op", "name": "n", "ts": "1E999990"},  # too many digits to make a number of
        *({"ph": "X", "cat": "cpu_op", "name": "n", "ts": 1, "dur": each} for each in ("9e18", "1e30", "-1e30", "nan")),
    ]
    warnings = read(write_trace(tmp_path / "t.json", events)).trace.warnings
    faults = ("longer than a year: 2;", "without a duration: 1;", "negative duration: 2;")
    for words in ("without a time: 2;", *faults, "strange (1)"):
        assert any(words in sentence for sentence in warnings), words


def test_steps_that_cross_other_annotations_are_windows(tmp_path: Path) -> None:
    """`capture --mark-steps` ends a step where the optimizer does, inside of a range: what runs counts to both."""
    events = [annotation("step0", 0, 500), annotation("train", 100, 600), annotation("step1", 500, 900)]
    events += launch("gemm", (200, 210), (300, 350), id=1) + launch("later", (520, 530), (540, 560), id=2)
    found = read(write_trace(tmp_path / "t.json", events))
    trace = found.trace
    rows = {trace.range_names[name].text: row for row, name in enumerate(trace.ranges.name.tolist())}
    assert {name: RANGE_KINDS[trace.ranges.kind[row]] for name, row in rows.items()} == {
        **{"train": "push_pop", "step0": "start_end", "step1": "start_end"}
    }
    sums = {name: int(found.inclusive.sum_ns[row]) for name, row in rows.items()}
    assert sums == {"train": 70, "step0": 50, "step1": 20}
    assert not any("overlap another" in text for text in trace.warnings)


@pytest.mark.parametrize("order", [1, -1])
def test_calls_of_a_thread_at_one_time_are_in_the_order_of_their_work(tmp_path: Path, order: int) -> None:
    """Whichever event of the file comes first."""
    events = launch("k", (5, 6), (10, 20), id=1) + launch("k", (5, 6), (20, 30), id=2)
    trace = read(write_trace(tmp_path / "t.json", events[::order])).trace
    assert trace.ops.launch[trace.ops.start.argsort()].tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(10))
def test_made_up_traces_are_read_as_a_plain_reading_does(tmp_path: Path, seed: int) -> None:
    """Ranges, GPU ops, launches and owners of whole traces in any order are those of lists and loops."""
    chance = random.Random(seed)
    events = some_trace(chance)
    chance.shuffle(events)
    path = write_trace(tmp_path / "t.json.gz", events)
    for inner in ("", "ops"):
        same_as_plain(path, inner)


def test_the_trace_that_is_shipped_is_read_as_a_plain_reading_does() -> None:
    """With annotations, and with operators."""
    for inner in ("", "ops"):
        same_as_plain(Path(__file__).parents[2] / "traces" / "cpu.pt.trace.json.gz", inner)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["analyze", "--no-charts", "--force"], "forward"),
        (["why", "--no-charts"], "GPU"),
        (["export", "--to", "csv", "-o", "OUT"], ""),
        (["check", "--init", "-o", "OUT"], ""),
    ],
)
def test_commands_read_traces(tmp_path: Path, command: list[str], expected: str) -> None:
    """Each command that reads reports takes a trace, and names its recorder."""
    path = write_trace(tmp_path / "t.pt.trace.json.gz", [*STEP, *launch("late", (850, 860), (950, 990), id=9)])
    words = [str(tmp_path / "out") if word == "OUT" else word for word in command]
    words += [] if "-o" in words else ["-o", str(tmp_path / "out")]
    result = quietly(words[0], path, *words[1:])
    assert result.code == 0, result.err
    assert expected in result.out
    if command[0] == "analyze":
        document = json.loads((tmp_path / "out" / "analysis.json").read_text())
        assert document["report"]["format"] == "kineto"
        assert document["report"]["recorder"] == "PyTorch profiler"


def test_the_only_gpu_is_known_by_whatever_number_ops_have(tmp_path: Path) -> None:
    """ROCm counts CPUs among the devices of GPU ops; where several GPUs are listed, none is guessed."""
    work = [call("hipLaunchKernel", 10, 15, 1), gpu_op("kernel", "k", 20, 30, 1, device=2)]
    for gpus, known in ([GPU], 0), ([GPU, {**GPU, "id": 1}], None):
        trace = read(write_trace(tmp_path / "t.json", work, deviceProperties=gpus)).trace
        assert [device.gpu for device in trace.devices] == [known]


def test_copies_without_a_size_have_no_rate(tmp_path: Path) -> None:
    """ROCm records no bytes: they count as 0 with a warning, and are not small; HIP's calls are known as CUDA's are."""
    events = [
        *[call("hipMemcpyWithStream", 10, 40, 1), call("hipExtModuleLaunchKernel", 50, 55, 2)],
        gpu_op("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 20, 30, 1),
        gpu_op("kernel", "Cijk_Alik_Bljk_BBS_BH_MT64x64x64", 60, 80, 2),
    ]
    path = write_trace(tmp_path / "t.json", events)
    result = quietly("analyze", path, "-o", tmp_path / "out", "--no-charts", "--full")
    assert "without a recorded size, counted as 0 B: 1" in " ".join(result.out.split())
    copies, calls, kernels = (pd.read_csv(tmp_path / "out" / f"{each}.csv") for each in ("copies", "calls", "kernels"))
    assert copies[["size_bytes", "small_count"]].to_numpy().tolist() == [[0, 0]]
    assert copies[["bytes_per_s", "median_bytes_per_s"]].isna().to_numpy().all()
    assert dict(zip(calls["call"], calls["what"], strict=True)) == {
        "hipMemcpyWithStream": "copy",
        "hipExtModuleLaunchKernel": "launch",
    }
    assert "gemm" in set(kernels["family"])


@pytest.mark.parametrize("command", [["compare"], ["fleet", "--workers", "1"], ["check", "--init"]])
def test_traces_of_the_cpu_alone_are_refused_in_one_line_where_the_gpu_is_asked_for(
    tmp_path: Path, command: list[str]
) -> None:
    """And a command is named that records what lacks."""
    paths = [write_trace(tmp_path / f"{name}.json.gz", [annotation("step", 0, 90)]) for name in "ab"]
    done = quietly(command[0], *(paths[:1] if "--init" in command else paths), *command[1:])
    assert done.code == 1
    assert len(done.err.splitlines()) == 2
    assert "nothing to" in done.err
    assert done.err.endswith("nsysprof capture --profiler torch -- PROGRAM\n")


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (event("mtia_ccp_events", "op", 1, 2), "the trace is from an MTIA device, whose work (mtia_ccp_events)"),
        (call("cuLaunchKernelEx", 1, 2, 3), "the trace has launches (cuLaunchKernelEx) but no GPU work"),
        (
            event("cuda_profiler_range", "k", 1, 2),
            "recorded counters (cuda_profiler_range) instead of times; record again",
        ),
        (operator("aten::mm", 1, 2), "recorded the CPU only"),
    ],
)
def test_a_trace_without_gpu_work_says_why(tmp_path: Path, event: Event, words: str) -> None:
    """In the sentence that commands print, and in a warning."""
    trace = read(write_trace(tmp_path / "t.json", [annotation("step", 0, 90), event])).trace
    assert words in trace.no_work
    assert any(words in sentence for sentence in trace.warnings)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        *((2**63 - 1, 2**63 - 1), (2**63, None), (-(2**63), -(2**63)), (-(2**63) - 1, None), (-3.9, -3), (True, 1)),
        *((" 12 ", 12), ("0x10", 16), ("-7", -7), ("1e3", None), ("", None), ("9" * 5000, None), (str(2**63), None)),
        *((float("nan"), None), (float("inf"), None), (1e300, None), (None, None), ([1], None), ({}, None)),
    ],
)
def test_numbers_are_read_from_any_notation(value: Any, number: int | None) -> None:
    """If they fit into 64 bits."""
    assert whole(value, 55) == (55 if number is None else number)


def test_folders_and_pipes_are_no_traces(tmp_path: Path) -> None:
    """A pipe may never end, so that it is not opened."""
    os.mkfifo(tmp_path / "pipe.json")
    assert not KinetoReader.claims(tmp_path / "pipe.json")
    assert not KinetoReader.claims(tmp_path)


def activity_of(path: Path) -> list[tuple[int, int, int, str, int]]:
    """Thread, start, end, name and kind of what the host's threads did, apart from launches."""
    with open_report(path) as report:
        activity = report.reader.host_activity(read_tables(report))
    calls = activity.calls
    rows = zip(calls.thread, calls.start, calls.end, calls.name, activity.kind, strict=True)
    every = [
        (int(tid_of(calls.threads)[of]), *map(int, (a, b)), calls.names[name], int(kind))
        for of, a, b, name, kind in rows
    ]
    return [row for row in every if row[3] != "cudaLaunchKernel"]


def test_overhead_without_a_thread_halts_those_that_make_no_call_meanwhile(tmp_path: Path) -> None:
    """Kineto writes process -1 and thread 0 for what CUPTI says of itself. A thread that called meanwhile ran on."""
    path = write_trace(
        tmp_path / "t.json",
        [
            *launch("a", (0, 10), (20, 30), id=1),
            *launch("b", (500, 510), (520, 530), id=2),
            *launch("c", (300, 310), (320, 330), id=3, tid=101),
            operator("aten::add", 0, 600, tid=102),
            event("overhead", "Activity Buffer Request", 10, 400, pid=-1, tid=0),
            event("overhead", "Buffer Flush", 495, 505, pid=-1, tid=0),
        ],
    )
    assert activity_of(path) == [
        (100, 10, 400, "Activity Buffer Request", PROFILER),
        (101, 495, 505, "Buffer Flush", PROFILER),
    ]


def test_what_the_driver_does_is_no_overhead_of_the_profiler(tmp_path: Path) -> None:
    """CUPTI counts compilation, lazy loading and a full queue as overhead; without a profiler they are there, too."""
    names = ("Lazy Function Loading", "Runtime Triggered Module Loading", "Command Buffer Full", "Driver Compiler")
    others = ("Activity Buffer Request", "Instrumentation", "Resource")
    overhead = [
        event("overhead", name, 100 * at, 100 * at + 50, pid=-1, tid=0) for at, name in enumerate([*names, *others], 1)
    ]
    path = write_trace(tmp_path / "t.json", [*launch("a", (0, 10), (20, 30), id=1), *overhead])
    kinds = {name: kind for *_, name, kind in activity_of(path)}
    assert kinds == {**dict.fromkeys(names, CUDA), **dict.fromkeys(others, PROFILER)}


def test_python_functions_that_wait_are_named(tmp_path: Path) -> None:
    """`with_stack=True`: what sleeps, polls or takes from a queue is what the host did, each time; others are code."""
    names = ("<built-in function sleep>", "torch/utils/data/dataloader.py(700): __next__", "train.py(12): step")
    calls = [
        event("python_function", name, 10_000 * at, 10_000 * at + 9_000) for at, name in enumerate([*names, *names], 1)
    ]
    path = write_trace(tmp_path / "t.json", [*launch("a", (0, 10), (20, 30), id=1), *calls])
    assert [(start, name) for _, start, _, name, _ in activity_of(path)] == [
        (10_000 * at, name)
        for at, name in ((1, "sleep"), (2, "dataloader.py __next__"), (4, "sleep"), (5, "dataloader.py __next__"))
    ]


def test_what_stands_beside_the_events_is_about_the_machine(tmp_path: Path) -> None:
    """Versions of CUDA as people write them; what is no number says nothing."""
    for written, version in ((12080, "12.8"), (11_020, "11.2"), (0, None), ("new", None)):
        path = write_trace(tmp_path / "t.json", STEP, cuda_driver_version=written)
        with nsysprof.open_report(path) as report:
            about = report.about
        assert (about.cuda_version, about.duration_ns, len(about.gpus)) == (version, 1000, 1)
        assert about.start_utc == "2023-11-14T22:13:20"
