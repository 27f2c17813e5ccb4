"""Iterations without annotation, found in the launches."""

import json
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import nsysprof
from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.text import summary
from nsysprof.attribution.attribute import FOLLOWED, OWN_THREAD, attribute
from nsysprof.attribution.iterations import find_iterations
from nsysprof.attribution.paths import merged_paths, range_paths
from nsysprof.trace.trace import FOUND
from tests.conftest import MakeTrace
from tests.kit.command_line import quietly
from tests.kit.hidden_steps import agreement
from tests.kit.reports import TRACES, attributed, broken_down
from tests.kit.trace import Items, Range, launch_graph, launch_kernel, launch_memcpy

TILED = TRACES.parent / "analysis" / "tiled-attention" / "tiled.sqlite"
RANK = TRACES.parent / "analysis" / "two-ranks" / "rank_0.sqlite"


def program(*names: str, thread: int = 1, at: int = 0, step: int = 100, first: int = 1) -> list[Items]:
    """A launch every ``step`` ns on a thread, of kernels of these names; ``HtoD`` is a copy, ``graph`` a graph."""
    out: list[Items] = []
    for number, name in zip(count(), names):
        begin, id = at + step * number, first + number
        host, gpu = (begin, begin + 10), (begin + 10, begin + 40)
        if name == "HtoD":
            out.append(launch_memcpy(host, gpu, id=id, thread=thread))
        elif name == "graph":
            out.append(launch_graph(host, gpu, id=id, thread=thread))
        else:
            out.append(launch_kernel(name, host, gpu, id=id, thread=thread))
    return out


def in_order(path: Path) -> list[tuple[str, int, int]]:
    """The ranges that are found in a report: name, start, end; by start, and the longest first."""
    with nsysprof.open_report(path) as report:
        found = find_iterations(nsysprof.read_tables(report))
    assert set(found.kind.tolist()) <= {FOUND}
    names = [found.names[code].text for code in found.name.tolist()]
    rows = zip(names, found.start.tolist(), found.end.tolist(), strict=True)
    return sorted(rows, key=lambda row: (row[1], -row[2]))


def iterations(path: Path) -> dict[str, tuple[int, int]]:
    """Start and end of what is found in a report without loops in loops, by name."""
    found = in_order(path)
    assert len({name for name, *_ in found}) == len(found)
    return {name: (start, end) for name, start, end in found}


@pytest.mark.parametrize("path", [*sorted(TRACES.glob("*.sqlite")), TILED, RANK], ids=lambda path: path.stem)
def test_annotated_steps_are_found_without_their_annotation(path: Path) -> None:
    """At least 95 % of the steps of shipped reports begin within a launch of an iteration, and none is cut inside."""
    with nsysprof.open_report(path) as report:
        found = agreement(nsysprof.read_tables(report))
    assert found.steps >= 20
    assert found.within >= 0.95 * found.steps
    assert found.astray == 0


def test_iterations_tile_from_launch_to_launch(trace: MakeTrace) -> None:
    """Each begins with its first launch and ends where the next one begins, the last one with its last launch."""
    path = trace(*program("init", *("HtoD", "gemm", "relu") * 5, "save"))
    assert iterations(path) == {
        f"iteration {number}": (100 + 300 * number, 400 + 300 * number if number < 4 else 1510) for number in range(5)
    }


@pytest.mark.parametrize(
    "names",
    [
        [f"kernel_{name}" for name in "abcdefghijklmnopqrst"],
        ["HtoD"] * 40,
        ["HtoD", "HtoD", "add", "DtoH"],
        ["add"] * 15,
        ["a", "b", "c"] * 3,
        ["a", "b", "a", "c", "d", "a", "b", "e", "c", "b", "d", "d", "a"],
        [],
    ],
    ids=["distinct", "copies", "one call", "few equal launches", "three rounds", "no order", "nothing"],
)
def test_nothing_is_found_where_nothing_repeats(trace: MakeTrace, names: list[str]) -> None:
    """Nor where copies alone do, or too few rounds: 3 of more than seven launches, 4 of two, 16 of one."""
    assert iterations(trace(*program(*names))) == {}


def test_a_single_launch_without_end_has_no_iterations(trace: MakeTrace) -> None:
    """Nothing says where a round would begin where one kernel is launched again and again without a pause."""
    assert iterations(trace(*program(*["add"] * 40, step=11))) == {}


def test_few_long_rounds_are_iterations(trace: MakeTrace) -> None:
    """Three rounds of eight launches are no coincidence."""
    names = [f"kernel_{name}" for name in "abcdefgh"]
    assert len(iterations(trace(*program(*names * 3)))) == 3


def test_a_graph_that_is_launched_again_and_again(trace: MakeTrace) -> None:
    """Each launch of it is an iteration, be they 16 or more."""
    assert len(iterations(trace(*program(*["graph"] * 20)))) == 20


def test_variations_do_not_end_a_loop(trace: MakeTrace) -> None:
    """An extra kernel in every fifth step, others in the first one and another multiplication do not matter."""
    step = ["HtoD", "sgemm_128", "relu", "sgemm_64", "softmax", "loss", "backward", "adam_1", "adam_2"]
    steps = [[*step] for _ in range(20)]
    for number in range(0, 20, 5):
        steps[number].insert(6, "norm")
    steps[0][1:1] = ["init_cublas"]
    steps[7][1] = steps[8][3] = "nvjet_256x128_TNT"
    names = [name for each in steps for name in each]
    found = iterations(trace(*program("seed", *names)))
    begins = np.cumsum([1, *map(len, steps)])[:-1] * 100
    assert [start for start, _ in found.values()] == begins.tolist()


def test_loops_in_loops(trace: MakeTrace) -> None:
    """The outer loop is the iteration; inner ones, of any number of rounds, are numbered in each of its rounds."""
    names = []
    for layers in (3, 4, 5, 4, 3, 4):
        names += ["embed", *["attend", "project", "gelu", "norm"] * layers, "loss", "update"]
    path = trace(*program(*names))
    attribution = attributed(path)
    paths = range_paths(attribution)
    merged = merged_paths(paths)
    counts = np.bincount(merged.of[paths.of])
    assert dict(zip(merged.texts(), counts.tolist(), strict=True)) == {
        "iteration*": 6,
        "iteration*/inner iteration*": 23,
    }
    assert "iteration 2/inner iteration 4" in paths.texts()
    assert (attribution.outcome == OWN_THREAD).all()


def test_a_benchmark_of_few_sizes_repeats_its_calls(trace: MakeTrace) -> None:
    """Where an outer loop has few rounds, nearly all of whose launches are of an inner one, the inner one counts."""
    names = ["fill", "copy", *["scale", "reduce"] * 30] * 4
    found = iterations(trace(*program(*names)))
    assert len(found) == 120
    assert all(end - start <= 300 for start, end in found.values())


def test_different_loops_have_names_of_their_own(trace: MakeTrace) -> None:
    """The loop of most launches is `iteration*`, the others have letters; a loop that comes back goes on counting."""
    train, test = ["forward", "loss", "backward", "update", "zero"], ["infer", "metric", "HtoD"]
    names = [*train * 8, "pause", *test * 8, "pause", *train * 8]
    found = iterations(trace(*program(*names)))
    assert [name for name in found if "B" not in name] == [f"iteration {number}" for number in range(16)]
    assert [name for name in found if "B" in name] == [f"iteration B {number}" for number in range(8)]


def test_a_thread_in_step_follows(trace: MakeTrace) -> None:
    """What the autograd thread launches in each step belongs to the step, in the last one too."""
    items = []
    for number in range(8):
        at, id = 10_000 * number, 100 * number
        items += program("zero", "forward", "loss", at=at, first=id + 1)
        items += program(*["grad_a", "grad_b"] * 3, at=at + 1_000, first=id + 11, thread=2)
        items += program("update", at=at + 5_000, first=id + 31) if number < 7 else []
    path = trace(*items)
    attribution = attributed(path)
    assert len(np.unique(attribution.trace.ranges.thread)) == 1
    assert set(attribution.outcome.tolist()) == {OWN_THREAD, FOLLOWED}
    assert attribution.inclusive.launches.tolist() == [10] * 7 + [9]


def test_threads_that_run_on_their_own_have_iterations_of_their_own(trace: MakeTrace) -> None:
    """A thread that goes round far more often than another follows nobody."""
    slow = program(*["a", "b", "c"] * 5, step=1_000)
    fast = program(*["d", "e"] * 70, step=100, at=3, first=100, thread=2)
    path = trace(*slow, *fast)
    with nsysprof.open_report(path) as report:
        found = find_iterations(nsysprof.read_tables(report))
    assert np.unique(found.thread, return_counts=True)[1].tolist() == [5, 70]


def test_answers_say_that_iterations_are_found(trace: MakeTrace) -> None:
    """Once, with their number; the tables say `found`. In a step that is annotated nothing is looked for."""
    loop = program(*["HtoD", "gemm", "relu"] * 5)
    breakdown = broken_down(trace(*loop))
    text = summary(breakdown, full=True, width=500)
    assert "found by their pattern" in text
    assert text.count("not annotated") == 2  # the sentence about them, and the steps
    assert "5 iterations of 3 launches" in text
    assert "iteration*" in text
    assert set(breakdown.columns("ranges").texts("kind").tolist()) == {"found"}
    with nsysprof.open_report(trace(*loop, Range("step", 0, 5_000))) as report:
        assert "found" not in summary(break_down(attribute(report)), full=True, width=500)
        both = attribute(report, ranges="nvtx,found")
    assert range_paths(both).texts()[:2] == ["step", "step/iteration 0"]


def test_why_accounts_for_all_loops_that_take_long(trace: MakeTrace) -> None:
    """Two kinds of iterations, where nobody chooses."""
    names = [*["forward", "loss", "backward", "update", "zero"] * 8, "pause", *["infer", "metric", "HtoD"] * 8]
    answer = nsysprof.why(attributed(trace(*program(*names))))
    assert answer.chosen == "steps: iteration* (found, not annotated; 16 in 2 paths, 98 % of GPU busy time)"
    assert set(answer.rows["path"]) == {"iteration*", "iteration B*"}


@pytest.mark.parametrize("seed", range(24))
def test_iterations_never_cross(trace: MakeTrace, seed: int) -> None:
    """Inner ones lie in an outer one, outer ones follow one another: in programs of loops in loops at random."""
    random = np.random.default_rng(seed)
    names: list[str] = []
    for _ in range(4):
        body: list[str] = []
        for _ in range(int(random.integers(1, 4))):
            piece = [f"kernel_{kernel}" for kernel in random.integers(0, 12, int(random.integers(1, 6)))]
            body += piece * int(random.integers(1, 6))
        for _ in range(int(random.integers(1, 25))):
            names += body[: len(body) - int(random.integers(0, 2))]
    outer_end, inner_end = 0, 0
    for name, start, end in in_order(trace(*program(*names))):
        assert start < end
        if name.startswith("inner"):
            assert max(inner_end, 0) <= start
            assert end <= outer_end
            inner_end = end
        else:
            assert outer_end <= start
            outer_end = end


def test_every_command_reads_reports_without_annotation(
    trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They answer with rows of `iteration*`; `--ranges nvtx` finds none, and NVTX alone can be verified."""
    report = trace(*program("init", *("HtoD", "gemm", "relu") * 12))
    monkeypatch.chdir(tmp_path)

    def run(command: str, *arguments: str | Path) -> str:
        done = quietly(command, report, *arguments)
        assert done.code == 0, done
        return f"{done.out}{done.err}"

    assert "iteration*" in run("analyze", "--no-charts", "-o", "analysis")
    options = json.loads(Path("analysis", "analysis.json").read_text(encoding="utf-8"))["options"]
    assert options["ranges"] == "auto"
    assert "iteration*, 12 steps" in run("why", "--no-charts", "-o", "why")
    assert "iteration*" in run("compare", report, "--no-charts", "-o", "compare")
    assert "budget.toml" in run("check", "--init", "-o", "budget.toml")
    assert '"iteration*"' in Path("budget.toml").read_text(encoding="utf-8")
    assert "meets budget.toml" in run("check", "budget.toml")
    assert "Written" in run("export", "--to", "csv", "-o", "tables")
    assert ",found," in Path("tables", "ranges.csv").read_text(encoding="utf-8")
    assert "iteration*" not in run("analyze", "--no-charts", "--ranges", "nvtx", "-o", "nvtx")
    assert quietly("analyze", report, "--ranges", "found", "--verify").code == 2
    assert quietly("analyze", report, "--ranges", "fond").code == 1
