"""The page of `nsysprof steps`: findings, the picture, the largest class minus typical, slow steps, and paths."""

from collections.abc import Sequence

from nsysprof.core.text import visible
from nsysprof.page.environment import report_facts
from nsysprof.page.template import figures, fill
from nsysprof.steps.charts import CHARTS, title_of
from nsysprof.steps.findings import findings_one_by_one
from nsysprof.steps.steps import Steps
from nsysprof.steps.text import ledger_table, paths_table, place_of, slow_table

MAX_FINDINGS, MAX_ROWS = 30, 200


def steps_page(answer: Steps, pictures: Sequence[bytes] = ()) -> str:
    """The page as text; ``pictures`` are the PNG files of `CHARTS`, none where no charts are wanted."""
    report = answer.attribution.trace.report
    several = len(answer.chains) > 1
    sentences = []
    for each in findings_one_by_one(answer)[:MAX_FINDINGS]:
        where = f"{place_of(answer, each.path, each.gpu, each.pid)}: " if several else ""
        sentences.append(visible(f"{where}{each.text}"))
    tables = [
        ("ledger", "Slow minus typical", ledger_table(answer, MAX_ROWS)),
        ("slow", "Slow steps", slow_table(answer, MAX_ROWS)),
        ("paths", "Paths", paths_table(answer)),
    ]
    return fill(
        "answer.html",
        with_timeline=False,
        command="steps",
        title="Which steps were slow",
        subtitle=visible(str(report.path)),
        headline=visible(title_of(answer)),
        findings=sentences,
        chosen=f"{visible(answer.chosen[:1].upper() + answer.chosen[1:])}." if answer.chosen else "",
        charts=figures(CHARTS, pictures),
        tables=[(key, head, table.html()) for key, head, table in tables if table is not None],
        facts=report_facts(report, answer.attribution.threads),
    )
