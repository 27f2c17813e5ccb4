"""Show results in Python: a short `repr`, a summary in notebooks, and charts as figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nsysprof.charts.chart import Chart
from nsysprof.core.text import visible
from nsysprof.results.table import TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Overview:
    """The notebook view of a result: one line, and below it a part that is made on demand."""

    headline: str
    charts: Sequence[Chart[Any]] = ()
    details: Callable[[], Iterator[str | TextTable]] = lambda: iter(())


def view_of(answer: object, module: str, function: str) -> Any:
    """Call a view function in a module of the result's package (results are data, so they import no views)."""
    room = type(answer).__module__.rpartition(".")[0]
    return getattr(import_module(f"{room}.{module}"), function)(answer)


class Shown:
    """A result with a notebook view, which the function `overview` in the charts module of its package makes."""

    def overview(self) -> Overview:
        """Return the view of the result in Python."""
        return view_of(self, "charts", "overview")

    @property
    def plot(self) -> Plots:
        """Return the charts: `answer.plot.timeline()` is a matplotlib figure; `dir(answer.plot)` lists all charts."""
        return Plots(self, self.overview().charts)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {visible(self.overview().headline)}>"

    def _repr_html_(self) -> str:
        seen = self.overview()
        parts = [f"<p><b>{_escaped(seen.headline)}</b></p>"]
        parts += [_table(each) if isinstance(each, TextTable) else _sentence(each) for each in seen.details()]
        return "\n".join(parts)


class Plots:
    """The charts of a result as functions without arguments, named like their files."""

    def __init__(self, answer: object, charts: Sequence[Chart[Any]]) -> None:
        self._answer = answer
        self._charts = {chart.file.partition(".")[0]: chart for chart in charts}

    def __getattr__(self, name: str) -> Callable[[], Figure]:
        if name not in self._charts:
            raise AttributeError(f"no chart {name!r}: there is {', '.join(self._charts) or 'none'}")
        if "IPython" in sys.modules:
            from matplotlib import pyplot  # noqa: PLC0415 (slow to import)

            pyplot.switch_backend(pyplot.get_backend())  # by which notebooks learn to show figures
        return lambda: self._charts[name].figure(self._answer)

    def __dir__(self) -> list[str]:
        return sorted(self._charts)

    def __repr__(self) -> str:
        return f"<Plots: {', '.join(f'{name}()' for name in self._charts)}>"


def _escaped(text: str) -> str:
    from html import escape  # noqa: PLC0415 (its table of entities is long, and notebooks alone need it)

    return escape(visible(text))


def _sentence(text: str) -> str:
    return f"<p>{_escaped(text)}</p>"


def _table(table: TextTable) -> str:
    sides = ["right" if side == "r" else "left" for side in table.align]

    def row(cells: Sequence[str], tag: str) -> str:
        each = (
            f'<{tag} style="text-align:{side}">{_escaped(cell)}</{tag}>'
            for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(each)}</tr>"

    body = "".join(row(cells, "td") for cells in table.rows)
    return f"<table><thead>{row(table.head, 'th')}</thead><tbody>{body}</tbody></table>{_sentence(table.note)}"
