"""Sentences about the largest waits of each path: culprit, time, claim, ceiling, and what usually helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from nsysprof.core.units import format_ns, format_share

MAX_FINDINGS = 5
MIN_SHARE = 0.03  # of the windows: less is nothing that somebody would mend
MIN_NS = 20_000  # per window
_MOST_OF_IT = 0.6  # of what a call exposes: then that is the culprit
_LAUNCHING = 0.2  # of a range's host time from which on it is launch-bound


@dataclass(frozen=True)
class Finding:
    """One sentence about a path: what the GPU waited for, ``ns`` per window and its ``share``, and a ``hint``."""

    path: str
    cause: str
    culprit: str
    text: str
    ns: float
    share: float
    claim: str
    hint: str


def findings(rows: pd.DataFrame) -> dict[str, list[Finding]]:
    """For each path at most `MAX_FINDINGS`, the largest first; none where nothing is to be gained.

    ``rows`` are those of `why.csv`. Of several GPUs the one that waits longest counts.
    """
    found: dict[str, list[Finding]] = {}
    for path, part in rows.groupby("path", sort=False):
        candidates = [
            each
            for _, of_gpu in part.groupby(["gpu", "pid"], sort=False)
            for each in _candidates(str(path), of_gpu)
        ]
        best: dict[str, Finding] = {}
        for each in sorted(candidates, key=lambda finding: -finding.ns):
            best.setdefault(each.culprit, each)
        kept = [each for each in best.values() if each.share >= MIN_SHARE and each.ns >= MIN_NS]
        found[str(path)] = kept[:MAX_FINDINGS]
    return found


def _candidates(path: str, rows: pd.DataFrame) -> Iterator[Finding]:
    waits = rows[(rows["cause"] != "compute") & (rows["waited_ns"] > 0)]
    host = waits[waits["cause"] == "host"]
    for name, part in host[host["exposed_by"] != ""].groupby("exposed_by", sort=False):
        by_culprit = part.groupby("culprit")["waited_ns"].sum()
        top = str(by_culprit.idxmax())
        if by_culprit.max() >= _MOST_OF_IT * by_culprit.sum():
            text = top if top == name else f"{top}, exposed by {name}"
            yield _finding(path, part[part["culprit"] == top], top, text)
            part = part[part["culprit"] != top]
        if len(part):
            yield _finding(path, part, str(name), f"the host after {name}, which lets the GPU run dry")
    alone = host[host["exposed_by"] == ""]
    for name, part in alone.groupby("range", sort=False):
        calls = part.loc[part["activity"] == "launch calls"]
        plain = calls[~calls["culprit"].str.contains("emcpy|emset")]
        ours = part[part["activity"].isin(["launch calls", "code", "other CUDA calls"])]
        if plain["waited_ns"].sum() >= _LAUNCHING * ours["waited_ns"].sum() > 0:
            yield _launch_bound(path, str(name), ours)
            part = part.drop(ours.index)
        yield from (_one(path, each) for _, each in part.groupby("culprit", sort=False))
    others = waits[~waits["cause"].isin(["host", "latency"])]
    yield from (_one(path, each) for _, each in others.groupby(["cause", "culprit"], sort=False))
    latency = waits[waits["cause"] == "latency"]
    if len(latency):
        yield _finding(
            path,
            latency,
            "launch and queue latency",
            "launch and queue latency between GPU ops that were ready to run",
        )


def _one(path: str, rows: pd.DataFrame) -> Finding:
    culprit = str(rows["culprit"].iloc[0])
    return _finding(path, rows, culprit, culprit)


def _launch_bound(path: str, name: str, rows: pd.DataFrame) -> Finding:
    where = f"in {name}" if name else "outside every range"
    return _finding(
        path,
        rows,
        f"launches {where}",
        f"launch-bound {where}: the host needs longer to launch than the GPU to run",
    )


def _finding(path: str, rows: pd.DataFrame, culprit: str, text: str) -> Finding:
    top = rows.iloc[int(rows["waited_ns"].to_numpy().argmax())]
    ns, share = float(rows["per_instance_ns"].sum()), float(rows["share_of_span"].sum())
    counted = int(rows["waits"].sum())
    claim = str(top["claim"])
    hint = hint_for(str(top["cause"]), str(top["activity"]), text, str(top["exposed_by"]))
    sentence = f"{text}: {format_ns(ns)} per window, {format_share(share)} of it, in {counted:,} waits"
    return Finding(path, str(top["cause"]), culprit, sentence, ns, share, claim, hint)


# Cause; words of which the culprit, or what exposed it, has one; and what usually helps. The first that fits counts.
_HINTS: tuple[tuple[str, str, str], ...] = (
    ("host", ".item()", "keep the value on the GPU, or read it once every so many steps"),
    (
        "host",
        "cudaMalloc cudaFree cuMemAlloc cuMemFree",
        "let the allocator keep its memory: no empty_cache in the loop, and warm it up",
    ),
    ("host", "cudaHostAlloc cudaHostRegister", "pin memory once, before the loop"),
    (
        "host",
        "emcpy",
        "copy from pinned memory with non_blocking=True, in a stream of its own, ahead of need",
    ),
    (
        "host",
        "cuLibraryLoad cuModuleLoad",
        "kernels are loaded at first use: leave warm-up out, or set CUDA_MODULE_LOADING=EAGER",
    ),
    ("host", "launch-bound Launch", "capture a CUDA graph, compile, or fuse small kernels"),
    ("host", "Synchronize", "drop the synchronization, or move it to where the host has nothing else to do"),
    (
        "host",
        "sem_wait sem_clockwait sem_timedwait futex pthread_ poll select epoll_wait",
        "another thread or process is late: see what it does (more loader workers, a shorter lock)",
    ),
    ("host", "sleep", "the program sleeps: take that out of the loop"),
    ("host", "read write open fsync", "move input and output to another thread, ahead of need"),
    ("host", "", "make this code shorter, move it to another thread, or launch ahead of it"),
    ("copy", "HtoD DtoH", "copy in a stream of its own, beside compute, and from pinned memory"),
    ("copy", "", "fuse the copy into a kernel, or keep the layout that is needed"),
    (
        "communication",
        "",
        "start it earlier (smaller buckets); `nsysprof fleet` says whether a peer was late",
    ),
    ("kernel", "", "the next kernel depends on this one, which runs elsewhere"),
    ("latency", "", "fewer and longer kernels: capture a CUDA graph, compile, or fuse"),
    ("profiler", "", "the profiler's own work: not there without it"),
)


def hint_for(cause: str, activity: str, culprit: str, exposed_by: str = "") -> str:
    """What usually helps against a wait; empty where nothing is known."""
    text = "" if activity == "code" and not culprit.startswith("launch-bound") else culprit
    text = f"{text} {exposed_by}"
    for of, words, hint in _HINTS:
        if of == cause and (not words or any(word in text for word in words.split())):
            return hint
    return ""
