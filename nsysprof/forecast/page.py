"""The page of `nsysprof forecast`."""

from collections.abc import Sequence

from nsysprof.core.text import visible
from nsysprof.forecast.charts import CHARTS
from nsysprof.forecast.forecast import Forecast
from nsysprof.forecast.text import facts_of, forecast_sentence, parts_table
from nsysprof.page.environment import report_facts
from nsysprof.page.template import figures, fill


def forecast_page(answer: Forecast, pictures: Sequence[bytes] = ()) -> str:
    """The page as text; ``pictures`` are the PNG files of `CHARTS`, none where no charts are wanted."""
    report = answer.attribution.trace.report
    return fill(
        "answer.html",
        with_timeline=False,
        command="forecast",
        title="How much a change would save",
        subtitle=visible(str(report.path)),
        headline=visible(forecast_sentence(answer)),
        findings=[visible(each) for each in (*facts_of(answer), *answer.warnings)],
        chosen=f"{visible(answer.chosen[:1].upper() + answer.chosen[1:])}." if answer.chosen else "",
        charts=figures(CHARTS, pictures),
        tables=[("parts", "Critical path", parts_table(answer).html())],
        facts=report_facts(report, answer.attribution.threads),
    )
