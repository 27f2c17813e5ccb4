"""The questions of the track record, with the program that each is asked of and the one that has the change.

    python analysis/forecasts/cases.py list
    python analysis/forecasts/cases.py forecast NAME --work DIR [--dry]
    python analysis/forecasts/cases.py measure NAME --work DIR [--dry] [--rounds N]

`forecast` measures the base without a profiler, records it under nsys, and appends a row to forecasts.csv; nothing is
measured of the change. `measure` runs base and change without a profiler in turn, and appends a row to outcomes.csv. It
refuses a case without a forecast. `--dry` runs the programs on the CPU for a few steps, asks a report that is shipped,
and writes into DIR: it shows that everything is in place, and its rows are of no use.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DRY_REPORT, DRY_STEPS = ROOT / "traces" / "block.sqlite", "RUN::math::S1024/iter*"
FORECASTS = ("case", "kind", "question", "exit_code", "base_ns", "forecast_ns", "low_ns", "high_ns", "as_profiled",
             "residual", "reason", "version", "report_sha256", "question_sha256")  # fmt: skip
OUTCOMES = ("case", "base_ns", "outcome_ns", "base_rounds_ns", "outcome_rounds_ns", "gpu")


@dataclass(frozen=True)
class Case:
    """A question of a program: ``base`` and ``changed`` are its arguments, ``ask`` the options of `nsysprof forecast`.

    ``refused``: it must have no forecast. ``gpt``: the program is workloads/gpt.py, otherwise programs.py.
    """

    name: str
    kind: str
    base: tuple[str, ...]
    changed: tuple[str, ...]
    ask: tuple[str, ...]
    refused: bool = False
    gpt: bool = False


def cases() -> Iterator[Case]:
    """All cases, in the order of the table in README.md."""
    block = ("block", "--mode", "train")
    for us in (5, 20, 100, 500):
        for slack in (False, True):
            words = (*block, "--spin-us", str(us), *(("--slack",) if slack else ()))
            where = "slack" if slack else "path"
            ask = ("--gpu-delay", f"layer3={us}us")
            if not slack:
                yield Case(f"spin-{where}-{us}", "gpu-delay", block, words, ask)
            else:  # one spin kernel is in both: it gets longer
                more = (*block, "--spin-us", str(2 * us), "--slack")
                yield Case(f"spin-{where}-{us}", "kernel", words, more, ("--scale", "*spin*=2"))
    for us in (20, 100, 500, 2000, 5000):
        yield Case(
            f"host-{us}", "delay", block, (*block, "--host-us", str(us)), ("--delay", f"layer3={us}us")
        )
    for batch in (1, 8, 32):
        for program, mode in (("mlp", "forward"), ("mlp", "train"), ("block", "forward"), ("block", "train")):
            base = (program, "--mode", mode, "--batch", str(batch))
            yield Case(
                f"graph-{program}-{mode}-{batch}", "graph", base, (*base, "--graph"), ("--graph", "step")
            )
        decode = ("--decode", "--backend", "flash", "--batch", str(batch))
        yield Case(
            f"graph-gpt-decode-{batch}",
            "graph",
            decode,
            (*decode, "--cuda-graph"),
            ("--graph", "step*"),
            gpt=True,
        )
    for seq in (512, 1024):
        for old, new in (("math", "flash"), ("flash", "cudnn"), ("math", "efficient")):
            base, changed = (("--backend", each, "--seq", str(seq)) for each in (old, new))
            swap = ("--swap", f"attention=BENCH:{seq}:{new}")
            yield Case(f"swap-{old}-{new}-{seq}", "swap", base, changed, swap, gpt=True)
    for batch in (1, 8, 32):
        item = (*block, "--batch", str(batch), "--item")
        yield Case(f"item-{batch}", "drop-sync", item, item[:-1], ("--drop-sync", "loss"))
        copy = (*block, "--batch", str(batch), "--copy")
        yield Case(f"pinned-{batch}", "async-copies", copy, (*copy, "--pinned"), ("--async-copies",))
        pinned = (*copy, "--pinned")
        yield Case(f"prefetch-{batch}", "remove", pinned, (*pinned, "--prefetch"), ("--remove", "HtoD*"))
        plain = (*block, "--batch", str(batch))
        yield Case(f"fused-{batch}", "graph", plain, (*plain, "--fused"), ("--graph", "optimizer"))
    yield Case("batch", "none", block, (*block, "--batch", "16"), ("--scale", "*=2"), refused=True)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("list", "forecast", "measure"))
    parser.add_argument("name", nargs="?")
    parser.add_argument("--work", type=Path, default=HERE / "work")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    every = {case.name: case for case in cases()}
    if options.what == "list":
        return
    if options.name not in every:
        sys.exit(f"no case {options.name!r}: cases.py list names them")
    options.work.mkdir(parents=True, exist_ok=True)
    {"forecast": forecast, "measure": measure}[options.what](every[options.name], options)


def command(case: Case, words: Sequence[str], results: Path, dry: bool) -> list[str]:
    """The command that runs a program and writes what its steps took."""
    program = ROOT / "workloads" / "gpt.py" if case.gpt else HERE / "programs.py"
    small = (
        "--device",
        "cpu",
        *(() if case.gpt else ("--steps", "3", "--layers", "4", "--width", "32", "--length", "8")),
    )
    if dry and case.gpt:
        small = (*small, "--dtype", "fp32", "--layers", "1", "--heads", "2", "--kv-heads", "2", "--width", "32",
                 "--iterations", "2", "--warmup", "1")  # fmt: skip
        words = [word for word in words if word != "--cuda-graph"]
        words = [
            "math" if word in ("flash", "cudnn", "efficient") else "16" if word in ("512", "1024") else word
            for word in words
        ]
    return [sys.executable, str(program), *words, *(small if dry else ()), "--results", str(results)]


def steps_of(results: Path) -> tuple[str, list[int]]:
    """The range and the times of the steps that a program wrote."""
    [run] = [run for run in json.loads(results.read_text())["runs"] if run.get("latency_ns")]
    return run["range"], run["latency_ns"]


def run(case: Case, words: Sequence[str], results: Path, dry: bool) -> tuple[str, list[int]]:
    """Run a program without a profiler and return its steps."""
    subprocess.run(command(case, words, results, dry), check=True, stdout=subprocess.DEVNULL)
    return steps_of(results)


def forecast(case: Case, options: argparse.Namespace) -> None:
    """Measure and record the base, forecast the change, and append the row."""
    work, dry = options.work, options.dry
    plain, profiled = work / f"{case.name}.plain.json", work / f"{case.name}.profiled.json"
    name, times = run(case, case.base, plain, dry)
    if dry:
        report, select, record = DRY_REPORT, ["--range", DRY_STEPS], DRY_REPORT.with_suffix(".json")
        ask: tuple[str, ...] = ("--scale", "*=2") if case.refused else ("--delay", "backward=5us")
    else:
        report, select = work / f"{case.name}.sqlite", []
        capture = ["-m", "nsysprof", "capture", "--no-overhead", "-o", str(work / case.name), "--force", "--"]
        subprocess.run([sys.executable, *capture, *command(case, case.base, profiled, dry)], check=True)
        under = steps_of(profiled)[1]
        row = {
            "range": name,
            "plain_median_ns": statistics.median(times),
            "profiled_median_ns": statistics.median(under),
        }
        record = work / f"{case.name}.record.json"
        record.write_text(json.dumps({"schema": "nsysprof-run/1", "overhead": {"ranges": [row]}}))
        ask = tuple(swapped(word, work) for word in case.ask)
    place = work / f"{case.name}.forecast"
    words = [
        "-m",
        "nsysprof",
        "forecast",
        str(report),
        *select,
        *ask,
        "--record",
        str(record),
        "--no-charts",
        "--force",
    ]
    done = subprocess.run(
        [sys.executable, *words, "-o", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 3):
        sys.exit(done.stderr)
    row = {"case": case.name, "kind": case.kind, "question": " ".join(ask), "exit_code": done.returncode}
    if done.returncode == 0:
        document = json.loads((place / "forecast.json").read_text())
        row |= {name: document[name] for name in FORECASTS if name in document and name not in row}
    else:
        row["reason"] = done.stderr.splitlines()[0]
    append(places(options)[0], FORECASTS, row)


def swapped(word: str, work: Path) -> str:
    """An option with the row of the bench that it means: `BENCH:1024:flash`."""
    glob, marker, rest = word.partition("=BENCH:")
    if not marker:
        return word
    seq, backend = rest.split(":")
    return f"{glob}={work / 'bench' / f'{seq}.csv'}:{backend}"


def measure(case: Case, options: argparse.Namespace) -> None:
    """Run base and change in turn, without a profiler, and append the medians."""
    forecasts, outcomes = places(options)
    if case.name not in {row["case"] for row in rows(forecasts)}:
        sys.exit(f"{case.name} has no forecast: it comes first (cases.py forecast {case.name})")
    medians: list[list[float]] = [[], []]
    for number in range(2 if options.dry else options.rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            words = (case.base, case.changed)[which]
            _, times = run(case, words, options.work / f"{case.name}.{which}.json", options.dry)
            medians[which].append(statistics.median(times))
    texts = [" ".join(str(round(ns)) for ns in each) for each in medians]
    row = dict(zip(OUTCOMES, (case.name, *map(statistics.median, medians), *texts, gpu()), strict=True))
    append(outcomes, OUTCOMES, row)


def gpu() -> str:
    """The name of the GPU; empty without one."""
    import torch  # noqa: PLC0415

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def places(options: argparse.Namespace) -> tuple[Path, Path]:
    """Where the rows go: beside this file, in a dry run into the folder of work."""
    folder = options.work if options.dry else HERE
    return folder / "forecasts.csv", folder / "outcomes.csv"


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table; none where it is not there."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, columns: Sequence[str], row: dict[str, Any]) -> None:
    """Append a row; a case that is there already is refused, as forecasts are written once."""
    if row["case"] in {each["case"] for each in rows(path)}:
        sys.exit(f"{path.name} has {row['case']} already: nothing is written twice")
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if new:
            writer.writeheader()
        writer.writerow(row)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
