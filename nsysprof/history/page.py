"""The page of `nsysprof history`: changes, chart, and a table of each series."""

from collections.abc import Sequence

from nsysprof.core.text import visible
from nsysprof.history.charts import CHARTS
from nsysprof.history.history import History
from nsysprof.history.tables import LEDGER, ledger_rows
from nsysprof.history.text import change_text, headline, path_name, run_name, runs_table
from nsysprof.page.template import figures, fill

_CHANGES, _ROWS, _SERIES = 30, 200, 8


def history_page(answer: History, pictures: Sequence[bytes] = ()) -> str:
    """The page as text; ``pictures`` are the PNG files of `CHARTS`, empty if no charts are wanted."""
    ledger = [row for row in ledger_rows(answer) if row["delta_ns"]][:_ROWS]
    tables = [(f"runs-{number}", visible(f"Runs of {path_name(each)}"), runs_table(answer, each, _ROWS).html())
              for number, each in enumerate(answer.series[:_SERIES], 1)]  # fmt: skip
    if ledger:
        tables.insert(0, ("ledger", "After minus before", LEDGER.show(ledger).html()))
    machine = [*answer.runs[-1].machine.items()]
    return fill(
        "answer.html",
        with_timeline=False,
        command="history",
        title="Which change made it slower",
        subtitle=visible(f"{answer.runs[0].name} to {answer.runs[-1].name}"),
        headline=visible(headline(answer)),
        findings=[visible(change_text(answer, *each)) for each in answer.changes[:_CHANGES]],
        chosen=visible("; ".join(answer.notes)),
        charts=figures(CHARTS, pictures),
        tables=tables,
        facts=[(visible(run_name(answer, answer.newest)), [(visible(k), visible(v)) for k, v in machine])],
    )
