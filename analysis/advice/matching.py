"""What a finding names and advises, and whether that is what a judge called right.

A finding of `diagnosis` (or, for a baseline, of the `findings` of older versions) is read into an `Advice`. Its causes
are a few classes (`code`, `copy`, `sync`, ...), by its kind or else by its words; its remedies are classes of the words
of its advice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

# Classes of causes: of the kinds of the diagnosis ...
KINDS = {
    "launch-bound": {"launches"}, "optimizer": {"launches"}, "cpu-code": {"code"}, "garbage-collection": {"code"},
    "synchronization": {"sync"}, "pageable-copy": {"copy"}, "exposed-copy": {"copy"}, "small-copies": {"copy"},
    "copy-layout": {"copy"}, "memset": {"memset"}, "allocation": {"allocation"}, "pinning": {"pinning"},
    "module-loading": {"loading"}, "compilation": {"compilation"}, "context": {"context"}, "input-wait": {"input"},
    "lock": {"lock"}, "communication-late-rank": {"communication"}, "communication-exposed": {"communication"},
    "stream-dependency": {"kernel"}, "page-fault": {"pages"}, "unified-memory": {"pages"}, "small-grid": {"grid"},
    "tiny-blocks": {"grid"}, "paced": {"paced"}, "unknown": {"unknown"}, "profiler-overhead": {"profiler"},
    "cold-start": {"set-up"}, "training-mode": {"kernel"}, "casts": {"kernel"}, "spills": {"grid"},
    "full-memory": {"kernel"},
}  # fmt: skip
# ... and of words, for findings of other kinds.
CAUSES = {
    "pinning": r"HostAlloc|HostRegister|MallocHost|FreeHost|HostUnregister|pin memory once",
    "allocation": r"(?:cuda|hip)(?:Malloc|Free)(?!Host)|cuMem(?:Alloc|Free|Map|Unmap)|^allocation",
    "loading": r"module loading|c[uU]\w*(?:Module|Library)(?:Load|Unload)|loaded at first use",
    "pages": r"page fault|unified memory|MemPrefetch",
    "launches": r"launch-bound|launch and queue latency|Launch\w*Kernel|cudaGraphLaunch|^launches",
    "unknown": r"launch and queue latency|does not say why|^unknown",
    "copy": r"[mM]emcpy|(?:host-to-device|device-to-host|device-to-device) cop",
    "memset": r"[mM]emset",
    "code": r"\bcode\b|garbage|collection|CPU (?:time|work|code)|nanosleep|sem_wait|futex",
    "sync": r"Synchronize|\.item\(\)|nonzero",
    "communication": r"nccl|rccl|communication|comes late|late peer",
    "slow": r"steps are slow",
    "profiler": r"CUPTI|profiler|Instrumentation|Activity Buffer",
    "grid": r"fewer blocks|blocks? of \d+ threads|SMs",
}
REMEDIES = {
    "fused": r"\bfused|foreach",
    "graph": r"CUDA graph|torch\.compile|\bcompile\b|cudaGraph|fewer (?:launches|kernels)",
    "pin": r"\bpin(?:ned)?\b|pin_memory|non_blocking|cudaHostAlloc|cudaMallocHost|cudaHostRegister",
    "overlap": r"prefetch(?!ing pages)|overlap|stream of its own|ahead of need",
    "sync": r"keep the (?:value|tensor|result|data)|read the value less often|boolean mask"
    r"|(?:drop|remove) the (?:device )?synchroni|read it (?:once|later)",
    "code": r"launching thread|code shorter|CPU (?:work|code|time)|gc\.|collect|another thread",
    "allocator": r"allocator|empty_cache|MallocAsync|memory pool|allocate .*(?:once|before)|reuse",
    "warm-up": r"warm-?up|CUDA_MODULE_LOADING",
    "pages": r"cudaMemPrefetchAsync|cudaMemAdvise",
    "grid": r"more blocks|at least \d+ blocks|as many blocks|blocks of \d+ to \d+ threads|more parallel work"
    r"|blocks? per SM|larger blocks|threads per block",
    "attention": r"scaled_dot_product|SDPA|flash",
    "layout": r"fuse the copy|layout|contiguous|channels_last",
    "batch": r"one copy|batch (?:the|them|small)|larger copies|larger chunks",
    "steps": r"see what these spent",
    "ranks": r"bucket|peer|ranks?\b",
}
DIRECTIONS = {"in": r"HtoD|host-to-device|to the GPU", "out": r"DtoH|device-to-host|to the host"}
# Which cause an advice of old speaks of, beside the one that its text names first.
OF_REMEDY = {"sync": "sync", "graph": "launches", "allocator": "allocation", "pin": "copy", "overlap": "copy"}
ANYWHERE = ("", "outside every range", "the whole recording", "whole recording")


@dataclass(frozen=True)
class Advice:
    """One finding, whichever version gave it; times in ns, sums over ``steps`` steps."""

    kind: str
    path: str
    text: str
    cause: str
    remedy: str
    often: str
    steps: int
    lost_ns: int
    gain_ns: int
    id: str = ""
    change: Any = None
    basis: str = ""

    @property
    def once(self) -> bool:
        """Whether it says that this happens once."""
        return self.often.startswith("once")


def advices(document: dict[str, Any], *, old: bool = False) -> list[Advice] | None:
    """The findings of a JSON document, best first; None if it has no `diagnosis` (with ``old``: no `findings`)."""
    rows = document.get("findings" if old else "diagnosis")
    return None if rows is None else [_old(row) if old else _new(row) for row in rows]


def _new(row: dict[str, Any]) -> Advice:
    """A finding of the diagnosis; a list of words becomes one sentence."""
    words = {key: _text(row.get(key)) for key in ("kind", "path", "text", "cause", "remedy", "often", "id", "basis")}
    return Advice(**words, steps=int(row.get("steps") or 1), lost_ns=int(row.get("lost_ns") or 0),
                  gain_ns=int(row.get("gain_ns") or 0), change=row.get("change"))  # fmt: skip


def _old(row: dict[str, Any]) -> Advice:
    """A finding of before the diagnosis: its gain is all that it says of time, and `ns` that of one step."""
    gain, each = int(row.get("gain_ns") or 0), float(row.get("ns") or 0)
    return Advice(_text(row.get("kind")), _text(row.get("path")), _text(row.get("text")), _text(row.get("culprit")),
                  _text(row.get("hint")), "", max(round(gain / each), 1) if each else 1, gain, gain)  # fmt: skip


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)


def _classes(rules: dict[str, str], text: str) -> set[str]:
    return {name for name, rule in rules.items() if re.search(rule, text)}


def causes(advice: Advice) -> set[str]:
    """The classes of the cause that a finding names: by its kind, or else by the words that name its cause."""
    found = set(KINDS.get(advice.kind, ()))
    if not found or (advice.kind == "synchronization" and not advice.often):  # a kind of old: what it exposes leads
        found = _classes(CAUSES, first_cause(advice.text) if not advice.cause else f"{advice.cause} {advice.text}")
    if "loaded at first use" in advice.remedy:
        found.add("loading")
    count = re.match(r"(\d+) of (\d+)", advice.often)
    if count and int(count[1]) < int(count[2]):
        found.add("slow")
    return found


def remedies(words: str) -> set[str]:
    """The classes of a sentence of advice."""
    return _classes(REMEDIES, words)


def first_cause(text: str) -> str:
    """What a sentence names first, without what exposed it."""
    return re.split(r", exposed by ", text)[0]


def ranges(text: str, path: str = "") -> set[str]:
    """The names of ranges in a sentence and in a path, `*` and `…` where they were cut; none: the whole recording."""
    head = re.match(r"(.+?): (?=code|cu|hip|mem|launch|exposed|CUPTI|\d+ of|\S+ in )", text)
    named = [head[1]] if head else []
    named += re.findall(r" in ((?:ProfilerStep\*|[^,:]|:(?=\S))+?)(?=,| lets| exposed| on thread| and |: |$)", text)
    named += re.split(r"(?<!\\)/", path)
    return {name.strip() for name in named if name.strip() not in ANYWHERE and not re.match(r"[\d>]", name.strip())}


def _like(one: str, other: str) -> bool:
    """Whether two names may be one: `*` and `…` stand for anything."""
    return any(
        re.fullmatch(".*".join(map(re.escape, re.split(r"[*…]", a))), b) is not None
        for a, b in ((one, other), (other, one))
    )


def same_path(one: set[str], other: set[str]) -> bool:
    """Whether two sets of names share a range; the whole recording holds every range."""
    return not one or not other or any(_like(a, b) for a in one for b in other)


def label_causes(label: dict[str, Any]) -> set[str]:
    """The classes of a judged finding: what its text names first, and what its advice speaks of."""
    advised = remedies(label["hint"])
    if "warm-up" in advised and "loaded at first use" in label["hint"]:
        return {"loading"}
    if label["kind"] == "slow steps":
        return {"slow"}
    named = _classes(CAUSES, first_cause(label["text"]))
    if label["kind"] == "allocation":  # "allocate and pin before it" is no advice about copies
        advised.discard("pin")
    return (named - {"loading"} if "graph" in advised else named) | {OF_REMEDY[each] for each in advised & {*OF_REMEDY}}


def match(label: dict[str, Any], found: list[Advice]) -> tuple[bool, bool]:
    """Whether a judged finding is still there: by path and cause; and with the same advice, not done once."""
    names, wanted = ranges(label["text"]), label_causes(label)
    ways = _classes(DIRECTIONS, first_cause(label["text"]))
    advised = remedies(label["hint"])
    same = []
    for advice in found:
        theirs = _classes(DIRECTIONS, f"{advice.cause} {first_cause(advice.text)}")
        copies = "copy" in wanted and "copy" in causes(advice) and ways and theirs
        if (
            wanted & causes(advice)
            and same_path(names, ranges(advice.text, advice.path))
            and (not copies or ways & theirs)
        ):
            same.append(advice)
    return bool(same), any(not each.once and advised & remedies(each.remedy) for each in same)


# ---- planted faults: what counts as the cause, and what is no remedy for it

HOST = ({"code", "input", "lock", "compilation"}, {"sync", "graph", "pin", "allocator", "fused", "layout", "attention"})
FAULTS: dict[str, tuple[set[str], set[str]]] = {
    **dict.fromkeys(("busy", "python", "sleep", "gc", "collect", "backward_hook", "hook", "loader", "lock"), HOST),
    **dict.fromkeys(("pageable", "copy_in"), ({"copy"}, {"sync", "graph", "allocator", "fused", "attention"})),
    **dict.fromkeys(("pinned_out", "copy_out"), ({"copy"}, {"graph", "allocator", "fused", "attention"})),
    **dict.fromkeys(("item", "sync", "synchronize"), ({"sync", "copy"}, {"pin", "allocator", "fused", "attention"})),
    **dict.fromkeys(("allocate", "alloc", "free"), ({"allocation"}, {"graph", "pin", "fused", "attention"})),
    **dict.fromkeys(("tiny_kernels", "tiny", "launches"), ({"launches"}, {"sync", "pin", "allocator", "attention"})),
    **dict.fromkeys(("side_stream", "legacy_barrier"), ({"kernel"}, {"pin", "allocator", "fused"})),
    **dict.fromkeys(("late_peer", "late"), ({"communication"}, {"pin", "allocator", "fused", "graph"})),
}
# Programs with one known remedy: what counts as right. None: nothing must be promised.
PROGRAMS: dict[str, set[str] | None] = {
    "optimizer": {"fused", "graph"}, "pageable": {"pin", "overlap"}, "attention": {"attention"},
    "smallgrid": {"grid"}, "halfbatch": {"fused", "graph"}, "timer": None,
}  # fmt: skip
LATER = {"attention"}  # remedies inside a kernel are not what this study is about


def names_fault(fault: str, advice: Advice) -> bool:
    """Whether the cause is what was planted; of copies the direction, too."""
    ways = _classes(DIRECTIONS, f"{advice.cause} {advice.text}")
    right_way = fault not in ("pageable", "copy_in") or not ways or "in" in ways
    return bool(FAULTS[fault][0] & causes(advice)) and right_way


def wrong_remedy(fault: str, advice: Advice) -> bool:
    """Whether the advice is known not to help against the fault."""
    return bool(FAULTS[fault][1] & remedies(advice.remedy))
