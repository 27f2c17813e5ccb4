"""Times per call of inner ranges, and Markdown."""

from pathlib import Path

from nsysprof.why.text import why_text
from nsysprof.why.why import Why, why
from tests.conftest import MakeTrace
from tests.kit.command_line import Run
from tests.kit.reports import attributed
from tests.kit.trace import Range
from tests.why.test_instance import account, steps


def per(path: Path, glob: str, select: str | None = None) -> Why:
    """The account with times per call."""
    return why(attributed(path), select, per=glob)


def layered(trace: MakeTrace) -> Path:
    """Three steps that sleep for 300, 500 and 700 µs, two layers in the first, one inside these and one outside."""
    layers = [Range("layer0", 110, 200), Range("layer1", 250, 400)]
    nested = [Range("layer0", 120, 150), Range("layer7", 900_000_000, 900_000_100)]
    return trace(*steps((300_000, 500_000, 700_000)), *layers, *nested)


def test_times_per_call_are_those_of_windows_by_calls(trace: MakeTrace) -> None:
    """Two outermost layers lie in the windows: their time is half of all, and shares and sums stay."""
    path = layered(trace)
    plain, of_calls = account(path, "step"), per(path, "layer*", "step")
    assert of_calls.per == "call"
    assert of_calls.windows["calls"].tolist() == [2, 0, 0]
    assert (of_calls.rows["per_instance_ns"] == of_calls.rows["waited_ns"] / 2).all()
    names = ["culprit", "waited_ns", "share_of_span"]
    assert of_calls.rows[names].equals(plain.rows[names])
    assert of_calls.findings == plain.findings  # of steps, whatever times are per
    assert "step, 3 steps on GPU 0, 2 calls" in why_text(of_calls)
    assert "per call" in why_text(of_calls)


def test_markdown_has_trees_in_blocks_and_findings_in_a_list(trace: MakeTrace, tmp_path: Path, run: Run) -> None:
    """A name that is markup in Markdown stays a name."""
    path = trace(*steps((900_000, 500_000, 700_000)), Range("<b>", 200, 900_800))
    done = run("why", str(path), "--range", "step", "--md", "--no-charts")
    assert done.code == 0
    before, tree, _ = done.out.split("```")
    assert tree.startswith("text\n")
    assert "step, 3 steps" in tree
    assert "1. step: the GPU waits for sleep in log: 400 µs of each step (33 %)" in before
    assert "sleep in \\<b\\>" in before
    assert sorted(each.name for each in (tmp_path / f"{path.stem}.why").iterdir()) == ["why.csv", "why.json"]
