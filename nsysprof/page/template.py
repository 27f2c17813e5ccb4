"""Fill page templates. Text from reports is escaped; everything else on a page comes from this folder."""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nsysprof import __version__
from nsysprof.attribution.attribute import Attribution
from nsysprof.charts.chart import Chart
from nsysprof.charts.palette import COLOURS, text_on
from nsysprof.core.text import visible
from nsysprof.page.environment import report_facts
from nsysprof.results.table import TextTable

_PARTS = Path(__file__).parent / "parts"
# Of pages with a timeline, and of those without.
_SCRIPTS = {True: ("uPlot.iife.min.js", "tables.js", "timeline_data.js", "timeline.js"), False: ("tables.js",)}
_STYLES = {True: ("uPlot.min.css", "page.css"), False: ("page.css",)}


def fill(template: str, *, with_timeline: bool = True, **values: Any) -> str:
    """Fill a template with values; a page without a timeline gets no scripts for timelines.

    A content security policy allows these scripts by hash and forbids all requests. So nothing else is run or loaded,
    even if a range name contains code.
    """
    # no names that a report brings can be code: autoescape writes them out, in texts and in attributes
    environment = Environment(
        loader=FileSystemLoader(_PARTS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = [_part(name) for name in _SCRIPTS[with_timeline]]
    return environment.get_template(template).render(
        **values,
        version=__version__,
        with_timeline=with_timeline,
        scripts=[Markup(text) for text in scripts],
        styles=[Markup(_part(name)) for name in _STYLES[with_timeline]],
        colours=COLOURS,
        text_on=text_on,
        policy=_policy(scripts),
    )


def answer_page(
    attribution: Attribution,
    command: str,
    title: str,
    headline: str,
    findings: Iterable[str],
    chosen: str,
    charts: Sequence[dict[str, str]],
    tables: Iterable[tuple[str, str, TextTable | None]],
    template: str = "answer.html",
    **more: Any,
) -> str:
    """Make the page of an answer about one report: findings, the steps ``chosen``, `figures`, tables, facts of the
    report.

    A table has a key and a head; None is left out. ``more`` are other values of the template.
    """
    report, clause = attribution.trace.report, visible(f"{chosen[:1].upper()}{chosen[1:]}")
    return fill(
        template,
        command=command,
        title=title,
        subtitle=visible(str(report.path)),
        headline=visible(headline),
        findings=[*map(visible, findings)],
        chosen=f"{clause}." if clause else "",
        charts=charts,
        tables=[(key, head, table.html()) for key, head, table in tables if table],
        facts=report_facts(report, attribution.threads),
        **{"with_timeline": False, **more},
    )


def _part(name: str) -> str:
    """Read a script or a style sheet of this package; none may end its own element."""
    text = (_PARTS / name).read_text(encoding="utf-8")
    assert not re.search("</(script|style)", text, re.IGNORECASE), name
    return text


def _policy(scripts: list[str]) -> str:
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


def figures(charts: Sequence[Chart[Any]], pictures: Sequence[bytes]) -> list[dict[str, str]]:
    """List the charts' pictures and captions for the macro ``charts``; empty if no chart was drawn."""
    pairs = zip(charts, pictures, strict=True) if pictures else ()
    texts = ((chart, base64.b64encode(picture).decode("ascii")) for chart, picture in pairs)
    return [{"caption": chart.caption, "source": f"data:image/png;base64,{text}"} for chart, text in texts]
