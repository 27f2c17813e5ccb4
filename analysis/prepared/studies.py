"""Makes a study of each question of README.md from what measure.sh brought back.

    python analysis/prepared/studies.py FOLDER [-o FOLDER]

FOLDER has results.tar.gz, and the reports. Every study becomes a folder beside this one (or in -o): the tables, charts
and report.md of its sweeps, its own tables, and a README.md with the command and the findings of each sweep as
`bench report` words them, to be interpreted by hand. What was not measured is said.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

HERE = Path(__file__).parent
NSYSPROF = [sys.executable, "-m", "nsysprof"]
Lines = Iterator[str]


def markdown(table: pd.DataFrame) -> Lines:
    """A table, with its index as the first column."""
    flat = table.reset_index()
    yield "| " + " | ".join(map(str, flat.columns)) + " |"
    yield "|" + " --- |" * len(flat.columns)
    for row in flat.astype(object).where(flat.notna(), "").itertuples(index=False):
        yield (
            "| " + " | ".join(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row) + " |"
        )


def sanitized(found: Path, study: Path) -> Lines:
    """What compute-sanitizer says last of `tiled_o6`."""
    yield from ("| tool, dtype, head dimension | done | cases | verdict |", "| --- | --- | --- | --- |")
    for log in sorted([*found.glob("racecheck-*.log"), *found.glob("memcheck-*.log")]):
        lines = log.read_text(errors="replace").splitlines()
        cases = [line for line in lines if line.startswith("tiled_o6: ")]
        verdict = [line.strip("= ") for line in lines if "SUMMARY" in line]
        done = "yes" if log.with_suffix(".done").exists() else "**no**"
        yield f"| {log.stem} | {done} | {' '.join(cases)} | {' '.join(verdict)} |"
        shutil.copy(log, study / f"{log.stem}.txt")


def between_runs(found: Path, study: Path) -> Lines:
    """How many intervals of two sweeps do not even touch, over one run and over three."""
    folders = [str(found.absolute()), str((HERE / "between_runs.py").absolute())]
    subprocess.run([sys.executable, folders[1], folders[0]], cwd=study, check=True, stdout=subprocess.DEVNULL)
    yield from markdown(pd.read_csv(study / "counts.csv", index_col=[0, 1, 2]))


def losses(found: Path, study: Path) -> Lines:
    """What each backend's training comes to, and how far its losses are from those of `math`."""
    runs = []
    for name in ("losses", "seeds"):
        if (found / f"{name}.json").exists():
            document = json.loads(Path(shutil.copy(found / f"{name}.json", study)).read_text())
            runs += document["runs"]
            yield from (f"- {backend} failed: {why}" for backend, why in document["failed"].items())
    if not runs:
        return
    figure, (over, apart) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    rows, seen = [], set()
    for run in runs:
        name = f"{run['backend']}, seed {run['seed']}" + (
            ", again" if (run["backend"], run["seed"]) in seen else ""
        )
        seen.add((run["backend"], run["seed"]))
        away = [abs(loss - base) for loss, base in zip(run["losses"], runs[0]["losses"], strict=True)]
        row = {
            "run": name,
            "step, ms": statistics.median(run["step_ns"]) / 1e6,
            "tokens/s": run["tokens_per_s"],
        }
        row |= {"peak, MiB": (run["peak_bytes"] or 0) / 2**20, "first loss": run["losses"][0]}
        row |= {"last loss": run["losses"][-1], "most apart from the first": max(away)}
        rows.append(row)
        over.plot(run["losses"], label=name, linewidth=1)
        apart.plot(away, label=name, linewidth=1)
    over.set(xlabel="step", ylabel="loss")
    apart.set(xlabel="step", ylabel="distance of the loss from that of the first run")
    apart.set_yscale("symlog", linthresh=1e-4)
    over.legend()
    figure.savefig(study / "losses.png", dpi=110)
    yield from ("", "![Losses, and their distance from those of the first run](losses.png)", "")
    yield from markdown(pd.DataFrame(rows).set_index("run"))


def recorded(name: str, compared: bool) -> Callable[[Path, Path], Lines]:
    """What `nsysprof compare` says of math and flash in a recording, or the kernels of each range."""

    def lines(found: Path, study: Path) -> Lines:
        parts = sorted(found.glob(f"{name}.sqlite.gz.*"))
        report = study / f"{name}.sqlite"
        report.write_bytes(gzip.decompress(b"".join(part.read_bytes() for part in parts)))
        command = ["compare", f"{name}.sqlite", "--base", "RUN::math::*", "--new", "RUN::flash::*"]
        if not compared:
            command = ["analyze", f"{name}.sqlite", "--no-charts", "--force"]
        done = subprocess.run([*NSYSPROF, *command], cwd=study, capture_output=True, text=True, check=False)
        yield from (
            "```text",
            "$ nsysprof " + " ".join(command),
            *(done.stdout or done.stderr).splitlines(),
            "```",
        )

    return lines


# Folder, question, sweeps, and what else there is: files that it is made of, and what makes it.
Other = tuple[str, Callable[[Path, Path], Lines]]
STUDIES: tuple[tuple[str, str, tuple[str, ...], tuple[Other, ...]], ...] = (
    (
        "best-kernels",
        "Which attention kernel is the fastest where?",
        ("best-kernels",),
        (("*check-*.log", sanitized),),
    ),
    ("between-runs", "Do intervals hold between runs?", (), (("r3b.bench", between_runs),)),
    (
        "training",
        "How much of attention's speed-up reaches a training step?",
        ("train", "gpt-train", "backward", "deterministic"),
        (("losses.json", losses), ("gpt-report.sqlite.gz.aa", recorded("gpt-report", compared=True))),
    ),
    (
        "decoding",
        "What does a small GPT gain?",
        ("prefill", "decode", "decode-graph", "compiled"),
        (),
    ),
    ("selection-cost", "What does PyTorch's pick cost?", ("selection",), ()),
    ("short-block", "Where do launches decide?", ("short-block",), ()),
    ("full", "And between the lengths?", ("full",), ()),
    (
        "kernel-names",
        "What are the kernels of FlashAttention 4 called?",
        (),
        (("names.sqlite.gz.aa", recorded("names", compared=False)),),
    ),
)


def sweep_lines(samples: Path, study: Path) -> Lines:
    """The command, findings and warnings of a sweep, whose files come into a folder of its own."""
    into = study / samples.parent.stem
    command = [*NSYSPROF, "bench", "report", str(samples), "-o", str(into), "--force"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        yield done.stderr.strip()
        return
    shutil.copy(samples, into)
    yield from ("```sh", json.loads(samples.read_text())["command"] or "", "```", "")
    for section in (into / "report.md").read_text().split("\n## ")[1:]:
        if section.startswith(("Findings", "Warnings")):
            yield from (f"### {section}".rstrip(), "")
    yield from (f"[All tables]({into.name}/report.md)", "", f"![Latency]({into.name}/latency.png)")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=HERE.parent)
    options = parser.parse_args()
    found = Path(tempfile.mkdtemp())
    with tarfile.open(options.folder / "results.tar.gz") as packed:
        packed.extractall(found, filter="data")
    for part in options.folder.glob("*.sqlite.gz.*"):
        shutil.copy(part, found)
    for name, question, sweeps, others in STUDIES:
        study = options.output / name
        study.mkdir(parents=True, exist_ok=True)
        lines = [f"# {question}", ""]
        for file, make in others:
            lines += (
                [*make(found, study), ""] if any(found.glob(file)) else [f"No {file} was brought back.", ""]
            )
        for sweep in sweeps:
            samples = found / f"{sweep}.bench" / "samples.json"
            made = sweep_lines(samples, study) if samples.exists() else ["Not measured, or not to its end."]
            lines += [f"## {sweep}", "", *made, ""]
        (study / "README.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
        print(study / "README.md")


if __name__ == "__main__":
    main()
