"""A comparison as text: it adds up to the last digit, fits its width, and is the same in Markdown."""

import re

import pytest

from nsysprof.compare.comparison import compare
from nsysprof.compare.files import gap_document
from nsysprof.compare.text import comparison_text
from tests.compare.conftest import answer
from tests.conftest import MakeTrace
from tests.kit.calls import FLASH, GEMM, SOFTMAX, math_and_flash, run
from tests.kit.reports import attributed
from tests.kit.trace import Items, Range, launch_kernel


def ledger(text: str) -> list[list[str]]:
    """The cells of the rows of the first ledger in a text, its head first."""
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("cause "))
    end = next(number for number, line in enumerate(lines) if line.startswith("total "))
    edges = [match.span() for match in re.finditer("-+", lines[at + 1])]
    return [[line[first:last].strip() for first, last in edges] for line in lines[at : end + 1]]


def number(cell: str) -> int:
    return int(cell.replace(",", "").replace(".", "") or 0)


@pytest.mark.parametrize(("factor", "unit"), [(1, "ns"), (997, "µs"), (1_000_003, "ms"), (999_999_937, "s")])
def test_the_last_digit_adds_up(factor: int, unit: str, trace: MakeTrace) -> None:
    """In every unit, whatever is rounded, the columns as printed add up to their total, and rows to their change."""
    kernels = [(GEMM, 233), (SOFTMAX, 311), (GEMM, 89)]
    items = [*run("a", 0, kernels, calls=3), *run("b", 9000, [(FLASH, 157)], calls=3, first_id=90)]
    for item in (one for group in items for one in (group if isinstance(group, tuple) else (group,))):
        for name in ("start", "end"):
            object.__setattr__(item, name, getattr(item, name) * factor)
    head, _, *rows, _, total = ledger(comparison_text(answer(trace(*items, duration=10**15), base="a", new="b")))
    assert head == ["cause", "kernels", f"a, {unit}", f"b, {unit}", f"change, {unit}", "share"]
    for column in (2, 3, 4):
        assert sum(number(row[column]) for row in rows) == number(total[column])
    for row in (*rows, total):
        assert number(row[3]) - number(row[2]) == number(row[4])


def test_causes_beyond_the_top_are_one_row(trace: MakeTrace) -> None:
    """The table still adds up; the evidence is of what is shown."""
    found = answer(math_and_flash(trace), base="RUN::math::S8", new="RUN::flash::S8")
    text = comparison_text(found, top=2)
    _, _, *rows, _, total = ledger(text)
    assert [row[0] for row in rows] == ["softmax", "idle: host: code", "5 more causes"]
    assert rows[2][1:] == ["2 → 1", "345", "195", "-150", ""]
    assert sum(number(row[4]) for row in rows) == number(total[4])
    assert "ampere_sgemm" not in text
    _, _, *rows, _, _ = ledger(comparison_text(found, top=6))
    assert rows[-1][0] == "1 more cause"


def test_every_line_fits(trace: MakeTrace) -> None:
    """However long the names of ranges, kernels and GPUs are, no line of a table or text is wider than 110."""
    long = "a very long name of a range that somebody has made up " * 3
    path = trace(
        *run(f"{long}1", 0, [(GEMM, 233), (f"frobnicate_{'x' * 300}", 100)]),
        *run(f"{long}2", 9000, [(GEMM, 157)], first_id=90),
        *run(f"{long}3", 19_000, [(GEMM, 15)], first_id=190),
        duration=10**9,
    )
    text = comparison_text(answer(path, base=f"{long}1", new=f"{long}[23]"), every=True)
    assert max(map(len, text.splitlines())) <= 110
    assert text.count("total ") == 2


def test_markdown_has_the_same_numbers(trace: MakeTrace) -> None:
    """Every cell of the plain tables stands in the Markdown too, and a pipe in a name breaks no table."""
    path = trace(*run("a|b", 0, [(GEMM, 233)]), *run("c", 9000, [(FLASH, 157)], first_id=90), duration=10**9)
    found = answer(path, base="a|b", new="c")
    plain, markdown = comparison_text(found), comparison_text(found, markdown=True)
    for row in ledger(plain)[2:]:
        for cell in filter(lambda cell: cell.strip("-"), row):
            assert cell in markdown
    bars = {line.replace("\\|", "").count("|") for line in markdown.splitlines() if line.startswith("| ")}
    assert bars == {7}
    assert "a\\|b" in markdown


def test_equal_warnings_are_one_line_with_a_count(trace: MakeTrace) -> None:
    """A warning about each of twenty ranges stands once, with their number; the document has them all."""
    items: list[Items] = []
    for place in range(20):
        at = 1000 * place
        items += [Range(f"r{place}", at, at + 900), Range("iter0", at + 1, at + 99)]
        items += [launch_kernel(GEMM, (at + 2, at + 3), (at + 5, at + 9), id=place + 1)]
        items += [Range("iter1", at + 100, at + 200)]
    path = trace(*items, duration=10**6)
    attribution = attributed(path)
    found = compare(attribution, attribution, select="r*")
    assert "1 note on the input and the comparison: --full" in comparison_text(found)
    text = comparison_text(found, every=True)
    assert len(found.warnings) == 20
    assert text.count("warning: ") == 1
    assert "(19 more like it)" in " ".join(text.split())
    assert gap_document(found)["warnings"] == list(found.warnings)


def test_causes_that_cancel_are_not_told_as_shares(trace: MakeTrace) -> None:
    """Where the softmax loses what the product gains but 1 ns, the text says by how much, and no share."""
    items = [*run("a", 0, [(GEMM, 500), (SOFTMAX, 101)]), *run("b", 5000, [(GEMM, 100), (SOFTMAX, 500)], first_id=50)]
    text = comparison_text(answer(trace(*items, duration=20_000), base="a", new="b"))
    assert "the causes mostly cancel: gemm -400 ns and softmax +399 ns" in text
    assert "of the difference is" not in text
    _, _, *rows, _, _ = ledger(text)
    assert [row[-1] for row in rows] == [""] * len(rows)
    assert "so causes are shown without shares" in " ".join(text.split())
