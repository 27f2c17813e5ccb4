"""Why the GPU waits as text: a tree whose children add up at every level, and sentences about the largest waits."""

from __future__ import annotations

from collections.abc import Iterator

from nsysprof.core.text import one_line, plural, visible
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.diagnose import Diagnosis
from nsysprof.diagnosis.text import finding_lines, nothing_text, overview_lines
from nsysprof.results.table import (
    WIDTH,
    TextTable,
    answer_text,
    code_block,
    markdown_list,
    warning_lines,
    wrap,
)
from nsysprof.why.residuals import abstention
from nsysprof.why.why import Why

MAX_FINDINGS = 5
MAX_PATHS, MAX_PLACES = 3, 16  # trees: of how many paths, and of how many GPUs and processes of each
_MIN_SHARE = 0.005  # of the windows: smaller rows of the tree are one
_NAME = 64
_PARTS = (
    ("compute", "compute_ns"),
    ("exposed communication", "communication_ns"),
    ("exposed copies", "copies_ns"),
    ("idle", "idle_ns"),
)


def why_text(answer: Why, top: int = 8, most_paths: int = MAX_PATHS, *, markdown: bool = False) -> str:
    """The answer for a terminal, or as Markdown; ``top`` rows below each part of a step. Ends with a newline."""
    lines = [_head(answer)]
    if answer.lacks:
        lacks = f"not recorded: {', '.join(answer.lacks)}: which stream waits for which is not known"
        lines.append(wrap(lacks, "  ", "    "))
    lines += warning_lines(answer.warnings, "why.json", markdown)
    paths = ranked_paths(answer)
    if paths and answer.diagnosis is not None:
        sentences = "\n".join(_sentences(answer, answer.diagnosis))
        lines += ["", markdown_list(sentences) if markdown else sentences]
    for path in paths[:most_paths]:
        of_path = places(answer, str(path))
        for gpu, pid in of_path[:MAX_PLACES]:
            table = tree(answer, str(path), int(gpu), int(pid), top)
            text = "\n".join(table.lines(width=WIDTH if markdown else None))
            lines += ["", *(code_block([visible(line) for line in text.split("\n")]) if markdown else [text])]
        if len(of_path) > MAX_PLACES:
            lines += [
                "",
                f"{len(of_path) - MAX_PLACES:,} more GPUs or processes of this path: why.csv has them",
            ]
        if doubt := abstention(answer.residuals, str(path)):
            lines += ["", wrap(doubt, "", "")]
    if not paths:
        lines += ["", "no GPU work in these ranges, and so no wait"]
    if len(paths) > most_paths:
        lines += [
            "",
            f"{plural(len(paths) - most_paths, 'path')} more: why.csv has them, --range GLOB shows some",
        ]
    return answer_text(lines, markdown)


def _head(answer: Why) -> str:
    report = answer.attribution.trace.report
    chosen = f"; {answer.chosen}" if answer.chosen else ""
    if answer.level and not answer.level.asked:
        chosen += " (--range GLOB chooses others)"
    picked = f"; {answer.picked}" if answer.picked else ""
    return f"{report.path}: why the GPU waits{chosen}{_typical(answer)}{picked}"


def _typical(answer: Why) -> str:
    """How many steps there are and how long the median one is, if all are of one path and GPU."""
    windows = answer.windows
    if len(windows[["path", "gpu", "pid"]].drop_duplicates()) != 1 or (windows["range"] < 0).any():
        return ""
    median = float((windows["end_ns"] - windows["start_ns"]).median())
    return f"; {plural(len(windows), 'step')}, {format_ns(median)} each (median)"


def ranked_paths(answer: Why) -> list[str]:
    """The paths, those with most time in their windows first."""
    total = (answer.windows["end_ns"] - answer.windows["start_ns"]).groupby(answer.windows["path"]).sum()
    return [str(path) for path in total.sort_values(ascending=False).index]


def places(answer: Why, path: str) -> list[tuple[int, int]]:
    """The GPU and process of each tree of a path."""
    mine = answer.windows[answer.windows["path"] == path]
    pairs = zip(mine["gpu"].tolist(), mine["pid"].tolist(), strict=True)
    return sorted(set(pairs))


def tree(answer: Why, path: str, gpu: int, pid: int, top: int) -> TextTable:
    """The windows of a path on a GPU as a tree, indented by blanks; ``top`` culprits of a cause."""
    windows, rows = (
        frame[(frame["path"] == path) & (frame["gpu"] == gpu) & (frame["pid"] == pid)]
        for frame in (answer.windows, answer.rows)
    )
    head = f"{one_line(path, _NAME)}, {plural(len(windows), 'window')} on GPU {gpu}"
    count = int(windows["calls"].sum()) if "calls" in windows else len(windows)
    head += f", {plural(count, answer.per)}" if "calls" in windows else ""
    span = int((windows["end_ns"] - windows["start_ns"]).sum())
    cells = [[head, format_ns(span / count), "100 %"]]

    def add(depth: int, name: str, ns: float) -> None:
        cells.append(
            [f"{'  ' * depth}{one_line(name, _NAME)}", format_ns(ns / count), format_share(ns / span)]
        )

    for name, column in _PARTS:
        total = int(windows[column].sum())
        if not total:
            continue
        add(1, name, total)
        meanwhile = {
            "compute": "compute",
            "exposed communication": "communication",
            "exposed copies": "copies",
        }
        part = rows[rows["meanwhile"] == meanwhile.get(name, "nothing")]
        key = "activity" if name == "compute" else "cause"
        by_cause = part.groupby(key)["waited_ns"].sum().sort_values(ascending=False)
        for cause, ns in by_cause.items():
            add(2, _LABELS.get((name, str(cause)), str(cause)), ns)
            if name == "compute":
                continue  # `nsysprof analyze` names the kernels
            below = part[part[key] == cause].groupby(["culprit", "exposed_by"])["waited_ns"].sum()
            shown = below.sort_values(ascending=False).head(top)
            shown = shown[shown >= _MIN_SHARE * span]
            if len(below) == 1 and not below.index[0][0]:
                continue
            for (culprit, exposed), each in zip(shown.index.to_list(), shown.tolist(), strict=True):
                add(3, f"{culprit}{f' ← {exposed}' if exposed and exposed != culprit else ''}", each)
            rest = int(below.sum() - shown.sum())
            if rest and len(shown):
                add(3, f"{plural(len(below) - len(shown), 'culprit')} more", rest)
    return TextTable(["", f"per {answer.per}", "share"], cells, "lrr")


_LABELS = {
    ("exposed communication", "communication"): "blocking: the next compute depended on it",
    ("exposed copies", "copy"): "blocking: the next compute depended on it",
}


def _sentences(answer: Why, diagnosis: Diagnosis) -> Iterator[str]:
    yield from (wrap(line, "", "  ") for line in overview_lines(diagnosis))
    if not diagnosis.findings:
        yield nothing_text(diagnosis)
        return
    yield "Top bottlenecks:"
    file = answer.attribution.trace.report.path
    yield from finding_lines(diagnosis.findings[:MAX_FINDINGS], file, "why")
    if len(diagnosis.findings) > MAX_FINDINGS:
        yield f"{len(diagnosis.findings) - MAX_FINDINGS:,} more: why.json has them"
