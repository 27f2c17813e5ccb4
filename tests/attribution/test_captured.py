"""CUDA graphs by where they were captured: each rule in a report of a few lines, and against the eager program."""

import random
from pathlib import Path

import pytest

from nsysprof.attribution.attribute import Attribution, attribute
from nsysprof.attribution.graph_work import graph_counts, graph_work
from nsysprof.errors import NsysprofError
from nsysprof.trace.nsys.reader import NsysReader
from nsysprof.trace.report import open_report
from nsysprof.trace.trace import Ops, Trace
from tests.conftest import MakeTrace
from tests.kit.reports import attributed
from tests.kit.trace import (
    GraphNode,
    Items,
    Kernel,
    Launch,
    Memset,
    Range,
    Row,
    global_tid,
    launch_graph,
    launch_kernel,
)

END = 100_000
LAYERS = ("layer0", "layer1")


def read(path: Path, graphs: str = "captured", threads: str = "follow") -> Attribution:
    return attributed(path, threads, graphs=graphs)


def owners(found: Attribution) -> list[str]:
    """The name of the range that owns each GPU op; empty for none."""
    trace = found.trace
    names = [trace.range_names[code].text for code in trace.ranges.name.tolist()]
    return [names[owner] if owner >= 0 else "" for owner in found.op_owner.tolist()]


def inside(found: Attribution) -> dict[str, tuple[int, int, int]]:
    """Kernels, memory operations and sum inside the ranges of each name."""
    trace = found.trace
    totals = found.inclusive
    out: dict[str, tuple[int, int, int]] = {}
    for row, code in enumerate(trace.ranges.name.tolist()):
        before = out.get(trace.range_names[code].text, (0, 0, 0))
        parts = (totals.kernels[row], totals.memops[row], totals.sum_ns[row])
        out[trace.range_names[code].text] = (
            before[0] + int(parts[0]),
            before[1] + int(parts[1]),
            before[2] + int(parts[2]),
        )
    return out


def graph_launch(at: int, id: int, thread: int = 1, process: int = 1) -> Launch:
    return Launch(at, at + 5, id, thread, process, api="cudaGraphLaunch_v10000")


def layers(at: int, around: str) -> list[Items]:
    """A range with the layers inside, 100 ns each."""
    inner = [Range(name, at + 10 + 100 * i, at + 90 + 100 * i) for i, name in enumerate(LAYERS)]
    return [Range(around, at, at + 250), *inner]


def eager(at: int, around: str, first_id: int) -> list[Items]:
    """The layers, of two kernels and a memset each, launched one by one."""
    items, id = layers(at, around), first_id
    for layer in range(len(LAYERS)):
        for place in range(3):
            call = at + 20 + 100 * layer + 10 * place
            start = at + 1_000 + 10 * id
            op = Memset(start, start + 3 + place, id) if place == 2 else Kernel("k", start, start + 3 + place, id)
            items += [Launch(call, call + 2, id), op]
            id += 1
    return items


def captured(at: int, around: str, first_node: int, **who: int) -> list[Items]:
    """The same layers, captured: a node for each."""
    nodes = [
        GraphNode(first_node + 3 * layer + place, at + 20 + 100 * layer + 10 * place, **who)
        for layer in range(len(LAYERS))
        for place in range(3)
    ]
    return [*layers(at, around), *nodes]


def replay(at: int, id: int, first_node: int, **where: int) -> list[Items]:
    """A launch of that graph, and what it runs."""
    items: list[Items] = [graph_launch(at, id, **where)]
    for place in range(6):
        start, node = at + 100 + 10 * place, first_node + place
        end = start + 3 + place % 3
        if place % 3 == 2:
            items.append(Memset(start, end, id, graph_node=node))
        else:
            items.append(Kernel("k", start, end, id, graph_node=node))
    return items


def check_ledger(found: Attribution) -> None:
    """The ledger and what ranges own add up to all GPU ops."""
    ops: Ops = found.trace.ops
    assert sum(row.ops for row in found.ledger) == len(ops)
    assert sum(row.sum_ns for row in found.ledger) == int((ops.end - ops.start).sum())


def test_layers_of_a_graph_equal_those_of_its_eager_run(trace: MakeTrace) -> None:
    """Replayed as often as the eager program ran, the layers of a graph have its kernels, copies and sums."""
    path = trace(
        *eager(0, "EAGER", 1),
        *eager(2_000, "EAGER", 11),
        *captured(5_000, "CAPTURE", 1),
        Range("GRAPH", 6_000, 9_000),
        *replay(6_100, 21, 1),
        *replay(7_100, 22, 1),
        duration=END,
    )
    launched, found = read(path, "launched"), read(path)
    assert inside(launched)["GRAPH"] == inside(found)["CAPTURE"] == inside(found)["EAGER"] == (8, 4, 48)
    assert inside(found)["GRAPH"] == inside(launched)["CAPTURE"] == (0, 0, 0)
    apart = {
        name: [
            (kernels, memops, sum_ns)
            for row, code in enumerate(found.trace.ranges.name.tolist())
            if found.trace.range_names[code].text == name
            for kernels, memops, sum_ns in [
                (int(found.inclusive.kernels[row]), int(found.inclusive.memops[row]), int(found.inclusive.sum_ns[row]))
            ]
        ]
        for name in LAYERS
    }
    for rows in apart.values():  # two eager instances, and the one that was captured
        assert rows == [(2, 1, 12), (2, 1, 12), (4, 2, 24)]
    for reading in (launched, found):
        check_ledger(reading)
    assert int(found.inclusive.graph_launches.sum()) == 0
    assert int(launched.inclusive.graph_launches.max()) == 2


def test_two_graphs_of_one_source_stay_apart(trace: MakeTrace) -> None:
    """Replays of either graph belong to the capture of that one, however they take turns."""
    path = trace(
        *captured(0, "one", 1),
        *captured(1_000, "two", 11),
        *replay(3_000, 1, 1),
        *replay(4_000, 2, 11),
        *replay(5_000, 3, 1),
        duration=END,
    )
    found = inside(read(path))
    assert (found["one"], found["two"]) == ((8, 4, 48), (4, 2, 24))


def test_the_launching_thread_does_not_matter(trace: MakeTrace) -> None:
    """A graph that another thread launches, with a range of its own open, belongs to the thread that captured it."""
    path = trace(
        *captured(0, "CAPTURE", 1),
        Range("worker", 2_000, 4_000, thread=2),
        *replay(3_000, 1, 1, thread=2),
        duration=END,
    )
    assert set(owners(read(path, "launched"))) == {"worker"}
    assert inside(read(path))["CAPTURE"] == (4, 2, 24)


@pytest.mark.parametrize("order", [1, -1])
def test_copies_of_copies_lead_to_what_was_captured(trace: MakeTrace, order: int) -> None:
    """A node that names an original, which names another, was made where that one was; rows stand in any order."""
    nodes = [GraphNode(1, 50), GraphNode(2, 200, original=1), GraphNode(3, 400, original=2)]
    items = [Range("CAPTURE", 0, 100), Range("instantiate", 150, 250), Range("again", 350, 450)]
    path = trace(*items, *nodes[::order], graph_launch(500, 1), Kernel("k", 600, 700, 1, graph_node=3), duration=END)
    assert owners(read(path)) == ["CAPTURE"]


@pytest.mark.parametrize("order", [1, -1])
def test_a_copy_that_is_listed_twice_leads_to_its_original(trace: MakeTrace, order: int) -> None:
    """Of rows of one id, as nsys writes for a clone, the one that names an original counts."""
    nodes = [GraphNode(1, 50), GraphNode(2, 200), GraphNode(2, 201, original=1)]
    items = [Range("CAPTURE", 0, 100), Range("clone", 150, 250)]
    path = trace(*items, *nodes[::order], graph_launch(500, 1), Kernel("k", 600, 700, 1, graph_node=2), duration=END)
    assert owners(read(path)) == ["CAPTURE"]


def test_originals_in_a_circle_end(trace: MakeTrace) -> None:
    """Nodes that name one another as originals, as no program makes them, get an answer."""
    nodes = [GraphNode(1, 50, original=2), GraphNode(2, 60, original=1)]
    path = trace(Range("a", 0, 100), *nodes, graph_launch(500, 1), Kernel("k", 600, 700, 1, graph_node=1), duration=END)
    assert owners(read(path)) == ["a"]


def test_ids_of_nodes_are_those_of_a_process(trace: MakeTrace) -> None:
    """The same node id in two processes is two nodes."""
    items: list[Items] = []
    for process, name in ((1, "first"), (2, "second")):
        items += [
            Range(name, 0, 100, process=process),
            GraphNode(7, 50, process=process),
            graph_launch(200, 1, process=process),
            Kernel(name, 300 + process, 400, 1, graph_node=7, process=process),
        ]
    path = trace(*items, duration=END)
    found = read(path)
    names = [found.trace.op_names[code] for code in found.trace.ops.name.tolist()]
    assert owners(found) == names
    only_first = read(trace(*(item for item in items if item != GraphNode(7, 50, process=2)), duration=END))
    assert sorted(owners(only_first)) == ["", "first"]


def test_a_thread_that_only_captures_follows_the_open_range(trace: MakeTrace) -> None:
    """Nodes made by a helper thread, with neither ranges nor launches, belong to the one range open elsewhere."""
    path = trace(
        Range("backward", 0, 100),
        GraphNode(1, 50, thread=9),
        graph_launch(500, 1),
        Kernel("k", 600, 700, 1, graph_node=1),
        duration=END,
    )
    assert owners(read(path)) == ["backward"]
    assert owners(read(path, threads="strict")) == [""]


def test_nodes_stood_with_the_graphs_once(trace: MakeTrace) -> None:
    """Until nsys 2024.1 the table CUDA_GRAPH_EVENTS holds the nodes."""
    rows = [
        {"start": at, "end": at, "globalTid": global_tid(1, 1), "graphNodeId": node, "originalGraphNodeId": original}
        for node, at, original in ((1, 50, None), (2, 200, 1))
    ]
    path = trace(
        Range("CAPTURE", 0, 100),
        *(Row("CUDA_GRAPH_EVENTS", row) for row in rows),
        graph_launch(500, 1),
        Kernel("k", 600, 700, 1, graph_node=2),
        duration=END,
        style="2022.4",
    )
    assert owners(read(path)) == ["CAPTURE"]


def test_a_table_of_graphs_alone_is_no_table_of_nodes(trace: MakeTrace) -> None:
    """From nsys 2024.2 on CUDA_GRAPH_EVENTS holds graphs: nothing is known of nodes."""
    row = {"start": 50, "end": 50, "globalTid": global_tid(1, 1), "graphId": 1, "originalGraphId": 2}
    path = trace(
        Range("CAPTURE", 0, 100),
        Row("CUDA_GRAPH_EVENTS", row),
        graph_launch(500, 1),
        Kernel("k", 600, 700, 1, graph_node=1),
        duration=END,
    )
    assert owners(read(path)) == [""]


def counted(path: Path) -> tuple[tuple[int, ...], list[str]]:
    """The counts of the graphs of a report, and the sentences about them in the launched reading."""
    found = attributed(path)
    counts = graph_counts(found.trace, found.replay, graph_work(found))
    return tuple(vars(counts).values()), list(counts.sentences("launched"))


def test_what_is_not_known_is_named_with_what_would_tell(trace: MakeTrace) -> None:
    """Nodes of child graphs stay with the launch; captures outside ranges and whole graphs count; each says why."""
    path = trace(
        Range("CAPTURE", 0, 100),
        GraphNode(1, 50),
        GraphNode(2, 150),
        Range("GRAPH", 400, 900),
        graph_launch(500, 1),
        *(Kernel("k", 600 + 10 * node, 605 + 10 * node, 1, graph_node=node) for node in (1, 2, 3)),
        Memset(700, 705, 1, graph_node=4),
        *launch_graph((800, 810), (820, 830), id=2),
        duration=END,
    )
    assert sorted(owners(read(path))) == ["", "CAPTURE", "GRAPH", "GRAPH", "GRAPH"]
    counts, sentences = counted(path)
    assert counts == (4, 3, 1, 1, 1, 2, 1)
    assert sentences[0] == "3 kernels of CUDA graphs: 1 was captured inside ranges, see --graphs captured"
    assert "1 GPU op in CUDA graphs that were captured outside every range" in sentences[1]
    assert "2 GPU ops in CUDA graphs without a recorded capture (child graphs, conditional nodes, or" in sentences[2]
    assert "--cuda-graph-trace=node" in sentences[3]
    check_ledger(read(path))


def test_counts_are_the_same_in_both_readings(trace: MakeTrace) -> None:
    """What is known of graphs does not depend on the reading that is shown."""
    path = trace(*captured(0, "C", 1), *replay(1_000, 1, 1), Kernel("k", 5, 9, 1, graph_node=99), duration=END)
    with open_report(path) as report:
        both = [attribute(report, graphs=graphs) for graphs in ("launched", "captured")]
        counts = [graph_counts(found.trace, found.replay, graph_work(found)) for found in both]
        work = [graph_work(found) for found in both]
    assert counts[0] == counts[1]
    first, second = (each.owner.tolist() for each in work if each is not None)
    assert first == second


def test_a_report_without_graphs_is_not_looked_into(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without nodes of graphs nothing more is read, and both readings are one."""

    def never(reader: NsysReader, trace: Trace) -> None:
        raise AssertionError("read")

    path = trace(Range("a", 0, 100), *launch_kernel("k", (10, 15), (20, 30), id=1), duration=END)
    assert owners(read(path)) == ["a"]
    monkeypatch.setattr(NsysReader, "captures", never)
    with open_report(path) as report:
        assert graph_work(attribute(report)) is None


def test_an_unknown_reading_is_refused(trace: MakeTrace) -> None:
    """Another word names the two that there are."""
    with pytest.raises(NsysprofError, match="read CUDA graphs") as error:
        read(trace(Range("a", 0, 9)), graphs="both")
    assert error.value.hint == "choose launched or captured"


@pytest.mark.parametrize("seed", range(50))
def test_captured_is_as_if_launched_there(trace: MakeTrace, seed: int) -> None:
    """Random programs: what a graph replays belongs to what it would if each node were a launch at its capture."""
    rng = random.Random(seed)
    ranges: list[Items] = []
    for thread in (1, 2, 3):
        at = 0
        for number in range(rng.randint(0, 4)):
            at += rng.randint(1, 40)
            long = rng.randint(4, 80)
            ranges.append(Range(f"t{thread}r{number}", at, at + long, thread=thread))
            if rng.random() < 0.6:
                ranges.append(Range(f"t{thread}r{number}i", at + 1, at + rng.randint(2, long - 1), thread=thread))
            at += long
    if rng.random() < 0.4:
        ranges.append(Range("window", 10, rng.randint(20, 300), kind="start_end", thread=rng.randint(1, 3)))
    launched, replayed = list(ranges), list(ranges)
    for node in range(1, rng.randint(2, 30)):
        at, thread, start = rng.randint(0, 250), rng.randint(1, 4), 1_000 + 10 * node
        replays = rng.randint(1, 3)
        if rng.random() < 0.3:
            replayed += [GraphNode(node + 500, at, thread=thread), GraphNode(node, 600, original=node + 500)]
        else:
            replayed.append(GraphNode(node, at, thread=thread))
        for again in range(replays):
            begin = start + 1_000 * again
            launched += [Launch(at, at, 100 * node + again, thread), Kernel("k", begin, begin + 7, 100 * node + again)]
            replayed.append(Kernel("k", begin, begin + 7, 7_000 + again, graph_node=node))
    replayed += [graph_launch(700 + 10 * again, 7_000 + again) for again in range(3)]
    eager, graph = (trace(*items, duration=END) for items in (launched, replayed))
    for threads in ("follow", "strict"):
        eager_run, graph_run = read(eager, "launched", threads), read(graph, "captured", threads)
        assert owners(graph_run) == owners(eager_run)
        assert graph_run.op_outcome.tolist() == eager_run.op_outcome.tolist()
        assert inside(graph_run) == inside(eager_run)
        assert graph_run.ledger == eager_run.ledger
