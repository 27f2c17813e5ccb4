"""Diagnoses of shipped reports, of programs by chance, whose numbers `conftest` keeps, and of any outcome."""

import random
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from nsysprof.attribution.levels import WHOLE, Level
from nsysprof.diagnosis import diagnose, finding, text
from nsysprof.diagnosis.diagnose import StepTimes
from nsysprof.diagnosis.finding import Finding
from nsysprof.diagnosis.launch_bound import CAUSE
from nsysprof.kernels.classify import kinds_of
from tests.conftest import MakeTrace
from tests.diagnosis import test_kinds as planted
from tests.diagnosis.test_kinds import SCORES, call, copy, diagnosis_of, os, steps
from tests.forecast.test_kept import program as of_all_changes
from tests.kit.gpu_samples import STEP_NS, gpu_samples
from tests.kit.kept import hold
from tests.kit.program import MS, US, Program
from tests.kit.reports import BLOCK, TRACES, TWO, attributed
from tests.kit.trace import CudaDevice, Gpu, Item, Items, Kernel, Launch, Memcpy, OsCall, Range
from tests.steps.test_kept import SLOW
from tests.steps.test_steps import program
from tests.summaries.test_kept import of_pytorch
from tests.waits.test_kept import MADE

ITEM = TRACES.parent / "docs/gallery/item.sqlite"
CHANCE = {"waits": (22,), "many": (206,), "simulated": (4,), "set-up": (1,), "report": (4,)}
ACTS = (
    *(planted.code, planted.allocations, planted.waited_copy, planted.small_copies, planted.read_back),
    *(planted.fed(), planted.fed(2 * MS, 100 * US), planted.launching(25), planted.recorder(MS), planted.memset(MS)),
    *(planted.late_kernels(30 * US), planted.collective(beside=False), planted.beside(1), planted.optimizer(30)),
    *(os(name, MS) for name in ("nanosleep", "poll", "write", "sem_wait", "futex", "MPI_Send", "mmap")),
    *(call(name, MS) for name in ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cuModuleLoadData", "cudaGraphLaunch")),
    *(copy(1, host=0, blocks=True), copy(2, host=0, blocks=True), copy(1, host=1), copy(8, host=1)),
)
KERNELS = (
    *(planted.PRODUCT, planted.SOFTMAX, planted.NORM, planted.TO_NHWC, planted.CAST, planted.SCALE, planted.ADD),
    *(planted.GELU, planted.FILL, planted.MEAN, "ampere_sgemm_128x64_tn", "sm80_xmma_gemm_f64f64_f64f64_f64_nn"),
    *("cutlass_80_tensorop_f16_s16816gemm_f16_128x128_nn_align1", "stencil", "heavy"),
)
MODELS = (
    *("fused_moe_kernel", "void bn_fw_tr_1C11_kernel_NCHW<float>(x)", "void cudnn::ops::nchwToNhwcKernel<float>(x)"),
    *("void gemv2T_kernel_val<int, __half>(x)", "void at::native::multi_tensor_apply_kernel<x>(y)", *KERNELS[:5]),
)


@pytest.mark.parametrize("path", [BLOCK, TWO, ITEM], ids=lambda path: path.stem)
def test_shipped_reports(path: Path) -> None:
    """Of their steps."""
    assert diagnosis_of(path).times


@pytest.mark.parametrize("case", [f"{kind} {seed}" for kind, seeds in CHANCE.items() for seed in seeds])
def test_programs_by_chance(trace: MakeTrace, case: str) -> None:
    """Of all their ranges, and of the whole recording."""
    kind, _, seed = case.rpartition(" ")
    path = trace(*MADE[kind](int(seed)))
    assert [diagnosis_of(path, select).times for select in ("*", None)]


@pytest.mark.parametrize("seed", [2, 5, 6])
def test_traces_of_pytorch(tmp_path: Path, seed: int) -> None:
    """Forward and backward, memory, copies and collectives."""
    assert diagnosis_of(of_pytorch(tmp_path, seed)).times


@pytest.mark.parametrize("most", [diagnose.MAX_OPS, 0])
def test_slow_steps_and_stretches(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Whole programs, and stretches of them as of recordings that are too large, of which nothing else was read."""
    monkeypatch.setattr(diagnose, "MAX_OPS", most)
    for items in (program(SLOW).items, of_all_changes()):
        attribution = attributed(trace(*items))
        assert diagnosis_of(attribution.trace.report.path).times
        assert diagnose.diagnose(diagnose.case_of(attribution, None, kinds_of(attribution.trace), None)).times


def decoding(item: Item) -> Item:
    """Steps that decode, in which no range is of an optimizer."""
    if not isinstance(item, Range):
        return item
    name = str(item.name)
    name = "update" if "Optimizer" in name else name
    return replace(item, name="execute_context_0(0)_generation_9(9)" if name.startswith("step") else name)


def many_faults(seed: int) -> list[Items]:
    """Some faults in each step, some in a few, and kernels of all shapes."""
    rng = random.Random(seed)
    often, seldom = rng.sample(ACTS, 4), rng.sample(ACTS, 3)
    decodes = seed >= 5  # and updates parameters in no range of its own
    often += [planted.optimizer(30)] * decodes
    shapes: dict[str, dict[str, Any]] = {
        name: {
            "block": (rng.choice([32, 64, 128, 256, 512]), rng.choice([1, 1, 2]), 1),
            "blocks": rng.choice([1, 12, 100, 128, 132, 140, 264, 310, 4096]),
            "shared": (0, rng.choice([0, 0, 8, 50, 100, 120]) << 10),
            "registers": rng.choice([32, 32, 64, 128, 168, 255]),
            "local": rng.choice([0, 0, 0, 64, 4096]),
        }
        for name in rng.sample(MODELS if decodes else KERNELS, 7)
    }
    lengths = {name: rng.randint(5 * US, SCORES) for name in shapes}

    def act(program: Program) -> None:
        for each in (*often, *(each for each in seldom if rng.random() < 0.2)):
            each(program)
        for name, shape in shapes.items():
            program.launch(name, lengths[name], **shape)

    items: list[Items] = [*map(decoding, steps(act).items)] if decodes else [*steps(act).items]
    if seed % 2:  # sampled
        length = max(item.end for item in items if isinstance(item, Kernel)) // STEP_NS + 5
        metrics = ("sm_active", "sm_issue", "tensor_active", "dram_read", "dram_write")
        items.append(
            gpu_samples(
                {name: [rng.randint(9 * at, 9 * at + 40) for _ in range(length)] for at, name in enumerate(metrics)}
            )
        )
    return items


@pytest.mark.parametrize("seed", range(9))
def test_programs_with_many_faults(trace: MakeTrace, seed: int) -> None:
    """Of steps."""
    assert diagnosis_of(trace(*many_faults(seed))).times


@pytest.mark.parametrize(("one", "other"), [(0, 2), (1, 3), (4, 0), (6, 8)])
def test_two_programs_with_many_faults(trace: MakeTrace, one: int, other: int) -> None:
    """On a GPU each, with threads of other numbers."""
    moved: list[Item] = []
    for each in many_faults(other):
        if isinstance(each, Kernel | Memcpy):
            moved.append(replace(each, process=2, device=1))
        elif isinstance(each, Range | Launch | OsCall):
            moved.append(replace(each, process=2, thread=(each.thread or 0) + 3))
    devices: list[Item] = [Gpu(0), Gpu(1), CudaDevice(0, 0, 1), CudaDevice(1, 1, 2)]
    assert len(diagnosis_of(trace(*devices, *many_faults(one), *moved)).times) == 2


@pytest.mark.parametrize("seed", range(5))
def test_one_pass_with_faults(trace: MakeTrace, seed: int) -> None:
    """Without steps, from the first call on; some kernels run before or behind all faults."""
    rng, made = random.Random(seed), Program()
    made.free[7] = 0
    for each in rng.sample(ACTS, 5):
        each(made)
        made.layers(rng.choice([0, 3, 9]))
    made.launch(*rng.choice([("gemm", 9 * MS), ("add", MS), ("gemm", US)]))
    assert diagnosis_of(trace(*made.items)).times


SHARES = (0, 0, 2, 4, 5, 10, 20, 25, 50, 80, 95, 100)  # the limits of sentences and ranks are among them


def some_findings(rng: random.Random) -> list[Finding]:
    """A few findings of two paths or of the whole recording that lose and gain round parts of their steps."""
    out = []
    for at in range(rng.choice((0, 1, 2, 4, 7))):
        kind = rng.choice((*LEADS, *LEADS[3:], *OTHERS))
        remedy = rng.choice(("", "Do 1.", f"Do {at}."))
        gain = MS * rng.choice(SHARES) if remedy else 0
        lost, total = MS * rng.choice((*SHARES, 150)), rng.choice((0, *[100 * MS] * 9))
        low, high = sorted((gain, max(0, gain + rng.choice((0, MS, -MS)))))
        basis = rng.choice((finding.REPLAYED, finding.BOUND)) if remedy else finding.UNTRIED
        change = ("--remove", f"cause {at}[0]") if remedy and rng.random() < 0.8 else ()
        cause = rng.choice((f"cause {at}", finding.SHARED))
        where = rng.choice(("a[1]", "b", WHOLE)), rng.randrange(2)
        often = rng.choice((finding.EVERY, finding.EVERY, finding.ONCE, "3 of 20 steps"))
        values: dict[str, Any] = {
            **{"kind": kind, "path": where[0], "gpu": where[1], "often": often, "steps": 20, "text": f"text {at}"},
            **{"cause": cause, "claim": "order", "lost_ns": lost, "remedy": remedy, "change": change, "basis": basis},
            **{"gain_ns": gain, "gain_low_ns": low, "gain_high_ns": high, "total_ns": total, "step_ns": total / 20},
            **{"culprits": (f"cause {at - 1}",), "recording_ns": MS * rng.choice((0, 0, 5))},
        }
        out.append(Finding(**values))
    return out


OTHERS = "launch-latency", "unknown", "cpu-code", "exposed-copy", "synchronization", "sleep", "small-grid"
LEADS = (finding.PACED, finding.COLD, finding.SLOW, "launch-bound", "optimizer", "pointwise", "channels-last")


def test_ranks_of_any_findings_are_as_they_were() -> None:
    """Which comes first, which are told, and all that each says of itself."""
    rng, said = random.Random(3), []
    for _ in range(900):
        found = some_findings(rng)
        best = finding.ranked(found)
        told = [each.text for each in finding.worth_telling(best)]
        every = [
            (each.record("$"), each.listed(), text.gain_text(each), each.likely_ns, each.fix)
            for each in (*best, *[each.untried() for each in best[:1]])
        ]
        asked = [text.next_command(each, "r", rng.choice(("why", "analyze", "steps"))) for each in best]
        more = [finding.scaled(each, 1.5, 30) for each in best[:1]]
        said.append([told, every, [each.replace(" ", "_") for each in asked], more])
    hold(__file__, "any findings", said)


class Found(Level):
    """Steps that were found by their pattern."""

    found = True


def test_words_of_any_diagnosis_are_as_they_were(trace: MakeTrace) -> None:
    """The numbers in all sentences: of steps, found ones and none, of busy and idle GPUs, with and without findings."""
    made = Program()
    made.layers(9)
    planted.code(made)
    bases = [diagnosis_of(trace(*each.items)) for each in (steps(planted.code), made)]
    level = bases[0].chosen.level
    found = Found(**{each.name: getattr(level, each.name) for each in fields(Level)})
    bases.append(replace(bases[0], chosen=replace(bases[0].chosen, level=found)))
    rng, said = random.Random(4), []

    def share(of: int = 1) -> float:
        return of * rng.choice(SHARES) / 100

    for _ in range(600):
        recorded = rng.choice((100, 1000)) * MS
        parts = [[MS * rng.choice(SHARES) for _ in range(4)] for _ in range(rng.choice((0, 1, 1, 2)))]
        values: dict[str, Any] = {
            "findings": tuple(finding.ranked(some_findings(rng)) if parts and rng.random() < 0.5 else ()),
            "times": tuple(StepTimes("a", gpu, 7, 7, *each) for gpu, each in enumerate(parts)),
            "once": tuple((f"load {at}", ns * MS) for at, ns in enumerate(rng.sample((300, 100, 11, 10, 5), 2))),
            **{name: share() for name in ("idle_share", "early_share", "outside_share")},
            **{name: round(share(recorded)) for name in ("busy_ns", "migrated_ns", "idle_outside_ns", "gap_ns")},
            **{"recorded_ns": recorded, "left_out": rng.randrange(3), "steps": 7 * bool(parts)},
            **{name: rng.choice(("", f"8{at}1")) for at, name in enumerate(("busiest", "outside", "during"))},
            "mostly": rng.choice(("", "9 %", f"{CAUSE} 77 %")),
            "tried": rng.random() < 0.5,
            "launches": rng.randrange(2),
            "before": ("init 4", rng.choice((0, 1, 100, 1000)) * MS),
        }
        answer = replace(rng.choice(bases), **values)
        texts = [make(answer) for make in (text.nothing_text, text.once_text, text.steps_text)]
        texts += [text.headline(answer, "r", device) for device in ("", "GPU 9")]
        texts += [
            text.findings_text(answer, "r", by, most) for by in ("why", "analyze", "forecast") for most in (None, 3)
        ]
        texts += [text.kernels_first(answer)] if answer.findings else []
        said.append([texts, [each != "" for each in texts], answer.nothing, text.diagnosis_members(answer, "r", "why")])
    hold(__file__, "any diagnosis", said)
