"""The page of `nsysprof hotspots`."""

from collections.abc import Sequence

from nsysprof.diagnosis.text import headline, not_tried, sentence
from nsysprof.hotspots.charts import CHARTS
from nsysprof.hotspots.hotspots import Hotspots
from nsysprof.hotspots.text import known_fixes, spot_sentence, spots_table
from nsysprof.page.template import answer_page, figures

MAX_ROWS = 200


def hotspots_page(answer: Hotspots, pictures: Sequence[bytes] = ()) -> str:
    """The page as text; ``pictures`` are the PNG files of `CHARTS`, empty if no charts are wanted."""
    best, path = answer.best, answer.attribution.trace.report.path
    return answer_page(
        answer.attribution,
        "hotspots",
        "Which kernel to optimize first",
        spot_sentence(answer, best) if best else headline(answer.diagnosis, path),
        [
            *(f"{sentence(each, answer.diagnosis)} → {each.remedy}" for each in known_fixes(answer)),
            *not_tried(answer.diagnosis),
            *answer.warnings,
        ],
        answer.case.chosen.level.clause,
        figures(CHARTS, pictures),
        [("kernels", "Kernels", spots_table(answer, MAX_ROWS) if answer.spots else None)],
    )
