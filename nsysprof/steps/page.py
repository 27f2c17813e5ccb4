"""Make the page of `nsysprof steps`: findings, chart, extra time of the largest slow class, slow steps, and paths."""

from collections.abc import Sequence

from nsysprof.page.template import answer_page, figures
from nsysprof.steps.charts import CHARTS, title_of
from nsysprof.steps.findings import findings_one_by_one
from nsysprof.steps.steps import Steps
from nsysprof.steps.text import ledger_table, paths_table, place_of, slow_table

MAX_FINDINGS, MAX_ROWS = 30, 200


def steps_page(answer: Steps, pictures: Sequence[bytes] = ()) -> str:
    """The page as text; ``pictures`` are the PNG files of `CHARTS`, empty if no charts are wanted."""
    several = len(answer.chains) > 1
    sentences = [
        f"{place_of(answer, each.path, each.gpu, each.pid)}: {each.text}" if several else each.text
        for each in findings_one_by_one(answer)[:MAX_FINDINGS]
    ]
    tables = [
        ("ledger", "Slow minus typical", ledger_table(answer, MAX_ROWS)),
        ("slow", "Slow steps", slow_table(answer, MAX_ROWS)),
        ("paths", "Paths", paths_table(answer)),
    ]
    title, charts = "Which steps were slow", figures(CHARTS, pictures)
    return answer_page(answer.attribution, "steps", title, title_of(answer), sentences, answer.chosen, charts, tables)
