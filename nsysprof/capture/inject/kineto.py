"""Start and stop torch's own profiler without its public interface, which copies all events to Python objects."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

from .annotate import emitter
from .state import recording

_PLACE = {"rank": "RANK", "local_rank": "LOCAL_RANK", "world_size": "WORLD_SIZE"}
_LOG_LEVEL = "KINETO_LOG_LEVEL"


def start(cuda: bool | None = None) -> None:
    """Start torch's profiler."""
    rec, torch = recording, recording.torch
    if not rec.here or rec.profiler is not None:
        return
    if torch.autograd._profiler_enabled():
        rec.note("the program uses torch.profiler itself: no second recording is possible")
        return
    cuda = torch.cuda.is_initialized() if cuda is None else cuda
    before = os.environ.get(_LOG_LEVEL)
    os.environ.setdefault(_LOG_LEVEL, "99")  # Kineto prints when it starts
    profiler = torch.autograd.profiler.profile(
        use_kineto=True, use_cpu=True, **_threads(torch), **({"use_device": "cuda"} if cuda else {})
    )
    profiler.__enter__()
    rec.profiler = profiler
    if before is None:
        os.environ.pop(_LOG_LEVEL, None)
    rec.thread, rec.began = threading.get_ident(), time.monotonic()
    rec.about.update(state="recording", activities=["cpu", *(["cuda"] if cuda else [])])
    emitter.on = True
    rec.write()


def _threads(torch: Any) -> dict[str, Any]:
    """Return the options to record all threads and the waits of streams, if this torch supports them."""
    make = torch._C._profiler._ExperimentalConfig
    for options in ({"profile_all_threads": True, "enable_cuda_sync_events": True}, {"profile_all_threads": True}):
        try:
            return {"experimental_config": make(**options)}
        except TypeError:
            continue
    return {}


def stop(why: str, *, limited: bool = False) -> None:
    """Stop, and write the trace; ``why`` is recorded."""
    rec, torch = recording, recording.torch
    if not rec.here or rec.profiler is None or not rec.lock.acquire(blocking=False):
        return
    try:
        emitter.on = False
        about = rec.about
        about.update(
            state="writing", stopped=why, limited=limited, recorded_ns=round((time.monotonic() - rec.began) * 1e9)
        )
        about.update(place(torch))
        rec.write()
        if "rank" in about:
            torch.autograd._add_metadata_json("distributedInfo", json.dumps(_distributed(torch, about)))
        begin = time.monotonic()
        _disable().save(f"{rec.place}.json")
        about.update(state="ended", writing_ns=round((time.monotonic() - begin) * 1e9))
        rec.write()
    finally:
        rec.profiler = None
        rec.disabled = True
        rec.lock.release()


def _disable() -> Any:
    torch, profiler = recording.torch, recording.profiler
    if profiler.use_device == "cuda":
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:  # of the program; without what follows Python would end in a crash
            recording.note(f"CUDA had failed: GPU work may be missing ({str(error).partition(chr(10))[0]})")
    # What ``profiler.__exit__`` does, but for its Python copy of every event.
    results = torch.autograd._disable_profiler()
    torch.autograd.profiler._run_on_profiler_stop()
    return results


def discard() -> None:
    """Stop, and discard the trace."""
    emitter.on = False
    _disable()
    recording.profiler = None


def place(torch: Any) -> dict[str, int]:
    """Return the rank of this process and related facts, from the process group or the environment."""
    known = {name: int(os.environ[key]) for name, key in _PLACE.items() if os.environ.get(key, "").isdecimal()}
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        known.update(rank=distributed.get_rank(), world_size=distributed.get_world_size())
    return known if "rank" in known else {name: recording.about[name] for name in _PLACE if name in recording.about}


def _distributed(torch: Any, about: dict[str, Any]) -> dict[str, Any]:
    try:
        full = torch.profiler.profiler._KinetoProfile._get_distributed_info(None)
    except Exception:  # another torch
        full = None
    return full or {"rank": about["rank"], "world_size": about.get("world_size")}
