"""The package from Python: files in, answers out that show themselves in a notebook, and the notebook of the manual."""

import io
import json
import pickle
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import nsysprof
from nsysprof.analyze.breakdown import Breakdown

ROOT = Path(__file__).parents[2]
BLOCK = ROOT / "traces" / "block.sqlite"
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


@pytest.fixture(scope="module")
def breakdown() -> Breakdown:
    """The answer for a report, by its path."""
    return nsysprof.analyze(BLOCK)


@pytest.fixture(scope="module")
def answers(breakdown: Breakdown) -> list[Any]:
    """An answer of each question, of what was attributed before, and all that leads there."""
    attribution = breakdown.attribution
    return [
        breakdown,
        nsysprof.why(attribution),
        nsysprof.compare(attribution, base="RUN::math::*", new="RUN::flash::*"),
        nsysprof.fleet(ROOT / "analysis" / "two-ranks"),
        nsysprof.steps(attribution),
        nsysprof.forecast(BLOCK, "RUN::math::S1024/iter*", graph=["backward"]),
        attribution,
        attribution.trace,
        attribution.trace.report,
    ]


def test_reprs_are_short(answers: list[Any]) -> None:
    """What a prompt shows of an answer is a line of words, not its arrays."""
    for answer in answers:
        assert len(repr(answer)) < 250, repr(answer)
        assert repr(answer).startswith(f"<{type(answer).__name__}")


def test_notebooks_show_a_summary(answers: list[Any]) -> None:
    """A cell shows sentences and a small table of each answer, written out so that no name is markup."""
    for answer in answers[:6]:
        html = answer._repr_html_()
        assert len(html) < 20_000
        assert html.count("<table>") == html.count("</table>") >= 1
        assert "<script" not in html


def test_charts_are_figures(answers: list[Any]) -> None:
    """Each chart of an answer is a function by the name of its file, and others are an error that names them."""
    names = [dir(answer.plot) for answer in answers[:6]]
    assert names[0] == ["kernel_breakdown", "kernel_counts", "timeline"]
    assert all(names)
    assert answers[1].plot.why().get_axes()
    with pytest.raises(AttributeError, match=r"no chart 'pie': there is kernel_counts"):
        answers[0].plot.pie()


def test_the_front_door_is_clean() -> None:
    """`dir(nsysprof)` holds what is public, each with a docstring, and a file is taken wherever an answer is asked."""
    assert dir(nsysprof) == sorted(nsysprof.__all__)
    for name in set(nsysprof.__all__) - {"__version__"}:
        assert getattr(nsysprof, name).__doc__, name
    assert nsysprof.attribute(BLOCK).ledger == nsysprof.analyze(str(BLOCK)).attribution.ledger
    narrow = nsysprof.analyze(BLOCK, "RUN::math::*", threads="strict", rules=None)
    assert narrow.narrowed
    assert narrow.attribution.threads == "strict"
    with pytest.raises(nsysprof.NsysprofError):
        nsysprof.why("no-such.sqlite")


def test_frames_join_and_leave(breakdown: Breakdown) -> None:
    """Keys of ops, launches and instances join; sums are those of the ledger; other libraries take the frames."""
    arrow = pytest.importorskip("pyarrow")
    ops, launches, instances = breakdown.ops, breakdown.launches, breakdown.records["instances"]
    assert ops["duration_ns"].sum() == breakdown.totals["sum_ns"]
    joined = ops.merge(launches, left_on="launch", right_on="launch", validate="m:1", suffixes=("", "_host"))
    assert len(joined) == len(ops)
    assert (joined["start_ns"] >= joined["start_ns_host"]).all()
    owned = ops.dropna(subset="owner").merge(instances, left_on="owner", right_on="range", validate="m:1")
    assert (owned["path_x"].astype(str) == owned["path_y"].astype(str)).all()
    for frame in (ops, launches, instances, breakdown.ranges, breakdown.kernels):
        assert isinstance(frame, pd.DataFrame)
        assert arrow.table(frame).num_rows == len(frame)


def test_an_answer_can_be_copied_by_pickle(breakdown: Breakdown) -> None:
    """Frames go to other processes as pandas does."""
    assert pickle.loads(pickle.dumps(breakdown.ops)).equals(breakdown.ops)


def test_the_notebook_prints_what_it_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells run one after the other, and give the texts that stand in it."""
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        *lines, last = "".join(cell["source"]).split("\n")
        shown, out = cell["outputs"][0], io.StringIO()
        with redirect_stdout(out):
            exec("\n".join(lines), names)
            value = eval(last, names)
        if shown["output_type"] == "stream":
            assert out.getvalue() == "".join(shown["text"])
        elif "image/png" not in shown["data"]:
            assert repr(value) == "".join(shown["data"]["text/plain"])
