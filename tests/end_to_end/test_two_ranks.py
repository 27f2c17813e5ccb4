"""The study of two ranks keeps its word: its tables follow from the reports, and its README quotes what is in them."""

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nsysprof.core.units import format_ns, format_ratio, format_share
from nsysprof.fleet.answer import Fleet, fleet_answer
from nsysprof.fleet.examine import ReportTask, examine_report
from nsysprof.fleet.files import write_fleet
from nsysprof.fleet.inputs import find_reports
from nsysprof.why.why import why
from tests.kit.reports import attributed

STUDY = Path(__file__).parents[2] / "analysis" / "two-ranks"
COST = ["seconds", "peak_bytes", "report"]


@cache
def study() -> Fleet:
    """The answer over the two reports."""
    files, _ = find_reports([str(STUDY)])
    return fleet_answer([examine_report(ReportTask(file)) for file in files])


def test_the_tables_are_made_of_the_reports(tmp_path: Path) -> None:
    """To the byte, but for where the reports lay and what it cost."""
    write_fleet(study(), [], tmp_path)
    for name in ("fleet.csv", "iterations.csv"):
        assert (tmp_path / name).read_bytes() == (STUDY / name).read_bytes()
    made, kept = (pd.read_csv(folder / "ranks.csv").drop(columns=COST) for folder in (tmp_path, STUDY))
    pd.testing.assert_frame_equal(made, kept)


def lengths() -> list[tuple[int, int]]:
    """The lengths that the two ranks of train.py draw, step by step."""
    draws = [random.Random(rank) for rank in (0, 1)]
    return [(draws[0].choice(choices), draws[1].choice(choices)) for choices in [[512, 1024, 1536, 2048]] * 24]


def starts() -> tuple[int, int, int, int, float]:
    """All-reduces; how often the shorter begins later; those far apart; how often there; the median shorter in ns."""
    fleet = study()
    parts = [(STUDY / f"rank_{rank}.sqlite", rank) for rank in (0, 1)]
    found = [examine_report(ReportTask(file)) for file in find_reports([str(path) for path, _ in parts])[0]]
    sides = []
    for answer, (_, rank) in zip(found, parts, strict=True):
        part = answer.parts[0]  # type: ignore[union-attr]
        first = part.first_ns[part.path == part.paths.index("step*")]
        mine = part.collective_start >= first[1:].min()
        offset = fleet.waiting.offset_ns[rank]
        sides.append((part.collective_start[mine] - offset, part.collective_end[mine] - part.collective_start[mine]))
    begun = sides[1][0] - sides[0][0]
    short = sides[1][1] < sides[0][1]
    far = abs(begun) > 2 * fleet.waiting.spread_ns
    agree = (begun > 0) == short
    return (
        len(begun),
        int(agree.sum()),
        int(far.sum()),
        int((agree & far).sum()),
        float(np.median(np.minimum(sides[0][1], sides[1][1]))),
    )


def test_the_walk_and_the_rule_of_the_fleet_agree_on_who_is_late() -> None:
    """On which rank compute is blocked for longer by an all-reduce, the walk says from one report alone: it is the one
    that the fleet says waits, wherever the two are further apart than their clocks are known.
    """
    fleet = study()
    files, _ = find_reports([str(STUDY)])
    sides = []
    for file in files:
        answer = examine_report(ReportTask(file))
        part = answer.parts[0]  # type: ignore[union-attr]
        blocked = np.zeros(len(part.collective), np.int64)
        np.add.at(blocked, part.blocking_of, part.blocking_end - part.blocking_start)
        sides.append((part.collective_end - part.collective_start, blocked))
    assert len(sides[0][0]) == len(sides[1][0])  # so the k-th of one is the k-th of the other
    waits = sides[1][0] - sides[0][0]  # positive: rank 0 comes last, and rank 1 waits
    blocks = sides[1][1] - sides[0][1]
    told = (np.abs(blocks) > 2 * fleet.waiting.spread_ns) & (np.abs(waits) > 2 * fleet.waiting.spread_ns)
    assert told.sum() >= 20
    assert (np.sign(waits[told]) == np.sign(blocks[told])).all()
    assert fleet.ranks["late_peer"].tolist() == [1, 0]


def test_blocking_communication_adds_up_on_both_ranks() -> None:
    """Late peer and transfer make the blocking part, which is in what is exposed, as `nsysprof why` has it per rank."""
    ranks = study().ranks
    assert (ranks["late_peer_ns"] + ranks["transfer_ns"] == ranks["blocking_ns"]).all()
    assert (ranks["blocking_ns"] <= ranks["exposed_ns"]).all()
    for rank, blocking in enumerate(ranks["blocking_ns"].tolist()):
        windows = why(attributed(STUDY / f"rank_{rank}.sqlite"), "step*").windows
        assert windows["blocking_ns"].sum() == pytest.approx(blocking, rel=1e-3)


def claims() -> Iterator[str]:
    """Rows and phrases of the README."""
    fleet = study()
    ranks = fleet.ranks
    whole, caused = ranks["own_ns"] + ranks["exposed_ns"], int(ranks["caused_ns"].sum())
    for at, row in enumerate(ranks.to_dict("records")):
        waiting = f"{format_ns(row['waiting_ns'])} ({format_share(row['waiting_ns'] / row['collective_ns'])})"
        exposed = f"{format_ns(row['exposed_ns'])} ({format_share(row['exposed_ns'] / whole[at])})"
        awaited = f"{format_ns(row['caused_ns'])} ({format_share(row['caused_ns'] / caused)})"
        cells = [str(row["rank"]), *(format_ns(row[f"{name}_ns"]) for name in ("own", "compute", "collective"))]
        yield f"| {' | '.join([*cells, waiting, exposed, awaited])} |"
    steps = fleet.iterations[fleet.iterations["path"] == "step*"].reset_index(drop=True)
    unlike = [at for at, (one, other) in enumerate(lengths()) if one != other]
    assert all(steps["slowest_rank"][at] == int(lengths()[at][1] > lengths()[at][0]) for at in unlike)
    yield f"In all {len(unlike)} steps in which the batches differ in length, the slower rank has the longer batch"
    alike = steps["max_over_min"].drop(unlike)
    yield f"In the other {len(alike)} steps, the ranks take about equally long (at most {format_ratio(alike.max())})"
    yield f"(rank 0 in {ranks['times_slowest'][0]} and rank 1 in {ranks['times_slowest'][1]} of 24 steps)"
    yield f"is {format_ratio(ranks['ratio'].max())} the own time of the other"
    yield f"the slower rank takes {format_ratio(steps['max_over_min'].median())} as long as the faster rank"
    tokens = [sum(each) for each in zip(*lengths(), strict=True)]
    yield f"({tokens[1]:,} tokens in 24 batches, against {tokens[0]:,} on the other rank)"
    waits = ranks["waiting_ns"].sum() / ranks["collective_ns"].sum()
    yield f"{format_share(waits)} of the time in all-reduce is spent waiting"
    for row in ranks.to_dict("records"):
        parts = [format_ns(row[f"{name}_ns"]) for name in ("blocking", "late_peer", "transfer")]
        yield f"of {parts[0]} on rank {row['rank']} ({parts[1]} late peer, {parts[2]} transfer)"
    yield f"{format_share(ranks['blocking_ns'].sum() / ranks['exposed_ns'].sum())} of the exposed communication delays"
    saved = (steps["own_max_ns"] - steps["own_mean_ns"]).mean()
    share = (steps["own_max_ns"] - steps["own_mean_ns"]).sum() / steps["span_max_ns"].sum()
    yield f"Batches of equal length would save at most {format_share(share)}"
    usual = format_ns(ranks["span_median_ns"].median())
    longer = format_ns(steps["span_max_ns"].mean())
    yield f"exceeds the mean of both ranks by {format_ns(saved)} per step"
    yield f"A step takes {longer} on average (median {usual}), measured on the slower rank"
    hidden = 1 - ranks["exposed_ns"] / ranks["communication_ns"]
    yield f"({format_share(hidden[0])} on rank 0, {format_share(hidden[1])} on rank 1)"
    spread = fleet.waiting.spread_ns
    offset = format_ns(fleet.waiting.offset_ns[1])
    count, agree, far, agree_far, shorter = starts()
    yield f"The shorter of two matching all-reduces takes {format_ns(shorter)} (median)"
    within = f"± {spread / 1e3:.0f} µs"
    yield f"are {offset} apart. `fleet` aligns these clocks to {within} by the ends of {count} all-reduces"
    assert far == agree_far
    yield f"began it later in {agree} of {count} cases (in all {far} cases in which the two starts are"
    yield f"more than {2 * spread / 1e3:.0f} µs apart"
