"""Measures nsysprof on reports of given sizes, beside `nsys stats` where nsys is installed.

    python benchmarks/bench.py --kernels 100000 --kernels 1000000 --out result.md --targets

Every measurement is a whole process: wall time, CPU time, and peak memory as the system accounts them to the process
and those it waited for. With `--before DIR` the command line of another checkout is measured in turn with this one;
on a machine with other work CPU time tells more. The commands take turns, `--runs` times over, and medians are
printed: a machine that gets slower meanwhile does so for all of them. Reports are made once, in `--work`, and read
from the page cache. With `--targets` the exit code is 3 when a target is missed.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "traces" / "run.sqlite"

# The library as a program would use it, to the table of ranges: the one place that names its functions.
LIBRARY_CODE = """
import sys, nsysprof
with nsysprof.open_report(sys.argv[1]) as report:
    attribution = nsysprof.attribute(report)
    nsysprof.break_down(attribution, merge=None).columns("ranges")
"""
COMMAND_CODE = "import sys; from nsysprof.cli import main; sys.exit(main())"
PROJECTION = "nvtx_gpu_proj_sum"

# what is measured, as the result names it
LIBRARY = "library: open, attribute, ranges"
PLAIN = "`nsysprof analyze --no-charts`"
CHARTS = "`nsysprof analyze`"
WHY = "`nsysprof why`"
HELP = "`nsysprof --help`"
NSYS = f"`nsys stats -r {PROJECTION}`"


BEFORE = ", before"  # ends the names of what `--before` measures


@dataclass(frozen=True)
class Run:
    """One finished process: seconds of wall and CPU time, and MB (10^6 bytes)."""

    wall: float
    cpu: float
    memory: float


@dataclass(frozen=True)
class Row:
    """The medians of one command on one report; `kernels` None means the shipped small report, or none."""

    what: str
    kernels: int | None
    wall: float
    spread: float
    cpu: float
    memory: float


@dataclass(frozen=True)
class Target:
    """A target: the figure is at most the limit; None where it was not measured."""

    text: str
    figure: float | None
    limit: float

    @property
    def holds(self) -> bool:
        """Whether it is kept, as far as it was measured."""
        return self.figure is None or self.figure <= self.limit


def measure(command: Sequence[str], tree: Path = ROOT) -> Run:
    """Run a command to its end in a checkout, output thrown away; one that fails ends the benchmark with its words."""
    with tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err, cwd=tree)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            err.seek(0)
            sys.exit(f"{' '.join(command)}\nended with {child.returncode}:\n{err.read().decode(errors='replace')}")
    # Linux counts in KiB, macOS in bytes
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6)


def measure_in_turns(
    commands: dict[str, Sequence[str]], runs: int, kernels: int | None, work: Path, before: Path | None
) -> list[Row]:
    """The medians of each command, run in turns, each with nothing left of the one before."""
    trees = {what: (command, ROOT) for what, command in commands.items()}
    if before:
        command_line = [what for what in commands if what in (PLAIN, CHARTS, HELP)]
        trees |= {what + BEFORE: (commands[what], before) for what in command_line}
    done: dict[str, list[Run]] = {what: [] for what in trees}
    for turn in range(runs):
        for what, (command, tree) in trees.items():
            shutil.rmtree(answer(work), ignore_errors=True)
            done[what].append(measure(command, tree))
            print(f"  {turn + 1}/{runs} {what}: {done[what][-1].wall:.2f} s", file=sys.stderr)
    return [summary(what, kernels, runs_of_it) for what, runs_of_it in done.items()]


def summary(what: str, kernels: int | None, runs: Sequence[Run]) -> Row:
    """Medians, and how far apart the fastest and the slowest run were."""
    walls = [run.wall for run in runs]
    cpu, memory = statistics.median(run.cpu for run in runs), statistics.median(run.memory for run in runs)
    return Row(what, kernels, statistics.median(walls), max(walls) - min(walls), cpu, memory)


def big_report(kernels: int, processes: int, work: Path) -> Path:
    """The report of that size, made where it is not there yet."""
    path = work / f"big-{kernels}-{processes}.sqlite"
    if not path.exists():
        maker = [sys.executable, str(ROOT / "benchmarks" / "make_big_trace.py")]
        unfinished = path.with_suffix(".part")
        options = ["--kernels", str(kernels), "--processes", str(processes), "--out", str(unfinished), "--force"]
        subprocess.run([*maker, *options], check=True)
        unfinished.rename(path)
    return path


def commands(report: Path, work: Path, nsys: str | None) -> dict[str, Sequence[str]]:
    """What is measured on a report."""
    python = [sys.executable, "-c"]
    analyze = [*python, COMMAND_CODE, "analyze", str(report), "-o", str(answer(work))]
    measured: dict[str, Sequence[str]] = {
        LIBRARY: [*python, LIBRARY_CODE, str(report)],
        PLAIN: [*analyze, "--no-charts"],
        CHARTS: analyze,
        WHY: [*python, COMMAND_CODE, "why", str(report), "-o", str(answer(work))],
    }
    if nsys:
        measured[NSYS] = [nsys, "stats", "-q", "-f", "csv", "-o", "-", "-r", PROJECTION, str(report)]
    return measured


def answer(work: Path) -> Path:
    """Where `analyze` puts its files."""
    return work / "answer"


def targets(rows: Sequence[Row]) -> list[Target]:
    """The targets of the project, on two cores and for reports of 8 processes."""
    found = {(row.what, row.kernels): row for row in rows}

    def wall(what: str, kernels: int | None) -> float:
        return found[what, kernels].wall if (what, kernels) in found else math.nan

    def cpu(what: str, kernels: int | None) -> float:
        return found[what, kernels].cpu if (what, kernels) in found else math.nan

    def memory(what: str, kernels: int) -> float:
        return found[what, kernels].memory if (what, kernels) in found else math.nan

    million, ten = 1_000_000, 10_000_000
    targets = [
        ("library, 1 M kernels: 0.6 s", wall(LIBRARY, million), 0.6),
        ("library, 1 M kernels: 200 MB", memory(LIBRARY, million), 200),
        ("library, 10 M kernels: 6 s", wall(LIBRARY, ten), 6),
        ("library, 10 M kernels: 1.4 GB", memory(LIBRARY, ten), 1400),
        ("library, linear: 10 M at most 12 times 1 M", wall(LIBRARY, ten) / wall(LIBRARY, million), 12),
        ("analyze without charts, 1 M kernels: 1.6 s", wall(PLAIN, million), 1.6),
        ("analyze without charts, 1 M kernels: 300 MB", memory(PLAIN, million), 300),
        ("the same: a thirtieth of nsys's time", wall(PLAIN, million) / wall(NSYS, million), 1 / 30),
        ("its charts: 3 s more", wall(CHARTS, million) - wall(PLAIN, million), 3),
        ("why, 1 M kernels: 1.5 times the CPU time of analyze", cpu(WHY, million) / cpu(CHARTS, million), 1.5),
        ("the same: 450 MB", memory(WHY, million), 450),
        ("the shipped report with charts: 0.6 s", wall(CHARTS, None), 0.6),
        ("the same: at most 1.03 times what it took before", wall(CHARTS, None) / wall(CHARTS + BEFORE, None), 1.03),
        ("nsysprof --help: 0.15 s", wall(HELP, None), 0.15),
    ]
    return [Target(text, None if math.isnan(figure) else figure, limit) for text, figure, limit in targets]


def machine(nsys: str | None) -> list[str]:
    """What the figures were measured on, a line each."""
    names = ["nsysprof", "numpy", "pandas", "matplotlib"]
    versions = ", ".join(f"{name} {installed(name)}" for name in names)
    tool = "none"
    if nsys:
        tool = subprocess.run([nsys, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return [
        f"- {datetime.now(timezone.utc):%Y-%m-%d}; {processor()}, {cores()} cores, {memory:.0f} GiB memory",
        f"- {platform.system()} {platform.release()}, Python {platform.python_version()}, {versions}",
        f"- nsys: {tool}",
    ]


def installed(name: str) -> str:
    """The version of an installed distribution."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The name of the CPU."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def table(rows: Sequence[Row]) -> list[str]:
    """The measurements as a Markdown table; the last column is nsys's time divided by the row's."""
    lines = [
        "| kernels | command | wall: median (max - min) | CPU | peak memory | times faster than nsys |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    nsys = {row.kernels: row.wall for row in rows if row.what == NSYS}
    for row in rows:
        size = "shipped report" if row.kernels is None else f"{row.kernels:,}"
        ratio = f"{nsys[row.kernels] / row.wall:.1f}" if row.kernels in nsys and row.what != NSYS else ""
        if row.what.startswith(HELP):
            size = ratio = ""
        took = f"{row.wall:.3f} s ({row.spread:.3f})"
        lines.append(f"| {size} | {row.what} | {took} | {row.cpu:.3f} s | {row.memory:,.0f} MB | {ratio} |")
    return lines


def judge(target: Target) -> str:
    """A target as a line of a list."""
    if target.figure is None:
        return f"- {target.text}: not measured"
    return f"- {target.text}: {'holds' if target.holds else 'MISSED'}, {target.figure:.3g}"


def parse() -> argparse.Namespace:
    """The options."""
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--kernels", type=int, action="append", metavar="N", help="size of a report; may be given many times")
    add("--processes", type=int, default=8, help="processes of the reports")
    add("--runs", type=int, default=5, help="times each command is measured")
    add("--work", type=Path, default=ROOT / "benchmarks" / "work", help="where reports are made and kept")
    add("--nsys", default=os.environ.get("NSYSPROF_NSYS") or shutil.which("nsys"), help="the nsys to measure")
    add("--no-nsys", action="store_true", help="leave nsys out (it takes 400 s for 10 M kernels)")
    add("--before", type=Path, metavar="DIR", help="a checkout whose command line is measured in turn with this one")
    add("--out", type=Path, help="write the result here, too")
    add("--targets", action="store_true", help="say which targets hold; exit code 3 when one is missed")
    return parser.parse_args()


def main() -> int:
    """Measure, print the result as Markdown, and judge it where asked to."""
    options = parse()
    nsys = None if options.no_nsys else options.nsys
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    before = options.before.resolve() if options.before else None
    reports: list[tuple[int | None, Path]] = [(None, Path(shutil.copy(TINY, options.work / "tiny.sqlite")))]
    for kernels in options.kernels or [100_000]:
        reports.append((kernels, big_report(kernels, options.processes, options.work)))
    rows: list[Row] = []
    for size, report in reports:
        measured = commands(report, options.work, nsys)
        if size is None:
            measured[HELP] = [sys.executable, "-c", COMMAND_CODE, "--help"]
        measure(measured[LIBRARY])  # not counted: fills the page cache, writes byte code
        rows += measure_in_turns(measured, options.runs, size, options.work, before)
    judged = targets(rows)
    lines = [*machine(nsys), "", *table(rows)]
    if options.targets:
        lines += ["", *map(judge, judged)]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 3 if options.targets and not all(target.holds for target in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
