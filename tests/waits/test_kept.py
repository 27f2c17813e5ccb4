"""Numbers of waits: of reports by chance whose streams and threads wait for one another, and of changed replays."""

import random
from collections.abc import Callable, Iterable
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.paths import SLOWEST
from nsysprof.core.arrays import Ints
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import kinds_of
from nsysprof.trace.report import open_report
from nsysprof.waits.change import steps_of
from nsysprof.waits.changes import Changes
from nsysprof.waits.edits import remove
from nsysprof.waits.facts import Facts, read_facts
from nsysprof.waits.program import Program
from nsysprof.waits.purposes import happens_once, purposes
from nsysprof.waits.ranges import choose_windows, pick_windows, step_times
from nsysprof.waits.removals import OUTSIDE
from nsysprof.waits.replay import replay
from nsysprof.waits.stretch import stretch_of
from nsysprof.waits.whole import Cause
from nsysprof.waits.windows import Windows, blocking_communication
from nsysprof.why.why import why
from tests.conftest import MakeTrace
from tests.forecast.test_kept import CHANGES as ASKED
from tests.forecast.test_kept import program
from tests.kit import simulated
from tests.kit.kept import hold
from tests.kit.program import US
from tests.kit.random_reports import random_report
from tests.kit.random_waits import random_waits
from tests.kit.reports import attributed
from tests.kit.trace import Item, Items, Kernel, Launch, Range, launch_kernel, launch_memcpy
from tests.waits.test_replay import CHANGES, Programs

ODD: dict[str, dict[str, Any]] = {
    "drop-sync": {"drop_sync": ["*Synchronize*"]},
    "graph": {"graph": ["load"]},
    "fuse": {"fuse": ["forward"], "scale": ["gemm=0.5"]},
    "async": {"async_copies": True, "delay": ["load=50us"]},
    "pinned": {"pinned": True},
    "calls": {"remove_calls": ["cudaMalloc*", "cudaMemcpy*"], "gpu_delay": ["forward=30us"]},
    "code": {"remove_code": ["forward", OUTSIDE]},
    "cause": {"remove": ["host", "copy"]},
    "late": {"no_late_peer": True},
    "swap": {"swap": ["t.csv"], "set": ["memcpy=7us"]},
    "row": {"swap": ["forward=t.csv:a/gemm", "step*=t.csv:none"]},
    "no row": {"swap": ["forward=t.csv:gemm"]},
}
TABLE = "configuration,kernel,median_ns\na,gemm,7\na,softmax,0\nb,gemm,9\nb,none,0\nc,none,\n"


@pytest.fixture(autouse=True)
def in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are named without a folder, whose name has numbers too; beside them lies a table of kernels."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TABLE)


def simulation(seed: int) -> tuple[Items, ...]:
    """Three programs, a process each."""
    rng = random.Random(seed)
    machines = [simulated.simulate(simulated.random_program(rng), pid) for pid in range(1, 4)]
    return tuple(item for machine in machines for item in machine.items)


NETWORK = (
    *("thread", "time", "gap", "anchor", "node", "start", "done", "length", "edges", "extra", "recorded", "starts"),
    *("waits", "launch_moment", "sync_call", "sync_moment", "asked", "lags"),
)
NAMES = "culprit", "range", "exposed_by"  # in which each word counts


def set_up(seed: int) -> list[Item]:
    """Two processes that create contexts, load modules and kernels, capture graphs and allocate, between launches."""
    rng, items, ids = random.Random(seed), list[Item](), count(1)
    for process in (1, 2):
        at = {1: 0, 2: 0}
        for number in range(80):
            thread, id = rng.randint(1, 2), next(ids)
            begin = at[thread] + rng.choice([0, 5, 900]) * US
            at[thread] = end = begin + rng.choice([1, 4, 5, 5, 5, 50, 60, 600, 1_500, 12_000]) * US
            api = rng.choice(["cudaLaunchKernel"] * 6 + CALLS)
            items.append(Launch(begin, end, id, thread, process, api=f"{api}_v3020"))
            if "Launch" in api:
                items.append(Kernel(f"k{rng.randint(1, 9)}", end + US, end + 9 * US, id, process=process))
            if number % 8 == 0:
                items.append(Range("step", at[1], at[1] + 2_000 * US, process=process))
        items.append(Launch(at[2], at[2] + (150_000 + process) * US, next(ids), 2, process, api="cudaFree_v3020"))
        items.append(Range("alone", at[2], at[2] + 300_000 * US, 3, process))  # of a thread that calls nothing
        host, gpu = ((at[2] + 200_000 * US + begin, at[2] + 200_000 * US + end) for begin, end in ((0, 5), (9, 90)))
        items += launch_kernel("k", host, gpu, id=next(ids), thread=4, process=process)
    return items


def copies(seed: int) -> list[Item]:
    """Copies in three streams, each direction in turn, some soon behind one another, beside a few kernels."""
    rng, items, now, free = random.Random(seed), list[Item](), 0, {1: 0, 2: 0, 7: 0, 8: 0, 9: 0}
    for id in range(1, 61):
        if id % 10 == 1:
            items.append(Range("step", now, now + 900 * US))
        kind, stream, called = rng.choice((1, 2)), rng.choice((7, 8, 9)), now + 3 * US
        queue = (stream, kind) if id % 3 else (stream,)
        start = max(called, *(free[each] for each in queue)) + rng.choice((1, 2, 9, 12, 40)) * US
        end = start + rng.randint(20, 200) * US
        free |= dict.fromkeys(queue, end)
        if id % 3:
            items += launch_memcpy((now, called), (start, end), id=id, kind=kind, stream=stream, host=1)
        else:
            items += launch_kernel("k", (now, called), (start, end), id=id, stream=stream)
        now = called + rng.randint(1, 99) * US
    return items


CALLS = [
    *("cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaStreamBeginCapture", "cudaStreamEndCapture"),
    *("cudaStreamSynchronize", "cuModuleLoadData", "cudaGraphInstantiate", "cudaEventRecord", "cudaMemcpyAsync"),
]
MADE: dict[str, Callable[[int], Iterable[Items]]] = {
    "waits": random_waits,
    "many": lambda seed: random_waits(seed, 4),
    "report": random_report,
    "simulated": simulation,
    "set-up": set_up,
    "copies": copies,
}
SEEDS = {
    "waits": (1, 4),
    "many": (206, 225, 14),
    "report": (1, 4, 9),
    "simulated": (4, 9),
    "set-up": (1, 2),
    "copies": (1,),
}


def changed(tried: Program, asked: dict[str, Any]) -> list[Any]:
    """When all ops and all moments of the host come after a change, and what is noted about it; or why not."""
    tried.notes.clear()
    try:
        changes = steps_of(tried, Changes(**asked))
        tried.know(np.concatenate([change.ranges for change in changes]))
        network = tried.network.copy()
        for change in changes:
            change.apply(network)
    except NsysprofError as error:
        return [error.message]
    times = replay(network)
    return [*times.of(), times.at(), *tried.notes]


def rests_on(facts: Facts, windows: Windows) -> dict[str, list[Any]]:
    """The network of a program, its steps, causes as a whole and replays without them, a stretch of it, and calls."""
    trace, activity, tried = facts.attribution.trace, facts.activity, Program(facts, windows, None)
    pieces = {name: column for name, column in tried.waits.items() if name not in (*NAMES, "activity")}  # no codes
    culprit, words = tried.waits["culprit"], facts.texts.words
    culprits = sorted(np.unique(culprit).tolist(), key=words.__getitem__)[:12]
    causes = [tried.cause_of(culprit == code) for code in culprits]
    stretch = stretch_of(facts, windows, np.arange(len(windows) // 3, len(windows) - len(windows) // 4))
    part = Program(stretch.facts, stretch.windows, None)
    purpose = purposes(trace, activity)
    places = np.unique(np.stack([trace.op_gpu, trace.op_process]), axis=1).T.tolist()
    held_up = (facts.reasons, facts.communication)
    rows = np.unique(windows.range[windows.range >= 0])
    times = step_times(facts.attribution, rows, np.zeros(len(rows), np.int32), facts.communication)
    picked = [pick_windows(facts.attribution, windows, *how) for how in ((None, None), (SLOWEST, None), ((0, 2), 0))]

    def without(cause: Cause) -> Ints:
        return tried.lengths_with(lambda network: remove(network, cause))

    return {
        "network": [getattr(tried.network, name) for name in NETWORK],
        "times": [times, picked],
        "steps": [tried.spans, tried.residual, tried.doubt, pieces],
        "causes": [[each, tried.wholes.alike(each), without(each)] for each in causes],
        "stretch": [stretch.ops, stretch.launches, stretch.calls, stretch.asked, part.lengths_with(), part.residual],
        "calls": [purpose, happens_once(activity, purpose, np.sort(windows.start), np.sort(windows.end))],
        "blocking": [blocking_communication(trace, *held_up, *place) for place in places if place[0] >= 0],
    }


def all_of(attribution: Attribution, select: str | None) -> tuple[list[Any], dict[str, list[Any]]]:
    """Windows and pieces of waits of ranges, with names, and what rests on them; nothing does without windows."""
    answer = why(attribution, select)
    frames = [answer.windows, answer.waits, answer.rows, answer.residuals, answer.held_up]
    named = [text.replace(" ", "_") for name in NAMES for text in answer.waits[name]]
    facts = answer.facts
    windows = choose_windows(facts.attribution, facts.communication, select, None).windows
    return [*frames, named], rests_on(facts, windows) if len(windows) else {}


@pytest.mark.parametrize("case", [f"{kind} {seed}" for kind in MADE for seed in SEEDS[kind]])
def test_numbers_are_as_they_were(trace: MakeTrace, case: str) -> None:
    """Windows, each piece of a wait with its names, rows and residuals; of all ranges, and of the whole trace."""
    kind, seed = case.split()
    attribution = attributed(Path(trace(*MADE[kind](int(seed))).name))
    for select in ("*", None):
        waited, replayed = all_of(attribution, select)
        hold(__file__, f"{case} of {select}", waited)
        if replayed:
            hold(__file__, f"{case} of {select}, replayed", replayed)


@pytest.mark.parametrize("acts", [2, 3])
def test_tiny_reports_are_as_they_were(trace: MakeTrace, acts: int) -> None:
    """Of few ops, launches and threads, so that the first of each matters, in replays of changes too."""
    out: dict[str, list[Any]] = {}
    for seed, select in product(range(14), ("*", None)):
        attribution = attributed(Path(trace(*random_waits(seed, steps=2, acts=acts)).name))
        waited, made = all_of(attribution, select)
        facts = read_facts(attribution, kinds_of(attribution.trace), None)
        for name in ("async", "calls", "code", "cause") if made else ():
            windows = choose_windows(attribution, facts.communication, select, None).windows
            made[name] = changed(Program(facts, windows, None), ODD[name])
        for name, each in {"waited": waited, **made}.items():
            out.setdefault(name, []).append(each)
    hold(__file__, f"tiny {acts}", out)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_replays_are_as_they_were(trace: MakeTrace, change: str) -> None:
    """When all ops and steps of a program run after a change, also of programs that a simulation knows nothing of."""
    programs = Programs(trace, 7, 4)
    made, impossible = programs.edited(change, 300)
    outcomes = [programs.outcomes(made, process) for process in range(1, 5)]
    hold(__file__, f"replay {change}", [outcomes, sorted(impossible), np.array(made.length), made.extra, made.waits])


@pytest.mark.parametrize("case", [case for case in ASKED if case != "copies"])  # whose name is a finding's
def test_what_is_asked_of_a_replay_is_as_it_was(trace: MakeTrace, case: str) -> None:
    """When all ops and all moments of the host come after a change, and how much is noted about it."""
    with open_report(trace(*program())) as report:
        attribution = attribute(report)
        facts = read_facts(attribution, kinds_of(attribution.trace), None)
        chosen = choose_windows(attribution, facts.communication, "step", None)
    hold(__file__, f"asked {case}", changed(Program(facts, chosen.windows, None), ASKED[case]))


@pytest.mark.parametrize("change", ODD)
@pytest.mark.parametrize("case", ["copies 1", "many 206", "many 221", "many 14"])
def test_what_is_asked_of_odd_programs_is_as_it_was(trace: MakeTrace, case: str, change: str) -> None:
    """Or why it is refused."""
    kind, seed = case.split()
    attribution = attributed(Path(trace(*MADE[kind](int(seed))).name))
    facts = read_facts(attribution, kinds_of(attribution.trace), None)
    chosen = choose_windows(attribution, facts.communication, "*", None)
    hold(__file__, f"{case} {change}", changed(Program(facts, chosen.windows, None), ODD[change]))
