"""Records a program with torch's own profiler, from inside of it, and leaves a trace when it ends.

What is known of a process stands in ``PID-….about.json`` in the folder of the capture, its trace in ``PID-….json``: a
file about a process that was still recording is all that remains of one that was killed. A failure in here must never
become one of the program: it is a note in that file.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import annotate
from .annotate import emitter

_LOOK_S = 0.25
_LEAST_FREE = 0.05  # of the memory of the machine
_QUIET = 10  # times as long as the limit may pass before the first module, range or optimizer step
_PLACE = {"rank": "RANK", "local_rank": "LOCAL_RANK", "world_size": "WORLD_SIZE"}
_LOG_LEVEL = "KINETO_LOG_LEVEL"


def _safely(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn failures of ours into notes."""

    @functools.wraps(function)
    def safe(*given: Any, **named: Any) -> Any:
        try:
            return function(*given, **named)
        except Exception as error:
            _recording.note(f"{function.__name__.strip('_')}: {type(error).__name__}: {error}")
            return None

    return safe


class _Recording:
    """The recording of this process; there is one at most, and none in children of fork."""

    def __init__(self) -> None:
        self.order: dict[str, Any] = json.loads(os.environ["NSYSPROF_CAPTURE"])
        self.pid = os.getpid()
        self.place = Path(self.order["folder"], f"{self.pid}-{time.time_ns()}")
        self.about: dict[str, Any] = {"pid": self.pid, "state": "waiting", "notes": [], "forks": 0, "steps": 0}
        self.torch: Any = None
        self.profiler: Any = None
        self.disabled = False
        self.thread = 0
        self.began = self.first = 0.0
        self.lock = threading.Lock()
        self.counted: Any = None
        self.step_range: Any = None

    @property
    def here(self) -> bool:
        """Whether this is the process that was to be recorded, and no child of it."""
        return not self.disabled and os.getpid() == self.pid

    def note(self, text: str) -> None:
        """Keep a sentence for the record of the capture."""
        if self.here and text not in self.about["notes"]:
            self.about["notes"].append(text)
            self.write()

    def write(self) -> None:
        """Write what is known of this process, whole or not at all."""
        part = self.place.with_name(f"{self.place.name}.part")
        hooks = sys.modules.get(f"{__package__}.modules")
        if hooks is not None:
            self.about["modules"] = hooks.cost()
        try:
            part.write_text(json.dumps(self.about), encoding="utf-8")
            part.replace(self.place.with_name(f"{self.place.name}.about.json"))
        except OSError:  # a full disk, a folder that is gone: nothing that concerns the program
            return


_recording = _Recording()


# ---- torch is imported


@_safely
def torch_imported() -> None:
    """Begin what was ordered, once torch is there."""
    rec, order = _recording, _recording.order
    rec.torch = torch = sys.modules["torch"]
    about = {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda}
    rec.about.update(about, argv=[os.path.basename(each) for each in sys.argv[:1]])  # noqa: PTH119
    os.register_at_fork(after_in_child=_forked, after_in_parent=_fork_counted)
    hooked = order["modules"] or order["mark_steps"] or order["steps"]
    if order["profiler"] == "torch":
        annotate.to_torch(torch)
        torch.cuda.nvtx._nvtx = annotate.TorchNvtx(torch, getattr(torch._C, "_nvtx", None))
        _step_aside_for_others(torch)
        hooked = True
    elif why := annotate.to_nvtx(torch):
        rec.note(why)
        return
    else:
        emitter.on = True
    if order["modules"]:
        importlib.import_module(f"{__package__}.modules").watch_modules(torch, order["depth"])
    if hooked:
        _watch_steps(torch)
    atexit.register(_ended)
    if order["profiler"] != "torch":
        _step_begins()
        rec.write()
        return
    if not (order["steps"] and order["steps"][0]):
        _start()
    if torch.cuda._is_compiled():
        torch.cuda._lazy_call(_cuda_initialized)
    _wait_for_first_sign(torch)
    _watch_ends()
    rec.write()


@_safely
def nvtx_imported() -> None:
    """Let ranges of the package nvtx be annotations."""
    if _recording.order["profiler"] == "torch":
        annotate.follow_nvtx()


@_safely
def _cuda_initialized() -> None:
    """Begin again with the GPU: before, asking for one would have initialized CUDA, which children of fork would see."""
    if _recording.here and _recording.profiler is not None:
        _discard()
        _start(cuda=True)


def _start(cuda: bool | None = None) -> None:
    """Start torch's profiler."""
    rec, torch = _recording, _recording.torch
    if not rec.here or rec.profiler is not None:
        return
    if torch.autograd._profiler_enabled():
        rec.note("the program runs torch.profiler itself: nothing else can record meanwhile")
        return
    cuda = torch.cuda.is_initialized() if cuda is None else cuda
    before = os.environ.get(_LOG_LEVEL)
    os.environ.setdefault(_LOG_LEVEL, "99")  # Kineto prints when it starts
    profiler = torch.autograd.profiler.profile(
        use_kineto=True, use_cpu=True, **_threads(torch), **({"use_device": "cuda"} if cuda else {})
    )
    rec.profiler = profiler
    profiler.__enter__()
    if before is None:
        os.environ.pop(_LOG_LEVEL, None)
    rec.thread, rec.began = threading.get_ident(), time.monotonic()
    rec.about.update(state="recording", activities=["cpu", *(["cuda"] if cuda else [])])
    emitter.on = True
    _step_begins()
    rec.write()


def _threads(torch: Any) -> dict[str, Any]:
    """Return the options to record all threads, and what streams wait for, as far as this torch has them."""
    make = torch._C._profiler._ExperimentalConfig
    for options in ({"profile_all_threads": True, "enable_cuda_sync_events": True}, {"profile_all_threads": True}):
        try:
            return {"experimental_config": make(**options)}
        except TypeError:
            continue
    return {}


def _stop(why: str, *, limited: bool = False) -> None:
    """Stop, and write the trace; ``why`` is recorded."""
    rec, torch = _recording, _recording.torch
    if not rec.here or rec.profiler is None or not rec.lock.acquire(blocking=False):
        return
    try:
        emitter.on = False
        about = rec.about
        about.update(state="writing", stopped=why, limited=limited, recorded_ns=round((time.monotonic() - rec.began) * 1e9))
        about.update(_place(torch))
        rec.write()
        if "rank" in about:
            torch.autograd._add_metadata_json("distributedInfo", json.dumps(_distributed(torch, about)))
        begin = time.monotonic()
        results = _disable()
        results.save(f"{rec.place}.json")
        about.update(state="ended", writing_ns=round((time.monotonic() - begin) * 1e9))
        rec.write()
    finally:
        rec.profiler = None
        rec.disabled = True
        rec.lock.release()


def _disable() -> Any:
    torch, profiler = _recording.torch, _recording.profiler
    if profiler.use_device == "cuda":
        torch.cuda.synchronize()
    # What ``profiler.__exit__`` does, but for its Python copy of every event.
    results = torch.autograd._disable_profiler()
    torch.autograd.profiler._run_on_profiler_stop()
    return results


def _discard() -> None:
    emitter.on = False
    _disable()
    _recording.profiler = None


def _place(torch: Any) -> dict[str, int]:
    """Return the rank of this process and what belongs to it, from its process group or its environment."""
    known = {name: int(os.environ[key]) for name, key in _PLACE.items() if os.environ.get(key, "").isdecimal()}
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        known.update(rank=distributed.get_rank(), world_size=distributed.get_world_size())
    return known if "rank" in known else {name: _recording.about[name] for name in _PLACE if name in _recording.about}


def _distributed(torch: Any, about: dict[str, Any]) -> dict[str, Any]:
    try:
        full = torch.profiler.profiler._KinetoProfile._get_distributed_info(None)
    except Exception:  # another torch
        full = None
    return full or {"rank": about["rank"], "world_size": about.get("world_size")}


# ---- steps


def _watch_steps(torch: Any) -> None:
    """Learn of each step of an optimizer once it is over: hooks of optimizers run inside of torch's own range of it."""
    optimizer = torch.optim.Optimizer
    profiled = optimizer.profile_hook_step

    def profile_hook_step(step: Any) -> Any:
        own = profiled(step)

        @functools.wraps(own)
        def stepping(self: Any, *args: Any, **kwargs: Any) -> Any:
            done = own(self, *args, **kwargs)
            if not torch.compiler.is_compiling():
                _optimizer_stepped(self)
            return done

        return stepping

    optimizer.profile_hook_step = staticmethod(profile_hook_step)


@_safely
def _optimizer_stepped(optimizer: Any) -> None:
    """Count a step of the optimizer that stepped first, and begin or end a window of steps."""
    rec = _recording
    if not rec.here:
        return
    if rec.counted is None:
        rec.counted = id(optimizer)
    if rec.counted != id(optimizer):
        return
    _first_sign()
    rec.about["steps"] += 1
    annotate.end(rec.step_range)
    rec.step_range = None
    window = rec.order["steps"]
    if window and rec.about["steps"] == window[1] and rec.profiler is not None:
        rec.about.update(_place(rec.torch))
        _stop("the last step of --steps")
    elif window and rec.about["steps"] == window[0]:
        _start()
    else:
        if "rank" not in rec.about:
            rec.about.update(_place(rec.torch))
        _step_begins()


def _step_begins() -> None:
    rec = _recording
    if rec.order["mark_steps"] and emitter.on and not emitter.steps:
        rec.step_range = annotate.begin(f"step{rec.about['steps']}")


# ---- ends


def _watch_ends() -> None:
    """Write the trace whenever the program ends, but for what no process survives."""
    rec = _recording
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
    own = os._exit

    @functools.wraps(own)
    def leave(status: int) -> None:
        if rec.here and threading.get_ident() == rec.thread:  # another thread leaves where this one hangs
            _ended("os._exit")
        own(status)

    os._exit = leave  # type: ignore[assignment]
    import _thread  # noqa: PLC0415

    _thread.start_new_thread(_look_after_limits, ())  # threading.enumerate() does not list it


@_safely
def _ended(why: str = "the end of the program") -> None:
    rec = _recording
    if not rec.here:
        return
    if _is_loader_worker() and rec.profiler is not None:
        _discard()
        rec.about["worker"] = True
    if rec.profiler is not None:
        _stop(why)
    else:
        rec.about.update(state="ended", **_place(rec.torch))
        rec.write()


def _is_loader_worker() -> bool:
    """Whether a DataLoader spawned this process: it loads data, and ends when its loader does."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return getattr(worker, "_worker_info", None) is not None


def _terminated(number: int, _frame: object) -> None:
    _ended("SIGTERM")
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _look_after_limits() -> None:
    """Stop recording after the time that was ordered, or before memory runs out."""
    rec = _recording
    limit = rec.order["seconds"]
    while rec.here:
        time.sleep(_LOOK_S)
        if rec.profiler is None:
            continue
        now = time.monotonic()
        began = max(rec.first, rec.began) if rec.first else now
        if now - began > limit or now - rec.began > limit * _QUIET:
            _stop_from_here(f"the limit of {limit:g} s: --seconds")
        elif _free_share() < _LEAST_FREE:
            _stop_from_here("the memory of the machine is nearly full")


def _stop_from_here(why: str) -> None:
    """Stop in the main thread, between two of its steps, as torch's profiler belongs to the thread that started it."""
    import ctypes  # noqa: PLC0415

    done = threading.Event()

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def call(_: object) -> int:
        _safely(_stop)(why, limited=True)
        done.set()
        return 0

    if ctypes.pythonapi.Py_AddPendingCall(call, None) == 0:
        done.wait()


def _free_share() -> float:
    """Return which part of the memory is free, of the machine or of the container; 1 where it cannot be known."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123
            lines = dict(line.split(":") for line in file)
        free = int(lines["MemAvailable"].split()[0]) / int(lines["MemTotal"].split()[0])
    except (OSError, KeyError, ValueError):
        free = 1.0
    try:
        used, most = (Path("/sys/fs/cgroup", name).read_text(encoding="ascii") for name in ("memory.current", "memory.max"))
        return min(free, 1 - int(used) / int(most))
    except (OSError, ValueError):
        return free


def _first_sign() -> None:
    _recording.first = _recording.first or time.monotonic()
    emitter.sign = None


def _wait_for_first_sign(torch: Any) -> None:
    """Let the time that may be recorded begin with the first call of a module, range or step: loading data takes long."""
    emitter.sign = _first_sign

    def first(*_: Any) -> None:
        if not torch.compiler.is_compiling():
            _first_sign()
            handle.remove()

    handle = torch.nn.modules.module.register_module_forward_pre_hook(first)


# ---- others that profile, and children


def _step_aside_for_others(torch: Any) -> None:
    """Stop as soon as the program profiles itself: there can be one profiler at a time, and the program's is meant."""
    profiler = torch.autograd.profiler
    prepare = profiler.profile._prepare_trace

    @functools.wraps(prepare)
    def prepare_theirs(self: Any) -> Any:
        rec = _recording
        if rec.here and rec.profiler is not None and self is not rec.profiler:
            rec.note("the program profiles itself with torch.profiler: what it records from there on is its own")
            _safely(_stop)("the program's own torch.profiler")
        return prepare(self)

    profiler.profile._prepare_trace = prepare_theirs
    enter, leave = profiler.emit_nvtx.__enter__, profiler.emit_nvtx.__exit__

    def enter_nvtx(self: Any) -> Any:
        self._nsysprof = _recording.here and _recording.profiler is not None
        return self if self._nsysprof else enter(self)  # every op is recorded anyway

    def leave_nvtx(self: Any, *error: Any) -> Any:
        return False if self._nsysprof else leave(self, *error)

    profiler.emit_nvtx.__enter__, profiler.emit_nvtx.__exit__ = enter_nvtx, leave_nvtx


def _fork_counted() -> None:
    _recording.about["forks"] += 1


def _forked() -> None:
    """Keep a child of fork away from the profiler: what it inherits of it is locked, and its threads are gone."""
    rec = _recording
    recorded, rec.disabled, rec.profiler = rec.profiler is not None, True, None
    started = recorded or rec.began
    emitter.on = False
    if signal.getsignal(signal.SIGTERM) is _terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not started:
        return
    torch = rec.torch
    try:
        torch._C._autograd._clear_callbacks()
        torch.autograd._enable_record_function(False)
        torch.autograd.profiler._run_on_profiler_stop()
        import ctypes  # noqa: PLC0415

        # At its end, Kineto would wait for a thread that only its parent has: end before, with all files written.
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)
        libc.__cxa_atexit(libc.fflush, None, None)
    except Exception:  # another torch, another libc: nothing that the child could do about it
        return
