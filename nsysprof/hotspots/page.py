"""The page of `nsysprof hotspots`."""

from collections.abc import Sequence

from nsysprof.core.text import visible
from nsysprof.diagnosis.text import headline, sentence
from nsysprof.hotspots.charts import CHARTS
from nsysprof.hotspots.hotspots import Hotspots
from nsysprof.hotspots.text import known_fixes, spot_sentence, spots_table
from nsysprof.page.environment import report_facts
from nsysprof.page.template import figures, fill

MAX_ROWS = 200


def hotspots_page(answer: Hotspots, pictures: Sequence[bytes] = ()) -> str:
    """The page as text; ``pictures`` are the PNG files of `CHARTS`, none where no charts are wanted."""
    report, best, level = answer.attribution.trace.report, answer.best, answer.case.chosen.level
    fixes = [f"{sentence(each)} → {each.remedy}" for each in known_fixes(answer)]
    return fill(
        "answer.html",
        with_timeline=False,
        command="hotspots",
        title="Which kernel to optimize first",
        subtitle=visible(str(report.path)),
        headline=visible(spot_sentence(answer, best) if best else headline(answer.diagnosis, report.path)),
        findings=[visible(each) for each in (*fixes, *answer.warnings)],
        chosen=f"{visible(level.clause[:1].upper() + level.clause[1:])}." if level.clause else "",
        charts=figures(CHARTS, pictures),
        tables=[("kernels", "Kernels", spots_table(answer, MAX_ROWS).html())] if answer.spots else [],
        facts=report_facts(report, answer.attribution.threads),
    )
