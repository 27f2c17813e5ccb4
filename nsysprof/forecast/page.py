"""The page of `nsysprof forecast`."""

from collections.abc import Sequence

from nsysprof.core.text import visible
from nsysprof.forecast.charts import CHARTS
from nsysprof.forecast.forecast import Forecast
from nsysprof.forecast.text import facts_of, forecast_sentence, parts_table
from nsysprof.page.template import answer_page, figures


def forecast_page(answer: Forecast, pictures: Sequence[bytes] = ()) -> str:
    """The page as text; ``pictures`` are the PNG files of `CHARTS`, empty if no charts are wanted."""
    tables = [("parts", "Critical path", parts_table(answer))]
    (change, *basis), charts = (*facts_of(answer), *answer.warnings), figures(CHARTS, pictures)
    title, headline = "How much a change would save", forecast_sentence(answer)
    return answer_page(
        answer.attribution, "forecast", title, headline, [change], "", charts, tables, basis=[*map(visible, basis)]
    )
