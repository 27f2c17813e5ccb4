"""Tables are declared once: what is declared is the header of the files that commands write on shipped reports."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from nsysprof.analyze import records as export
from nsysprof.analyze import tables as analyze
from nsysprof.analyze.files import write_tables
from nsysprof.bench import tables as bench
from nsysprof.compare.comparison import compare
from nsysprof.compare.files import GAPS, MEASURED, write_gaps
from nsysprof.core.columns import ColumnTable
from nsysprof.counters.count import COUNTERS
from nsysprof.fleet import tables as fleet
from nsysprof.formats.counters import CounterCells
from nsysprof.results.table import Table, table
from tests.kit.manual import declared_tables
from tests.kit.reports import attributed, broken_down

ROOT = Path(__file__).parents[2]
RUN = ROOT / "traces" / "run.sqlite"
# Files that a test of their own holds to what the commands write.
STUDIES = [
    *((each, ROOT / "analysis" / "two-ranks" / each.file) for each in (fleet.PATHS, fleet.ITERATIONS, fleet.RANKS)),
    *((each, ROOT / "analysis" / "baseline" / each.file) for each in bench.TABLES),
    (COUNTERS, ROOT / "traces" / "run.counters.csv"),
]


def header(path: Path) -> list[str]:
    """The names in the first line of a CSV file."""
    with path.open(encoding="utf-8") as file:
        return file.readline().rstrip("\n").split(",")


@pytest.mark.parametrize(("declared", "path"), STUDIES, ids=lambda each: getattr(each, "file", ""))
def test_declared_columns_are_those_of_studies(declared: Table, path: Path) -> None:
    """Fleet, bench and counters: the files that are shipped, which lack columns that were declared after them."""
    names = header(path)
    assert [name for name in declared.names if name in names] == names


def test_declared_columns_are_those_of_an_analysis(tmp_path: Path) -> None:
    """In order, byte for byte."""
    write_tables(broken_down(RUN), tmp_path, packs=False)
    for declared in (analyze.RANGES, analyze.INSTANCES, analyze.KERNELS):
        assert declared.names == header(tmp_path / declared.file)


def test_declared_columns_are_those_of_a_comparison(tmp_path: Path) -> None:
    """With hardware counters, which lie beside the report."""
    attribution = attributed(RUN)
    write_gaps(compare(attribution, base="RUN::math::*", new="RUN::flash::*"), tmp_path)
    assert GAPS.names + MEASURED.names == header(tmp_path / GAPS.file)


def test_the_columns_of_counters_are_those_that_are_read() -> None:
    """The declaration and the structure that reads the file."""
    assert tuple(COUNTERS.names) == CounterCells.__struct_fields__


def test_exports_hold_the_columns_of_an_analysis() -> None:
    """With the same words, behind ids."""
    assert export.RANGES.columns[3:] == analyze.RANGES.columns
    assert set(analyze.INSTANCES.columns) <= set(export.INSTANCES.columns)


def test_every_column_says_what_it_holds() -> None:
    """No name twice, none without a text; names that share one share a row of the dictionary."""
    for declared in (
        *(analyze.RANGES, analyze.INSTANCES, analyze.KERNELS, GAPS, MEASURED),
        *export.TABLES,
        *(each for each, _ in STUDIES),
    ):
        assert len(set(declared.names)) == len(declared.names)
        assert all(declared.about.values())
    assert table("t.csv", "a row", {"a": "one", "b c": "two|three"}).dictionary() == [
        *("| column | holds |", "| --- | --- |", "| `a` | one |", "| `b`, `c` | two\\|three |")
    ]


@pytest.mark.parametrize("rows", [ColumnTable({"a": np.zeros(1), "b": np.ones(1)}), pd.DataFrame({"a": [0], "b": [1]})])
def test_a_column_without_values_says_where_to_add_them(rows: ColumnTable | pd.DataFrame) -> None:
    """The declaration gives its columns in order; of one that nobody makes it names the file and what stands beside."""
    assert list(table("t.csv", "a row", {"b a": "each"}).of(rows).columns) == ["b", "a"]
    declared = table("t.csv", "a row", {"a": "one", "more": "two"}, made_in="tiny/tiny.py")
    message = "t.csv declares 'more' without values: in nsysprof/tiny/tiny.py add 'more' beside 'a', 'b', where"
    with pytest.raises(KeyError, match=message):
        declared.of(rows)
    made = [{"a": 0}, {"b": 1}]
    with pytest.raises(KeyError, match=message):
        declared.header(made)
    assert declared.header(made, also=["more"]) == declared.header([]) == ["a", "more"]
    assert declared.header(made, ["b"]) == ["b"]


def test_the_files_that_make_rows_make_them() -> None:
    """Where a declaration says that its rows are made, its first column, or its last, is."""
    tables = [table for room in declared_tables().values() for table in room if table.made_in]
    assert len(tables) > 10
    for each in tables:
        made = (ROOT / "nsysprof" / each.made_in).read_text(encoding="utf-8")
        assert {f'"{name}"' for name in each.names if f'"{name}"' in made}, f"{each.file}: {each.made_in}"


def test_an_unknown_column_lists_those_that_are_there() -> None:
    """A typo is seen at once."""
    with pytest.raises(KeyError, match="no column 'c': there is a, b"):
        ColumnTable({"a": np.zeros(1), "b": np.ones(1)})["c"]
