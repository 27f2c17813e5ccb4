"""Scores the findings of `analyze` and `why` on planted faults, known remedies and judged findings.

    python analysis/advice/score.py FOLDER [-o DIR] [--before] [--only planted,remedies,labels,recordings] [--jobs N]

FOLDER holds labels.json, planted/, remedies/ and reports/ (README.md says in which form; files may be packed as .xz).
Prints a table, and writes planted.csv, remedies.csv, labels.csv, recordings.csv and, of all, summary.csv, whose column
`after` (with --before: `before`, from the lists `findings` of versions without a diagnosis) is replaced. A README.md in
DIR gets the table.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

import matching  # noqa: E402
from matching import FAULTS, LATER, PROGRAMS, Advice, advices, remedies  # noqa: E402
from recordings import Folder, asked, gpu_ops, idle  # noqa: E402

SHOWS_MS, HIDDEN, NOISE, SLACK, LEAST = 0.25, 0.03, 0.08, 0.2, 0.02
STEPS = {".sqlite": 20, ".json": 12}  # of the programs in remedies/
TUNED = {"attention", "pageable", "smallgrid"}  # whose good variant keeps the GPU, or the link to it, busy
HEAD = "| measure | before | after |\n|---|--:|--:|"
STEPS_SAID = r"no step repeats|of the gpu's busy time|steps? covers? \d"
RECORDERS = {".sqlite": "nsys", ".json": "pytorch"}
Row = dict[str, Any]


# ---- planted faults


def planted(folder: Folder, command: str, path: Path) -> Iterator[Row]:
    """A row per phase of a report of planted faults."""
    times = json.loads(path.with_name(f"{path.stem}.nsys.json").read_text())
    medians = {phase: statistics.median(each) for phase, each in times.items()}
    clean = medians["PHASE::clean"]
    for phase, step_ms in medians.items():
        found = folder.ask(command, path, "--range", f"{phase}/step*")
        fault = phase.split("::")[1]
        added = step_ms - clean
        first = found[0] if found else None
        promised = max((each.gain_ns / each.steps / 1e6 / step_ms for each in found or ()), default=0.0)
        row: Row = {"report": path.stem, "phase": phase, "command": command, "step_ms": step_ms, "added_ms": added,
                    "kind": "absent" if found is None else first.kind if first else "none",
                    "lost_ms": first.lost_ns / first.steps / 1e6 if first else 0.0, "promised": promised}  # fmt: skip
        if fault == "clean" or added < HIDDEN * clean:
            row |= {"bar": "silent", "right": int(found is not None and promised <= NOISE)}
        elif added >= SHOWS_MS and fault in FAULTS:
            row |= {"bar": "named"} | _judged(fault, first, row["lost_ms"], added)
        else:
            row |= {"bar": "none"}
        yield row | {"text": first.text if first else "", "remedy": first.remedy if first else ""}


def _judged(fault: str, first: Advice | None, lost_ms: float, added_ms: float) -> Row:
    cause = first is not None and matching.names_fault(fault, first)
    wrong = first is not None and matching.wrong_remedy(fault, first)
    near = abs(lost_ms - added_ms) <= added_ms / 3
    return {
        "cause": int(cause),
        "wrong_remedy": int(wrong),
        "near": int(near),
        "right": int(cause and near and not wrong),
    }


# ---- remedies


def remedy(folder: Folder, path: Path, times: dict[tuple[str, str], float]) -> Row:
    """The row of one recording of a program with a known remedy."""
    name, variant = path.stem.split(".")
    ops = gpu_ops(folder.file(path))
    span = ops[-1][1] - ops[0][0]
    found = folder.ask("analyze", path)
    first = found[0] if found else None

    def share(each: Advice) -> float:
        """The claimed gain as a part of a step, or of the whole where no step repeats."""
        return each.gain_ns / span if each.steps == 1 else each.gain_ns / each.steps / (span / STEPS[path.suffix])

    promised = share(first) if first else 0.0
    saving = 1 - times[name, "good"] / times[name, "bad"] if (name, "good") in times else 0.0
    advised = (" ".join(sorted(remedies(first.remedy))) or "–") if first else "none"
    row: Row = {"program": name, "variant": variant, "recorder": RECORDERS[path.suffix],
                "first": "absent" if found is None else advised, "promised": promised,
                "saving": saving if variant == "bad" else 0.0, "later": int(name in LATER)}  # fmt: skip
    wanted = PROGRAMS[name]
    if variant == "bad" and wanted is None:
        row["right"] = int(found is not None and all(share(each) <= LEAST for each in found))
    elif variant == "bad" and wanted is not None:
        right = first is not None and bool(remedies(first.remedy) & wanted)
        row |= {"remedy": int(right), "near": int(abs(promised - saving) <= SLACK)}
        row["right"] = int(right and abs(promised - saving) <= SLACK)
    elif variant == "good" and name in TUNED and row["recorder"] == "nsys":
        row["right"] = int(found is not None and all(share(each) <= NOISE for each in found))
    return row | {"text": first.text if first else "", "advice": first.remedy if first else ""}


def twins(rows: list[Row]) -> tuple[int, int]:
    """How many programs have the same first remedy in both recordings, and of how many."""
    by = {(row["program"], row["variant"], row["recorder"]): row["first"] for row in rows}
    both = [key[:2] for key in by if key[2] == "nsys" and (*key[:2], "pytorch") in by]
    pairs = [(by[(*key, "nsys")], by[(*key, "pytorch")]) for key in both]
    return sum(_same(*pair) for pair in pairs), len(pairs)


def _same(one: str, other: str) -> bool:
    return one != "absent" and (one == other or bool({*one.split()} & {*other.split()} - {"–"}))


# ---- judged findings


def judged(folder: Folder, label: Row) -> Row:
    """The row of a judged finding: whether it is still there."""
    found = folder.ask("analyze", folder.folder / "reports" / label["here"].removesuffix(".xz"))
    same, advice = matching.match(label, found or [])
    return {"report": label["report"], "rank": label["rank"], "verdict": label["verdict"], "kind": label["kind"],
            "found": "absent" if found is None else len(found), "same_cause": int(same), "same_advice": int(advice),
            "text": label["text"], "first": found[0].text if found else ""}  # fmt: skip


# ---- what holds on every recording


def recording(folder: Folder, path: Path) -> Row:
    """The row of a recording: exit codes, whether commands agree, whether its idle time is accounted for."""
    file = folder.file(path)
    ops = gpu_ops(file)
    codes = {command: asked(command, str(file), "--json") for command in ("analyze", "why")}
    text = asked("analyze", str(file), "--no-charts")
    one, other = (folder.ask(command, path) for command in ("analyze", "why"))
    gains = {each.id: each.gain_ns for each in other or () if each.id}
    waits = idle(ops)
    said = " ".join(text[2].split()).lower()
    named = bool(one) or any(words in said for words in ("does not say why", "unknown", "no step repeats"))
    first = one[0] if one else None
    return {"recording": path.name, "analyze": codes["analyze"][0], "why": codes["why"][0], "text": text[0],
            "tracebacks": sum("Traceback" in each[2] for each in (*codes.values(), text)),
            "findings": "absent" if one is None else len(one), "first": first.kind if first else "–",
            "same_first": "" if not gains else int(bool(one and other and one[0].id == other[0].id)),
            "in_both": sum(each.id in gains for each in one or ()),
            "equal": sum(gains.get(each.id) == each.gain_ns for each in one or () if each.id in gains),
            "forecast": _forecast(file, first), "idle": waits, "idle_named": int(named) if waits > 0.1 else "",
            "steps_said": int(re.search(STEPS_SAID, said) is not None),
            "cause": first.cause if first else ""}  # fmt: skip


def _forecast(file: Path, first: Advice | None) -> str:
    """Whether the forecast of the change of a finding has the same gain: equal, differs, none or absent."""
    if first is None or not first.change or first.basis != "replayed":
        return "none"
    change = shlex.split(first.change) if isinstance(first.change, str) else [str(each) for each in first.change]
    chosen = ["--range", first.path] if first.path and "--range" not in change else []
    code, document, _ = asked("forecast", str(file), *chosen, *change, "--as-profiled", "--json")
    again = [each.gain_ns for each in advices(document) or () if each.id == first.id]
    gain = document.get("gain_ns", again[0] if again else None)
    return (
        f"exit {code}"
        if not document
        else "absent"
        if gain is None
        else "equal"
        if gain == first.gain_ns
        else "differs"
    )


# ---- tables


def summary(parts: dict[str, list[Row]]) -> dict[str, tuple[int, int]]:
    """What is counted: how many of how many."""
    out: dict[str, tuple[int, int]] = {}
    doses = parts.get("planted", [])
    for command in ("analyze", "why"):
        mine = [row for row in doses if row["command"] == command]
        for what, key in (("cause named", "cause"), ("gain within a third of the true cost", "near"),
                          ("cause, gain and remedy right", "right")):  # fmt: skip
            out[f"planted faults ({command}): {what}"] = _count([row for row in mine if row["bar"] == "named"], key)
        out[f"planted faults ({command}): wrong remedy"] = _count(
            [row for row in mine if row["bar"] == "named"], "wrong_remedy"
        )
        out[f"steps without a visible fault ({command}): no gain above 8 % claimed"] = _count(
            [row for row in mine if row["bar"] == "silent"], "right"
        )
    programs = [row for row in parts.get("remedies", []) if row["variant"] == "bad"]
    for recorder in ("nsys", "pytorch"):
        for later, where in ((0, ""), (1, " inside a kernel")):
            which = f"programs with a known remedy{where}, recorded by {recorder}"
            out[f"{which}: first advice and its gain are right"] = _count(
                [row for row in programs if row["recorder"] == recorder and row["later"] == later], "right"
            )
    tuned = [row for row in parts.get("remedies", []) if row["variant"] == "good" and "right" in row]
    out["programs with their remedy, recorded by nsys: no gain above 8 % of the step claimed"] = _count(tuned, "right")
    out["programs with a known remedy: same first remedy in both recordings"] = twins(parts.get("remedies", []))
    labels = parts.get("labels", [])
    for verdicts in (("useful",), ("useless",), ("misleading", "wrong")):
        mine = [row for row in labels if row["verdict"] in verdicts]
        which = f"findings labelled {' or '.join(verdicts)}"
        out[f"{which}: still there (same path and cause)"] = _count(mine, "same_cause")
        out[f"{which}: still there with the same advice"] = _count(mine, "same_advice")
    every = parts.get("recordings", [])
    out["recordings: exit code 0 or 3, without a traceback"] = (
        sum(not row["tracebacks"] and {row["analyze"], row["why"], row["text"]} <= {0, 3} for row in every), len(every)
    )  # fmt: skip
    out["recordings: cause named for idle time above 10 %"] = _count(
        [row for row in every if row["idle_named"] != ""], "idle_named"
    )
    out["recordings: steps named, with their share of busy time"] = _count(every, "steps_said")
    out["recordings: same first finding in analyze and why"] = _count(
        [r for r in every if r["same_first"] != ""], "same_first"
    )
    out["findings: same gain in analyze and why"] = (sum(r["equal"] for r in every), sum(r["in_both"] for r in every))
    tried = [row for row in every if row["forecast"] != "none"]
    out["findings: same gain in analyze and forecast"] = (sum(row["forecast"] == "equal" for row in tried), len(tried))
    return {name: value for name, value in out.items() if value[1]}


def _count(rows: list[Row], key: str) -> tuple[int, int]:
    return sum(int(row.get(key) or 0) for row in rows), len(rows)


def write(path: Path, rows: list[Row]) -> None:
    """A CSV with all columns that a row has; fractions with three digits."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, names, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def scored(folder: Folder, only: Iterable[str], jobs: int) -> dict[str, list[Row]]:
    """The rows of every part that the folder has."""
    times = {}
    if (folder.folder / "remedies" / "times.jsonl").exists():
        for line in (folder.folder / "remedies" / "times.jsonl").read_text().splitlines():
            row = json.loads(line)
            times[row["program"], row["variant"]] = statistics.median(row["ms"])
    labels = folder.folder / "labels.json"
    here = [each for each in json.loads(labels.read_text()) if each["here"]] if labels.exists() else []
    files = {part: folder.recordings(part) for part in ("planted", "remedies", "reports")}
    every = [path for part in files.values() for path in part]
    with ThreadPoolExecutor(jobs) as pool:
        work = {
            "planted": lambda: [row for path in files["planted"] for command in ("analyze", "why")
                                for row in planted(folder, command, path)],
            "remedies": lambda: list(pool.map(lambda path: remedy(folder, path, times), files["remedies"])),
            "recordings": lambda: list(pool.map(lambda path: recording(folder, path), every)),
            "labels": lambda: list(pool.map(lambda label: judged(folder, label), here)),
        }  # fmt: skip
        return {name: work[name]() for name in work if name in only}


def main() -> None:
    """Score, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parent)
    parser.add_argument("--before", action="store_true", help="score the lists `findings`, as the column before")
    parser.add_argument("--only", default="planted,remedies,recordings,labels")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = Folder(options.folder.resolve(), Path(work), old=options.before)
        parts = scored(folder, options.only.split(","), options.jobs)
    options.output.mkdir(parents=True, exist_ok=True)
    for name, rows in parts.items():
        write(options.output / f"{name}.csv", rows)
    path, column = options.output / "summary.csv", "before" if options.before else "after"
    kept = {}
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            kept = {row["measure"]: row for row in csv.DictReader(file)}
    for measure, (right, of) in summary(parts).items():
        row = kept.setdefault(measure, {"measure": measure, "before": "", "after": ""})
        row[column] = f"{right} of {of}"
    write(path, list(kept.values()))
    lines = [f"| {row['measure']} | {row['before'] or '–'} | {row['after'] or '–'} |" for row in kept.values()]
    table = "\n".join([HEAD, *lines])
    print(table)
    readme = options.output / "README.md"
    if readme.exists():
        before, _, rest = readme.read_text(encoding="utf-8").partition(HEAD)
        readme.write_text(f"{before}{table}\n\n{rest.partition(chr(10) * 2)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()
