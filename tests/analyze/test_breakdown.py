"""Where the time went: the frames against plain sums over the reference's ranges and ops."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.tables import INSTANCES, KERNELS, RANGES
from nsysprof.errors import NsysprofError
from tests.analyze.conftest import Made, attributed_once, broken_once, referred
from tests.conftest import MakeTrace
from tests.kit.reference import Reference, Totals
from tests.kit.reports import broken_down
from tests.kit.trace import (
    CudaDevice,
    Gpu,
    Items,
    Kernel,
    Launch,
    Range,
    launch_graph,
    launch_kernel,
    launch_memcpy,
    launch_memset,
)

END = 10_000
ADDITIVE = ["kernels", "memops", "busy_ns", "sum_ns", "exclusive_sum_ns", "followed_sum_ns"]


def row(frame: pd.DataFrame, **where: object) -> dict[str, Any]:
    """The one row with these values."""
    for column, value in where.items():
        frame = frame[frame[column] == value]
    assert len(frame) == 1
    return {str(name): value for name, value in frame.iloc[0].items()}


def steps(count: int, **op: Any) -> list[Any]:
    """`run/step0…` with one kernel each, the i-th of them 10 + i ns long."""
    out: list[Any] = [Range("run", 0, 100 * count)]
    for i in range(count):
        out.append(Range(f"step{i}", 100 * i, 100 * i + 50))
        call, kernel = (100 * i + 1, 100 * i + 2), (100 * i + 20, 100 * i + 30 + i)
        out.append(launch_kernel("gemm", call, kernel, id=i + 1, **op))
    return out


def test_frames_have_the_columns_of_the_files(trace: MakeTrace) -> None:
    """The columns of the CSV files come first, in the order that is promised."""
    found = broken_down(trace(*steps(2), duration=END))
    assert list(found.ranges) == RANGES.names
    assert list(found.instances) == INSTANCES.names
    assert list(found.kernels) == KERNELS.names


def test_times_stay_int64(trace: MakeTrace) -> None:
    """No column of counts, ids or times becomes a float, not even for a report without anything."""
    for path in (trace(*steps(2)), trace()):
        found = broken_down(path)
        for frame in (found.ranges, found.merged, found.instances, found.kernels, found.merged_kernels):
            for name in frame:
                if str(name).endswith("_ns") or name in ("instances", "launches", "kernels", "pid", "count"):
                    assert frame[name].dtype.kind == "i", (name, frame[name].dtype)


@pytest.mark.parametrize("by", [None, "process", "device"])
def test_texts_are_python_strings(by: str | None, trace: MakeTrace) -> None:
    """Columns of names are objects, not pandas strings, and rows of one name share one string."""
    for path in (trace(*steps(3), duration=END), trace()):
        found = broken_down(path, by=by)
        for frame, texts in (
            (found.ranges, ["path", "merged_path", "kind", "domain"]),
            (found.merged, ["merged_path", "name", "kind"]),
            (found.instances, ["path", "merged_path", "kind"]),
            (found.kernels, ["path", "kernel", "family", "math_unit", "cause"]),
            (found.merged_kernels, ["kernel", "family", "math_unit", "cause"]),
        ):
            assert {name: str(frame[name].dtype) for name in texts} == dict.fromkeys(texts, "object")
    found = broken_down(trace(*steps(3), duration=END))
    for frame, name, text in ((found.instances, "merged_path", "run/step*"), (found.kernels, "kernel", "gemm")):
        same = [value for value in frame[name] if value == text]
        assert len(same) == 3
        assert len({id(value) for value in same}) == 1


def test_large_ids_and_times_survive(trace: MakeTrace) -> None:
    """A pid of 24 bits and times of 2^60 ns come out digit by digit."""
    start = 2**60 + 1
    path = trace(
        Range("a", start, start + 9, process=0xFFFFFE, thread=0xFFFFFD),
        launch_kernel("k", (start + 1, start + 2), (start + 3, start + 8), id=2**32 - 1, process=0xFFFFFE,
                      thread=0xFFFFFD),
        duration=END,
    )  # fmt: skip
    found = row(broken_down(path).instances, path="a")
    assert (found["pid"], found["tid"], found["start_ns"]) == (0xFFFFFE, 0xFFFFFD, start)
    assert (found["first_op_ns"], found["last_op_ns"], found["sum_ns"]) == (start + 3, start + 8, 5)


def test_a_path_adds_up_its_instances_and_tells_their_spread(trace: MakeTrace) -> None:
    """Five instances with 10 to 14 ns of work: the sum is 60, the median 12, the IQR 2."""
    found = row(broken_down(trace(*steps(5), duration=END)).merged, merged_path="run/step*")
    assert (found["instances"], found["kernels"], found["sum_ns"]) == (5, 5, 60)
    assert (found["busy_median_ns"], found["busy_iqr_ns"], found["cpu_ns"]) == (12, 2, 250)


def test_a_parent_has_its_children_inside_but_not_as_its_own(trace: MakeTrace) -> None:
    """The inclusive sum of a parent is that of its children, its exclusive sum is 0."""
    found = row(broken_down(trace(*steps(3), duration=END)).ranges, path="run")
    assert (found["sum_ns"], found["exclusive_sum_ns"], found["launches"]) == (33, 0, 3)


def test_rule_6_a_window_that_overlaps_itself_counts_its_work_once(trace: MakeTrace) -> None:
    """Two instances of one window, one inside the other: both have the kernel inside, their path has it once."""
    path = trace(
        Range("window", 0, 100, kind="start_end"),
        Range("window", 10, 50, kind="start_end"),
        launch_kernel("gemm", (20, 21), (30, 40), id=1),
        launch_memcpy((60, 61), (70, 75), id=2),
        duration=END,
    )
    found = broken_down(path)
    assert found.instances["sum_ns"].tolist() == [15, 10]
    window = row(found.ranges, path="window")
    assert window["instances"] == 2
    assert (window["launches"], window["kernels"], window["memops"], window["sum_ns"]) == (2, 1, 1, 15)


def test_rule_6_windows_that_touch_count_a_call_at_that_moment_once(trace: MakeTrace) -> None:
    """A call without length, just where one window ends and the next begins, lies in both and counts once."""
    path = trace(
        Range("window", 0, 10, kind="start_end"),
        Range("window", 10, 20, kind="start_end"),
        launch_kernel("gemm", (10, 10), (30, 40), id=1),
        duration=END,
    )
    window = row(broken_down(path).ranges, path="window")
    assert (window["instances"], window["launches"], window["sum_ns"]) == (2, 1, 10)


def test_rule_6_a_name_nested_in_itself_counts_once(trace: MakeTrace) -> None:
    """A recursive range: `f` has everything once, `f/f` what its inner call launched."""
    path = trace(Range("f", 0, 100), Range("f", 10, 50), launch_kernel("gemm", (20, 21), (30, 40), id=1), duration=END)
    found = broken_down(path).ranges
    assert [row(found, path=text)["sum_ns"] for text in ("f", "f/f")] == [10, 10]
    assert [row(found, path=text)["exclusive_sum_ns"] for text in ("f", "f/f")] == [0, 10]


def test_launches_that_caused_nothing_do_not_count(trace: MakeTrace) -> None:
    """`launches` are host calls that caused GPU work, not all host calls."""
    path = trace(Range("a", 0, 99), Launch(1, 2, 5), Launch(3, 4, 6), Kernel("k", 5, 6, 6), duration=END)
    assert row(broken_down(path).ranges, path="a")["launches"] == 1


def chains(reference: Reference) -> dict[tuple[tuple[str, int, str], ...], list[int]]:
    """The range instances of each path, in order of first appearance."""
    out: dict[tuple[tuple[str, int, str], ...], list[int]] = {}
    for at, chain in enumerate(reference.paths):
        out.setdefault(chain, []).append(at)
    return out


COUNTED = ("launches", "kernels", "memops", "graph_launches", "sum_ns")


def counted(reference: Reference, totals: list[Totals]) -> list[int]:
    """`COUNTED` of all launches that lie in at least one of some ranges."""
    calls = {key for total in totals for key in total.calls}
    ops = [op for op in reference.ops if (op.process, op.correlation) in calls]
    kernels, copies = (sum(op.table == "KERNEL" for op in ops), sum(op.table in ("MEMCPY", "MEMSET") for op in ops))
    graphs = {(op.process, op.correlation) for op in ops if op.in_graph}
    return [len(calls), kernels, copies, len(graphs), sum(op.end - op.start for op in ops)]


def quartiles(values: list[int]) -> list[int]:
    """Each rounded to whole ns, as `numpy.quantile` finds them."""
    return [round(float(q)) for q in np.quantile(values, [0.25, 0.5, 0.75])]


@pytest.mark.parametrize("threads", ["follow", "strict"])
@pytest.mark.parametrize("first_seed", [0, 15])
def test_ranges_equal_the_reference(made: Made, first_seed: int, threads: str) -> None:
    """Sums, medians and IQRs per path, on reports by chance."""
    for seed in range(first_seed, first_seed + 15):
        path = made(seed)
        found, reference = broken_once(path, threads).ranges, referred(path, threads)
        groups = chains(reference)
        assert len(found) == len(groups), seed
        for at, (chain, rows) in enumerate(groups.items()):
            got, ranges = found.iloc[at], [reference.ranges[i] for i in rows]
            totals = [reference.totals[i] for i in rows]
            owned = [op.end - op.start for op, who in zip(reference.ops, reference.owner, strict=True) if who in rows]
            context = (seed, threads, chain)
            assert (got["depth"], got["kind"], got["instances"]) == (len(chain) - 1, chain[-1][2], len(rows)), context
            assert got["cpu_ns"] == sum(r.end - r.start for r in ranges), context
            assert got["exclusive_sum_ns"] == sum(owned), context
            assert got["processes"] == len({r.process for r in ranges}), context
            assert got["unclosed"] == sum(r.unclosed for r in ranges), context
            for what in ("span_ns", "busy_ns", "followed_sum_ns"):
                assert got[what] == sum(getattr(t, what) for t in totals), (*context, what)
            if chain[-1][2] == "start_end":  # windows of one path may overlap: what lies in several counts once
                assert [got[what] for what in COUNTED] == counted(reference, totals), context
            else:
                for what in COUNTED:
                    assert got[what] == sum(getattr(t, what) for t in totals), (*context, what)
            for what in ("busy", "span"):
                first, median, third = quartiles([getattr(t, f"{what}_ns") for t in totals])
                assert (got[f"{what}_median_ns"], got[f"{what}_iqr_ns"]) == (median, third - first), context


@pytest.mark.parametrize("threads", ["follow", "strict"])
def test_everything_adds_up_to_the_report(made: Made, threads: str) -> None:
    """Exclusive sums and what nobody owns are the total; so are the ledger, the kernels and the merged kernels."""
    for seed in range(100, 125):
        found = broken_once(made(seed), threads)
        total, ledger = found.totals["sum_ns"], found.ledger.set_index("fate")
        unowned = ledger.loc[["outside every range", "ambiguous", "no launch row", "unified memory"], "sum_ns"].sum()
        assert int(found.ledger["sum_ns"].sum()) == total, seed
        assert int(found.ledger["ops"].sum()) == found.totals["ops"], seed
        assert int(found.ranges["exclusive_sum_ns"].sum()) + int(unowned) == total, seed
        assert int(found.merged["exclusive_sum_ns"].sum()) + int(unowned) == total, seed
        for frame, path, nobody in ((found.kernels, "path", ""), (found.merged_kernels, "row", -1)):
            assert int(frame["sum_ns"].sum()) == total, seed
            assert int(frame["count"].sum()) == found.totals["ops"], seed
            assert int(frame.loc[frame[path] == nobody, "sum_ns"].sum()) == int(unowned), seed
        assert abs(found.ledger["share"].sum() - (total > 0)) < 1e-9, seed


def test_kernels_equal_the_reference(made: Made) -> None:
    """Count, sum, median, least and most of each kernel of each path, exclusive to the path."""
    for seed in range(25):
        path = made(seed)
        reference = referred(path)
        texts = broken_once(path).path_texts
        code = {chain: at for at, chain in enumerate(chains(reference))}
        expected: dict[tuple[str, str], list[int]] = {}
        for op, owner in zip(reference.ops, reference.owner, strict=True):
            if op.table == "KERNEL":
                text = texts[code[reference.paths[owner]]] if owner >= 0 else ""
                expected.setdefault((text, op.name), []).append(op.end - op.start)
        found = broken_once(path).kernels
        found = found[~found["family"].isin(["memcpy", "memset", "graph", "migration"])]
        # paths of different domains or kinds may have one text
        got: dict[tuple[str, str], list[int]] = {}
        for path_text, name, count, total, low, high in zip(
            *(found[c] for c in ("path", "kernel", "count", "sum_ns", "min_ns", "max_ns")), strict=True
        ):
            seen = got.setdefault((path_text, name), [0, 0, low, high])
            got[path_text, name] = [seen[0] + count, seen[1] + total, min(seen[2], low), max(seen[3], high)]
        assert got == {key: [len(v), sum(v), min(v), max(v)] for key, v in expected.items()}, seed


def test_merged_rows_add_up_the_paths_they_merge(made: Made) -> None:
    """A merged row has the sums of its paths, and its parent's row is its parent's merged path."""
    for seed in range(25):
        found = broken_once(made(seed))
        # rows of one text may differ in kind, so compare by text and kind
        keys = ["merged_path", "kind"]
        additive = ["instances", "launches", "cpu_ns", "span_ns", *ADDITIVE]
        merged = found.merged.groupby(keys)[additive].sum()
        whole = found.ranges.groupby(keys)[additive].sum()
        pd.testing.assert_frame_equal(merged.sort_index(), whole.sort_index())
        for text, name, parent in zip(*(found.merged[c] for c in ("merged_path", "name", "parent")), strict=True):
            above = f"{found.merged['merged_path'][parent]}/" if parent >= 0 else ""
            assert text == above + name.replace("/", "\\/"), seed


def test_instances_equal_the_reference(made: Made) -> None:
    """One row per range instance; ``instance`` counts those of its path by start."""
    for seed in range(15):
        path = made(seed)
        found, reference = broken_once(path).instances, referred(path)
        for what in ("launches", "kernels", "memops", "first_op_ns", "last_op_ns", "span_ns", "busy_ns", "sum_ns"):
            assert found[what].tolist() == [getattr(t, what) for t in reference.totals], (seed, what)
        assert found["tid"].tolist() == [r.thread & 0xFFFFFF for r in reference.ranges], seed
        assert found["pid"].tolist() == [r.thread >> 24 & 0xFFFFFF for r in reference.ranges], seed
        for rows in chains(reference).values():
            numbered = sorted(rows, key=lambda i: reference.ranges[i].start)
            assert [int(found["instance"][i]) for i in numbered] == list(range(len(rows))), seed


@pytest.mark.parametrize("threads", ["follow", "strict"])
def test_the_instances_of_a_row_equal_the_reference(made: Made, threads: str) -> None:
    """Without merging the instances behind a row are those of its path, and the attribution is that of the report."""
    for seed in range(25):
        path = made(seed)
        attribution = attributed_once(path, threads)
        found = break_down(attribution, merge=None)
        groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
        for chain, rows in chains(referred(path, threads)).items():  # one row for all domains
            groups.setdefault(tuple((name, kind) for name, _, kind in chain), []).extend(rows)
        behind = [found.instances_of(row) for row in range(len(found.merged))]
        assert [rows.tolist() for _, rows in behind] == [sorted(rows) for rows in groups.values()], seed
        assert all(mine is attribution for mine, _ in behind), seed


@pytest.mark.parametrize("by", [None, "process", "device"])
@pytest.mark.parametrize("how", [{}, {"skip": 1}, {"select": "*[aw]*"}, {"merge": ["*"]}])
def test_the_instances_of_a_row_add_up_to_it(made: Made, by: str | None, how: dict[str, Any]) -> None:
    """Count, times and ops of the instances behind a row, in the attribution given with them, are those of the row."""
    columns = ("span_ns", "busy_ns", "sum_ns", "kernels", "memops", "launches")
    for seed in range(15):
        path = made(seed, Range("a", 0, 0))
        found = broken_once(path, by=by, **how)
        seen: list[tuple[object, int]] = []
        for row, frame in enumerate(found.merged.to_dict("records")):
            attribution, rows = found.instances_of(row)
            ranges = attribution.trace.ranges
            context = (seed, row)
            assert len(rows) == frame["instances"] > 0, context
            assert int((ranges.end[rows] - ranges.start[rows]).sum()) == frame["cpu_ns"], context
            for name in columns:
                total = int(getattr(attribution.inclusive, name)[rows].sum())
                if frame["kind"] == "push_pop" or name in ("span_ns", "busy_ns"):
                    assert total == frame[name], (*context, name)
                else:  # windows of one path may overlap: what lies in several counts once in the row
                    assert total >= frame[name], (*context, name)
            assert set(found.merged_of[rows].tolist()) == {found.merged_of[rows[0]]}, context
            texts = {found.merged_texts[code] for code in found.paths.of[rows].tolist()}
            assert texts == {frame["merged_path"]}, context
            seen += [(frame[by] if by else None, instance) for instance in rows.tolist()]
        assert len(seen) == len(set(seen)), seed
        kept = set(np.flatnonzero(found.kept).tolist())
        assert {instance for _, instance in seen} <= kept, seed
        if by != "device":  # there, instances without work on any GPU have no row
            assert len(seen) == len(kept) == found.instance_count == len(found.instances), seed


def test_there_are_no_instances_behind_a_row_that_is_not_there(trace: MakeTrace) -> None:
    """A row beyond the frame is an index error, in every way to split."""
    for by in (None, "process", "device"):
        for path in (trace(*steps(2), duration=END), trace()):
            found = broken_down(path, by=by)
            with pytest.raises(IndexError):
                found.instances_of(len(found.merged))


def sums(frame: pd.DataFrame, keys: list[str], columns: list[str]) -> dict[tuple[Any, ...], list[int]]:
    """The added columns of each group that has anything."""
    out: dict[tuple[Any, ...], list[int]] = {}
    for key, values in zip(
        frame[keys].itertuples(index=False, name=None), frame[columns].to_numpy().tolist(), strict=True
    ):
        out[key] = [a + b for a, b in zip(out.get(key, [0] * len(columns)), values, strict=True)]
    return {key: values for key, values in out.items() if any(values)}


@pytest.mark.parametrize("by", ["process", "device"])
def test_parts_add_up_to_the_whole(made: Made, by: str) -> None:
    """Rows by process, or by GPU, add up to those of the whole report, kernels and what nobody owns included."""
    for seed in range(25):
        path = made(seed)
        whole, parts = broken_once(path), broken_once(path, by=by)
        assert parts.ranges.columns[0] == by
        keys = ["path", "kind", "domain", "depth"]
        assert sums(parts.ranges, keys, ADDITIVE) == sums(whole.ranges, keys, ADDITIVE), seed
        keys, added = ["path", "kernel", "family"], ["count", "sum_ns"]
        assert sums(parts.kernels, keys, added) == sums(whole.kernels, keys, added), seed
        assert parts.totals == whole.totals, seed
        pd.testing.assert_frame_equal(parts.ledger, whole.ledger)


def test_rows_by_process_are_those_of_its_pid(trace: MakeTrace) -> None:
    """One path in two processes is two rows, each with its own sums."""
    path = trace(
        Range("step", 0, 9, process=11),
        Range("step", 0, 9, process=12),
        launch_kernel("k", (1, 2), (10, 13), id=1, process=11),
        launch_kernel("k", (1, 2), (10, 17), id=1, process=12),
        duration=END,
    )
    found = broken_down(path, by="process").ranges
    assert dict(zip(found["process"], found["sum_ns"], strict=True)) == {11: 3, 12: 7}
    assert row(broken_down(path).ranges, path="step")["processes"] == 2


def test_rows_by_device_are_called_by_the_gpu(trace: MakeTrace) -> None:
    """Device 0 of two processes may be two GPUs; a device that the report does not list says whose it is."""
    items = (
        Range("step", 0, 9, process=11),
        Range("step", 0, 9, process=12),
        launch_kernel("k", (1, 2), (10, 13), id=1, process=11),
        launch_kernel("k", (1, 2), (10, 17), id=1, process=12),
    )
    listed = trace(*items, Gpu(4), Gpu(6), CudaDevice(6, 0, 11), CudaDevice(4, 0, 12), duration=END)
    found = broken_down(listed, by="device").ranges
    assert dict(zip(found["device"], found["sum_ns"], strict=True)) == {"GPU 6": 3, "GPU 4": 7}
    unknown = broken_down(trace(*items, gpus=False, duration=END), by="device").ranges
    assert sorted(unknown["device"]) == ["device 0 of pid 11", "device 0 of pid 12"]


def test_each_part_has_its_label_and_its_rows(trace: MakeTrace) -> None:
    """One part is the report itself; by process or by GPU there are several, whose rows follow one another."""
    path = trace(
        Range("step0", 0, 9, process=11),
        Range("a", 0, 9, process=12),
        Range("step1", 10, 19, process=12),
        launch_kernel("k", (1, 2), (10, 13), id=1, process=11, device=0),
        launch_kernel("k", (1, 2), (10, 17), id=1, process=12, device=1),
        launch_kernel("k", (11, 12), (20, 29), id=2, process=12, device=0),
        duration=END,
    )
    expected: dict[str | None, list[tuple[object, list[str]]]] = {
        None: [(None, ["step*", "a"])],
        "process": [(11, ["step*"]), (12, ["step*", "a"])],
        "device": [("GPU 0", ["step*"]), ("GPU 1", ["a"])],
    }
    for by, parts in expected.items():
        found = broken_down(path, by=by)
        assert [part.label for part, _ in found.parts] == [label for label, _ in parts]
        texts = found.merged["merged_path"].tolist()
        assert texts == [text for _, mine in parts for text in mine]
        for (_, rows), (_, mine) in zip(found.parts, parts, strict=True):
            assert rows[-1] == -1
            assert [texts[row] for row in rows.tolist() if row >= 0] == mine


def test_an_unknown_way_to_split_is_refused(trace: MakeTrace) -> None:
    """A misspelt `by` names what there is to choose from."""
    with pytest.raises(NsysprofError, match="'host'") as refused:
        broken_down(trace(*steps(1)), by="host")
    assert refused.value.hint == "choose one of process, device, thread, stream"


@pytest.mark.parametrize("glob", ["step1", "run/step1", "*step1"])
def test_select_keeps_what_matches(trace: MakeTrace, glob: str) -> None:
    """A glob selects by name or by path; what nobody owns is then left out of the kernels."""
    found = broken_down(trace(*steps(3), Kernel("lost", 0, 5, 99), duration=END), select=glob)
    assert found.ranges["path"].tolist() == ["run/step1"]
    assert found.kernels["path"].tolist() == ["run/step1"]
    assert len(found.instances) == 1
    assert found.totals["sum_ns"] == 38


def test_select_keeps_what_lies_inside(trace: MakeTrace) -> None:
    """Ranges inside a selected one are selected with it."""
    found = broken_down(trace(*steps(2), Range("mm", 1, 3), duration=END), select="step0")
    assert found.ranges["path"].tolist() == ["run/step0", "run/step0/mm"]


def test_select_by_merged_path(trace: MakeTrace) -> None:
    """`run/step[*]` selects all steps through their merged path."""
    found = broken_down(trace(*steps(3), duration=END), select="run/step[*]")
    assert found.merged["merged_path"].tolist() == ["run/step*"]
    assert found.merged["parent"].tolist() == [-1]
    assert found.warnings == (
        "shown: ranges that match 'run/step[*]', and all ranges inside them (3 of 4); ledger and "
        "totals still cover all ranges",
    )


def test_what_was_asked_is_kept(trace: MakeTrace) -> None:
    """The options stand in the answer as they were given; the default globs are told too."""
    path = trace(*steps(3), duration=END)
    calls = ["cuda", "mpi", "os"]
    assert broken_down(path).options == {"select": None, "skip": 0, "merge": ["iter*", "step*"], "calls": calls}
    asked = broken_down(path, select="run*", skip=2, merge=("st*",), by="device")
    assert asked.options == {"select": "run*", "skip": 2, "merge": ["st*"], "calls": calls}
    assert asked.by == "device"
    assert broken_down(path, merge=None).options["merge"] is None


def test_select_leaves_no_families_of_what_it_left_out(trace: MakeTrace) -> None:
    """Every row of the families is that of a selected merged path."""
    found = broken_down(trace(*steps(3), duration=END), select="step1")
    assert found.families["row"].tolist() == [0]
    assert found.families["sum_ns"].tolist() == [11]


def test_select_without_a_match_says_what_there_is(trace: MakeTrace) -> None:
    """A glob that matches nothing is refused with examples of what would match."""
    with pytest.raises(NsysprofError, match=r"'nothing'.*'run', 'run/step\*'"):
        broken_down(trace(*steps(2), duration=END), select="nothing")
    with pytest.raises(NsysprofError, match="no ranges at all"):
        broken_down(trace(Kernel("k", 0, 1, 1)), select="nothing")


def test_skip_leaves_warm_up_out_of_statistics(trace: MakeTrace) -> None:
    """The first instance goes from rows, instances and kernels; the ledger and the totals stay, with a warning."""
    found = broken_down(trace(*steps(3), duration=END), skip=1)
    merged = row(found.merged, merged_path="run/step*")
    assert (merged["instances"], merged["sum_ns"], merged["busy_median_ns"]) == (2, 23, 12)
    assert found.instances["path"].tolist() == ["run", "run/step1", "run/step2"]
    assert int(found.kernels["sum_ns"].sum()) == 23
    assert found.totals["sum_ns"] == int(found.ledger["sum_ns"].sum()) == 33
    assert found.warnings == ("warm-up instances left out: 1 (--skip 1)",)


def test_totals_are_those_of_the_file(trace: MakeTrace) -> None:
    """Counts by kind; busy is a union per GPU, added; span goes from the first start to the last end."""
    path = trace(
        Range("a", 0, 50),
        launch_kernel("k", (1, 2), (100, 140), id=1),
        launch_kernel("k", (3, 4), (120, 160), id=2, stream=13),
        launch_memcpy((5, 6), (120, 130), id=3, device=1),
        launch_memset((7, 8), (200, 201), id=4),
        launch_graph((9, 10), (210, 220), id=5),
        duration=END,
    )
    assert broken_down(path).totals == {
        "ops": 5,
        "kernels": 2,
        "memops": 2,
        "graph_traces": 1,
        "launches": 5,
        "ranges": 1,
        "migrations": 0,
        "migrations_ns": 0,
        "sum_ns": 101,
        "busy_ns": 60 + 1 + 10 + 10,
        "span_ns": 120,
        "recording_ns": END,
    }


def test_warnings_name_what_how_many_and_what_share(trace: MakeTrace) -> None:
    """Unclosed ranges, ambiguous ops, followed ops and ops without launch rows are each said with numbers."""
    path = trace(
        Range("main", 0, 90, thread=1),
        Range("other", 0, 20, thread=3),
        Range("open", 95, None, thread=3, kind="start_end"),
        launch_kernel("ambiguous", (1, 2), (100, 110), id=1, thread=2),
        launch_kernel("followed", (30, 31), (110, 130), id=2, thread=2),
        Kernel("lost", 130, 200, 77),
        duration=END,
    )
    assert broken_down(path).warnings == (
        "the program never closed 1 of 3 ranges, which are assumed to end with the recording",
        "GPU ops with no recorded launch (attributed to no range): 1 (70 % of GPU op time)",
        "GPU ops of worker threads, attributed to no range because several threads had ranges open: 1 (10 % "
        "of GPU op time)",
        "GPU ops of worker threads, attributed to the only range open on another thread: 1 (20 % of GPU op time);"
        " see --threads",
    )


def test_what_is_recorded_twice_or_backwards_is_told(trace: MakeTrace) -> None:
    """Host calls with one id, and ops that end before they start, are counted in a warning each, and still add up."""
    launch, kernel = launch_kernel("k", (1, 9), (20, 30), id=1)
    path = trace(
        Range("a", 0, 90),
        launch,
        Launch(2, 8, 1, event_class=67),
        Launch(3, 7, 1, event_class=1),
        Launch(40, 41, 99),
        Launch(42, 43, 99),  # launched nothing: nobody asks for it
        kernel,
        launch_kernel("k", (50, 51), (65, 60), id=2),
        launch_memcpy((52, 53), (70, 67), id=3),
        duration=END,
    )
    found = broken_down(path)
    assert found.warnings == (
        "2 GPU ops end before their start; sums include these negative durations",
        "2 host calls share a correlation id with a shorter call; only the shorter call counts",
    )
    assert found.totals["sum_ns"] == int(found.ledger["sum_ns"].sum()) == 10 - 5 - 3
    assert row(found.ranges, path="a")["launches"] == 3


def test_paths_that_are_cut_are_told(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the text of all paths is too long, a warning says how deep they are; otherwise nothing is said."""
    path = trace(*[Range("r", depth, 900 - depth) for depth in range(40)], duration=END)
    short = broken_down(path).warnings
    monkeypatch.setattr("nsysprof.attribution.paths._MAX_CHARACTERS", 1000)
    assert [warning for warning in broken_down(path).warnings if warning not in short] == [
        "range paths have up to 40 levels: long paths are shortened in the middle and may look alike"
    ]


def test_what_is_never_popped_is_folded(trace: MakeTrace) -> None:
    """A loop that forgets a pop has one range of that name with all of the loop in it, and its others once each."""
    items: list[Items] = []
    for step in range(40):
        at = 1000 * step
        items += [Range("step", at, None), Range("again", at + 1, None), Range("inner", at + 10, at + 100)]
        items.append(launch_kernel("k", (at + 20, at + 30), (at + 50, at + 80), id=step + 1))
    found = broken_down(trace(*items, Range("other", 7, END, thread=2), duration=END))
    rows = {row["path"]: row for row in found.ranges.to_dict("records")}
    assert rows.keys() == {"step", "step/again", "step/again/inner", "other"}
    assert [rows[path]["kernels"] for path in rows] == [40, 40, 40, 0]
    assert [rows[path]["instances"] for path in rows] == [1, 1, 40, 1]
    assert rows["step/again/inner"]["exclusive_sum_ns"] == found.totals["sum_ns"] == 40 * 30
    assert found.warnings[:2] == (
        "`step` is never popped: the first and 39 later pushes are merged into one range",
        "`again` is never popped: the first and 39 later pushes are merged into one range",
    )


@pytest.mark.parametrize(
    "items",
    [
        [Range("f", at, None) for at in range(10)],  # a recursion that was stopped
        [Range("f", at, 900 - at) for at in range(40)],  # one that ended
        [Range(f"step {at}", at, None) for at in range(40)],
        [Range("f", at, None, kind="start_end") for at in range(40)],
        [Range("f", at, None, thread=at) for at in range(1, 40)],
    ],
    ids=["few", "closed", "names", "windows", "threads"],
)
def test_what_may_be_meant_is_not_folded(trace: MakeTrace, items: list[Items]) -> None:
    """Ranges that were popped, few of them, or of different names, threads and kinds stay as they were recorded."""
    found = broken_down(trace(*items, duration=END))
    assert found.ranges["instances"].sum() == len(items)
    assert not any("never popped" in warning for warning in found.warnings)


def test_kinds_are_those_of_the_op_names(trace: MakeTrace) -> None:
    """There is a family per op name of the report: that of the rules for kernels, and its kind for all other ops."""
    path = trace(
        launch_kernel("ampere_sgemm_128x64_nn", (1, 2), (10, 20), id=1),
        launch_memcpy((3, 4), (20, 30), id=2),
        launch_memset((5, 6), (30, 40), id=3),
        launch_graph((7, 8), (40, 50), id=4),
    )
    found = broken_down(path)
    names = found.attribution.trace.op_names
    kinds = dict(zip(names, found.kinds.family, strict=True))
    assert sorted(kinds.values()) == ["gemm", "graph", "memcpy", "memset"]
    assert kinds["ampere_sgemm_128x64_nn"] == "gemm"
    assert kinds == dict(zip(found.kernels["kernel"], found.kernels["family"], strict=True))


def test_a_report_without_work_or_ranges_is_an_answer(trace: MakeTrace) -> None:
    """Nothing recorded gives empty frames, zero totals and warnings that say what is missing."""
    found = broken_down(trace())
    assert (len(found.ranges), len(found.kernels), len(found.families)) == (0, 0, 0)
    assert set(found.totals.values()) == {0}
    assert found.ledger["share"].tolist() == [0.0] * 7
    assert any("no GPU work" in warning for warning in found.warnings)
    for by in ("process", "device"):
        assert len(broken_down(trace(), by=by).ranges) == 0
