"""The page of `nsysprof why`: the numbers of the rows, and the critical path over the timeline of the median window."""

from nsysprof.why.instance import median_instance
from nsysprof.why.page import why_page
from tests.conftest import MakeTrace
from tests.kit.html_page import parse, unpack
from tests.kit.reports import BLOCK
from tests.kit.trace import OsCall, Range, launch_kernel
from tests.why.test_instance import account, steps


def test_the_page_has_findings_tree_waits_and_timeline(trace: MakeTrace) -> None:
    """The tree begins with the path, the table has the rows of waits, and the critical path tiles the window."""
    answer = account(trace(*steps((300_000, 500_000, 700_000))))
    page = parse(why_page(answer))
    instance = median_instance(answer)
    assert instance is not None
    assert "the GPU waits for sleep in log: 500 µs of each step (50 %)" in page.one("section", id="summary").text
    assert "take the sleep out of the loop (saves " in page.one("section", id="summary").text
    tree = page.one("section", id="path-1").one("table", class_="plain")
    cells = [each.text.strip() for each in tree.all("th", scope="row")]
    assert cells[0] == "step, 3 steps on GPU 0"
    assert "sleep in log" in cells
    rows = page.one("section", id="rows")
    waited = answer.rows[answer.rows["cause"] != "compute"]["waited_ns"].tolist()
    assert {str(ns) for ns in waited} <= set(rows.values)
    head = unpack(page.one("figure", class_="timeline").one("script").text)
    path = head["rows"][0]
    assert (path["kind"], path["group"]) == ("waits", "critical path")
    assert path["start"][0] == 0
    assert path["end"][-1] == instance.end_ns - instance.start_ns == head["length"]
    assert (path["end"][:-1] == path["start"][1:]).all()
    longest = int((path["end"] - path["start"]).argmax())
    assert head["waits"][path["data"][0][longest]][0] in ("OS calls", "compute")
    assert "sleep in log" in [head["waitTexts"][code] for code in path["data"][1]]
    kinds = [row["kind"] for row in head["rows"]]
    assert kinds == ["waits", "ranges", "ranges", "calls", "ops"]
    names = [head["pathNames"][code] for row in head["rows"][1:3] for code in row["data"][0]]
    assert names == ["step", "log"]


def test_every_path_has_its_section() -> None:
    """Of a real report with several paths, all numbers of waits are on the page."""
    answer = account(BLOCK)
    page = parse(why_page(answer))
    paths = answer.windows["path"].nunique()
    assert len(list(page.all("details", class_="pair"))) == paths


def test_names_of_a_report_stay_text(trace: MakeTrace) -> None:
    """A range that is called like code is shown, and nothing of it runs."""
    name = "<script>alert(1)</script>"
    path = trace(
        Range("step", 0, 2_000_000),
        Range(name, 10, 900_000),
        OsCall("sleep", 20, 800_000),
        launch_kernel("gemm", (1_000_000, 1_000_500), (1_001_000, 2_000_000), id=1),
    )
    page = why_page(account(path, "step"))
    assert name not in page
    assert "&lt;script&gt;" in page


def test_a_report_without_gpu_work_has_a_page(trace: MakeTrace) -> None:
    """It says that nothing ran, without a timeline."""
    page = parse(why_page(account(trace(Range("step", 0, 100)))))
    assert "Nothing ran on a GPU" in page.text
    assert not list(page.all("figure", class_="timeline"))
