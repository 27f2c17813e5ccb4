"""The shipped reports: what nsys itself says of them, and every instance against the slow reference."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsysprof.analyze.analyze import break_down
from nsysprof.analyze.breakdown import Breakdown
from nsysprof.attribution.attribute import OUTCOMES, attribute
from tests.kit.reference import refer
from tests.kit.reports import BLOCK, RUN, TWO, attributed, broken_down

every = pytest.mark.parametrize("path", [RUN, BLOCK, TWO], ids=lambda path: path.stem)
BACKENDS = ("math", "math_reduced", "flash", "efficient", "cudnn", "auto")
SIZES = (1024, 2048, 4096)
RUNS = [f"RUN::{backend}::S{size}" for size in SIZES for backend in BACKENDS]
# `nsys stats --report cuda_gpu_kern_sum,cuda_gpu_mem_time_sum,nvtx_sum --format csv` (2025.3.1, on the machine of the
# capture), each added up over its rows: kernels, their ns, copies and sets, their ns, ranges.
NSYS_TOTALS = {
    "run": (7_655, 422_477_862, 701, 52_919_586, 795),
    "block": (3_737, 33_938_956, 207, 16_284_693, 569),
    "two-processes": (417, 5_784_649, 31, 7_239_144, 30),
}
# `nsys stats --report nvtx_gpu_proj_sum --format csv` of run: of each measured range "Total Range Time (ns)",
# "Total Proj Time (ns)" and "Total GPU Ops".
NSYS_RUNS = {
    "RUN::math::S1024": (10_465_710, 10_392_943, 800),
    "RUN::math_reduced::S1024": (7_792_460, 7_743_947, 600),
    "RUN::flash::S1024": (1_944_533, 1_893_635, 80),
    "RUN::efficient::S1024": (1_846_803, 1_802_819, 40),
    "RUN::cudnn::S1024": (1_815_225, 1_763_202, 80),
    "RUN::auto::S1024": (1_755_352, 1_708_258, 80),
    "RUN::math::S2048": (30_543_295, 30_480_746, 800),
    "RUN::math_reduced::S2048": (17_946_012, 17_889_881, 640),
    "RUN::flash::S2048": (1_713_304, 1_665_442, 40),
    "RUN::efficient::S2048": (3_890_198, 3_847_654, 40),
    "RUN::cudnn::S2048": (1_733_333, 1_686_722, 80),
    "RUN::auto::S2048": (1_734_664, 1_689_890, 80),
    "RUN::math::S4096": (113_801_551, 113_699_099, 800),
    "RUN::math_reduced::S4096": (69_559_518, 69_504_541, 640),
    "RUN::flash::S4096": (4_773_042, 4_724_966, 40),
    "RUN::efficient::S4096": (10_381_065, 10_340_046, 40),
    "RUN::cudnn::S4096": (2_881_108, 2_829_636, 80),
    "RUN::auto::S4096": (2_872_806, 2_825_188, 80),
}
# Of the same report the iterations, which nsys adds up over the eighteen ranges that hold one of that name.
NSYS_ITERATIONS = {
    "memory": (2_145_412, 7_367_691, 126),
    "iter10": (1_719_184, 6_974_955, 126),
    "iter14": (1_665_051, 6_962_569, 126),
    "iter39": (1_704_215, 6_970_409, 126),
}
TOTALS = (
    *("launches", "kernels", "memops", "graph_launches", "first_op_ns", "last_op_ns"),
    *("busy_ns", "sum_ns", "followed_sum_ns", "span_ns"),
)


def row(found: Breakdown, path: str) -> dict[str, Any]:
    mine = found.merged[found.merged["merged_path"] == path]
    assert len(mine) == 1
    return {str(name): value for name, value in mine.iloc[0].items()}


def ask(sql: str, path: Path = RUN) -> list[Any]:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(sql).fetchall()


@every
def test_totals_are_those_of_the_file_and_of_nsys(path: Path) -> None:
    """Kernels, copies, sets, ranges and times are what the rows of the file, and nsys's own tables, add up to."""
    counts: list[int] = []
    for tables in (("KERNEL",), ("MEMCPY", "MEMSET")):
        rows = " UNION ALL ".join(f"SELECT start, end FROM CUPTI_ACTIVITY_KIND_{table}" for table in tables)
        counts += ask(f"SELECT count(*), sum(end - start) FROM ({rows})", path)[0]
    [(ranges,)] = ask("SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60, 70, 71)", path)
    assert (*counts, ranges) == NSYS_TOTALS[path.stem]
    totals = broken_down(path).totals
    assert [totals[name] for name in ("kernels", "memops", "graph_traces")] == [counts[0], counts[2], 0]
    assert totals["sum_ns"] == counts[1] + counts[3]
    assert (totals["ops"], totals["ranges"]) == (counts[0] + counts[2], ranges)


@pytest.mark.parametrize("name", RUNS)
def test_measured_ranges_are_as_nsys_projects_them(name: str) -> None:
    """CPU time, span and launches of each `RUN::` range of the H200 run, which one thread launches, are nsys's."""
    found = row(broken_down(), name)
    assert (found["cpu_ns"], found["span_ns"], found["launches"]) == NSYS_RUNS[name]


@pytest.mark.parametrize("name", NSYS_ITERATIONS)
def test_iterations_are_as_nsys_projects_them(name: str) -> None:
    """CPU time, span and launches of all instances of one name, wherever they lie, add up to nsys's."""
    instances = broken_down().instances
    mine = instances[instances["path"].str.endswith(f"/{name}")]
    cpu = int((mine["end_ns"] - mine["start_ns"]).sum())
    assert len(mine) == len(RUNS)
    assert (cpu, int(mine["span_ns"].sum()), int(mine["launches"].sum())) == NSYS_ITERATIONS[name]


@pytest.mark.parametrize("name", RUNS)
def test_busy_time_is_the_union_of_the_rows(name: str) -> None:
    """Each measured range's busy time, sum and kernels are those of the rows that SQL finds launched inside it."""
    ops = ask(
        f"""SELECT k.start, k.end, k.kernel FROM NVTX_EVENTS AS run JOIN StringIds ON id = run.textId
            JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r
            ON r.globalTid = run.globalTid AND r.start >= run.start AND r.end <= run.end
            JOIN (SELECT start, end, correlationId, 1 AS kernel FROM CUPTI_ACTIVITY_KIND_KERNEL UNION ALL
                  SELECT start, end, correlationId, 0 FROM CUPTI_ACTIVITY_KIND_MEMCPY UNION ALL
                  SELECT start, end, correlationId, 0 FROM CUPTI_ACTIVITY_KIND_MEMSET) AS k USING (correlationId)
            WHERE coalesce(run.text, value) = '{name}' ORDER BY k.start"""
    )
    busy, until = 0, 0
    for start, end, _ in ops:
        busy += max(0, end - max(start, until))
        until = max(until, end)
    found = row(broken_down(), name)
    assert found["busy_ns"] == busy
    assert found["sum_ns"] == sum(end - start for start, end, _ in ops)
    assert found["kernels"] == sum(kernel for _, _, kernel in ops)


def test_each_run_has_forty_iterations_in_one_row() -> None:
    """`iter0` to `iter39` of each of the eighteen runs are one merged row of forty instances."""
    found = broken_down()
    warm_ups = [f"{run.replace('RUN', 'WARMUP')}{part}" for run in RUNS for part in ("", "/memory")]
    checks = [run.replace("RUN", "CHECK") for run in RUNS]
    references = [f"CHECK::math::S{size}/REFERENCE::S{size}" for size in SIZES]
    rest = [*warm_ups, *checks, *references]
    assert sorted(found.merged["merged_path"]) == sorted([*RUNS, *(f"{run}/iter*" for run in RUNS), *rest])
    assert len(found.ranges) == 41 * len(RUNS) + len(rest)
    for run in RUNS:
        outer, inner = row(found, run), row(found, f"{run}/iter*")
        assert (outer["instances"], inner["instances"]) == (1, 40), run
        assert inner["sum_ns"] == outer["sum_ns"] == inner["exclusive_sum_ns"], run
        assert inner["kernels"] == outer["kernels"], run
        assert outer["exclusive_sum_ns"] == 0, run
        assert inner["busy_median_ns"] > 0, run


@every
@pytest.mark.parametrize("threads", ["follow", "strict"])
def test_every_instance_equals_the_reference(path: Path, threads: str) -> None:
    """All ranges and ops of each report, column by column, whether helper threads follow or not."""
    found, reference = attributed(path, threads), refer(path, threads)
    for what in TOTALS:
        expected = [getattr(totals, what) for totals in reference.totals]
        assert getattr(found.inclusive, what).tolist() == expected, what
    assert found.op_owner.tolist() == reference.owner
    assert [OUTCOMES[outcome] for outcome in found.op_outcome.tolist()] == reference.outcome
    assert found.parent.tolist() == reference.parent
    assert [(row.outcome, row.ops, row.sum_ns) for row in found.ledger] == reference.ledger()


@every
def test_kernels_add_up_to_those_of_the_file(path: Path) -> None:
    """Count, sum, least and most of every kernel over all paths are what SQL says of the file."""
    frame = broken_down(path).kernels
    frame = frame[~frame["family"].isin(["memcpy", "memset", "graph"])]
    by_name = frame.groupby("kernel")
    found = {
        name: (part["count"].sum(), part["sum_ns"].sum(), part["min_ns"].min(), part["max_ns"].max())
        for name, part in by_name
    }
    expected = ask(
        "SELECT value, count(*), sum(end - start), min(end - start), max(end - start)"
        " FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName GROUP BY demangledName",
        path,
    )
    assert found == {name: tuple(values) for name, *values in expected}


def test_kernels_of_a_path_are_those_launched_in_it() -> None:
    """The kernels of `RUN::math::S1024/iter7` are what SQL finds launched inside that range."""
    expected = ask(
        """WITH named AS (SELECT n.*, coalesce(text, value) AS name FROM NVTX_EVENTS AS n
                          LEFT JOIN StringIds ON id = textId)
           SELECT value, count(*), sum(k.end - k.start) FROM named AS run JOIN named AS iter
           ON iter.globalTid = run.globalTid AND iter.start >= run.start AND iter.end <= run.end
           JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r
           ON r.globalTid = iter.globalTid AND r.start >= iter.start AND r.end <= iter.end
           JOIN CUPTI_ACTIVITY_KIND_KERNEL AS k USING (correlationId) JOIN StringIds ON id = demangledName
           WHERE run.name = 'RUN::math::S1024' AND iter.name = 'iter7' GROUP BY demangledName"""
    )
    frame = broken_down().kernels
    mine = frame[frame["path"] == "RUN::math::S1024/iter7"]
    found = {name: (count, total) for name, count, total in mine[["kernel", "count", "sum_ns"]].to_numpy().tolist()}
    assert found == {name: (count, total) for name, count, total in expected}
    assert sum(count for count, _ in found.values()) == 20


@every
@pytest.mark.parametrize("threads", ["follow", "strict"])
def test_ledger_adds_up(path: Path, threads: str) -> None:
    """What ranges own and what nobody owns is the report's time, to the ns."""
    found = broken_down(path, threads)
    ledger = dict(zip(found.ledger["fate"], found.ledger["sum_ns"].tolist(), strict=True))
    assert sum(ledger.values()) == found.totals["sum_ns"]
    assert int(found.ranges["exclusive_sum_ns"].sum()) == ledger["own thread"] + ledger["followed"]
    assert ledger["no launch row"] == ledger["ambiguous"] == ledger["start/end window"] == 0
    # PyTorch's autograd thread works in one of the three
    other = {"follow": "followed", "strict": "outside every range"}[threads]
    assert [outcome for outcome, ns in ledger.items() if ns] == ["own thread", *[other] * (path == BLOCK)]


def test_skip_leaves_out_the_first_iterations_of_each_run() -> None:
    """With five to skip every run has 35 iterations, its own row stays, and the totals stay."""
    whole, found = broken_down(), break_down(attributed(), skip=5)
    for path in RUNS:
        assert (row(found, path)["instances"], row(found, f"{path}/iter*")["instances"]) == (1, 35), path
    kept = whole.instances[whole.instances["path"].str.fullmatch(r"RUN::math::S1024/iter([5-9]|[123]\d)")]
    assert len(kept) == 35
    assert row(found, "RUN::math::S1024/iter*")["sum_ns"] == int(kept["sum_ns"].sum())
    assert row(found, "RUN::math::S1024/iter*")["busy_median_ns"] == round(kept["busy_ns"].median())
    assert found.totals == whole.totals
    assert [warning for warning in found.warnings if warning not in whole.warnings] == [
        "warm-up instances left out: 90 (--skip 5)"
    ]


def test_skip_of_all_iterations_skips_none() -> None:
    """Forty do not repeat more often than forty, so nothing is left out rather than everything."""
    assert break_down(attributed(), skip=40).merged.equals(broken_down().merged)


def test_select_keeps_one_run() -> None:
    """A glob on the run keeps it and its iterations with the numbers that they have in the whole."""
    found = break_down(attributed(), select="RUN::flash::S4096")
    assert found.merged["merged_path"].tolist() == ["RUN::flash::S4096", "RUN::flash::S4096/iter*"]
    numbers = ["sum_ns", "busy_ns", "span_ns", "cpu_ns", "kernels", "busy_median_ns"]
    for path in found.merged["merged_path"]:
        assert [row(found, path)[name] for name in numbers] == [row(broken_down(), path)[name] for name in numbers]
    assert set(found.kernels["path"].str.startswith("RUN::flash::S4096")) == {True}
    assert [warning for warning in found.warnings if warning not in broken_down().warnings] == [
        "shown: ranges that match 'RUN::flash::S4096', and all ranges inside them (41 of 795); "
        "ledger and totals still cover all ranges"
    ]


@pytest.mark.parametrize(("by", "label"), [("process", 515), ("device", "GPU 0"), ("thread", "python3 515")])
def test_one_process_on_one_gpu_is_the_whole(by: str, label: object) -> None:
    """The report's one process, and its one GPU, are the whole report under another head."""
    found, whole = break_down(attributed(), by=by), broken_down()
    for name in ("ranges", "merged", "kernels", "families"):
        frame = getattr(found, name)
        assert set(frame[by]) == {label}, name
        assert frame.drop(columns=by).equals(getattr(whole, name)), name


@every
def test_families_add_up_to_each_row(path: Path) -> None:
    """The families inside each merged path have its time and its kernels."""
    found = broken_down(path)
    for column in ("sum_ns", "kernels"):
        by_row = found.families.groupby("row")[column].sum()
        assert by_row.tolist() == found.merged[column].tolist(), column


@every
def test_the_file_is_not_changed(path: Path) -> None:
    """Reading leaves the bytes as they are, and nothing beside the file."""
    before, beside = path.read_bytes(), sorted(path.parent.iterdir())
    broken_down(path)
    assert path.read_bytes() == before
    assert sorted(path.parent.iterdir()) == beside


@pytest.mark.parametrize("threads", ["follow", "strict"])
def test_processes_are_attributed_the_same_side_by_side(threads: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several threads give every launch and every range what one gives them."""
    monkeypatch.setattr("nsysprof.attribution.attribute._MIN_LAUNCHES_FOR_THREADS", 0)
    monkeypatch.setattr("nsysprof.core.parallel.cores", lambda: 3)
    alone, together = attributed(TWO, threads), attribute(attributed(TWO, threads).trace, threads)
    assert len(alone.trace.processes) > 1
    for name in ("owner", "outcome", "parent", "exclusive_sum_ns"):
        assert getattr(alone, name).tolist() == getattr(together, name).tolist()
    for name in TOTALS:
        assert getattr(alone.inclusive, name).tolist() == getattr(together.inclusive, name).tolist()
    assert alone.ledger == together.ledger
