"""Reports compared with budgets: every kind of limit at its edge, and what a report may lack."""

import json
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nsysprof
from nsysprof.check.baseline import Baseline, growths, refuse_repeats
from nsysprof.check.budget import read_budget
from nsysprof.check.check import BudgetCheck, draft
from nsysprof.check.measure import CallSamples, RangeFinder, backends_seen, call_samples, ops_inside
from nsysprof.check.text import check_document, check_markdown, check_summary
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import load_rules
from tests.conftest import MakeTrace
from tests.kit.random_reports import random_report
from tests.kit.reports import broken_down
from tests.kit.trace import Gpu, Items, Kernel, Launch, Range, launch_graph, launch_kernel, launch_memcpy, launch_memset

LATE = 10_000_000
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)64, (int)128, (int)128, (int)4>>(T1)"
FP32_GEMM, GEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_ffma", "nvjet_sm90_hsh_64x32_64x16_1x2_h_bz_TNN"
SOFTMAX = "void <unnamed>::softmax_warp_forward<float, float, float, (int)9, (bool)0, (bool)0>(T2 *)"
CAST = "void at::native::unrolled_elementwise_kernel<at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase &)"


def step(number: int, *kernels: str, ns: int = 10, name: str = "step", at: int = 0) -> list[Items]:
    """`step <number>` of 1,000 ns, with these kernels of `ns` each, 20 ns from start to start, and their launches."""
    begin = 1_000 * number + at
    out: list[Items] = [Range(f"{name} {number}", begin, begin + 900)]
    for i, kernel in enumerate(kernels):
        start = begin + 100 + 20 * i
        out.append(launch_kernel(kernel, (begin + 2 * i + 1, begin + 2 * i + 2), (start, start + ns), id=begin + i + 1))
    return out


def steps(lengths: Sequence[int]) -> list[Items]:
    """A step for each length, with one kernel of so many ns."""
    return [item for number, ns in enumerate(lengths) for item in step(number, "gemm", ns=ns)]


def checked(report: Path, text: str, **how: Any) -> BudgetCheck:
    """A report against a budget with this text; a text without a table is that of one range `step*`."""
    path = report.with_name("budget.toml")
    path.write_text(text if "[[range]]" in text else f'[[range]]\npath = "step*"\n{text}', encoding="utf-8")
    return nsysprof.check(report, path, **how)


def results(answer: BudgetCheck) -> list[tuple[str, Any, Any]]:
    """Rule, what was found and whether it holds, for each row."""
    return [(row["rule"], row["found"], row["ok"]) for row in answer.records()]


def one(answer: BudgetCheck) -> dict[str, Any]:
    """The only row."""
    [row] = answer.records()
    return row


@pytest.mark.parametrize(
    ("limit", "rule", "found"),
    [
        ("max_kernels = {}", "max_kernels", 3),
        ("max_launches = {}", "max_launches", 5),
        ("max_memops = {}", "max_memops", 2),
        ("max_graph_launches = {}", "max_graph_launches", 0),
        ("max_span_ns = {}", "max_span", 460),
        ("max_busy_ns = {}", "max_busy", 90),
        ("max_cpu_ns = {}", "max_cpu", 900),
    ],
)
def test_a_limit_holds_up_to_its_value(trace: MakeTrace, limit: str, rule: str, found: int) -> None:
    """What equals a limit keeps to it, one less breaks it, and what was found is that of one call."""
    items = [
        part
        for number in range(3)
        for part in [
            *step(number, "a", "b", "c"),
            launch_memcpy(
                (1000 * number + 30, 1000 * number + 31), (1000 * number + 500, 1000 * number + 540), id=9_000 + number
            ),
            launch_memset(
                (1000 * number + 32, 1000 * number + 33), (1000 * number + 540, 1000 * number + 560), id=9_100 + number
            ),
        ]
    ]
    report = trace(*items, duration=LATE)
    assert results(checked(report, limit.format(found))) == [(rule, found, True)]
    if found:
        answer = checked(report, limit.format(found - 1))
        assert results(answer) == [(rule, found, False)]
        assert (one(answer)["allowed"], one(answer)["instances"], one(answer)["bound"]) == (found - 1, 3, "max")
        assert not answer.ok


def whole(solve: int = 40) -> list[Items]:
    """No range: a copy, two kernels of ``solve`` ns with a wait between, one that nobody launched, on two streams."""
    return [
        launch_memcpy((0, 5), (10, 20), id=1),
        launch_kernel("solve", (6, 8), (30, 30 + solve), id=2),
        launch_kernel("solve", (90, 95), (100, 100 + solve), id=3, stream=8),
        Launch(150, 195, 4, api="cudaDeviceSynchronize_v3020"),
        Kernel("lost", 180, 190, None),
    ]


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
EAGER: list[Items] = [  # 50 us: 3 launches of 5 us, 5 us of code behind each, a kernel of 1 us behind that
    Range("step", 0, 50_000),
    *(launch_kernel("gemm", (at, at + 5_000), (at + 5_000, at + 6_000), id=at + 1) for at in (0, 10_000, 20_000)),
]
SYNCS: list[Items] = [
    *(Range("step", at, at + 100, process=1) for at in (0, 100)),
    Range("step window", 0, 200, process=1, kind="start_end"),
    *(launch_kernel("gemm", (10, 15), (20, 60), id=1), launch_memcpy((16, 18), (61, 62), id=2)),
    *(Launch(20, 70, 3, api="cudaStreamSynchronize_v3020"), Launch(75, 80, 4, api="cudaFree_v3020")),
    Launch(20, 90, 5, api="cudaDeviceSynchronize", thread=9),
    launch_kernel("gemm", (110, 115), (120, 160), id=6),
]
NOTHING_IN_IT = [*step(0), launch_kernel("a", (5_000, 5_001), (5_002, 5_003), id=1)]
WARM = [*step(0, "a", "warm_up"), *step(1, "a"), *step(2, "a")]
WARM_LIMITS = 'stat = "max"\nmax_kernels = 1\nforbid_kernels = "warm"\nmin_instances = '
IDLE_LIMITS = 'path = "idle"\nmax_exposed_communication_ns = 1\nmax_launch_bound_share = 1\nmax_syncs = 0\n'
NO_WORK_LIMITS = 'max_kernels = 0\nmax_span = "1 s"\nmax_busy = "1 s"\nmax_idle = 1'
TENSOR = 'math_unit = { family = "gemm", unit = "tensor core", min_share = '
# items, a budget, and its rows: rule, what was found, whether it holds, evidence and calls as far as they matter
LIMITS: dict[str, tuple[Sequence[Items], str, list[tuple[Any, ...]]]] = {
    "a CUDA graph traced as a whole is a launch and no kernel": (
        [*step(0), launch_graph((1, 2), (200, 240), id=5)],
        "max_graph_launches = 0\nmax_kernels = 0\nmax_launches = 1",
        [("max_graph_launches", 1, False), ("max_kernels", 0, True), ("max_launches", 1, True)],
    ),
    "the median of one and two kernels is more than 1": (
        [*step(0, "a"), *step(1, "a", "b")],
        "max_kernels = 1",
        [("max_kernels", 1.5, False)],
    ),
    "and less than 2": ([*step(0, "a"), *step(1, "a", "b")], "max_kernels = 2", [("max_kernels", 1.5, True)]),
    "two kernels of 10 ns that begin 20 ns apart leave a third of their span idle": (
        step(0, "a", "b"),
        'max_idle = "34 %"',
        [("max_idle", pytest.approx(1 / 3), True)],
    ),
    "on two GPUs each is half busy": (
        [
            *(Range("step 0", 0, 900), launch_kernel("a", (1, 2), (100, 110), id=1, device=0)),
            launch_kernel("b", (3, 4), (110, 120), id=2, device=1),
        ],
        "max_idle = 0.4",
        [("max_idle", 0.5, False)],
    ),
    "short code of a range that launches nothing is no launching": (
        [*EAGER, Range("think", 6_000, 10_000)],
        "max_launch_bound_share = 1",
        [("max_launch_bound_share", pytest.approx(19 / 50), True)],
    ),
    "launches count whatever let the GPU run dry; the synchronizing call does not": (
        [*EAGER, Launch(6_500, 9_500, 7, api="cudaDeviceSynchronize_v3020")],
        "max_launch_bound_share = 1",
        [("max_launch_bound_share", pytest.approx(20 / 50), True)],
    ),
    "synchronizing calls are those of the range's thread; copies that return at once are none": (
        SYNCS,
        '[[range]]\npath = "step"\nmax_syncs = 1\nstat = "max"',
        [("max_syncs", 2, False, "0 to 2")],
    ),
    "or of the process of a start/end range": (
        SYNCS,
        '[[range]]\npath = "step window"\nmax_syncs = 3',
        [("max_syncs", 3, True)],
    ),
    "a window begins where the work of a call ends that is left out": (
        [
            *(Range("step", 0, 100), launch_kernel("gemm", (0, 5), (10, 500), id=1)),
            *(Range("step", 100, 200), launch_kernel(NCCL, (110, 115), (500, 600), id=2)),
            launch_kernel("gemm", (116, 118), (600, 700), id=3),
        ],
        'skip = 1\n[[range]]\npath = "step"\nmax_exposed_communication_ns = 0\nmax_launch_bound_share = 0',
        [("max_exposed_communication", 100, False), ("max_launch_bound_share", 0, True)],
    ),
    "a range without GPU work breaks limits on windows; calls can be counted": (
        [Range("idle", 0, 100), *step(1, "gemm")],
        f"[[range]]\n{IDLE_LIMITS}",
        [("max_exposed_communication", None, False), ("max_launch_bound_share", None, False), ("max_syncs", 0, True)],
    ),
    "one that is optional leaves them untested": (
        [Range("idle", 0, 100), *step(1, "gemm")],
        f"[[range]]\n{IDLE_LIMITS}optional = true",
        [("max_exposed_communication", None, None), ("max_launch_bound_share", None, None), ("max_syncs", 0, True)],
    ),
    "the first call counts": (
        WARM,
        f"{WARM_LIMITS}3",
        [("min_instances", 3, True), ("max_kernels", 2, False), ("forbid_kernels warm", 1, False)],
    ),
    "`skip` leaves it out, of limits and of what is forbidden": (
        WARM,
        f'skip = 1\n[[range]]\npath = "step*"\n{WARM_LIMITS}2',
        [("min_instances", 2, True), ("max_kernels", 1, True), ("forbid_kernels warm", 0, True)],
    ),
    "each way to name an op finds it, counts all of them, and names them": (
        [*step(0, SOFTMAX, CAST, CAST), *step(1, SOFTMAX)],
        'forbid = ["softmax", "memcpy"]\nforbid_causes = ["cast*", "dropout"]\n'
        'forbid_kernels = ["warp_forward", "^softmax"]',
        [
            ("forbid softmax", 2, False, "softmax_warp_forward float 9 x 2"),
            ("forbid memcpy", 0, True, ""),
            ("forbid_causes cast*", 2, False),
            ("forbid_causes dropout", 0, True),
            ("forbid_kernels warp_forward", 2, False),
            ("forbid_kernels ^softmax", 0, True),
        ],
    ),
    "what an inner range launches counts for the outer one, and once": (
        [
            *(Range("step 0", 0, 900), Range("inner", 10, 500), launch_memcpy((20, 21), (100, 110), id=1)),
            launch_kernel("a", (700, 701), (800, 810), id=2),
        ],
        '[[range]]\npath = "step*"\nforbid = "memcpy"\n[[range]]\npath = "step*/inner"\nforbid="memcpy"',
        [("forbid memcpy", 1, False)] * 2,
    ),
    "the share of a math unit is of the time of the family": (
        step(0, GEMM, GEMM, GEMM, FP32_GEMM, "a"),
        f'{TENSOR}"75 %" }}',
        [("math_unit gemm: tensor core", 0.75, True, f"FP32 FMA: {FP32_GEMM} x 1")],
    ),
    "and breaks a limit above it": (
        step(0, GEMM, GEMM, GEMM, FP32_GEMM, "a"),
        f'{TENSOR}"76 %" }}',
        [("math_unit gemm: tensor core", 0.75, False)],
    ),
    "a family that is not there is not tested": (
        step(0, GEMM),
        'math_unit = { family = "softmax", unit = "tensor core" }',
        [("math_unit softmax: tensor core", None, None, "the range has no softmax")],
    ),
    "one call of three on another backend breaks the limit": (
        [*step(0, FLASH), *step(1, FP32_GEMM, SOFTMAX), *step(2, FLASH)],
        'backend = "flash"',
        [("backend", "math", False, f"math in 1: {FP32_GEMM} x 1, softmax_warp_forward float 9 x 1", 3)],
    ),
    "a glob that matches nothing is broken and names what is near": (
        step(0, "a"),
        '[[range]]\npath = "stop*"\nmax_kernels = 1\nmax_span = "1 ms"',
        [("must exist", 0, False, "no range matches; there is step*")],
    ),
    "where it is optional it is not tested": (
        step(0, "a"),
        '[[range]]\npath = "stop*"\noptional = true\nmax_kernels = 1',
        [("must exist", 0, None)],
    ),
    "a range alone must exist": (step(0, "a"), '[[range]]\npath = "step*"', [("must exist", 1, True)]),
    "three calls are three": (steps([1, 2, 3]), "min_instances = 3", [("min_instances", 3, True)]),
    "and too few for four": (steps([1, 2, 3]), "min_instances = 4", [("min_instances", 3, False)]),
    "a range keeps to every table about it, in the order of the budget": (
        step(0, "a", "b"),
        '[[range]]\npath = "*"\nmax_kernels = 1\n[[range]]\npath = "step*"\nmax_kernels = 2\n',
        [("max_kernels", 2, False), ("max_kernels", 2, True)],
    ),
    "the whole trace is all GPU work, whoever launched it, as one call; its host time is the recording": (
        whole(),
        '[[range]]\npath = "whole trace"\nmax_kernels = 2\nmax_launches = 3\nmax_memops = 1\nmax_span = "180 ns"\n'
        'max_busy_ns = 99\nmax_idle = "40 %"\nmax_cpu_ns = 500\nmax_syncs = 0\nmax_launch_bound_share = "10 %"\n'
        'max_exposed_communication_ns = 0\nforbid = ["memcpy"]\nforbid_kernels = ["lost"]\n',
        [
            *(("max_kernels", 3, False), ("max_launches", 3, True), ("max_memops", 1, True), ("max_span", 180, True)),
            *(("max_busy", 100, False), ("max_idle", pytest.approx(80 / 180), False), ("max_cpu", LATE, False)),
            *(("max_syncs", 1, False), ("max_launch_bound_share", pytest.approx(25 / 180), False)),
            *(("max_exposed_communication", 0, True), ("forbid memcpy", 1, False), ("forbid_kernels lost", 1, False)),
        ],
    ),
    "a report with ranges has it too, and no other glob finds it": (
        steps([10, 10]),
        '[[range]]\npath = "whole trace"\nmax_kernels = 9\n[[range]]\npath = "*"\nmax_kernels = 9',
        [("max_kernels", 2, True, "", 1), ("max_kernels", 1, True, "", 2)],
    ),
    "a time that nothing took is not short: it breaks the limit": (
        NOTHING_IN_IT,
        NO_WORK_LIMITS,
        [
            ("max_kernels", 0, True),
            *((f"max_{measure}", None, False, "the range has no GPU work") for measure in ("span", "busy", "idle")),
        ],
    ),
    "unless the range is optional": (
        NOTHING_IN_IT,
        f'{NO_WORK_LIMITS}\noptional = true\nbackend = "flash"',
        [
            ("max_kernels", 0, True),
            *((f"max_{measure}", None, None) for measure in ("span", "busy", "idle")),
            ("backend", "none", None),
        ],
    ),
    "where some calls launch nothing their span is 0, and a share of nothing is left out": (
        [*step(0, "a", "b"), *step(1), *step(2)],
        "max_span_ns = 0\nmax_idle = 0.1",
        [("max_span", 0, True, "", 3), ("max_idle", pytest.approx(1 / 3), False, "all 33 %; 2 more without a span", 1)],
    ),
    "the host's time of a call that never ended is not known": (
        [
            *(Range("step 0", 0, 900), Range("step 1", 1_000, None)),
            launch_kernel("a", (1_010, 1_011), (1_100, 1_110), id=1),
        ],
        'max_cpu = "1 us"',
        [("max_cpu", 900, True, "1 more never closed", 1)],
    ),
    "and breaks the limit if no call ended": (
        [*step(0, "a"), Range("tail", 950, None)],
        '[[range]]\npath = "tail"\nmax_cpu = "1 s"',
        [("max_cpu", None, False, "the range was never closed, so it has no end")],
    ),
    "a 95th percentile of five calls is named as what it is": (
        steps([10, 11, 12, 13, 14]),
        'stat = "p95"\nmax_busy = "1 us"',
        [("max_busy", 14, True, "too few calls for a 95th percentile: n = 5")],
    ),
    "and their maximum is one": (
        steps([10, 11, 12, 13, 14]),
        'stat = "max"\nmax_busy = "1 us"',
        [("max_busy", 14, True, "")],
    ),
    "a window of a process keeps to its limits like any other range": (
        [
            *(Range("window", 0, 900, kind="start_end"), launch_kernel("a", (10, 11), (100, 110), id=1, thread=2)),
            launch_kernel("a", (20, 21), (120, 130), id=2, thread=3),
        ],
        '[[range]]\npath = "window"\nmax_kernels = 1\nforbid_kernels = "a"\nmax_span_ns = 30',
        [("max_kernels", 2, False), ("max_span", 30, True), ("forbid_kernels a", 2, False)],
    ),
    "without `merge` each step of another name is a range of its own": (
        [*step(0, "a", name="phase"), *step(1, "a", "b", name="phase")],
        '[[range]]\npath = "phase*"\nmax_kernels = 1',
        [("max_kernels", 1, True), ("max_kernels", 2, False)],
    ),
    "and with it they are one": (
        [*step(0, "a", name="phase"), *step(1, "a", "b", name="phase")],
        'merge = "phase*"\n[[range]]\npath = "phase*"\nmax_kernels = 1',
        [("max_kernels", 1.5, False)],
    ),
}


@pytest.mark.parametrize(("items", "text", "rows"), LIMITS.values(), ids=LIMITS)
def test_limits(trace: MakeTrace, items: Sequence[Items], text: str, rows: list[tuple[Any, ...]]) -> None:
    """What each limit finds, and whether it holds."""
    answer = checked(trace(*items, duration=LATE), text)
    found = [(row["rule"], row["found"], row["ok"], row["evidence"], row["instances"]) for row in answer.records()]
    assert [row[: len(wanted)] for row, wanted in zip(found, rows, strict=True)] == rows
    assert answer.ok == all(ok is not False for _, _, ok, *_ in rows)
    assert any("never closed" in warning for warning in answer.warnings) == ("never closed" in str(rows))


@pytest.mark.parametrize(("stat", "found"), [("median", 25), ("p95", 47), ("max", 50)])
def test_the_statistic_is_the_one_asked_for(trace: MakeTrace, stat: str, found: int) -> None:
    """The same calls by median, 95th percentile and maximum; the row says which."""
    report = trace(*steps(range(0, 51)), duration=LATE)  # 51 calls: no interpolation for the median
    answer = checked(report, f'stat = "{stat}"\nmax_busy_ns = 0')
    assert one(answer)["stat"] == stat
    assert one(answer)["found"] == pytest.approx(found, abs=1)
    assert isinstance(one(answer)["found"], int)


def test_the_spread_of_samples_is_numpys() -> None:
    """Percentiles of many groups at once are those that numpy gives for each; what cannot be told is left out."""
    generator = np.random.default_rng(5)
    row = np.sort(generator.integers(0, 40, 900))
    row = row[row != 17]
    values = np.where(generator.random(len(row)) < 0.1, np.nan, generator.integers(0, 10**9, len(row)))
    values[row == 23] = np.nan
    samples = CallSamples({}, row, 40, {"span": values})
    spread = samples.spreads()["span"]
    for group in range(40):
        known = values[(row == group) & ~np.isnan(values)]
        np.testing.assert_array_equal(np.sort(samples.of(group, "span")), np.sort(known))
        measured = [spread[name][group] for name in ("min", "median", "p95", "max")]
        if len(known):
            assert spread["n"][group] == len(known)
            np.testing.assert_allclose(measured, np.quantile(known, [0, 0.5, 0.95, 1]), rtol=1e-12)
        else:
            assert np.isnan(measured).all()


def test_samples_are_the_instances(trace: MakeTrace) -> None:
    """For made-up reports of any shape the samples of each row are the rows of `instances.csv`, in order of time."""
    for seed in range(6):
        breakdown = broken_down(trace(*random_report(seed), name=f"r{seed}.sqlite"), skip=seed % 2)
        samples = call_samples(breakdown)
        instances = breakdown.instances.sort_values("start_ns", kind="stable")
        assert samples.calls.tolist() == breakdown.merged["instances"].tolist()
        for (path, kind), number in samples.keys.items():
            mine = instances[(instances["merged_path"] == path) & (instances["kind"] == kind)]
            ended = mine[mine["unclosed"] == 0]
            wanted = {
                **{measure: mine[measure] for measure in ("launches", "kernels", "memops")},
                **{measure: mine[f"{measure}_ns"] for measure in ("span", "busy")},
                "cpu": ended["end_ns"] - ended["start_ns"],
            }
            for measure, values in wanted.items():
                assert samples.of(number, measure).tolist() == values.tolist(), measure


def eager_step(at: int, pause: int = 5_000, kernel: str = "gemm") -> list[Items]:
    """A step of 50 us or more: 3 kernels of 1 us, each behind its launch of 5 us, and `pause` ns to the next launch."""
    out: list[Items] = [Range("step", at, at + max(50_000, 3 * (5_000 + pause)))]
    for number in range(3):
        begin = at + number * (5_000 + pause)
        op = (begin + 5_000, begin + 6_000)
        out.append(launch_kernel(kernel, (begin, begin + 5_000), op, id=at + number + 1))
    return out


def test_the_share_that_is_launch_bound(trace: MakeTrace) -> None:
    """Launches and the short code between them: 15 us and 2 x 4 of the 50; not the long code behind the last."""
    report = trace(*eager_step(0), *eager_step(100_000), duration=LATE)
    assert one(checked(report, "max_launch_bound_share = 0.46"))["found"] == pytest.approx(23 / 50)
    answer = checked(report, 'max_launch_bound_share = "45 %"')
    assert (one(answer)["ok"], one(answer)["unit"], one(answer)["instances"]) == (False, "share", 2)
    assert "max_launch_bound_share, median 45 % 46 % 2 all 46 %" in " ".join(check_summary(answer).split())
    assert r"| max\_launch\_bound\_share, median | 45 % | 46 % |" in check_markdown(answer)
    assert check_document(answer)["rows"][0]["found"] == pytest.approx(0.46)


def test_slow_code_is_not_launch_bound(trace: MakeTrace) -> None:
    """From 20 us on code is no launching."""
    for pause, found in ((20_999, 15_000 + 3 * 19_999), (21_000, 15_000)):
        report = trace(*eager_step(0, pause), duration=LATE)
        window = 3 * (5_000 + pause)
        assert one(checked(report, "max_launch_bound_share = 1"))["found"] == pytest.approx(found / window)


@pytest.mark.parametrize("key", ['max_exposed_communication = "{} ns"', "max_exposed_communication_ns = {}"])
def test_exposed_communication_per_call(trace: MakeTrace, key: str) -> None:
    """Of a collective of 100 ns the 60 beside which nothing computes; of two GPUs the one with more."""
    items: list[Items] = [
        Range("step", 0, 500),
        launch_kernel("gemm", (10, 15), (20, 60), id=1, stream=7),
        launch_kernel(NCCL, (16, 18), (20, 120), id=2, stream=13),
        launch_kernel("gemm", (130, 135), (140, 200), id=3, stream=7),
        launch_kernel(NCCL, (20, 22), (30, 40), id=4, stream=13, device=1),
    ]
    report = trace(*items, duration=LATE)
    assert results(checked(report, key.format(60))) == [("max_exposed_communication", 60, True)]
    broken = checked(report, key.format(59))
    assert results(broken) == [("max_exposed_communication", 60, False)]
    assert "max_exposed_communication, median" in check_summary(broken)


@pytest.mark.parametrize("threads", ["follow", "strict"])
def test_ops_inside_are_those_of_the_families(trace: MakeTrace, threads: str) -> None:
    """For made-up reports of any shape the ops by name add up to the families of the breakdown, row by row."""
    for seed in range(8):
        breakdown = broken_down(trace(*random_report(seed), name=f"r{seed}.sqlite"), threads)
        rows = list(range(len(breakdown.merged)))
        inside = ops_inside(breakdown, rows)
        mine: dict[tuple[int, str], int] = {}
        for row, ops in inside.items():
            for name, count in zip(ops.name.tolist(), ops.ops.tolist(), strict=True):
                key = row, breakdown.kinds.family[name]
                mine[key] = mine.get(key, 0) + count
        families = breakdown.families
        theirs = zip(families["row"].tolist(), families["family"].tolist(), families["ops"].tolist(), strict=True)
        assert mine == {(row, family): ops for row, family, ops in theirs if ops}
        for row in rows[:3]:
            alone = ops_inside(breakdown, [row])[row]
            assert alone.name.tolist() == inside[row].name.tolist()
            assert alone.sum_ns.tolist() == inside[row].sum_ns.tolist()


@pytest.mark.parametrize(
    ("kernels", "wanted", "found", "ok"),
    [
        ((FLASH,), "flash", "flash", True),
        ((FLASH,), "FLASH", "flash", True),
        ((FP32_GEMM, SOFTMAX), "math", "math", True),
        ((FP32_GEMM, SOFTMAX), "flash", "math", False),
        ((FLASH, FP32_GEMM, SOFTMAX), "flash", "flash + math", False),
        ((FLASH, FP32_GEMM, SOFTMAX), "math + flash", "flash + math", True),
        (("mystery",), "flash", "unknown", None),
        ((GEMM,), "flash", "no attention", False),
        ((), "flash", "none", False),
    ],
)
def test_the_backend_is_judged_in_any_range(
    trace: MakeTrace, kernels: tuple[str, ...], wanted: str, found: str, ok: bool | None
) -> None:
    """The kernels of a range say what ran, whatever it is called; names that no rule knows are not tested."""
    report = trace(*step(0, *kernels), launch_kernel("other", (5_000, 5_001), (5_100, 5_110), id=99), duration=LATE)
    row = one(checked(report, f'backend = "{wanted}"'))
    assert (row["found"], row["ok"], row["allowed"], row["bound"]) == (found, ok, wanted, "is")
    assert bool(row["evidence"]) is not ok


def test_backends_of_ranges_inside_one_another(trace: MakeTrace) -> None:
    """An outer and an inner range are each judged by all that is inside them."""
    report = trace(
        *(Range("RUN::flash::S1", 0, 900), Range("attention", 10, 100)),
        launch_kernel(FLASH, (20, 21), (110, 120), id=1),
        launch_kernel(FP32_GEMM, (200, 201), (210, 220), id=2),
        launch_kernel(SOFTMAX, (202, 203), (220, 230), id=3),
        duration=LATE,
    )
    breakdown = broken_down(report)
    found = backends_seen(breakdown, [0, 1], load_rules())
    assert dict(zip(found["row"], found["observed"], strict=True)) == {0: "flash + math", 1: "flash"}


def test_words_that_no_rule_knows(trace: MakeTrace) -> None:
    """A misspelt backend or cause would never be found, nor missed: it is refused with those there are."""
    report = trace(*step(0, "a"), duration=LATE)
    with pytest.raises(NsysprofError, match=r"range 1 \('step\*'\): no kernel rule defines backend 'flsh'") as error:
        checked(report, 'backend = "flsh"')
    assert "flash" in str(error.value.hint)
    with pytest.raises(NsysprofError, match="defines cause 'dropuot'") as error:
        checked(report, 'forbid_causes = "dropuot"')
    assert "dropout" in str(error.value.hint)
    assert checked(report, 'forbid_causes = ["cast float32→float16", "drop*"]').ok


def test_rules_of_a_user(trace: MakeTrace, tmp_path: Path) -> None:
    """A rule file names backends and causes of kernels that the shipped rules do not know."""
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\nname = "mine"\nmatch = "mystery"\n'
        'family = "attention"\nattention_backend = "own"\ncause = "secret"\n',
        encoding="utf-8",
    )
    report = trace(*step(0, "mystery"), duration=LATE)
    answer = checked(report, 'backend = "own"\nforbid_causes = "secret"', rules=rules)
    assert [ok for _, _, ok in results(answer)] == [False, True]


def test_a_glob_stands_for_the_outermost_ranges(trace: MakeTrace) -> None:
    """A star crosses `/`, the outermost of ranges inside one another is meant, and a name is found at any depth."""
    report = trace(
        *(Range("RUN::a", 0, 900), Range("iter0", 10, 100), Range("iter1", 200, 300)),
        *(Range("RUN::b", 1_000, 1_900), Range("iter0", 1_010, 1_100)),
        launch_kernel("k", (20, 21), (110, 120), id=1),
        duration=LATE,
    )
    breakdown = broken_down(report)
    finder = RangeFinder(breakdown)

    def found(glob: str) -> list[str]:
        return [finder.texts[row] for row in finder.find(glob)]

    assert found("*") == ["RUN::a", "RUN::b"]
    assert found("RUN::*/iter*") == ["RUN::a/iter*", "RUN::b/iter*"]
    assert found("RUN::b") == ["RUN::b"]
    assert found("iter[*]") == ["RUN::a/iter*", "RUN::b/iter*"]
    assert found("RUN::[!a]") == ["RUN::b"]
    assert found("run::a") == []
    assert found("iter0") == []


def test_a_report_without_ranges(trace: MakeTrace) -> None:
    """It says nothing about ranges: that is an error, not a budget kept."""
    report = trace(launch_kernel("a", (1, 2), (3, 4), id=1), duration=LATE)
    with pytest.raises(NsysprofError, match="has no ranges, but") as error:
        checked(report, "max_kernels = 1")
    assert 'path = "whole trace"' in str(error.value.hint)
    assert "--trace=cuda,nvtx" in str(error.value.hint)


def test_a_range_may_be_called_whole_trace(trace: MakeTrace) -> None:
    """Then it is what is meant."""
    named = trace(Range("whole trace", 2000, 2009), *steps([10]), duration=LATE)
    assert results(checked(named, '[[range]]\npath = "whole trace"\nmax_kernels = 9')) == [("max_kernels", 0, True)]


def test_what_cannot_be_judged_of_a_whole_trace(trace: MakeTrace) -> None:
    """Growth of one sample beyond its tolerance, and a backend, which is seen in ranges: neither holds nor breaks."""
    earlier, report = trace(*whole(20), duration=LATE), trace(*whole(), duration=LATE)
    limits = 'backend = "flash"\nmax_growth = { span = "5 %", busy = "5 %" }'
    answer = checked(report, f'[[range]]\npath = "whole trace"\n{limits}', baseline=earlier)
    assert [ok for _, _, ok in results(answer)] == [None, True, None]


def test_a_draft_without_ranges_limits_the_whole_trace(trace: MakeTrace) -> None:
    """Counts, and no copies where there are none; the report keeps to it."""
    report = trace(*whole(), duration=LATE)
    text = draft(report)
    assert text.endswith('\n[[range]]\npath = "whole trace"\nmax_kernels = 3\nmax_launches = 3\nmax_memops = 1\n')
    assert checked(report, text).ok
    assert text.count("[[range]]") == 2
    assert 'forbid = ["memcpy"]' in draft(trace(*whole()[1:], duration=LATE))
    assert "whole trace" not in draft(trace(*steps([10, 10]), duration=LATE))


def test_a_report_without_gpu_work(trace: MakeTrace) -> None:
    """It keeps to no limit on GPU work, not even to `max_kernels`; limits on the host's time can be told."""
    report = trace(*step(0), duration=LATE)
    for limit in ("max_kernels = 1", 'max_span = "1 s"', 'forbid = "memcpy"', 'backend = "flash"'):
        with pytest.raises(NsysprofError, match="has no GPU work, but"):
            checked(report, limit)
    assert results(checked(report, "max_cpu_ns = 899")) == [("max_cpu", 900, False)]


def test_a_report_with_a_part_that_cannot_be_read(trace: MakeTrace) -> None:
    """Kernels that nobody counts break no limit: that is no answer."""
    kernel = "CUPTI_ACTIVITY_KIND_KERNEL"
    report = trace(*step(0), launch_kernel("a", (1, 2), (3, 4), id=1), drop_columns={kernel: ["end"]})
    with pytest.raises(NsysprofError, match=f"cannot be checked: {kernel} has 1 rows but lacks end"):
        checked(report, "max_kernels = 0")


def growth(report: Path, base: Path, text: str = 'max_growth = { span = "5 %" }') -> dict[str, Any]:
    """The row of a limit on growth."""
    return one(checked(report, text, baseline=base))


def noisy(median: int, count: int = 40, seed: int = 1, spread: float = 0.05) -> list[int]:
    """Kernel times around a median, 5 % up and down if nothing else is said."""
    noise = np.random.default_rng(seed).standard_normal(count)
    return [int(median * (1 + spread * each)) for each in noise.tolist()]


def test_slower_than_the_tolerance_and_surely_so(trace: MakeTrace) -> None:
    """Twice the time breaks a tolerance of 5 %; the row has both medians and both counts."""
    base, new = trace(*steps(noisy(100)), duration=LATE), trace(*steps(noisy(200, seed=2)), duration=LATE)
    row = growth(new, base)
    assert (row["ok"], row["allowed"], row["stat"], row["instances"]) == (False, 0.05, "median", 40)
    assert row["found"] == pytest.approx(1.0, abs=0.06)
    assert "n = 40 and 40" in row["evidence"]
    assert growth(new, base, 'max_growth = { span = "150 %" }')["ok"]
    assert growth(base, new)["ok"]
    assert growth(new, new)["found"] == 0


def test_noise_breaks_nothing(trace: MakeTrace) -> None:
    """Calls of one distribution are no slower, even where the tolerance is nothing."""
    base = trace(*steps(noisy(1_000)), duration=LATE)
    for seed in range(2, 8):
        new = trace(*steps(noisy(1_000, seed=seed)), duration=LATE)
        assert growth(new, base, 'max_growth = { busy = "0 %" }')["ok"], seed


def test_too_few_calls_to_tell(trace: MakeTrace) -> None:
    """Three calls each tell nothing: beyond the tolerance the limit is not tested, and says so; within, it holds."""
    base, new = trace(*steps([100] * 3), duration=LATE), trace(*steps([200] * 3), duration=LATE)
    answer = checked(new, 'max_growth = { span = "5 %" }', baseline=base)
    assert (one(answer)["ok"], answer.ok) == (None, True)
    assert "100 ns to 200 ns, n = 3 and 3: too few samples" in one(answer)["evidence"]
    assert growth(new, base, 'max_growth = { span = "100 %" }')["ok"] is True


def test_a_small_growth_counts_where_it_is_not_allowed(trace: MakeTrace) -> None:
    """The tolerance alone says what is small: 1 % more, surely, breaks a tolerance of half a percent."""
    base = trace(*steps(noisy(10_000, spread=0.001)), duration=LATE)
    new = trace(*steps(noisy(10_100, spread=0.001, seed=2)), duration=LATE)
    assert growth(new, base, 'max_growth = { busy = "0.5 %" }')["ok"] is False
    assert growth(new, base, 'max_growth = { busy = "2 %" }')["ok"] is True


def test_many_limits_do_not_break_by_chance() -> None:
    """What one test would call slower is no clear change among a hundred limits, tested or not: Holm's correction."""
    rows = 100
    generator = np.random.default_rng(0)
    before, after = (
        np.concatenate([generator.permutation(first + 10.0 * np.arange(20)), np.full(20 * (rows - 1), 7.0)])
        for first in (1_000, 1_070)
    )
    row = np.repeat(np.arange(rows), 20)
    keys = [(f"r{number}", "push_pop") for number in range(rows)]
    numbers = {key: number for number, key in enumerate(keys)}
    old, new = (CallSamples(numbers, row, rows, {"busy": values}) for values in (before, after))
    baseline = Baseline("base.sqlite", frozenset(), old, frozenset())
    alone = growths(new, [baseline], "", {(0, "busy"): 0.01})
    assert alone[0, "busy"].slower is True
    family = growths(new, [baseline], "", {(number, "busy"): 0.01 for number in range(rows)})
    assert len(family) == rows
    assert (family[0, "busy"].slower, family[0, "busy"].by) == (False, alone[0, "busy"].by)
    assert "corrected for 100 comparisons" in family[0, "busy"].why
    assert family[7, "busy"].by == 0


def captured(seed: int, slower: float = 1.0) -> CallSamples:
    """A capture of 8 launch-bound ranges of 40 calls: the host takes 25 % more or less from run to run, the GPU 1 %."""
    rng = np.random.default_rng(seed)
    host, gpu = np.exp(0.25 * rng.normal(size=8)), slower * np.exp(0.01 * rng.normal(size=8))
    columns = {
        "span": np.repeat(50_000 * host, 40) * np.exp(0.03 * rng.normal(size=320)),
        "cpu": np.repeat(60_000 * host, 40) * np.exp(0.03 * rng.normal(size=320)),
        "busy": np.repeat(8_000 * gpu, 40) * np.exp(0.01 * rng.normal(size=320)),
    }
    keys = {(f"r{number}", "push_pop"): number for number in range(8)}
    return CallSamples(keys, np.repeat(np.arange(8), 40), 8, columns)


def test_launch_noise_breaks_no_limit() -> None:
    """24 limits at 20 %: by their calls many spans and CPU times grew; of one capture these are not tested, and
    three show that runs differ by as much. A GPU that is slower breaks its limits either way.
    """
    limits = {(row, measure): 0.2 for row in range(8) for measure in ("span", "cpu", "busy")}
    base, *others = (Baseline(f"{seed}", frozenset(), captured(seed), frozenset()) for seed in range(3))
    for seed in range(10, 20):
        alone = growths(captured(seed), [base], "", limits)
        assert not any(each.slower for each in alone.values())
        refused = [key for key, each in alone.items() if "limit busy" in each.why]
        assert {measure for _, measure in refused} <= {"span", "cpu"}
        several = growths(captured(seed), [base, *others], "", limits)
        assert not any(each.slower for each in several.values())
    grown = [captured(seed).of(row, "span") for seed in range(10, 20) for row in range(8)]
    befores = [base.samples.of(row, "span") for _ in range(10) for row in range(8)]
    assert sum(np.median(a) > 1.2 * np.median(b) for a, b in zip(grown, befores, strict=True)) >= 10
    for baselines in ([base], [base, *others]):
        found = growths(captured(30, slower=1.5), baselines, "", limits)
        assert {key for key, each in found.items() if each.slower} == {(row, "busy") for row in range(8)}
        assert "smallest detectable growth: " in found[0, "busy"].why or len(baselines) == 1


def test_baselines_before_a_change_of_level_do_not_count() -> None:
    """Of eight baselines the last four are 1.3 times as fast: what is as slow as the first four has grown."""
    speeds = [1.3] * 4 + [1.0] * 4
    baselines = [Baseline(f"{at}", frozenset(), captured(at, slow), frozenset()) for at, slow in enumerate(speeds)]
    limits = {(row, "busy"): 0.1 for row in range(8)}
    assert all(each.slower for each in growths(captured(20, 1.3), baselines, "", limits).values())
    assert not any(each.slower for each in growths(captured(21, 1.0), baselines, "", limits).values())


def test_one_recording_is_not_several() -> None:
    """Given twice, or the report itself among several, it would seem not to vary; alone it may be compared."""
    one, again, other = (
        Baseline(name, frozenset(), captured(seed), frozenset()) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    with pytest.raises(NsysprofError, match="b and a are the same recording"):
        refuse_repeats([one, again], other)
    with pytest.raises(NsysprofError, match="b and a are the same recording"):
        refuse_repeats([one, other], again)
    refuse_repeats([one], again)


def test_what_the_baseline_lacks(trace: MakeTrace) -> None:
    """No baseline, no such range in it, no GPU work, another GPU: not tested, each for its reason."""
    new = trace(*steps(noisy(100)), duration=LATE)
    without = trace(*step(0), launch_kernel("a", (5_000, 5_001), (5_002, 5_003), id=1), duration=LATE)
    assert one(checked(new, 'max_growth = { span = "5 %" }'))["evidence"] == "no --baseline given"
    for base, evidence in (
        (trace(*step(0, "a", name="phase"), duration=LATE), "the baseline does not contain this range"),
        (without, "the range has no GPU work in the baseline"),
        (
            trace(*steps(noisy(50)), Gpu(0, "NVIDIA A100"), duration=LATE),
            "the baseline was recorded on NVIDIA A100, this report on NVIDIA H200",
        ),
    ):
        assert (growth(new, base)["ok"], growth(new, base)["evidence"]) == (None, evidence)
    row = growth(without, new)
    assert (row["ok"], row["evidence"]) == (False, "the range has no GPU work any more")
    with pytest.raises(NsysprofError, match="has no limit that uses a baseline"):
        checked(new, "max_kernels = 1", baseline=new.with_name("missing.sqlite"))  # before anything is read


def test_a_test_can_assert_it(trace: MakeTrace, tmp_path: Path) -> None:
    """`assert_ok` says nothing when all holds, and else fails with the table; reports and budgets may be open."""
    path = tmp_path / "b.toml"
    path.write_text('[[range]]\npath = "step*"\nmax_kernels = 2', encoding="utf-8")
    with nsysprof.open_report(trace(*step(0, "a", "b"), duration=LATE)) as report:
        nsysprof.check(report, read_budget(path)).assert_ok()
        answer = checked(report.path, "max_kernels = 1")
    with pytest.raises(AssertionError) as error:
        answer.assert_ok()
    assert str(error.value) == "\n" + check_summary(answer)
    assert "step*    max_kernels, median" in str(error.value)


def test_the_rows_fit_any_width_of_names(trace: MakeTrace) -> None:
    """Lines stay within 110 columns and hold nothing that a terminal would obey, whatever the names."""
    hostile = "step\x1b[31m|`*_<b>\n" + "x" * 300
    report = trace(
        Range(hostile, 0, 900), launch_kernel("evil\x1b[2J|" + "y" * 500, (1, 2), (3, 4), id=1), duration=LATE
    )
    answer = checked(
        report,
        '[[range]]\npath = "step*"\nmax_kernels = 0\nforbid_kernels = "evil"\nmax_span_ns = 0\n'
        'max_growth = { span = "5 %" }\n[[range]]\npath = "no such range \\u001b[0m"\n'
        '[[range]]\npath = "neither this one"\noptional = true\nmax_kernels = 1\n',
    )
    assert (len(answer.broken), len(answer.untested)) == (4, 2)
    text, markdown = check_summary(answer), check_markdown(answer)
    assert max(map(len, text.splitlines())) <= 110
    for output in (text, markdown):
        assert "\x1b" not in output
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len(rows) == 6
    for line in rows:
        assert line.replace("\\|", "").count("|") == 7
    assert "<b>" not in markdown.replace("\\<", "")
    assert json.loads(json.dumps(check_document(answer)))["rows"][0]["range"] == answer.rows["range"][0]


def test_digits_tell_apart_what_is_not_equal(trace: MakeTrace) -> None:
    """A limit that is broken by a nanosecond does not look kept."""
    report = trace(*steps([300_001]), duration=LATE)
    text = check_summary(checked(report, 'max_busy = "300 us"'))
    assert "300,000 ns  300,001 ns" in text


def test_a_long_answer_is_cut_and_says_so(trace: MakeTrace) -> None:
    """Of many broken limits the first fifty are shown, and all are counted."""
    report = trace(*[item for i in range(60) for item in step(i, "a", name=f"r{i:02}x")], duration=LATE)
    answer = checked(report, '[[range]]\npath = "r*"\nmax_kernels = 0')
    text = check_summary(answer)
    assert text.startswith("report.sqlite breaks 60 of 60 limits of budget.toml\n")
    assert "  and 10 more: --json has all\n" in text
    assert "No limit holds." in text
    assert len(check_document(answer)["rows"]) == 60


def redrafted(report: Path) -> tuple[str, BudgetCheck]:
    """A draft for a report, and what the report makes of it."""
    text = draft(report)
    return text, checked(report, text)


def test_a_draft_holds_on_its_report(trace: MakeTrace) -> None:
    """Whatever the shape of a report, and whatever its names: a draft is a budget, and the report keeps to it."""
    drafted = 0
    for seed in range(12):
        report = trace(*random_report(seed), name=f"r{seed}.sqlite")
        works = (broken_down(report).merged["launches"] > 0).any()
        if works:
            text, answer = redrafted(report)
            assert answer.ok, check_summary(answer)
            assert answer.untested.empty, check_summary(answer)
            assert text == draft(report)
            drafted += 1
    assert drafted >= 6


def test_names_that_toml_or_globs_would_misread(trace: MakeTrace) -> None:
    """Quotes, brackets, stars, line breaks, backslashes: the draft means the ranges that it was made of."""
    names = ['a"b', "c[1]", "c1", "d*", "dd", "e?", "f\\", "g/h", "i\nj", "k\x7fl", "\u202em", "'''", '"""', " ", "é✓"]
    items: list[Items] = []
    for number, name in enumerate(names):
        kernels = ["k"] * (number + 1)
        items += [Range(name, 1_000 * number, 1_000 * number + 900), *step(number, *kernels)[1:]]
    text, answer = redrafted(trace(*items, duration=LATE))
    assert answer.ok, check_summary(answer)
    kernels_of = {row["range"]: row["found"] for row in answer.records() if row["rule"] == "max_kernels"}
    assert sorted(kernels_of.values()) == list(range(1, len(names) + 1))
    assert text.count("[[range]]\n") == 0
    assert text.count("\n[[range]] #") == len(names)


def test_a_range_with_an_empty_name_is_left_out_of_a_draft(trace: MakeTrace) -> None:
    """No path finds it; the draft says so and is a budget. With no other range there is nothing to draft."""
    nameless = [Range("", 1_000, 1_900), *step(1, "k")[1:]]
    text, answer = redrafted(trace(*nameless, *step(2, "k"), duration=LATE))
    assert answer.ok, check_summary(answer)
    assert "\n# Left out: 1 range with an empty name, which no path can match.\n" in text
    assert re.findall(r"^path = .*$", text, re.M) == ['path = "step*"']
    with pytest.raises(NsysprofError, match="no range with GPU work and a name, so there is nothing to limit"):
        draft(trace(*nameless, name="nameless.sqlite", duration=LATE))


def flash_run(calls: int, first: int = 1_000) -> list[Items]:
    """A run of so many calls of one kernel each, of 100 and 102 ns in turn."""
    items: list[Items] = [Range("RUN::flash::S8", first, first + 1_000 * calls)]
    for number in range(calls):
        at = first + 1_000 * number
        items += [Range(f"iter{number}", at, at + 900)]
        items += [launch_kernel(FLASH, (at + 10, at + 12), (at + 100, at + 200 + number % 2 * 2), id=number + 50)]
    return items


def test_what_a_draft_says(trace: MakeTrace) -> None:
    """What repeats in runs, and runs in which nothing does, sorted: counts as found; times of ten calls or more."""
    report = trace(
        Range("setup", 0, 90),
        launch_memcpy((10, 11), (20, 30), id=1),
        *flash_run(10),
        *(Range("RUN::copy::S8", 20_000, 20_900), launch_memcpy((20_010, 20_011), (20_100, 20_200), id=7)),
        duration=30_000,
    )
    text = draft(report)
    tables = text[text.index('stat = "median"') :]
    assert (
        tables
        == """\
stat = "median"

[[range]] # 1 call
path = "RUN::copy::S8"
max_kernels = 0
max_launches = 1
max_memops = 1

[[range]] # 10 calls
path = "RUN::flash::S8/iter*"
max_kernels = 1
max_launches = 1
max_step = "1.21 us" # 1.00 µs found
max_busy = "122 ns" # 101 ns found
backend = "flash"
forbid = ["memcpy"]
"""
    )
    assert "from a report of NVIDIA H200" in text


def test_a_draft_survives_another_number_of_iterations(trace: MakeTrace, tmp_path: Path) -> None:
    """Drafted from ten iterations, and checked with thirty; so is what repeats under names of its own in one range."""
    loop: list[Items] = [Range("work", 0, 9_000)]
    for number in range(3):
        at = 100 + 1_000 * number
        loop += [Range("forward", at, at + 900)]
        loop += [launch_kernel("gemm", (at + 10, at + 12), (at + 100, at + 200), id=number + 1)]
    longer: list[Items] = [*loop]
    for number in range(3, 6):
        at = 100 + 1_000 * number
        longer += [Range("forward", at, at + 900)]
        longer += [launch_kernel("gemm", (at + 10, at + 12), (at + 100, at + 200), id=number + 1)]
    for name, short, long in (("runs", flash_run(10), flash_run(30)), ("loop", loop, longer)):
        budget = tmp_path / f"{name}.toml"
        budget.write_text(draft(trace(*short, duration=99_000)))
        answer = nsysprof.check(trace(*long, duration=99_000), budget)
        assert answer.ok, str(answer)
        assert len(answer.held) >= 3
    assert 'path = "work/forward"' in draft(trace(*loop, duration=99_000))


def test_few_calls_put_no_limit_on_times(trace: MakeTrace) -> None:
    """Nine calls do not tell how much they differ; without a range that has GPU work there is nothing to write."""
    text = draft(trace(*flash_run(9), duration=99_000))
    assert "max_kernels = 1" in text
    assert "\nmax_span" not in text
    assert "have fewer than 10 calls get no time limit" in text
    with pytest.raises(NsysprofError, match="no range with GPU work"):
        draft(trace(*step(0), duration=LATE))


def test_the_name_of_a_gpu_adds_nothing_to_a_draft(trace: MakeTrace, tmp_path: Path) -> None:
    """A line break in it would begin a line of TOML."""
    evil = 'H200\n[[range]]\npath = "*"\nmax_kernels = 0\x7f'
    path = trace(*flash_run(10), Gpu(name=evil), duration=99_000)
    budget = tmp_path / "budget.toml"
    budget.write_text(draft(path))
    assert [each.glob for each in read_budget(budget).ranges] == ["RUN::flash::S8/iter*"]
    assert nsysprof.check(path, budget).ok


def test_a_long_draft_is_cut(trace: MakeTrace) -> None:
    """Of very many ranges those with the most time are kept, and the others counted."""
    items = [item for i in range(230) for item in step(i, "a", ns=10 + (i >= 30), name=f"range{i}x")]
    text = draft(trace(*items, duration=LATE))
    assert text.count("\n[[range]]") == 200
    assert "# Left out: 30 ranges with less busy time than the ranges below." in text
    assert "range29x" not in text


def late_steps(python: int, name: str, count: int = 8, only: bool = False) -> list[Items]:
    """Steps in which the host needs so long before it launches; ``only`` one of them is there."""
    items: list[Items] = []
    begin = 0
    for number in range(1 if only else count):
        launched = begin + python
        items += [
            Range(f"{name}{number}", begin, launched + 20),
            launch_kernel("gemm", (launched + 2, launched + 4), (launched + 10, launched + 110), id=number + 1),
        ]
        begin = launched + 120
    return items


def test_the_time_of_steps_has_a_limit(trace: MakeTrace) -> None:
    """What the host does before a step's first kernel is in it, and in no span; a single range is not tested."""
    fast = trace(*late_steps(100, "step"), name="fast.sqlite")
    slow = trace(*late_steps(400, "step"), name="slow.sqlite")
    single = trace(*late_steps(100, "step", only=True), name="single.sqlite")
    text = draft(fast)
    assert 'max_step = "265 ns" # 220 ns found' in text
    assert "max_span" not in text[text.index("[[range]]") :]
    broken = checked(slow, text).broken
    assert broken["rule"].tolist() == ["max_step"]
    assert checked(fast, text).ok
    assert results(checked(single, 'max_step = "1 us"'))[-1] == ("max_step", None, None)
    assert results(checked(slow, 'max_span = "1 us"'))[-1] == ("max_span", 100, True)


@pytest.mark.parametrize(("python", "ok"), [(100, True), (118, None), (400, False)])
def test_steps_may_grow(python: int, ok: bool | None, trace: MakeTrace) -> None:
    """By more than runs differ by, one baseline is enough; what the host sets and grows by less is not tested."""
    base = trace(*late_steps(100, "step", 16), name="base.sqlite")
    new = trace(*late_steps(python, "step", 16), name="new.sqlite")
    found = results(checked(new, 'max_growth = { step = "5 %" }', baseline=base))[-1]
    assert found[0] == "max_growth step"
    assert found[2] is ok


def with_needs(report: Path, registers: int, local: int) -> Path:
    """A report with what threads of its kernels need: of `spill` these numbers, of others 32 registers."""
    table, of_spill = "CUPTI_ACTIVITY_KIND_KERNEL", "(SELECT id FROM StringIds WHERE value = 'spill')"
    with closing(sqlite3.connect(report)) as connection, connection:
        connection.execute(f"UPDATE {table} SET registersPerThread = 32, localMemoryPerThread = 0")
        connection.execute(
            f"UPDATE {table} SET registersPerThread = ?, localMemoryPerThread = ? WHERE demangledName IN {of_spill}",
            (registers, local),
        )
    return report


def test_what_kernels_need_of_a_thread_has_limits(trace: MakeTrace) -> None:
    """Registers and local memory, exactly, with the kernel that needs most; what is not recorded is not tested."""
    report = with_needs(trace(*step(1, "gemm", "spill"), *step(2, "gemm"), duration=LATE), 255, 64)
    rows = results(checked(report, "max_registers = 255\nmax_local_memory = 0"))[-2:]
    assert rows == [("max_registers", 255, True), ("max_local_memory", 64, False)]
    assert checked(report, "max_local_memory = 0").broken["evidence"].tolist() == ["spill"]
    with closing(sqlite3.connect(report)) as connection, connection:
        connection.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN localMemoryPerThread")
    assert results(checked(report, "max_local_memory = 0"))[-1] == ("max_local_memory", None, None)


def test_spills_that_the_baseline_had_not_break(trace: MakeTrace) -> None:
    """Local memory grows where a kernel of that name uses more than in the baseline, and a new one any at all."""
    calls = (*step(1, "gemm", "spill"), *step(2, "gemm"))
    new = with_needs(trace(*calls, duration=LATE, name="new.sqlite"), 64, 64)
    same = with_needs(trace(*calls, duration=LATE, name="same.sqlite"), 64, 64)
    none = with_needs(trace(*calls, duration=LATE, name="none.sqlite"), 64, 0)
    without = with_needs(trace(*step(1, "gemm"), duration=LATE, name="without.sqlite"), 64, 0)
    limit = 'max_growth = { local_memory = "0 %" }'
    for base, ok in ((same, True), (none, False), (without, False)):
        answer = checked(new, limit, baseline=base)
        assert results(answer)[-1] == ("max_growth local_memory", 64, ok)
    assert checked(new, limit, baseline=none).broken["evidence"].tolist() == ["spill, 0 in the baseline"]
    assert checked(new, limit).untested["evidence"].tolist()[-1].startswith("the baseline has no value")
    assert checked(new, "max_local_memory = 0", baseline=none).broken["evidence"].tolist() == [
        "spill, 0 in the baseline"
    ]
