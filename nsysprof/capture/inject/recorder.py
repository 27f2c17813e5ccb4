"""Start the actions of `nsysprof capture` once a program has imported torch: record, mark steps, watch modules."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import time
import warnings
from typing import Any

from . import annotate, kineto
from .annotate import emitter
from .lifetime import watch_ends, watch_limits
from .state import recording, safely

_MAX_TIMES = 10_000  # steps whose ends are kept


@safely
def torch_imported() -> None:
    """Start the requested actions once torch is imported."""
    rec, order = recording, recording.order
    rec.torch = torch = sys.modules["torch"]
    about = {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda}
    rec.about.update(about, argv=[os.path.basename(each) for each in sys.argv[:1]])  # noqa: PTH119
    hooked = order["modules"] or order["times"] or order["steps"]
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
        _leave_backward_to_numbers(torch)
    if order["profiler"] == "torch" or order["mark_steps"]:
        _wait_for_first_sign(torch)  # before the range of that module opens
    if order["modules"]:
        warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
        importlib.import_module(f"{__package__}.modules").watch_modules(torch, order["depth"])
    _export_without_hooks(torch)
    if hooked:
        _watch_steps(torch)
    watch_ends()
    if order["profiler"] != "torch":
        rec.write()
        return
    if not (order["steps"] and order["steps"][0]):
        kineto.start()
    if torch.cuda._is_compiled():
        torch.cuda._lazy_call(_cuda_initialized)
    watch_limits()
    rec.write()


@safely
def nvtx_imported() -> None:
    """Turn ranges of the package nvtx into annotations."""
    if recording.order["profiler"] == "torch":
        annotate.follow_nvtx()


@safely
def _cuda_initialized() -> None:
    """Restart recording with the GPU; an earlier query would have initialized CUDA, even for forked children."""
    if recording.here and recording.profiler is not None:
        kineto.discard()
        kineto.start(cuda=True)
        _step_begins()


def _watch_steps(torch: Any) -> None:
    """Notice each optimizer step after its end; torch's optimizer hooks run inside its own range of the step."""
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


@safely
def _optimizer_stepped(optimizer: Any) -> None:
    """Count the steps of the optimizer that stepped first; record only from the first to the last requested step."""
    rec = recording
    if not rec.here:
        return
    if rec.counted is None:
        rec.counted = id(optimizer)
    if rec.counted != id(optimizer):
        return
    rec.first = rec.first or time.monotonic()
    rec.about["steps"] += 1
    if rec.order["times"] and rec.about["steps"] <= _MAX_TIMES:
        rec.about.setdefault("step_ends_ns", []).append(time.perf_counter_ns())
    if rec.step_range is not None:
        emitter.close(rec.step_range)
    rec.step_range = None
    window = rec.order["steps"]
    if window and rec.about["steps"] == window[1] and rec.profiler is not None:
        rec.about.update(kineto.place(rec.torch))
        kineto.stop("the last step of --steps")
    elif window and rec.about["steps"] == window[0]:
        kineto.start()
        _step_begins()
    else:
        if "rank" not in rec.about:
            rec.about.update(kineto.place(rec.torch))
        _step_begins()


def _step_begins() -> None:
    rec = recording
    if rec.order["mark_steps"] and emitter.on and rec.first and not emitter.steps:
        rec.step_range = emitter.open(f"step{rec.about['steps']}")


def _leave_backward_to_numbers(torch: Any) -> None:
    """Open no backward ranges while `emit_nvtx` opens its own: they would begin inside its range of one node and end
    inside the range of another, but NVTX always ends the last begun range. The numbers in its names lead to the
    modules.
    """
    emit = torch.autograd.profiler.emit_nvtx
    enter, leave = emit.__enter__, emit.__exit__

    def enter_numbered(self: Any) -> Any:
        entered = enter(self)
        emitter.numbered += bool(self.enabled)
        if emitter.numbered and recording.order["modules"]:
            recording.note(
                "with emit_nvtx, modules have no backward ranges: the sequence numbers of operators (seq = N) "
                "link backward work to forward ranges"
            )
        return entered

    def leave_numbered(self: Any, *error: Any) -> Any:
        emitter.numbered -= bool(self.enabled)
        return leave(self, *error)

    emit.__enter__, emit.__exit__ = enter_numbered, leave_numbered


def _export_without_hooks(torch: Any) -> None:
    """Remove nsysprof's hooks while a module is exported: PyTorch 2.13 cannot export with global module hooks."""
    own, module = torch.export.export, torch.nn.modules.module

    @functools.wraps(own)
    def export(*args: Any, **kwargs: Any) -> Any:
        taken = []
        for table in (module._global_forward_pre_hooks, module._global_forward_hooks):
            for number, hook in list(table.items()):
                if getattr(hook, "__module__", "").startswith(f"{__package__}."):
                    taken.append((table, number, table.pop(number)))
        try:
            return own(*args, **kwargs)
        finally:
            for table, number, hook in taken:
                table[number] = hook

    torch.export.export = export


def _step_aside_for_others(torch: Any) -> None:
    """Stop as soon as the program profiles itself: only one profiler can run, and the program's takes precedence."""
    profiler = torch.autograd.profiler
    prepare = profiler.profile._prepare_trace

    @functools.wraps(prepare)
    def prepare_theirs(self: Any) -> Any:
        rec = recording
        if rec.here and rec.profiler is not None and self is not rec.profiler:
            rec.note("the recording ends where the program starts torch.profiler itself")
            safely(kineto.stop)("the program's own torch.profiler")
        return prepare(self)

    profiler.profile._prepare_trace = prepare_theirs
    enter, leave = profiler.emit_nvtx.__enter__, profiler.emit_nvtx.__exit__

    def enter_nvtx(self: Any) -> Any:
        self._nsysprof = recording.here and recording.profiler is not None
        return self if self._nsysprof else enter(self)  # every op is recorded anyway

    def leave_nvtx(self: Any, *error: Any) -> Any:
        return False if self._nsysprof else leave(self, *error)

    profiler.emit_nvtx.__enter__, profiler.emit_nvtx.__exit__ = enter_nvtx, leave_nvtx


def _first_sign() -> None:
    emitter.sign = None
    if not recording.first:
        recording.first = time.monotonic()
        _step_begins()


def _wait_for_first_sign(torch: Any) -> None:
    """Start the time limit at the first module call, range or step, because loading data takes long."""
    emitter.sign = _first_sign

    def first(*_: Any) -> None:
        if not torch.compiler.is_compiling():
            _first_sign()
            handle.remove()

    handle = torch.nn.modules.module.register_module_forward_pre_hook(first)
