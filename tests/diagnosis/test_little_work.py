"""From which times on a recording is a demo, a cold start, or set-up beside its steps; and a fix worth telling."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nsysprof.attribution.levels import WHOLE
from nsysprof.diagnosis import cold_start, tried
from nsysprof.diagnosis.case import Place
from nsysprof.diagnosis.finding import BOUND, EVERY, REPLAYED, SHARED, UNTRIED, Finding
from nsysprof.diagnosis.kinds import Group, Kind, Remedy
from nsysprof.trace.trace import KERNEL, MEMCPY, MIGRATION
from nsysprof.waits.changes import Changes

US, S = 1_000, 1_000_000_000


def finding(kind: str, lost: int, gain: int = 0, cause: str = "x") -> Finding:
    """A finding of the whole recording, of which it takes so many thousandths."""
    basis = BOUND if gain else UNTRIED
    values: dict[str, Any] = {"basis": basis, "gain_ns": gain, "total_ns": 1_000, "remedy": "Fix it." if gain else ""}
    return Finding(kind, WHOLE, 0, EVERY, 1, "text", cause, "order", lost, **values)


FIX = finding("exposed-copy", 249, 249)
# Annotated steps; steps that were found; one pass.
ANNOTATED, FOUND, PASS = (5, False), (5, True), (0, False)


class SomeTrace(SimpleNamespace):
    """What is needed of a trace."""

    @property
    def busy_ns(self) -> int:
        """The time in which GPUs are busy."""
        return sum(int((end - start).sum()) for start, end in self.gpu_busy.values())


def case_with(
    level: tuple[int, bool], *lengths: int, kernels: int = 0, busy: int = 1, moves: int = 0, steps: int = 1
) -> Any:
    """A recording with a kernel, a copy, and a migration on a GPU, whose steps take so long."""
    ends = np.array([kernels, busy, moves])
    start = np.array([0, kernels, 0])
    some = np.flatnonzero(ends > start)
    parts = {"start": start, "end": ends, "kind": np.array([KERNEL, MEMCPY, MIGRATION]), "name": np.arange(3)}
    ops = SimpleNamespace(**{name: values[some] for name, values in parts.items()})
    of_gpu = {"gpu_numbers": [0], "gpu_busy": {0: (np.zeros(1, int), ends[1:2])}}
    trace = SomeTrace(ops=ops, op_gpu=np.zeros(len(some), int), **of_gpu)
    chosen = SimpleNamespace(level=SimpleNamespace(rows=np.arange(level[0]), found=level[1]))
    path = "step" if level[0] else WHOLE
    places = [Place(path, gpu, np.arange(steps), np.full(steps, length)) for gpu, length in enumerate(lengths)]
    facts = SimpleNamespace(attribution=SimpleNamespace(trace=trace))
    return SimpleNamespace(facts=facts, chosen=chosen, places=places, dialect="pytorch")


@pytest.mark.parametrize(
    ("level", "kernels", "busy", "span", "once", "recorded", "more", "said"),
    [
        (PASS, 100, 100, 500, 1_000, 1_000, {}, "set-up"),  # ten times the work
        (PASS, 100, 100, 500, 999, 1_000, {}, ""),
        (PASS, 100, 100, 1_000, 1_000, 1_000, {}, "set-up"),
        (PASS, 100, 100, 1_001, 1_000, 1_000, {}, ""),
        (PASS, 100, 100, 500, 0, 1_001, {}, "kernels"),  # a tenth of the recording
        (PASS, 100, 100, 500, 0, 1_001, {"found": [finding("launch-bound", 499)]}, "kernels"),
        (PASS, 100, 100, 500, 0, 1_001, {"found": [finding("launch-bound", 500)]}, ""),
        (PASS, 4, 100, 500, 0, 1_001, {"found": [finding("launch-bound", 500)]}, "kernels"),
        (PASS, 100, 100, 500, 1_000, 99_000, {"found": [finding("launch-bound", 500)]}, "set-up"),
        (PASS, 2_000, 2_000, 5_000, 20_000, 9_000, {}, "set-up"),  # a pass without a fix
        (PASS, 2_000, 2_000, 5_000, 20_000, 9_000, {"found": [FIX]}, ""),
        (PASS, 2_000, 2_000, 5_000, 20_000, 9_000, {"moves": 1_999}, "set-up"),
        (PASS, 2_000, 2_000, 5_000, 20_000, 9_000, {"moves": 2_000}, ""),
        (PASS, 19_999, 19_999, 19_999, 200_000, 9_000, {}, "set-up"),
        (PASS, 20_000, 20_000, 20_000, 200_000, 9_000, {}, ""),
        (PASS, 4_999, 4_999, 4_999, 0, 100_000, {}, "kernels"),  # a twentieth of the recording
        (PASS, 5_000, 5_000, 5_000, 0, 100_000, {}, ""),
        (PASS, 4_999, 5_000, 5_000, 0, 100_000, {}, ""),
        (PASS, 4_999, 49_999, 49_999, 0, 1_000_000, {}, "kernels"),
        (PASS, 5_000, 49_999, 49_999, 0, 1_000_000, {}, ""),
        (PASS, 999, 49_999, 49_999, 0, 1_000_000, {"found": [FIX]}, "kernels"),  # next to no kernels
        (PASS, 999, 50_000, 50_000, 0, 1_000_000, {"found": [FIX]}, ""),
        (PASS, 1_000, 49_999, 49_999, 0, 1_000_000, {"found": [FIX]}, ""),
        (PASS, 9_999, 49_999, 1_000_000, 0, 1_000_000, {"found": [FIX]}, "kernels"),  # a hundredth of the pass
        (PASS, 10_000, 49_999, 1_000_000, 0, 1_000_000, {"found": [FIX]}, ""),
        (PASS, 9_999, 50_000, 1_000_000, 0, 1_000_000, {"found": [FIX]}, ""),
        (PASS, 9_999, 49_999, 1_000_000, 0, 1_000_000, {"found": [FIX], "inside": 499_999}, "kernels"),
        (PASS, 9_999, 49_999, 1_000_000, 0, 1_000_000, {"found": [FIX], "inside": 500_000}, "cold"),
        (PASS, 100_000, 100_000, 200_000, 0, 200_000, {"inside": 100_000}, "cold"),
        (PASS, 100_000, 100_000, 200_000, 0, 200_000, {"inside": 99_999}, ""),
        (ANNOTATED, 999, 999, 100_000, 0, 20_000_000, {}, "kernels"),
        (ANNOTATED, 1_000, 1_000, 100_000, 0, 20_000_000, {}, ""),
        (ANNOTATED, 499, 499, 10_000, 0, 20_000_000, {}, "kernels"),
        (ANNOTATED, 500, 500, 10_000, 0, 20_000_000, {}, ""),
        (FOUND, 999, 999, 9_999, 0, 1_000_000, {}, "kernels"),
        (FOUND, 1_000, 1_000, 9_999, 0, 1_000_000, {}, ""),
        (FOUND, 1_000, 1_000, 9_999, 1_000, 1_000_000, {}, "kernels"),  # something is set up
        (FOUND, 1_000, 1_000, 9_999, 999, 1_000_000, {}, ""),
        (FOUND, 999, 999, 10_000, 0, 1_000_000, {}, ""),
        (FOUND, 19_999, 19_999, 30_000, 1_000, 10_000_000, {}, "kernels"),
        (FOUND, 20_000, 20_000, 30_000, 1_000, 10_000_000, {}, ""),
        (FOUND, 999, 999, 9_999, 0, 1_000_000, {"found": [FIX]}, "kernels"),
        (FOUND, 999, 999, 9_999, 0, 1_000_000, {"found": [finding("exposed-copy", 250, 250)]}, ""),
        (FOUND, 500_000, 500_000, 500_000, 0, 1_000_000, {"inside": 500_000}, ""),
        (FOUND, 99, 99, 999, 999, 1_000, {}, "set-up"),
        (FOUND, 99, 99, 1_000, 1_000, 1_000, {}, ""),
    ],
)
def test_little_work_beside_the_recording_is_a_demo(
    monkeypatch: pytest.MonkeyPatch, level: Any, kernels: int, busy: int, span: int, once: int, recorded: int,
    more: dict[str, Any], said: str,
) -> None:  # fmt: skip
    """Times are in µs. Much set-up, few kernels, or a GPU that waits for set-up; or work that is worth advice."""
    case = case_with(level, span * US, kernels=kernels * US, busy=busy * US, moves=more.get("moves", 0) * US)
    case.pieces = {"ns": np.array([more.get("inside", 0) * US])}
    for name, value in (("_set_up_waits", True), ("fault_share", 0.0), ("_tuning", ""), ("_slow_first", "")):
        monkeypatch.setattr(cold_start, name, lambda *_, value=value: np.array([value]) if value is True else value)
    monkeypatch.setattr(cold_start, "_before_work", lambda *_: None)
    found = more.get("found", [])
    told = cold_start.cold_start(case, [("loading", once * US)], found, recorded * US)
    if not said:
        assert told == found
        return
    first, *others = told
    words = {"set-up": "set-up takes", "kernels": "kernels run for", "cold": "a cold start: the GPU waits"}
    assert {name for name, each in words.items() if each in first.text} == {said}
    assert first.remedy.startswith("run the work once" if once >= 1_000 else "record s")
    kept = [each for each in found if each.kind == FIX.kind]
    assert others == [each.untried(remedy="") for each in kept]


@pytest.mark.parametrize(("length", "times", "told"), [(600, 2, False), (600, 1, True), (400, 2, True)])
def test_long_kernels_that_run_again_are_no_demo(
    monkeypatch: pytest.MonkeyPatch, length: int, times: int, told: bool
) -> None:
    """Warm kernels of 0.5 ms or more, for half of the time from the first to the last, in a recording of 2 s."""
    case = case_with(PASS, 1_000 * US)
    ends = np.arange(1, times + 1) * length * US
    ops = {"start": ends - length * US, "end": ends, "kind": np.full(times, KERNEL), "name": np.zeros(times, int)}
    case.facts.attribution.trace.ops = SimpleNamespace(**ops)
    case.facts.attribution.trace.op_gpu = np.zeros(times, int)
    case.facts.attribution.trace.gpu_busy = {0: (ops["start"][:1], ends[-1:])}
    case.pieces = {"ns": np.zeros(1, int)}
    monkeypatch.setattr(cold_start, "_set_up_waits", lambda *_: np.array([False]))
    monkeypatch.setattr(cold_start, "_before_work", lambda *_: None)
    monkeypatch.setattr(cold_start, "_tuning", lambda *_: "")
    assert bool(cold_start.cold_start(case, [], [], 2 * S)) is told


@pytest.mark.parametrize(
    ("idle", "gap", "during", "dialect", "lengths", "steps", "said"),
    [
        (3_000, 750, "", "pytorch", [100], 10, "the GPU idles for 3.00 ms outside the steps, 750 µs of it in one gap;"),
        (3_000, 749, "", "pytorch", [100], 10, "the GPU idles for 3.00 ms outside the steps; the steps together take "),
        (3_000, 3_000, "", "pytorch", [100], 10, "the GPU idles for 3.00 ms outside the steps; the steps together "),
        (2_999, 750, "", "pytorch", [100], 10, ""),
        (1_000, 0, "", "pytorch", [30], 10, "the GPU idles for 1.00 ms outside the steps; the steps together take 300"),
        (999, 0, "", "pytorch", [30], 10, ""),
        (3_000, 750, "x", "pytorch", [100, 100], 10, "each GPU idles on average for 3.00 ms outside the steps, 750"),
        (99_000, 0, "", "pytorch", [10], 128, "the GPU idles for 99.0 ms outside the steps; the steps together take 1"),
        (99_000, 0, "", "pytorch", [10], 129, ""),
        (99_000, 0, "", "cuda", [10], 10, ""),
        (4_000, 3_000, "cuMemAllocHost", "cuda", [100], 10, "the GPU idles for 4.00 ms outside the steps, 3.00 ms of it"
         " in one gap (cuMemAllocHost);"),
        (4_000, 2_999, "cudaHostAlloc", "cuda", [100], 10, ""),
    ],
)  # fmt: skip
def test_gpus_that_idle_outside_of_steps_that_were_found(
    idle: int, gap: int, during: str, dialect: str, lengths: list[int], steps: int, said: str
) -> None:
    """Times are in µs. Three times as long as all steps take: of the layers of a pass, or where memory is pinned."""
    case = case_with(FOUND, *(each * US for each in lengths), steps=steps)
    case.dialect = dialect
    found = [*cold_start.outside_steps(case, idle * US, gap * US, during)]
    assert [each.text[: len(said)] for each in found] == [said] * (said != "")
    assert all(each.remedy.startswith("pin less" if "Alloc" in during else "record many") for each in found)


@pytest.mark.parametrize(
    ("once", "span", "early", "busy", "recorded", "said"),
    [
        ([("pinning", S)], S // 10, 0, 1, 4 * S, "set-up takes 1.00 s of the 4.00 s recorded (pinning 1.00 s); each"),
        ([("a", S - 99), ("b", 99)], 9, 0, 1, S, "set-up takes 1.00 s of the 1.00 s recorded (a 1.00 s); each"),
        ([("a", 9 * S), ("b", S)], 9, 0, 1, S, "set-up takes 10.0 s of the 1.00 s recorded (a 9.00 s and b 1.00 s)"),
        ([("pinning", S - 1)], 9, 0, 1, S, ""),
        ([("pinning", S)], S // 10 + 1, 0, 1, S, ""),
        ([("pinning", S)], 9, 0, 1, 4 * S + 4, ""),
        (
            [],
            9,
            17 * S // 2,
            S // 2 - 1,
            10 * S,
            "too little GPU work to optimize: the first GPU operation comes 8.50 s",
        ),
        ([], 9, 17 * S // 2 - 1, 9, 10 * S, ""),
        ([], 9, 9 * S, S // 2, 10 * S, ""),
        ([], 9, 5 * S, 9, 5 * S, "too little GPU work to optimize: the first GPU operation comes 5.00 s"),
        ([], 9, 5 * S - 1, 9, 5 * S, ""),
        ([], 9, 190 * S, S - 1, 200 * S, "too little GPU work to optimize: the first GPU operation comes 190 s"),
        ([], 9, 190 * S, S, 200 * S, ""),
    ],
)
def test_most_of_a_recording_may_be_before_its_work(
    once: list[tuple[str, int]], span: int, early: int, busy: int, recorded: int, said: str
) -> None:
    """Set-up that takes ten times the work, a quarter of the recording and a second; or CPU code before."""
    case = case_with(PASS, span)
    case.facts.attribution.trace.ops.start = np.array([early + 7])
    case.facts.attribution.trace.op_names = ["k"]
    calls = SimpleNamespace(start=np.array([7, 8]))
    case.facts.activity = SimpleNamespace(calls=type("Calls", (), {"__len__": lambda _: 2, **vars(calls)})())
    told = cold_start._before_work(case, once, busy, recorded)
    assert (told or ("",))[0].startswith(said)
    assert (told is None) == (not said)
    if told:
        assert told[1].startswith("pin less" if "pinning" in said else "shorten" if not once else "record steps")


def tried_case(gain: int, idle: int = 10_000, residual: float = 0.0, inflation: float = 1.0) -> Any:
    """Ten steps of 1 µs, which a change makes so many ns shorter in all."""
    every = np.arange(10)
    shared = {
        "changed": lambda *_: np.where(every, 0, gain),
        "not_computing": lambda *_, **__: np.where(every, 0, idle),
    }
    facts = SimpleNamespace(lacks=())
    return SimpleNamespace(**shared, facts=facts, residual=np.full(10, residual), inflation=inflation, replay=True)


@pytest.mark.parametrize(
    ("case", "remedy", "expected"),
    [
        (tried_case(200), {}, (200, 200, 200, 0)),
        (tried_case(199), {}, None),  # 2 % of the steps
        (tried_case(500, 500), {}, (500, 500, 500, 0)),
        (tried_case(501, 500), {}, None),  # more than the GPU does not compute
        (tried_case(501, 401, 0.01), {}, (501, 401, 601, 0)),  # give or take what the replay is off
        (tried_case(9_950, 10_000, 0.01), {}, (9_950, 9_850, 10_000, 0)),
        (tried_case(300, 9_000, 0.03), {}, (300, 0, 600, 0)),
        (tried_case(299, 9_000, 0.03), {}, None),
        (tried_case(600), {"most_ns": 300}, (300, 300, 300, 0)),
        (tried_case(600, 9_000, 0.01), {"basis": BOUND}, (600, 0, 600, 0)),
        (tried_case(600), {"least": True}, (600, 600, 600, 0)),  # half as much again as is lost
        (tried_case(601), {"least": True}, None),
        (tried_case(601), {}, (601, 601, 601, 0)),
        (tried_case(5_001, inflation=2.0), {}, (5_001, 5_001, 5_001, 5_000)),
        (tried_case(5_000, inflation=2.0), {}, "as if recorded"),  # what the recorder may add
    ],
)
def test_a_fix_is_told_if_it_gains_enough(case: Any, remedy: dict[str, Any], expected: Any) -> None:
    """Its gain, the interval of that, and what of it may be the recorder's."""
    place = Place("step", 0, np.arange(10), np.full(10, 1_000))
    lost = np.where(np.arange(10), 0, 400)
    group = Group(place, "x", np.arange(0), lost)
    none: Any = None
    kind = Kind("launch-bound", none, none, none, "", inflated=True)
    before = Finding("launch-bound", "step", 0, EVERY, 10, "text", "x", "order", 400, total_ns=10_000)
    change = Remedy("do less", Changes(graph=["step"]), **remedy)
    found = tried._tried(case, kind, before, group, change, lost)
    if isinstance(expected, str):
        assert (found.remedy, found.text.startswith("text; this may be profiling overhead alone")) == ("", True)
        return
    if expected is None:
        assert found == before
        return
    assert (found.gain_ns, found.gain_low_ns, found.gain_high_ns, found.recording_ns) == expected
    assert (found.remedy, found.change) == ("do less", ("--graph", "step"))
    assert found.basis == remedy.get("basis", REPLAYED)
    same = tried._tried(case, kind, before, group, Remedy("do it not", Changes(remove=["x"])), lost)
    assert (same.gain_ns if same.remedy else 0) in (400, 0)


@pytest.mark.parametrize(
    ("lost", "most", "inflation", "gain"),
    [(201, None, 1.0, 201), (200, None, 1.0, 0), (900, 300, 1.0, 300), (900, 200, 1.0, 0), (300, 900, 1.0, 300),
     (5_001, None, 2.0, 5_001), (5_000, None, 2.0, 0)],
)  # fmt: skip
def test_a_fix_without_a_replay_gains_what_is_lost(lost: int, most: int | None, inflation: float, gain: int) -> None:
    """If that is more than 2 % of the steps, and than the recorder may add; a shared GPU is no fix."""
    none: Any = None
    kind = Kind("launch-bound", none, none, none, "", inflated=True)
    before = Finding("launch-bound", "step", 0, EVERY, 10, "text", SHARED, "order", lost, total_ns=10_000)
    remedy = Remedy("do less", Changes(graph=["step"]), most_ns=most)
    found = tried._bound(tried_case(0, inflation=inflation), kind, before, remedy)
    assert (found.gain_ns, found.gain_high_ns, found.remedy) == (gain, gain, "do less" if gain else "")
