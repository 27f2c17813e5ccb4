"""The pictures of the studies and the manual, drawn again of what is kept beside them.

`python -m tests.kit.study_pictures` draws those that look otherwise today, and writes the reports of the sweeps, which
show the pictures that are there. They are kept with a palette of 256 colours, a third of the size. Not drawn are those
of a recording that is not kept (training), a script that takes minutes (slow-steps), and screens (pictures/p*.png).
"""

import contextlib
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
from PIL import Image

from nsysprof import cli
from nsysprof.bench.charts import BENCH_CHARTS, SELECTION
from nsysprof.bench.report import bench_report
from nsysprof.bench.results import BenchResults, read_bench_results
from nsysprof.charts.chart import Chart, pictures_of
from nsysprof.charts.drawing import png

ROOT = Path(__file__).parents[2]
ANALYSIS = ROOT / "analysis"
LEDGER = r"^nsysprof (compare \S+ --base '\S+' --new '\S+') -o (analysis/\S+) --force$"
Pictures = Mapping[Path, bytes]  # by the place where they are kept
# Of these commands the charts that are kept, with their names there.
COMMANDS = {
    "analyze traces/run.sqlite --range 'RUN::*'": {
        name: f"analysis/pictures/{name}" for name in ("timeline.png", "kernel_breakdown.png")
    },
    "fleet analysis/two-ranks --workers 1": {
        f"fleet_{name}.png": f"analysis/two-ranks/fleet_{name}.png" for name in ("timeline", "heatmap")
    },
    "fleet docs/gallery/late-rank --workers 1": {"fleet_timeline.png": "docs/gallery/late-rank.png"},
    "why docs/gallery/item.sqlite": {"why.png": "docs/gallery/item.png"},
    "why traces/block.sqlite --range 'RUN::math::S1024/iter*'": {"why.png": "analysis/pictures/why.png"},
}
SCRIPTS = {"call-order/order.py {}": "order.png", "forecasts/judge.py -o {}": "results.png"}
# Text of one pixel's width differs by this much where it is other text; a palette of 256 colours moves none so far.
MOST_MOVED, FEW_PIXELS = 64, 20


def kept_charts(sweep: Path) -> list[Chart[BenchResults]]:
    """The charts of a sweep whose pictures lie in its folder."""
    return [chart for chart in (*BENCH_CHARTS, SELECTION) if (sweep / chart.file).exists()]


def all_drawings() -> dict[str, Callable[[], Pictures]]:
    """What draws the pictures of each sweep, ledger, command and script, by its name."""
    sweeps = [path.parent for path in sorted(ANALYSIS.glob("**/samples.json.xz"))]
    drawings: dict[str, Callable[[], Pictures]] = {
        sweep.relative_to(ROOT).as_posix(): partial(_of_sweep, sweep) for sweep in sweeps if kept_charts(sweep)
    }
    commands = {**COMMANDS, **_ledgers()}
    drawings |= {command: partial(_of_command, command, charts) for command, charts in commands.items()}
    return drawings | {script: partial(_of_script, script, file) for script, file in SCRIPTS.items()}


def _ledgers() -> dict[str, dict[str, str]]:
    """The commands in the READMEs that make a ledger of which a picture is kept."""
    found: dict[str, dict[str, str]] = {}
    for page in sorted(ANALYSIS.glob("*/README.md")):
        text = re.sub(r"\s*\\\n\s*", " ", page.read_text(encoding="utf-8"))
        for command, folder in re.findall(LEDGER, text, re.M):
            kept = {path.name: f"{folder}/{path.name}" for path in sorted((ROOT / folder).glob("*.png"))}
            found |= {command: kept} if kept else {}
    return found


def _of_sweep(sweep: Path) -> Pictures:
    drawn = pictures_of(kept_charts(sweep), read_bench_results(sweep))
    return {sweep / name: picture for name, picture in drawn.items()}


def _of_command(command: str, kept: Mapping[str, str]) -> Pictures:
    words = [
        str(ROOT / word) if word.startswith(("analysis/", "docs/", "traces/")) else word
        for word in shlex.split(command)
    ]
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(StringIO()):
        cli.app([*words, "-o", f"{name}/out"], standalone_mode=False)
        return {ROOT / place: Path(name, "out", chart).read_bytes() for chart, place in kept.items()}


def _of_script(script: str, file: str) -> Pictures:
    path, *options = script.split()
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, str(ANALYSIS / path), *(option.format(name) for option in options)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return {(ANALYSIS / path).with_name(file): Path(name, file).read_bytes()}


def small_picture(picture: bytes) -> bytes:
    """The same picture with a palette of 256 colours, as `png` makes it."""
    image = Image.open(BytesIO(picture))
    return png(np.asarray(image.convert("RGBA")), round(image.info["dpi"][0]))


def looks_alike(one: bytes, other: bytes) -> bool:
    """Return whether two pictures show the same, up to what a palette of 256 colours changes."""
    first, second = (np.asarray(Image.open(BytesIO(each)).convert("RGB")).astype(np.int16) for each in (one, other))
    if first.shape != second.shape:
        return False
    return int((np.abs(first - second).max(-1) > MOST_MOVED).sum()) <= FEW_PIXELS


def main() -> int:
    """Write pictures and reports, and name those that are new."""
    for sweep in sorted(path.parent for path in ANALYSIS.glob("**/samples.json.xz")):
        if (sweep / "report.md").exists():
            report = bench_report(read_bench_results(sweep), kept_charts(sweep))
            (sweep / "report.md").write_text(report, encoding="utf-8")
    for name, draw in all_drawings().items():
        for path, picture in draw().items():
            if not path.exists() or not looks_alike(picture, path.read_bytes()):
                path.write_bytes(small_picture(picture))
                sys.stdout.write(f"{path.relative_to(ROOT)}: {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
