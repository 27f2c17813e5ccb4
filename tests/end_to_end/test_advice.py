"""The study of the advice: it counts as right what a judge would."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

STUDY = Path(__file__).parents[2] / "analysis" / "advice"


@pytest.fixture(scope="module")
def matching() -> ModuleType:
    """How the study reads findings."""
    spec = importlib.util.spec_from_file_location("advice_matching", STUDY / "matching.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def finding(kind: str, cause: str, remedy: str, path: str = "PHASE::x/step*", often: str = "every step") -> Any:
    """A finding as `diagnosis` has it."""
    return {"id": f"{kind}:{path}", "kind": kind, "path": path, "often": often, "steps": 8, "cause": cause,
            "text": f"{cause} costs time", "remedy": remedy, "lost_ns": 80, "gain_ns": 80, "basis": "replayed",
            "change": None}  # fmt: skip


def label(text: str, hint: str, kind: str = "host") -> dict[str, str]:
    """A judged finding."""
    return {"text": text, "hint": hint, "kind": kind}


DROP = "remove the synchronization, or move it to where the host has nothing else to do"
PIN = "pin the memory (pin_memory=True) and copy with non_blocking=True, ahead of need"
ALLOCATOR = "let the allocator keep its memory: no empty_cache in the loop; allocate and pin before it"
BUSY = "PHASE::x/step*: code in step*, exposed by .item() in step*: 10.1 ms per window, 63 % of it, in 27 waits"
MATCHES = [
    # the same cause with another advice
    (label(BUSY, DROP), finding("cpu-code", "CPU time in step*", "move this work off the launching thread"), (1, 0)),
    (label(BUSY, DROP), finding("synchronization", ".item() in step*", "remove the synchronization"), (1, 1)),
    (label(BUSY, DROP), finding("cpu-code", "CPU time in data", "move it", path="RUN::y/iter*"), (0, 0)),
    (label(BUSY, DROP), finding("launch-bound", "launches in step*", "capture a CUDA graph"), (0, 0)),
    # copies have a direction
    (label("2.00 GiB of pageable device-to-host copies at 5.47 GB/s", PIN, "copies"),
     finding("pageable-copy", "cudaMemcpy (HtoD pageable, 4.00 MiB)", PIN), (0, 0)),
    (label("cudaMemcpy (HtoD pageable, 4.00 MiB) in Memory Copy H2D: 1.77 ms, 13 % of it, in 3 waits", PIN, "copies"),
     finding("pageable-copy", "pageable host-to-device copies", PIN, path="Memory Copy*"), (1, 1)),
    # what happens once is no advice for the loop, and the creation of a context is no allocation
    (label("allocation takes 717 ms in 4 calls, most of all cudaFree", ALLOCATOR, "allocation"),
     finding("allocation", "cudaFree", ALLOCATOR, path="", often="once"), (1, 0)),
    (label("allocation takes 717 ms in 4 calls, most of all cudaFree", ALLOCATOR, "allocation"),
     finding("context", "cudaFree: context creation", "", path="", often="once"), (0, 0)),
    # slow steps are k of n
    (label("iteration*: 1 of 20 steps are slow; step 9 takes 146 ms, not 7.41 ms", "see", "slow steps"),
     finding("cpu-code", "CPU time in iteration*", "", path="iteration*", often="1 of 20 steps"), (1, 0)),
    (label("iteration*: 1 of 20 steps are slow; step 9 takes 146 ms, not 7.41 ms", "see", "slow steps"),
     finding("cpu-code", "CPU time in iteration*", "", path="iteration*", often="20 of 20 steps"), (0, 0)),
    # names of ranges that were cut
    (label("MoE[experts=8, hidde… intermediate=2048]: code in MoE[experts=8, hidde… intermediate=2048]: 16 µs", ""),
     finding("cpu-code", "CPU time", "", path="MoE[experts=8, hidden=64, intermediate=2048]"), (1, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("judged", "found", "expected"), MATCHES)
def test_a_judged_finding_is_still_there_by_path_and_cause(
    matching: ModuleType, judged: dict[str, str], found: Any, expected: tuple[int, int]
) -> None:
    """Same path and cause; and, beside it, whether the advice is the same."""
    assert matching.match(judged, matching.advices({"diagnosis": [found]})) == tuple(map(bool, expected))


def test_silence_is_no_match(matching: ModuleType) -> None:
    """A document without a diagnosis is told apart from one without findings; neither keeps a finding."""
    assert matching.advices({}) is None
    assert matching.match(label(BUSY, DROP), matching.advices({"diagnosis": []})) == (False, False)


def test_a_planted_fault_wants_its_cause_and_no_wrong_remedy(matching: ModuleType) -> None:
    """Busy Python is code, whatever exposed it; a pageable copy goes to the GPU."""
    code = matching.advices({"diagnosis": [finding("cpu-code", "CPU time in step*", "move it to another thread")]})[0]
    item = matching.advices(
        {"diagnosis": [finding("synchronization", ".item() in step*", "keep the value on the GPU")]}
    )[0]
    out = matching.advices({"diagnosis": [finding("pageable-copy", "cudaMemcpyAsync (DtoH pageable)", PIN)]})[0]
    into = matching.advices({"diagnosis": [finding("pageable-copy", "cudaMemcpyAsync (HtoD pageable)", PIN)]})[0]
    assert [matching.names_fault("busy", each) for each in (code, item, out)] == [True, False, False]
    assert [matching.wrong_remedy("busy", each) for each in (code, item, out)] == [False, True, True]
    assert [matching.names_fault("pageable", each) for each in (code, out, into)] == [False, False, True]
    assert not matching.wrong_remedy("pageable", into)


def test_findings_of_before_are_read_alike(matching: ModuleType) -> None:
    """A finding of the old list matches itself as a label; its gain is spread over its steps."""
    old = {"kind": "synchronization", "path": "PHASE::x/step*", "culprit": "code in step*", "text": BUSY, "hint": DROP,
           "gain_ns": 80_415_049, "ns": 10_051_881.125}  # fmt: skip
    [advice] = matching.advices({"findings": [old]}, old=True)
    assert (advice.steps, advice.lost_ns, advice.id) == (8, 80_415_049, "")
    assert matching.match(label(BUSY, DROP, "synchronization"), [advice]) == (True, True)
