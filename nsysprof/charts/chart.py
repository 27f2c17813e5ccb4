"""A chart of a room: its file, its caption and its plan, said once; and charts as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from nsysprof.charts.marks import Plan
from nsysprof.charts.painter import start_painter
from nsysprof.core.files import whole_file
from nsysprof.errors import NsysprofError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_A = TypeVar("_A")  # the answer that a room's charts show


@dataclass(frozen=True)
class Chart(Generic[_A]):
    """The name of the file, what a page says below the picture, and what it shows of an answer."""

    file: str
    caption: str
    plan: Callable[[_A], Plan]

    def figure(self, answer: _A) -> Figure:
        """The chart as a plain figure, for notebooks and talks."""
        from nsysprof.charts.drawing import draw  # noqa: PLC0415 (matplotlib is slow to import)

        return draw(self.plan(answer))


def files_of(charts: Sequence[Chart[_A]]) -> tuple[str, ...]:
    """The names of the files."""
    return tuple(chart.file for chart in charts)


def plans_of(charts: Sequence[Chart[_A]], answer: _A) -> list[Plan]:
    """What the charts show of an answer, in their order, for a `Painter`."""
    return [chart.plan(answer) for chart in charts]


def pictures_of(charts: Sequence[Chart[_A]], answer: _A) -> dict[str, bytes]:
    """Draw charts of an answer in this process: PNG pictures by the names of their files."""
    with start_painter(apart=False) as painter:
        painter.paint(plans_of(charts, answer))
        return dict(zip(files_of(charts), painter.pictures(), strict=True))


def write_pictures(pictures: Sequence[bytes], folder: Path, charts: Sequence[Chart[_A]]) -> list[Path]:
    """Write the pictures of some charts into an existing folder: each at once or not at all."""
    paths = [Path(folder, chart.file) for chart in charts]
    for path, picture in zip(paths, pictures, strict=True):
        with whole_file(path) as part:
            part.write_bytes(picture)
    return paths


def save_charts(
    charts: Sequence[Chart[_A]], answer: _A, folder: Path, *, overwrite: bool = True
) -> list[Path]:
    """Draw charts into a folder, which is made if need be, and return their paths.

    Raises `NsysprofError` when a file cannot be written, and before anything is drawn when one exists and
    ``overwrite`` is False.
    """
    existing = [path for name in files_of(charts) if (path := Path(folder, name)).exists()]
    if existing and not overwrite:
        raise NsysprofError(f"{existing[0]} exists already", "choose another folder, or allow overwriting")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        return write_pictures(list(pictures_of(charts, answer).values()), folder, charts)
    except OSError as error:
        raise NsysprofError(
            f"cannot write charts into {folder}: {error.strerror or error}", "choose another folder with -o"
        ) from error
