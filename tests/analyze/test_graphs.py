"""CUDA graphs in an analysis: columns, tables and sentences of both readings."""

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.analyze.files import write_tables
from nsysprof.analyze.page import analysis_page
from nsysprof.analyze.tables import CAPTURED
from nsysprof.analyze.text import summary
from tests.conftest import MakeTrace
from tests.kit.command_line import Run
from tests.kit.reports import RUN, attributed, broken_down
from tests.kit.trace import GraphNode, GraphTrace, Items, Kernel, Launch, Memset, Range, launch_kernel

END = 20_000


def report(*, graphs: int = 2, device: int = 0) -> list[Items]:
    """A capture of two layers, a kernel and a memset each, replayed so often, and a kernel launched beside it."""
    items: list[Items] = [Range("CAPTURE", 0, 100)]
    for layer in range(2):
        items.append(Range(f"layer{layer}", 10 + 40 * layer, 40 + 40 * layer))
        items += [GraphNode(2 * layer + 1, 20 + 40 * layer), GraphNode(2 * layer + 2, 30 + 40 * layer)]
    items += [*launch_kernel("warm", (92, 95), (200, 210), id=1), Range("REPLAY", 1_000, 9_000)]
    for again in range(graphs):
        at, id = 1_100 + 1_000 * again, 10 + again
        items.append(Launch(at, at + 10, id, api="cudaGraphLaunch_v10000"))
        for layer in range(2):
            start = at + 100 + 100 * layer
            items.append(Kernel("gemm", start, start + 40, id, graph_node=2 * layer + 1, device=device * again))
            items.append(Memset(start + 50, start + 52, id, graph_node=2 * layer + 2, device=device * again))
    return items


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "analyze")


def answer(path: Path, graphs: str = "launched", **how: Any) -> Breakdown:
    return break_down(attributed(path, graphs=graphs), **how)


def by_path(frame: pd.DataFrame, *columns: str) -> dict[str, tuple[int, ...]]:
    return {row["path"]: tuple(row[name] for name in columns) for row in frame.to_dict("records")}


@pytest.mark.parametrize("graphs", ["launched", "captured"])
def test_captured_columns_stand_in_both_readings(trace: MakeTrace, graphs: str) -> None:
    """Nodes, kernels, memory operations and sums of what was captured inside, with and without inner ranges."""
    found = answer(trace(*report(), duration=END), graphs)
    expected = {
        "CAPTURE": (4, 4, 4, 168, 0),
        "CAPTURE/layer0": (2, 2, 2, 84, 84),
        "CAPTURE/layer1": (2, 2, 2, 84, 84),
        "REPLAY": (0, 0, 0, 0, 0),
    }
    assert by_path(found.ranges, *CAPTURED, "captured_exclusive_sum_ns") == expected
    assert by_path(found.instances, *CAPTURED) == {path: counts[:4] for path, counts in expected.items()}
    merged = found.merged.rename(columns={"merged_path": "path"})
    assert by_path(merged, *CAPTURED, "captured_exclusive_sum_ns") == expected


def test_either_reading_has_the_other_in_its_kernels(trace: MakeTrace) -> None:
    """Rows of kernels.csv add up by path as the one reading, by captured path as the other."""
    path = trace(*report(), duration=END)
    launched, captured = answer(path), answer(path, "captured")
    columns = ["path", "captured_path", "kernel", "count", "sum_ns"]
    assert launched.kernels[columns].to_numpy().tolist() == [
        ["CAPTURE", "", "warm", 1, 10],
        ["REPLAY", "CAPTURE/layer0", "gemm", 2, 80],
        ["REPLAY", "CAPTURE/layer1", "gemm", 2, 80],
        ["REPLAY", "CAPTURE/layer0", "memset", 2, 4],
        ["REPLAY", "CAPTURE/layer1", "memset", 2, 4],
    ]
    replayed = captured.kernels[captured.kernels["captured_path"] != ""]
    assert (replayed["path"] == replayed["captured_path"]).all()
    assert replayed["sum_ns"].sum() == 168
    for found in (launched, captured):
        assert found.kernels["sum_ns"].sum() == found.ledger["sum_ns"].sum() == 178
        assert found.merged_kernels["sum_ns"].sum() == 178
    assert len(launched.merged_kernels) == 3


@pytest.mark.parametrize("graphs", ["launched", "captured"])
def test_columns_of_each_gpu_add_up(trace: MakeTrace, graphs: str) -> None:
    """Split by device, captured columns and kernels add up to those of the whole."""
    path = trace(*report(device=1), duration=END)
    whole, split = answer(path, graphs), answer(path, graphs, by="device")
    assert split.ranges["device"].nunique() == 2
    names = [*CAPTURED, "captured_exclusive_sum_ns"][1:]
    parts = split.ranges.groupby("path")[names].sum()
    assert parts.to_dict() == whole.ranges.set_index("path").loc[parts.index, names].to_dict()
    together = ["path", "captured_path", "kernel"]
    kernels = [each.kernels.groupby(together)["sum_ns"].sum().to_dict() for each in (whole, split)]
    assert kernels[0] == kernels[1]


def test_by_process_keeps_the_captures(trace: MakeTrace) -> None:
    """Split by process, the one process has what the whole has."""
    path = trace(*report(), duration=END)
    frames = [answer(path, by=by).ranges.drop(columns="process", errors="ignore") for by in (None, "process")]
    assert frames[0].to_dict("records") == frames[1].to_dict("records")


def test_without_graphs_the_columns_are_empty() -> None:
    """A real report without graphs has zeros and empty texts, and no sentence."""
    found = broken_down(RUN)
    assert found.graphs is None
    assert not found.ranges[[*CAPTURED, "captured_exclusive_sum_ns"]].any(axis=None)
    assert (found.kernels["captured_path"] == "").all()
    assert list(found.graph_counts.sentences("launched")) == []
    assert "captured" not in summary(found, full=True, width=500)


@pytest.mark.parametrize(
    ("graphs", "shown"), [("launched", "see --graphs captured"), ("captured", "as shown")], ids=["launched", "captured"]
)
def test_summary_page_and_json_count_what_belongs_where(
    trace: MakeTrace, tmp_path: Path, graphs: str, shown: str
) -> None:
    """The summary and the page say how many kernels belong to ranges at capture; the document has the counts."""
    found = answer(trace(*report(), GraphTrace(9_500, 9_600, 99), duration=END), graphs)
    first, whole = found.graph_counts.sentences(graphs)
    assert first == f"4 kernels of CUDA graphs: 4 were captured inside ranges, {shown}"
    assert whole.startswith("1 CUDA graph recorded as one operation: capture with --cuda-graph-trace=node")
    text = summary(found, full=True, width=500)
    assert first in text
    assert "captured: kernels that the range captured into a CUDA graph" in text
    page = analysis_page(found)
    assert first in page
    write_tables(found, tmp_path)
    document = json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8"))
    assert document["options"]["graphs"] == graphs
    assert document["cuda_graphs"] == {
        **{"ops": 8, "kernels": 4, "captured": 8, "captured_kernels": 4},
        **{"outside": 0, "unknown": 0, "whole": 1},
    }


def test_replays_are_never_launch_bound(trace: MakeTrace) -> None:
    """A captured range has no mark, however far its replays lie apart: nothing of it waits for launches."""
    found = answer(trace(*report(), duration=END), "captured")
    text = summary(found, full=True, width=500)
    assert "*" not in text.split("All columns")[0]
    assert "the GPU idles" not in text


def test_the_option_reaches_the_files(trace: MakeTrace, tmp_path: Path, run: Run) -> None:
    """`analyze --graphs captured` books the replays to the layers; `--verify` goes with launches only."""
    path = trace(*report(), duration=END)
    done = run(path, "--no-charts", "--graphs", "captured", "-o", tmp_path / "out")
    assert done.code == 0
    with (tmp_path / "out" / "ranges.csv").open(encoding="utf-8", newline="") as file:
        kernels = {row["path"]: row["kernels"] for row in csv.DictReader(file)}
    assert kernels == {"CAPTURE": "5", "CAPTURE/layer0": "2", "CAPTURE/layer1": "2", "REPLAY": "0"}
    refused = run(path, "--graphs", "captured", "--verify", "-o", tmp_path / "out")
    assert refused.code == 2
    assert "leave out --graphs captured" in refused.err
