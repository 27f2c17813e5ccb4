"""The course of a workload, after its options: all runs in order, results, exit code.

    python workloads/_harness.py FILE ...

runs a workload that lies elsewhere, as `python FILE ...` runs one that lies here.

It imports torch only when it runs. That may be missing, and checking the options must not wait for it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import signal
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _results
from _results import WorkloadError
from _workload import Work, Workload, cases, load, main, title

if TYPE_CHECKING:
    from _measure import Results

INTERRUPTED = 130
# Not part of what was computed.
_NOT_RECORDED = {"results", "force", "describe"}


def run(workload: Workload, options: argparse.Namespace) -> int:
    """Run a workload as a command; returns its exit code.

    0 when something was measured and nothing is wrong, 1 otherwise, with a line on stderr, and 130 when interrupted.
    """
    try:
        if options.results:
            _results.check_target(options.results, force=options.force)
        require(workload.name, options.device)
        found = _document(workload, options)
        try:
            if options.results:
                _results.write(options.results, found)
        finally:
            _show(_results.table(found, title(workload, options)))
        if wrong := _negative(found["runs"]):
            print(f"{workload.name}: {wrong}", file=sys.stderr)
            return 1
    except WorkloadError as failure:
        print(f"{workload.name}: {failure.message}\n  hint: {failure.hint}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{workload.name}: interrupted, no results are written", file=sys.stderr)
        return INTERRUPTED
    return 0


def require(workload: str, device: str) -> None:
    """Raises `WorkloadError` when torch, nvtx or the GPU is missing."""
    try:
        with _ending_at_once(workload):
            import nvtx  # noqa: F401
            import torch
    except ModuleNotFoundError as error:
        raise WorkloadError(f"no module named {error.name!r}", f"pip install {error.name}") from None
    _push_ranges_anyway()
    if device == "cpu":
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        usable = torch.cuda.is_available()
    if not usable:
        why = "torch finds no GPU"
        if not torch.version.cuda:
            why = f"torch {torch.__version__} is built without CUDA"
        elif said:  # such as a driver that is too old
            why = str(said[-1].message).splitlines()[0]
        raise WorkloadError(f"no CUDA device: {why}", "--device cpu")


def set_precision(*, deterministic: bool) -> None:
    """Fp32 is fp32 here, whatever the machine was told; and algorithms are deterministic where that is asked for."""
    import torch

    torch.set_float32_matmul_precision("highest")
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it, before it is first called
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True


def _push_ranges_anyway() -> None:
    """Makes nvtx push its ranges to a profiler that does not answer what nvtx asks first.

    From 0.2.12 on nvtx asks, by an extension of NVTX, whether a tool listens. nsys 2022.4 to 2024.2 do not know that
    extension: nvtx then pushes nothing, although they would record it.
    """
    if not os.environ.get("NVTX_INJECTION64_PATH"):
        return  # no tool listens
    with contextlib.suppress(ImportError, AttributeError, TypeError):  # another nvtx, which has other insides
        import nvtx.nvtx as module
        from nvtx._lib import lib

        if isinstance(module.get_domain(), lib.DummyDomain):
            domain = object.__new__(lib.Domain)
            domain.handle = lib.DomainHandle()
            domain.__init__()
            module.get_domain = lambda _name=None: domain


@contextlib.contextmanager
def _ending_at_once(workload: str) -> Iterator[None]:
    """Lets an interrupt end the process: torch catches the exception while it is imported, and fails differently."""

    def end(_signal: int, _frame: object) -> None:
        print(f"{workload}: interrupted, no results are written", file=sys.stderr, flush=True)
        os._exit(INTERRUPTED)

    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)


def _document(workload: Workload, options: argparse.Namespace) -> dict[str, Any]:
    """Makes all runs; what `--results` writes."""
    import torch

    from _environment import environment

    set_precision(deterministic=options.deterministic)
    on_gpu = options.device == "cuda"
    # For `nsys profile --capture-range=cudaProfilerApi`: on before the first range `RUN`, off after the last.
    start_profiler = functools.cache(torch.cuda.profiler.start if on_gpu else _nothing)
    runs: list[dict[str, Any]] = []
    reduced_math: dict[str, bool] = {}
    for run in _runs(workload, options, start_profiler):
        reduced_math[run["backend"]] = run.pop("reduced_math") or reduced_math.get(run["backend"], False)
        runs.append(run)
        print(_results.progress(run), file=sys.stderr)
    if on_gpu and start_profiler.cache_info().currsize:
        with contextlib.suppress(RuntimeError):  # a kernel has broken CUDA, as its run says
            torch.cuda.profiler.stop()
    return {
        "schema": _results.SCHEMA,
        "workload": workload.name,
        "options": {name: value for name, value in vars(options).items() if name not in _NOT_RECORDED},
        "environment": environment(options.device, reduced_math),
        "order": [run["range"] for run in runs if run["status"] == "measured"],
        "runs": runs,
    }


def _runs(
    workload: Workload, options: argparse.Namespace, start_profiler: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """Makes the runs, shape by shape and in there backend by backend, each with all memory given back before."""
    from _measure import Plan, measure, outcome, release

    broken: str | None = None
    for suffix, at in cases(workload, options):
        work = workload.prepare(at)
        reference = functools.cache(functools.partial(_reference, work, suffix))  # one for all backends
        for name in options.backend:
            backend = workload.backends[name]
            where = f"{name}::{suffix}"
            plan = Plan(where, options.dtype, options.device, options.warmup, options.iterations, start_profiler)
            told = [*workload.axes, "dtype", *workload.flags, *workload.choices, "backward"]
            run = {"range": f"RUN::{where}", "backend": name, **{key: getattr(at, key) for key in told}}
            if broken:
                run |= outcome(backend, plan, "unsupported", f"not run, CUDA is broken: {broken}")
            else:
                run |= measure(backend, functools.partial(backend.make, at), work.build, reference, plan)
                broken = release(options.device)
            if work.tokens and run["latency_ns"]:
                run["tokens_per_s"] = work.tokens * 1e9 / statistics.median(run["latency_ns"])
            yield run


def _reference(work: Work, suffix: str) -> Results:
    import nvtx

    with nvtx.annotate(f"REFERENCE::{suffix}"):
        return work.reference()


def _nothing() -> None:
    pass


def _negative(runs: Sequence[Mapping[str, Any]]) -> str:
    """Why the exit code is not 0, or nothing."""
    wrong = [str(run["range"]) for run in runs if run["status"] == "wrong"]
    if wrong:
        return f"wrong results, not measured: {', '.join(wrong)}"
    if not any(run["status"] == "measured" for run in runs):
        return "nothing was measured: the table has the reasons"
    return ""


def _show(text: str) -> None:
    """Print to stdout in any encoding. Raises `WorkloadError`, except after the reader has closed the pipe."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        print(text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left would fail again at exit
        if not isinstance(error, BrokenPipeError):
            raise WorkloadError(f"cannot write the table: {error.strerror or error}", "df -h") from None


if __name__ == "__main__":
    try:
        sys.exit(main(load(Path(sys.argv[1])), sys.argv[2:]))
    except WorkloadError as failure:
        sys.exit(f"{failure.message}\n  hint: {failure.hint}")
