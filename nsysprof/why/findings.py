"""Sentences about the largest waits of each path: culprit, time, claim, ceiling, and what usually helps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

from nsysprof.attribution.levels import WHOLE
from nsysprof.core.text import join_words, one_line, plural
from nsysprof.core.units import format_ns, format_share
from nsysprof.waits.culprits import LATE_PEER

MAX_FINDINGS = 5
MIN_SHARE = 0.03  # of the windows: less is nothing that somebody would mend
MIN_NS = 20_000  # per window
_MOST_OF_IT = 0.6  # of a culprit's time that one call exposes
LAUNCH_STEP_NS = 20_000  # of a culprit's mean wait: shorter ones are what launching costs anyway
EXPOSED_STEP_NS = 100_000  # the same of what a call exposes: the call is what is to be mended
SHORT_NS = 30_000  # from wait to wait: where kernels are longer, latency between them is nothing to mend
LAUNCH_BOUND = 0.2  # of a range's host time in launches, from which on it is launch-bound
LAUNCHING_ACTIVITIES = ("launch calls", "code", "other CUDA calls")
LOADING_NS = 1_000_000  # of a mean wait: no launch takes that long, but loading the kernel does
_LOADING = "kernels are loaded at first use: leave warm-up out, or set CUDA_MODULE_LOADING=EAGER"
_NO_RANGE = "outside every range"
_NAME, _TEXT = 60, 160  # characters of a name, and of what a sentence is about: names may be kilobytes long
Row: TypeAlias = dict[str, Any]  # of `why.csv`
_Place: TypeAlias = tuple[str, str, str]  # a path, what its times are per, and who waits: which GPU


@dataclass(frozen=True)
class Finding:
    """One sentence about a path: what a ``gpu`` waited for, ``ns`` per window and its ``share``, and a ``hint``.

    ``headline`` says it in fewer words, for titles: `the GPU waits 12.3 ms per window, 57 % of it, for …`. ``kind`` is
    a word for what it is, ``gain_ns`` what all windows get shorter by at most without it, 0 where nobody knows;
    ``rows`` are those of why.csv that it is about.
    """

    path: str
    cause: str
    culprit: str
    text: str
    ns: float
    share: float
    claim: str
    hint: str
    headline: str = ""
    gpu: int = 0
    kind: str = "host"
    gain_ns: int = 0
    rows: tuple[int, ...] = ()


def findings(
    rows: Iterable[Mapping[Any, Any]],
    held_up: Iterable[Mapping[Any, Any]],
    per: str = "window",
) -> dict[str, list[Finding]]:
    """For each path at most `MAX_FINDINGS`, the largest first; none where nothing is to be gained.

    ``rows`` are those of `why.csv`, ``held_up`` as `Account` has it, each row by the names of its
    columns. Of several GPUs the one that waits longest counts.
    """
    places: dict[tuple[Any, ...], list[Row]] = {}
    for number, row in enumerate(rows):
        waits = places.setdefault((row["path"], row["gpu"], row["pid"]), [])
        if row["cause"] != "compute" and row["waited_ns"] > 0:
            waits.append({**row, "row": number})
    found: dict[str, dict[tuple[str, bool], Finding]] = {}
    for row in held_up:
        columns = {"cause": "compute", "activity": "", "range": "", "exposed_by": "", "claim": "dependency"}
        places[row["path"], row["gpu"], row["pid"]].append(columns | {str(key): row[key] for key in row})
    gpus = {path: {gpu for other, gpu, _ in places if other == path} for path, _, _ in places}
    for (path, gpu, _), waits in places.items():
        of_path = found.setdefault(str(path), {})
        who = "the GPU" if len(gpus[path]) == 1 else f"GPU {gpu}"
        for each in _candidates((str(path), per, who), waits):
            if each.share >= MIN_SHARE and (each.ns >= MIN_NS or per != "window"):
                key = each.culprit, "lets the queue run dry" in each.text
                each = replace(each, gpu=int(gpu))
                of_path[key] = max(each, of_path.get(key, each), key=lambda finding: finding.ns)
    return {
        path: sorted(of_path.values(), key=lambda finding: -finding.ns)[:MAX_FINDINGS]
        for path, of_path in found.items()
    }


def _candidates(place: _Place, waits: list[Row]) -> Iterator[Finding]:
    who = place[2]
    host = [row for row in waits if row["cause"] == "host"]
    short = [row for row in host if _is_step(row)]
    for name, rows in _grouped(host, lambda row: "" if _is_step(row) else row["culprit"]):
        if _total(rows) < LAUNCH_STEP_NS * sum(row["waits"] for row in rows):
            short += rows
            continue
        # too little to be named, but for what exposed it
        if sum(row["share_of_span"] for row in rows) < MIN_SHARE:
            short += [row for row in rows if row["exposed_by"]]
            continue
        by_call = _grouped(rows, lambda row: row["exposed_by"])
        exposing, exposed = max(by_call, key=lambda group: _total(group[1]), default=("", []))
        shown = exposing != name and _total(exposed) >= _MOST_OF_IT * _total(rows)
        text = "code between calls" if name == "code" else name  # of a report without ranges
        yield _finding(place, rows, name, f"{text}, exposed by {exposing}" if shown else text, text)
    for name, rows in _grouped(short, lambda row: row["exposed_by"]):
        steps = [row for row in rows if row["activity"] in LAUNCHING_ACTIVITIES] or rows
        then = sorted(_grouped(steps, _culprit), key=lambda group: -_total(group[1]))
        most = " most of all" if len(then) > 2 else ""
        text = f"{name} lets the queue run dry, then {who} waits{most} for {join_words([what for what, _ in then[:2]])}"
        yield _finding(place, rows, name, text, f"the host after {name}")
    alone = [row for row in short if not row["exposed_by"]]
    for name, rows in _grouped(alone, lambda row: row["range"] or _NO_RANGE):
        ours = [row for row in rows if row["activity"] in LAUNCHING_ACTIVITIES]
        launches = [row for row in ours if "Launch" in row["culprit"]]
        if _total(launches) >= LAUNCH_BOUND * _total(ours) > 0:
            where = f"in {one_line(name, _NAME)}" if name != _NO_RANGE else name
            text = f"launch-bound {where}: the host needs longer to launch than the GPU to run"
            yield _finding(place, ours, f"launches {where}", text)
            rows = [row for row in rows if row not in ours]
        yield from (_finding(place, some, name, name) for name, some in _grouped(rows, _culprit))
    for name, rows in _grouped(
        [row for row in waits if row["cause"] == "compute"], lambda row: row["culprit"]
    ):
        yield _finding(place, rows, name, f"{name} holds up another stream, which waits for it")
    others = [row for row in waits if row["cause"] not in ("compute", "host", "latency")]
    late = [row for row in others if row["activity"] == LATE_PEER]
    for name, rows in _grouped(late, lambda row: row["culprit"].split(", ")[0]):
        peer = name.removeprefix(f"{LATE_PEER} ")
        text = f"{who} waits for {peer}, which comes late to {_collectives(rows)}"
        yield _finding(place, rows, name, text)
    others = [row for row in others if row["activity"] != LATE_PEER]
    for name, rows in _grouped(others, _culprit):
        lead = "exposed communication: " if rows[0]["cause"] == "communication" else ""
        yield _finding(place, rows, name, f"{lead}{name}", name)
    latency = [row for row in waits if row["cause"] == "latency"]
    span = _total(latency) / max(sum(row["share_of_span"] for row in latency), 1e-9)
    if latency and span < SHORT_NS * sum(row["waits"] for row in latency):
        text = "launch and queue latency between GPU ops that were ready to run"
        yield _finding(place, latency, "launch and queue latency", text)


def _culprit(row: Row) -> str:
    return str(row["culprit"])


def _is_step(row: Row) -> bool:
    """Whether a call exposes a row of short steps of the host, which it needs to get ahead again."""
    exposed = row["exposed_by"] not in ("", row["culprit"]) and row["activity"] in LAUNCHING_ACTIVITIES[:2]
    return exposed and row["waited_ns"] < EXPOSED_STEP_NS * row["waits"]


def _collectives(rows: list[Row]) -> str:
    """The collective that most of the time went to, without the peer."""
    name: str = max(rows, key=lambda row: (row["waited_ns"], row["culprit"]))["culprit"].split(", ", 1)[1]
    more = len({row["culprit"] for row in rows}) - 1
    return f"{name} and {plural(more, 'other')}" if more else name


def _grouped(rows: list[Row], key: Callable[[Row], str]) -> list[tuple[str, list[Row]]]:
    """The rows by their keys, in order of appearance; without those whose key is empty."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if name := key(row):
            groups.setdefault(name, []).append(row)
    return list(groups.items())


def _total(rows: list[Row]) -> int:
    return sum(row["waited_ns"] for row in rows)


def _finding(
    place: _Place, rows: list[Row], culprit: str, text: str, subject: str = "", of: str = ""
) -> Finding:
    """The finding about rows of a path."""
    path, per, gpu = place
    top = max(rows, key=lambda row: int(row["waited_ns"]))
    ns, share = sum(row["per_instance_ns"] for row in rows), sum(row["share_of_span"] for row in rows)
    waits = sum(row["waits"] for row in rows)
    each = "" if path == WHOLE and per == "window" else f" per {per}"
    of = of or ("it" if per == "window" else "the windows")
    amount = f"{format_ns(ns)}{each}, {format_share(share)} of {of}"
    who = "a stream" if top["cause"] == "compute" else gpu
    where = "" if gpu == "the GPU" or text.startswith(gpu) else f" on {gpu}"
    sent = top["activity"] == "code" and "(HtoD" in top["exposed_by"]  # a copy that code does not depend on
    exposed_by = "" if sent else top["exposed_by"]
    hint = hint_for(top["cause"], top["activity"], text.split(", exposed by ")[0], exposed_by)
    if (
        top["activity"] == "launch calls"
        and "Launch" in top["culprit"]
        and _total(rows) >= LOADING_NS * waits
    ):
        hint = _LOADING
    return Finding(
        path=path,
        cause=top["cause"],
        kind=_kind(top, text, short=_total(rows) < LAUNCH_STEP_NS * waits),
        gain_ns=_total(rows) if top["cause"] not in ("compute", "unknown") else 0,
        culprit=culprit,
        text=f"{one_line(text, _TEXT)}: {amount}{where}, in {plural(waits, 'wait')}",
        headline=f"{who} waits {amount}, for {subject or culprit}",
        ns=ns,
        share=share,
        claim=top["claim"],
        hint=hint,
        rows=tuple(row["row"] for row in rows if "row" in row),
    )


def _kind(row: Row, text: str, *, short: bool) -> str:
    """What a finding is, in a word: its cause, or what of the host it is; ``short`` waits for code are for launches."""
    if row["cause"] != "host":
        return {"copy": "copies", "compute": "dependency"}.get(row["cause"], str(row["cause"]))
    words = f"{row['culprit']} {row['exposed_by']}"
    if "Synchronize" in words or "()" in words:
        return "synchronization"
    if "emcpy" in words or "(HtoD" in words or "(DtoH" in words:
        return "copies"
    launching = short and row["activity"] in LAUNCHING_ACTIVITIES
    return "launch-bound" if launching or text.startswith("launch-bound") else "host"


# Cause; words of which the culprit, or what exposed it, has one (~ is a blank); and what usually helps. The first that
# fits counts.
_HINTS: tuple[tuple[str, str, str], ...] = (
    ("host", ".item()", "keep the value on the GPU, or read it once every so many steps"),
    (
        "host",
        "cudaMalloc cudaFree cuMemAlloc cuMemFree",
        "let the allocator keep its memory: no empty_cache in the loop, and warm it up",
    ),
    ("host", "nonzero()", "a boolean mask asks the GPU for its size: torch.where, or multiply by the mask"),
    ("host", "(DtoH", "keep the tensor on the GPU, or copy it with non_blocking=True, and read it later"),
    ("host", "cudaHostAlloc cudaHostRegister", "pin memory once, before the loop"),
    (
        "host",
        "emcpy",
        "copy from pinned memory with non_blocking=True, in a stream of its own, ahead of need",
    ),
    ("host", "cuLibraryLoad cuModuleLoad", _LOADING),
    (
        "host",
        "launch-bound~in~Optimizer launch-bound~in~optimizer",
        "fused=True or foreach=True lets the optimizer launch few kernels for all parameters; or capture a CUDA graph",
    ),
    ("host", "launch-bound Launch", "capture a CUDA graph, compile, or fuse small kernels"),
    (
        "host",
        "DeviceSynchronize",
        "drop the synchronization of the device (torch.cuda.synchronize()), or do it where the host is idle anyway",
    ),
    ("host", "Synchronize", "drop the synchronization, or move it to where the host has nothing else to do"),
    (
        "host",
        "sem_wait sem_clockwait sem_timedwait futex pthread_ poll select epoll_wait",
        "another thread or process is late or holds a lock, Python's GIL too: see what it does (more loader workers)",
    ),
    ("host", "sleep", "the program sleeps: take that out of the loop"),
    ("host", "read write open fsync", "move input and output to another thread, ahead of need"),
    ("host", "", "make this code shorter, move it to another thread, or launch ahead of it"),
    ("copy", "HtoD DtoH", "copy in a stream of its own, beside compute, and from pinned memory"),
    ("copy", "", "fuse the copy into a kernel, or keep the layout that is needed"),
    ("communication", "peer", "see what that GPU runs and waits for until then: its own windows"),
    ("communication", "transfer", "start it earlier (smaller buckets), so that compute hides it"),
    (
        "communication",
        "",
        "start it earlier (smaller buckets); `nsysprof fleet` says whether a peer was late",
    ),
    ("kernel", "", "the next kernel depends on this one, which runs elsewhere"),
    ("compute", "", "let go of the dependency between the streams, or start this kernel earlier"),
    ("latency", "", "fewer and longer kernels: capture a CUDA graph, compile, or fuse"),
    ("profiler", "", "the profiler's own work: not there without it"),
)


@cache
def hint_for(cause: str, activity: str, culprit: str, exposed_by: str = "") -> str:
    """What usually helps against a wait; empty where nothing is known."""
    code = activity == "code" and not culprit.startswith("launch-bound")  # no call in its text
    for text in ("" if code else f"{activity} {culprit}", exposed_by):
        for of, words, hint in _HINTS:
            if of == cause and any(word.replace("~", " ") in text for word in words.split()):
                return hint
    return next((hint for of, words, hint in _HINTS if of == cause and not words), "")
