"""What to mend first: findings of every kind in one list, those that can win the most time first, at bounded cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.highlights import LAUNCH_BOUND_IDLE, preparing
from nsysprof.attribution.levels import WHOLE, Level
from nsysprof.core.columns import ColumnTable
from nsysprof.core.text import join_first, one_line, plural, quote_path
from nsysprof.core.units import format_bandwidth, format_bytes, format_ns, format_share
from nsysprof.errors import NsysprofError
from nsysprof.hardware.peaks import flops_per_clock
from nsysprof.kernels.names import short_name
from nsysprof.results.table import Column, TextTable, show_columns
from nsysprof.summaries.copies import DIRECTIONS
from nsysprof.why.findings import MIN_SHARE, Finding, findings

if TYPE_CHECKING:
    from nsysprof.analyze.breakdown import Breakdown
    from nsysprof.waits.ranges import Chosen
    from nsysprof.waits.windows import Windows

MOST = 5
MAX_STEPS = 3  # ranges in the table of steps
# What a walk has to read whole, whatever it samples: GPU ops, and bytes of the file. More is left to `nsysprof why`.
MAX_OPS, MAX_BYTES = 250_000, 1 << 27
MAX_WALKED = 30_000  # GPU ops in the sampled windows
# Below, nobody would mend what happens once, or notice that it is gone.
MIN_ONCE_NS = 5_000_000
# Siblings: so many alike, of which one takes so many times the median of the others. Two could be forward and backward,
# and twice as long may be twice the work.
MIN_SIBLINGS, UNUSUAL = 3, 3.0
# of what a range takes more than its siblings: an inner one with so much of it is the one to name
_DEEPER = 0.8
_PATH = 60
_PARTS = ("compute", "communication", "copies", "idle")
_STEPS = (
    Column("path", "", "where a step's time goes"),
    Column("steps", ""),
    Column("window_ns", "", "each"),
    *(Column(f"{name}_share", "", name) for name in _PARTS),
)


@dataclass(frozen=True)
class Waits:
    """What the GPU waits for in ranges that repeat: the ``findings`` of their paths, and what the windows add up to.

    ``walked`` of the ``windows`` of the repeated ranges were looked at, evenly spread. ``steps``: for each merged path,
    that with most time first, how many ``steps`` it has, the ``total_ns`` of their windows, the median ``window_ns``,
    and the shares of `_PARTS`. ``level`` are their ranges; ``warm_up`` windows of them are in none of it.
    """

    findings: tuple[Finding, ...]
    walked: int
    windows: int
    steps: tuple[dict[str, Any], ...]
    level: Level
    warm_up: int = 0

    @property
    def paths(self) -> list[str]:
        """The merged paths of the ranges that repeat."""
        return [row["path"] for row in self.steps]

    @property
    def repeat(self) -> bool:
        """Whether there are such ranges; else the windows are those of the whole report."""
        return bool(self.steps) and self.paths != [WHOLE]

    def table(self) -> TextTable:
        """Where the time of a step goes, of the ranges with most time."""
        shown = [
            {**row, "path": one_line(row["path"], _PATH)}
            | {f"{name}_share": row[f"{name}_share"] or None for name in _PARTS[1:3]}
            for row in self.steps[:MAX_STEPS]
        ]
        empty = {f"{name}_share" for name in _PARTS[1:3] if not any(row[f"{name}_share"] for row in shown)}
        clause = self.level.clause
        notes = [f"{clause[:1].upper()}{clause[1:]}."]
        if self.warm_up:
            notes.append(f"{plural(self.warm_up, 'step')} left out as warm-up.")
        if len(self.steps) > MAX_STEPS:
            notes.append(f"{plural(len(self.steps) - MAX_STEPS, 'path')} more.")
        if self.walked < self.windows:
            notes.append(f"Looked at {self.walked:,} of {self.windows:,} steps, evenly spread.")
        columns = [column for column in _STEPS if column.name not in empty]
        return show_columns(columns, shown, note=" ".join(notes))


def find(breakdown: Breakdown) -> tuple[Finding, ...]:
    """At most `MOST` findings, those with the most time to win first; what two kinds see stands here once.

    None where nothing is worth mending. Each kind is a function in `KINDS` with a threshold of its own; `Finding.ns`,
    and the ``share`` of the window, are per window of findings about waits, and else of all there is.
    """
    found: dict[tuple[str, str], Finding] = {}
    for kind in KINDS:
        for each in kind(breakdown):
            # which waits see too
            key = (each.kind, "pageable" if "pageable" in each.culprit else each.culprit)
            old = found.get(key, each)
            shown = old if each.claim != "counted" and old.gain_ns > each.gain_ns else each
            found[key] = replace(shown, gain_ns=max(each.gain_ns, old.gain_ns))
    some = [each for each in found.values() if each.gain_ns > 0]
    return tuple(sorted(some, key=lambda each: (-each.gain_ns, each.path, each.text))[:MOST])


def next_command(breakdown: Breakdown, finding: Finding) -> str:
    """The command that shows what a finding is about."""
    name = _NEXT.get(finding.kind, "why")
    command = f"nsysprof {name} {quote_path(breakdown.attribution.trace.report.path)}"
    path, option = finding.path.replace("[", "[[]"), "--per" if name == "steps" else "--range"
    return command + (f" {option} {quote(path)}" if path not in ("", WHOLE) else "")


def records(breakdown: Breakdown) -> list[dict[str, Any]] | None:
    """The findings for JSON; ``instances`` were looked at of ``of_instances``.

    None where waits were not looked into, and nothing else is found.
    """
    waits = breakdown.waits
    if waits is None and not breakdown.findings:
        return None
    seen = {"instances": waits.walked if waits else 0, "of_instances": waits.windows if waits else 0}
    names = ("kind", "path", "cause", "culprit", "text", "gain_ns", "ns", "share", "claim", "hint")
    return [
        {name: getattr(each, name) for name in names} | {"command": next_command(breakdown, each)} | seen
        for each in breakdown.findings
    ]


# ---- what the GPU waits for: the sentences of `nsysprof why`, from its walk over a sample of instances


def main_waits(breakdown: Breakdown) -> Waits | None:
    """The `Waits` of the ranges that `nsysprof why` would account for, without warm-up.

    None where the report is too large to be asked in passing.
    """
    attribution = breakdown.attribution
    trace, merge = attribution.trace, breakdown.options["merge"]
    file = trace.report.file
    if not 0 < len(trace.ops) <= MAX_OPS or (file.is_file() and file.stat().st_size > MAX_BYTES):
        return None
    from nsysprof.waits.account import account_of  # noqa: PLC0415 (slow to import)
    from nsysprof.waits.windows import steady  # noqa: PLC0415

    picked = steps_of(breakdown)
    attribution, windows, texts = picked.attribution, picked.windows, picked.texts
    every = windows.take(np.flatnonzero(_wanted(breakdown, picked)))
    windows = every.take(np.flatnonzero(steady(every)))
    ops = _ops_of(breakdown, windows)
    step = max(1, -(-int(ops.sum()) // MAX_WALKED))
    chosen = np.arange(len(windows))[(step - 1) // 2 :: step] if len(windows) > 1 else np.arange(len(windows))
    if not len(chosen):
        return Waits((), 0, 0, (), picked.level)
    if ops[chosen].sum() > 2 * MAX_WALKED:
        return None
    account = account_of(attribution, windows, texts, breakdown.kinds, merge, chosen)
    code = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    of = np.array([code[text] for text in texts], np.int64)[windows.path]
    total, seen = (np.bincount(path, minlength=len(code)) for path in (of, of[chosen]))
    scale = {text: total[path] / seen[path] for text, path in code.items() if seen[path]}
    found = findings(account.rows.records(), account.held_up.records())
    slow = [
        one
        for path in np.unique(every.path).tolist()
        for one in _slow_steps(texts[path], every.take(np.flatnonzero(every.path == path)))
    ]
    each = [
        replace(one, gain_ns=round(one.gain_ns * scale[path]))
        for path in scale
        for one in found.get(path, [])
    ]
    rows = _steps(account.windows, scale)
    early = len(every) - len(windows)
    return Waits((*each, *slow), len(chosen), len(windows), rows, picked.level, early)


def _slow_steps(path: str, windows: Windows) -> Iterator[Finding]:
    """Steps of a path that are slow, as `nsysprof steps` judges times: together `MIN_SHARE` more than typical ones."""
    from nsysprof.statistics.judge import SLOW_ONES, judge  # noqa: PLC0415 (slow to import)

    for gpu in np.unique(windows.gpu).tolist():
        rows = np.flatnonzero(windows.gpu == gpu)
        span = (windows.end - windows.start)[rows]
        judged = judge(span)
        slow = np.flatnonzero(np.isin(judged.of, SLOW_ONES))
        excess = span[slow] - judged.expected[slow]
        total = round(float(excess.sum()))
        if not len(slow) or total < MIN_SHARE * int(span.sum()):
            continue
        most = int(slow[np.argmax(excess)])
        typical = format_ns(round(float(judged.expected[most])))
        text = (
            f"{len(slow):,} of {len(rows):,} steps are slow; step {most} takes {format_ns(int(span[most]))},"
            f" not {typical}"
        )
        yield Finding(
            path=path,
            cause="slow steps",
            culprit=f"slow steps of {path}",
            text=text,
            ns=total / len(rows),
            share=total / int(span.sum()),
            claim="order",
            hint="see what these spent more time on than typical ones",
            gpu=gpu,
            kind="slow steps",
            gain_ns=total,
        )


def _steps(windows: ColumnTable, scale: dict[str, float]) -> tuple[dict[str, Any], ...]:
    """The rows of `Waits.steps`."""
    length = windows["end_ns"] - windows["start_ns"]
    paths = windows.texts("path")
    rows = []
    for path, times in scale.items():
        mine = np.array([text == path for text in paths.words], bool)[paths.codes]
        total = int(length[mine].sum())
        parts = {f"{name}_share": int(windows[f"{name}_ns"][mine].sum()) / max(total, 1) for name in _PARTS}
        rows.append(
            {
                "path": path,
                "steps": round(len(np.unique(windows["range"][mine])) * times),  # a window per GPU
                "total_ns": round(total * times),
                "window_ns": round(float(np.median(length[mine]))),
                **parts,
            }
        )
    return tuple(sorted(rows, key=lambda row: (-row["total_ns"], row["path"])))


def steps_of(breakdown: Breakdown) -> Chosen:
    """The steps of the program that lie in the ranges of the answer; if none does, these ranges themselves."""
    from nsysprof.waits.ranges import choose_windows  # noqa: PLC0415 (slow to import)

    attribution, merge = breakdown.attribution, breakdown.options["merge"]
    communication, select = breakdown.kinds.communication, breakdown.options["select"]
    steps = choose_windows(attribution, communication, None, merge)
    if select is None or _wanted(breakdown, steps).any():
        return steps
    return choose_windows(attribution, communication, select, merge)


def _wanted(breakdown: Breakdown, chosen: Chosen) -> NDArray[np.bool_]:
    """Which windows are of ranges that the answer holds."""
    if chosen.attribution is not breakdown.attribution.launched:  # found iterations are in no answer
        return np.full(len(chosen.windows), not breakdown.narrowed)
    kept: NDArray[np.bool_] = np.append(breakdown.kept, not breakdown.narrowed)[chosen.windows.range]
    return kept


def _preparation(breakdown: Breakdown) -> set[str]:
    """The merged paths of warm-up and checks: what they take is no time to win."""
    merged = breakdown.columns("merged")
    paths = merged.texts("merged_path").tolist()
    return {path for path, early in zip(paths, preparing(merged).tolist(), strict=True) if early}


def _counted(breakdown: Breakdown) -> set[str]:
    """The merged paths whose copies and calls count: what the answer holds, without warm-up and checks."""
    held = {"", *breakdown.columns("merged").texts("merged_path").tolist()} - _preparation(breakdown)
    return held - {""} if breakdown.narrowed else held


def _ops_of(breakdown: Breakdown, windows: Windows) -> NDArray[np.int64]:
    """How many GPU ops start in each window."""
    trace = breakdown.attribution.trace
    out = np.zeros(len(windows), np.int64)
    for gpu in np.unique(windows.gpu).tolist():
        start, mine = np.sort(trace.ops.start[trace.op_gpu == gpu]), windows.gpu == gpu
        first, last = (np.searchsorted(start, edge[mine]) for edge in (windows.start, windows.end))
        out[mine] = last - first
    return out


def _waits(breakdown: Breakdown) -> Iterator[Finding]:
    """The findings of `nsysprof why`, which has the thresholds; those that one thing would mend are one."""
    waits = breakdown.waits
    alike: dict[tuple[str, str], list[Finding]] = {}
    for each in waits.findings if waits else ():
        kind = "launch-bound" if each.kind == "latency" else each.kind
        alike.setdefault((kind, each.hint if kind != "launch-bound" else ""), []).append(each)
    for (kind, _), group in alike.items():
        by_path: dict[str, list[Finding]] = {}
        for each in group:
            by_path.setdefault(each.path, []).append(each)
        path = min(by_path, key=lambda path: (-sum(each.gain_ns for each in by_path[path]), path))
        some = sorted(by_path[path], key=lambda each: (-each.ns, each.culprit))
        more = f"; also in {plural(len(by_path) - 1, 'more range')}" if len(by_path) > 1 else ""
        where = f"{one_line(path, _PATH)}: " if path != WHOLE else ""
        yield replace(
            some[0],
            kind=kind,
            text=f"{where}{_sentence(kind, some, ' of each' if where else '')}{more}",
            hint=_launching(group) if kind == "launch-bound" else some[0].hint,
            gain_ns=sum(each.gain_ns for each in group),
            ns=sum(each.ns for each in some),
            share=sum(each.share for each in some),
        )


def _launching(group: list[Finding]) -> str:
    """What helps where the GPU waits for launches, and first what helps the optimizer where that is among it."""
    hints = [each.hint for each in group if "foreach" in each.hint]
    return hints[0] if hints else "capture a CUDA graph, compile, or fuse small kernels"


def _sentence(kind: str, some: list[Finding], of_each: str) -> str:
    """Findings of one kind and path in a sentence; of launches with what a step would take without them."""
    ns, share = sum(each.ns for each in some), sum(each.share for each in some)
    amount = f"{format_ns(ns)}{of_each}, {format_share(share)}"
    if kind == "launch-bound":
        least = (
            f"; {format_ns(ns / share - ns)} in place of {format_ns(ns / share)} at best" if share < 1 else ""
        )
        if all(each.cause == "latency" for each in some):
            return f"launch and queue latency between GPU ops that were ready to run: {amount}{least}"
        return (
            f"launch-bound: the GPU waits {amount}, for launches, code between them and their latency{least}"
        )
    if len(some) == 1:
        return some[0].text
    return f"{join_first([each.culprit for each in some], 3)}: {amount}"


# ---- what runs on the GPU


def _copies(breakdown: Breakdown) -> Iterator[Finding]:
    """Copies of pageable memory, which neither run beside compute nor as fast as the link: `MIN_SHARE` of the time."""
    summary = breakdown.summaries.get("copies")
    if summary is None:
        return
    [rows] = summary.files.values()
    counted = _counted(breakdown)
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows.records():
        pageable = "pageable" in (row["source"], row["destination"])
        if pageable and row["blocking"] in ("pageable", "sync") and row["merged_path"] in counted:
            groups.setdefault(row["operation"].removeprefix("memcpy "), []).append(row)
    for direction, some in groups.items():
        total, size, beside = (
            sum(row[name] for row in some) for name in ("sum_ns", "size_bytes", "overlapped_ns")
        )
        if total - beside < max(MIN_SHARE * _whole_ns(breakdown), MIN_ONCE_NS):
            continue
        path = max(some, key=lambda row: int(row["sum_ns"]))["merged_path"]
        # the time that the link would take
        best = sum(row["link_share"] * row["sum_ns"] for row in some) / total
        of_link = f", {format_share(best)} of what the link carries" if best > 0 else ""
        where = f", most in {one_line(path, _PATH)}" if path else ""
        text = (
            f"{format_bytes(size)} of pageable {DIRECTIONS.get(direction, direction)} copies at"
            f" {format_bandwidth(size * 1e9 / total)}{of_link}{where}"
        )
        hint = "pin the memory (pin_memory=True) and copy with non_blocking=True, ahead of need"
        yield _once(breakdown, "copies", path, f"pageable {direction}", text, total - beside, hint)


def _migrations(breakdown: Breakdown) -> Iterator[Finding]:
    """Kernels that wait for pages of unified memory that nobody asked for ahead of them: `MIN_SHARE` of the time."""
    unified = None if breakdown.narrowed else breakdown.unified
    waited = unified.kernels["fault_covered_ns"] if unified else np.zeros(0, np.int64)
    total = int(waited.sum())
    if unified is None or total < max(MIN_SHARE * _whole_ns(breakdown), MIN_ONCE_NS):
        return
    most = short_name(unified.kernels.texts("kernel").tolist()[int(waited.argmax())], _PATH)
    text = f"kernels run beside page faults of unified memory for {format_ns(total)}, most of all {most}"
    hint = "prefetch what kernels read (cudaMemPrefetchAsync), or allocate it on the GPU; see unified_kernels.csv"
    yield _once(breakdown, "unified memory", "", "migrations", text, total, hint)


def _products(breakdown: Breakdown) -> Iterator[Finding]:
    """Matrix products in FP32 on CUDA cores, where the GPU is busy and has tensor cores: `MIN_SHARE` of the time."""
    kernels, merged = breakdown.columns("merged_kernels"), breakdown.columns("merged")
    slow = kernels.texts("math_unit").equal("FP32 FMA") & kernels.texts("family").equal("gemm")
    speedup = _tensor_speedup(breakdown)
    if not slow.any() or speedup <= 1:
        return
    root = np.arange(len(merged))
    for row, parent in enumerate(merged["parent"].tolist()):  # parents stand before children
        root[row] = root[parent] if parent >= 0 else row
    left_out, paths = _preparation(breakdown), merged.texts("merged_path").tolist()
    time = np.maximum(merged["span_ns"], merged["cpu_ns"])
    total: dict[int, int] = {}
    for row, ns in zip(kernels["row"][slow].tolist(), kernels["sum_ns"][slow].tolist(), strict=True):
        at = int(root[row]) if row >= 0 else -1
        waits = (
            breakdown.busy_share < LAUNCH_BOUND_IDLE
            if at < 0
            else (merged["busy_ns"][at] < LAUNCH_BOUND_IDLE * time[at])
        )
        # where the GPU waits, faster kernels win nothing
        if not waits and not (at >= 0 and paths[at] in left_out):
            total[at] = total.get(at, 0) + ns
    ns, gain = sum(total.values()), round(sum(total.values()) * (1 - 1 / speedup))
    if gain < MIN_SHARE * _whole_ns(breakdown):
        return
    most = max(total, key=lambda at: (total[at], -at))
    path = paths[most] if most >= 0 else ""
    where = f", most in {one_line(path, _PATH)}" if path else ""
    text = f"matrix products in FP32 run on CUDA cores, not on tensor cores, for {format_ns(ns)}{where}"
    hint = 'if TF32 or bfloat16 is precise enough: torch.set_float32_matmul_precision("high"), or autocast'
    yield _once(breakdown, "tensor cores", path, "FP32 matrix products", text, gain, hint, ns)


def _tensor_speedup(breakdown: Breakdown) -> float:
    """How many times as fast the report's GPU multiplies on tensor cores as in FP32; 0 where it is not known."""
    for gpu in breakdown.attribution.trace.report.about.cuda_gpus:
        if gpu.compute_capability is None:
            continue
        capability = ".".join(map(str, gpu.compute_capability))
        try:
            fast, slow = (flops_per_clock(capability, dtype, name=gpu.name) for dtype in ("tf32", "fp32"))
        except NsysprofError:
            continue
        return fast / slow
    return 0.0


# ---- what the host does


def _calls(breakdown: Breakdown) -> Iterator[Finding]:
    """Loading of modules, and allocation: `MIN_SHARE` of the time; where ranges repeat, what they do themselves."""
    summary = breakdown.summaries.get("calls")
    counted = _counted(breakdown)
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in summary.files["calls.csv"].records() if summary else ():
        if row["what"] in _OF_CALLS and row["merged_path"] in counted and _in_steps(breakdown, row):
            groups.setdefault(row["what"], {}).setdefault(row["call"], []).append(row)
    waits = breakdown.waits.findings if breakdown.waits else ()
    for what, of_call in groups.items():
        rows = [row for some in of_call.values() for row in some]
        total, count = sum(row["sum_ns"] for row in rows), sum(row["count"] for row in rows)
        call = max(of_call, key=lambda name: sum(row["sum_ns"] for row in of_call[name]))
        named = any(call in each.culprit for each in waits)
        if named or total < max(MIN_SHARE * _whole_ns(breakdown), MIN_ONCE_NS):
            continue
        path = max(rows, key=lambda row: int(row["sum_ns"]))["merged_path"]
        where = f", most in {one_line(path, _PATH)}" if path else ""
        word, hint = _OF_CALLS[what]
        text = f"{word} takes {format_ns(total)} in {plural(count, 'call')}, most of all {call}{where}"
        yield _once(breakdown, word, path, call, text, total, hint)


def _in_steps(breakdown: Breakdown, row: dict[str, Any]) -> bool:
    """Whether a row of calls.csv is of a range that repeats, or nothing repeats: what starts a program is done once."""
    steps = breakdown.waits.paths if breakdown.waits else []
    return (
        WHOLE in steps or not steps or any(f"{row['merged_path']}/".startswith(f"{path}/") for path in steps)
    )


_OF_CALLS = {
    "module loading": (
        "module loading",
        "once a process: keep it out of what is measured (warm-up), or load at the start: CUDA_MODULE_LOADING=EAGER",
    ),
    "memory": (
        "allocation",
        "let the allocator keep its memory: no empty_cache in the loop; allocate and pin before it",
    ),
}


def _siblings(breakdown: Breakdown) -> Iterator[Finding]:
    """A range that takes `UNUSUAL` times as long on the host as its siblings, whose names differ in numbers only.

    Times are the mean of the instances, without that in which a GPU runs their work; what it takes more makes
    `MIN_SHARE` of the time. Of ranges inside one another the innermost that explains the others is named, with the call
    that takes most of it.
    """
    merged = breakdown.columns("merged")
    paths, left_out = merged.texts("merged_path").tolist(), _preparation(breakdown)
    groups: dict[str, list[int]] = {}
    for row, path in enumerate(paths):
        if path not in left_out and (key := re.sub(r"\d+", "#", path)) != path:
            groups.setdefault(key, []).append(row)
    host = np.maximum(merged["cpu_ns"] - merged["busy_ns"], 0)
    each = host / np.maximum(merged["instances"], 1)
    least = max(MIN_SHARE * _whole_ns(breakdown), MIN_ONCE_NS)
    found: dict[
        int, tuple[float, float]
    ] = {}  # of a row: what it takes more in all, and the median of its siblings
    for rows in groups.values():
        row = max(rows, key=lambda row: float(each[row]))
        usual = float(np.median(each[[other for other in rows if other != row]])) if len(rows) > 1 else 0.0
        more = (each[row] - usual) * merged["instances"][row]
        if len(rows) >= MIN_SIBLINGS and each[row] >= UNUSUAL * usual > 0 and more >= least:
            found[row] = float(more), usual
    for row, (more, usual) in found.items():
        inside = [other for other in found if other != row and paths[other].startswith(f"{paths[row]}/")]
        if any(found[other][0] >= _DEEPER * more for other in inside):
            continue
        whole = merged["cpu_ns"][merged["parent"] < 0].sum()
        text = (
            f"the host is in {one_line(paths[row], 2 * _PATH)} for {format_ns(int(host[row]))} of"
            f" {format_ns(int(whole))}, {each[row] / usual:.0f} times as long as in its siblings"
            f"{_most_of_calls(breakdown, paths[row], int(host[row]))}"
        )
        hint = (
            "what it does once (first use, compilation, a search for the fastest kernel) belongs into warm-up"
        )
        yield _once(breakdown, "sibling", paths[row], paths[row], text, round(more), hint)


def _most_of_calls(breakdown: Breakdown, path: str, cpu_ns: int) -> str:
    """The CUDA call that takes half of the time of a range or more."""
    summary = breakdown.summaries.get("calls")
    total: dict[str, int] = {}
    for row in summary.files["calls.csv"].records() if summary else ():
        if f"{row['merged_path']}/".startswith(f"{path}/"):
            total[row["call"]] = total.get(row["call"], 0) + row["sum_ns"]
    call = max(total, key=lambda name: total[name], default="")
    return f"; {call} takes {format_ns(total[call])} of it" if call and 2 * total[call] >= cpu_ns else ""


def _whole_ns(breakdown: Breakdown) -> int:
    """The time that shares of what happens once are of: that of the outermost ranges, or of all GPU work.

    On the host or the GPU, whichever is longer, without warm-up and checks.
    """
    merged, left_out = breakdown.columns("merged"), _preparation(breakdown)
    paths = merged.texts("merged_path").tolist()
    time = np.maximum(merged["cpu_ns"], merged["span_ns"]).tolist()
    outer = [
        ns
        for path, parent, ns in zip(paths, merged["parent"].tolist(), time, strict=True)
        if parent < 0 and path not in left_out
    ]
    return (
        max(sum(outer), 0 if breakdown.narrowed else breakdown.totals["span_ns"])
        if not left_out
        else sum(outer)
    )


def _once(
    breakdown: Breakdown,
    kind: str,
    path: str,
    culprit: str,
    text: str,
    gain_ns: int,
    hint: str,
    ns: int | None = None,
) -> Finding:
    """A finding about something that is counted and adds up over the report.

    Its ``share`` is of the recording where no range has it, which may lie far from all GPU work, and at most 1, as
    several threads can do it at once.
    """
    whole = max(_whole_ns(breakdown), 0 if path else breakdown.totals["recording_ns"], 1)
    share = min((gain_ns if ns is None else ns) / whole, 1.0)
    return Finding(
        path=path,
        cause=kind,
        culprit=culprit,
        text=text,
        ns=gain_ns if ns is None else ns,
        share=share,
        claim="counted",
        hint=hint,
        kind=kind,
        gain_ns=gain_ns,
    )


KINDS: tuple[Callable[[Breakdown], Iterator[Finding]], ...] = (
    _waits,
    _copies,
    _migrations,
    _products,
    _calls,
    _siblings,
)
_NEXT = {
    "slow steps": "steps",
    "tensor cores": "analyze",
    "module loading": "analyze",
    "allocation": "analyze",
    "sibling": "analyze",
    "unified memory": "analyze",
}
