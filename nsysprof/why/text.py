"""Show as text why the GPU waits: the largest bottlenecks, and trees in which children add up to their parent."""

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.columns import ColumnTable, ranked
from nsysprof.core.text import join_words, one_line, plural, visible
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.text import findings_text, headline
from nsysprof.results.one_screen import Rows, answer_lines, grave
from nsysprof.results.table import TextTable, screen_width, wrap
from nsysprof.why.residuals import abstention
from nsysprof.why.why import Why

_FINDINGS, _PATHS, _FAMILIES = 3, 1, 5  # of one screen: findings, paths, and families of kernels
_PLACES = 16  # GPUs and processes of each path
_MIN_SHARE = 0.005  # of the steps: smaller rows of the tree are one
_NAME = 64
_PARTS = (
    ("compute", "compute_ns"),
    ("exposed communication", "communication_ns"),
    ("exposed copies", "copies_ns"),
    ("idle", "idle_ns"),
)


def why_text(answer: Why, top: int = 8, *, full: bool = False, markdown: bool = False) -> str:
    """Format one terminal screen, Markdown, or the ``full`` result, with ``top`` rows below each part of a step.

    Paths are in the order of `ranked_paths`. Ends with a newline.
    """
    width, diagnosis, report = screen_width(), answer.diagnosis, answer.attribution.trace.report
    paths = ranked_paths(answer)
    head = headline(diagnosis, report.path) if diagnosis else f"{report.path}: no GPU work"
    head = visible(f"{head}{f'; {answer.picked}' if answer.picked else ''}")
    said = [f"warning: {each}" for each in grave(answer.warnings)]
    if answer.lacks:
        said.append(f"the report lacks {join_words(answer.lacks)}, so dependencies between streams are unknown")
    parts: list[str | Rows] = ["\n".join(wrap(line, "", "  ", width) for line in (head, *said))]
    left: list[str] = []
    if diagnosis:
        parts.append(findings_text(diagnosis, report.path, "why", None if full else _FINDINGS, width))
        more = len(diagnosis.findings) - _FINDINGS
        left += [plural(more, "more bottleneck")] if more > 0 and not full else []
    shown = paths if full else paths[:_PATHS]
    for path in shown:
        of_path = places(answer, path)[: _PLACES if full else 1]
        parts += [
            Rows(tree(answer, path, *place, top, *([] if full else [_FAMILIES])), "row", code=True) for place in of_path
        ]
    if len(paths) > len(shown):
        left.append(plural(len(paths) - len(shown), "more path"))
    doubts = [doubt for path in shown if (doubt := abstention(answer.columns("residuals"), path))]
    return answer_lines(parts, [*answer.warnings, *doubts], more=left, full=full, markdown=markdown, width=width)


def ranked_paths(answer: Why) -> list[str]:
    """Sort the paths by the time without GPU compute in their steps."""
    windows = answer.columns("windows")
    lost = windows["end_ns"] - windows["start_ns"] - windows["compute_ns"]
    return [path for path, _ in ranked(ColumnTable({**windows.columns, "lost": lost}), ["path"], "lost")]


def places(answer: Why, path: str) -> list[tuple[int, int]]:
    """Return the GPU and process of each tree of a path."""
    windows = answer.columns("windows")
    mine = windows.take(windows.texts("path").equal(path))
    return sorted(set(zip(mine["gpu"].tolist(), mine["pid"].tolist(), strict=True)))


def tree(answer: Why, path: str, gpu: int, pid: int, top: int, families: int = 1 << 30) -> TextTable:
    """Show the steps of a path on a GPU as a tree, with the ``top`` causes of each kind and the ``families`` of
    compute.
    """
    windows, rows = (
        table.take(table.texts("path").equal(path) & (table["gpu"] == gpu) & (table["pid"] == pid))
        for table in (answer.columns("windows"), answer.columns("rows"))
    )
    step = "recording" if path == WHOLE else "step"
    head = f"{one_line(path, _NAME)}, {plural(len(windows), step)} on GPU {gpu}"
    count = int(windows["calls"].sum()) if "calls" in windows.columns else len(windows)
    head += f", {plural(count, answer.per)}" if "calls" in windows.columns else ""
    span = int((windows["end_ns"] - windows["start_ns"]).sum())
    cells = [[head, format_ns(span / count), "100 %"]]

    def add(depth: int, name: str, ns: float) -> None:
        cells.append([f"{'  ' * depth}{one_line(name, _NAME)}", format_ns(ns / count), format_share(ns / span)])

    for name, column in _PARTS:
        total = int(windows[column].sum())
        if not total:
            continue
        add(1, name, total)
        meanwhile = {"compute": "compute", "exposed communication": "communication", "exposed copies": "copies"}
        part = rows.take(rows.texts("meanwhile").equal(meanwhile.get(name, "nothing")))
        key = "activity" if name == "compute" else "cause"
        every = ranked(part, [key], "waited_ns")
        by_cause = every[: families - 1] if name == "compute" and len(every) > families else every
        others = len(every) - len(by_cause)
        for cause, ns in by_cause:
            add(2, _LABELS.get((name, cause), cause), ns)
            if name == "compute":
                continue  # `nsysprof analyze` names the kernels
            below = ranked(part.take(part.texts(key).equal(cause)), ["culprit", "exposed_by"], "waited_ns")
            shown = [row for row in below[:top] if row[-1] >= _MIN_SHARE * span]
            if len(below) == 1 and not below[0][0]:
                continue
            for culprit, exposed, each in shown:
                add(3, f"{culprit}{f' ← {exposed}' if exposed and exposed != culprit else ''}", each)
            rest = sum(row[-1] for row in below) - sum(row[-1] for row in shown)
            if rest and shown:
                add(3, plural(len(below) - len(shown), "more cause"), rest)
        if others:
            add(2, f"{others:,} more", total - sum(ns for _, ns in by_cause))
    return TextTable(["", f"per {answer.per if 'calls' in windows.columns else step}", "share"], cells, "lrr")


_LABELS = {
    ("exposed communication", "communication"): "blocking: the next compute depended on it",
    ("exposed copies", "copy"): "blocking: the next compute depended on it",
    ("idle", "host"): "late launch: what the CPU did meanwhile",
    ("idle", "latency"): "launch latency",
    ("idle", "unknown"): "unknown: the recording does not say why",
}
