"""Dask for the reports of a fleet: a cluster of local processes, or an existing scheduler."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil

from nsysprof import __version__
from nsysprof.core.arena import group_limits
from nsysprof.errors import NsysprofError
from nsysprof.fleet.examine import ReportFailure, ReportTask, answer_file, examine_report, keep_answer
from nsysprof.fleet.inputs import first_line, missing_dask
from nsysprof.formats.rank_answer import ReportAnswer
from nsysprof.tools.interrupts import Interrupt, interrupts_to

if TYPE_CHECKING:
    from distributed import Client

# A report is tried again when a worker dies on it, until as many workers have.
_MAX_DEATHS = 3
_TIMEOUT = "20s"
# How many reports per worker are handed out at a time: an interrupt then leaves few to give up.
_REPORTS_AHEAD = 4


@dataclass(frozen=True)
class ClusterChoice:
    """The machines that analyze the reports: a ``scheduler``, or local ``workers`` (None: one per CPU). Each worker
    uses at most ``memory_bytes`` (None: an equal share of 80 % of the free memory that control groups allow).
    """

    workers: int | None = None
    scheduler: str | None = None
    memory_bytes: int | None = None


def check_dask(*, local: bool) -> None:
    """Raise `NsysprofError` with the install command if Dask (or a package for ``local`` processes) is missing."""
    try:
        import distributed  # noqa: F401, PLC0415 (an extra, slow to import)

        if local:
            import cryptography  # noqa: F401, PLC0415 (of the same extra)
    except ImportError:
        raise missing_dask() from None


def complete_choice(choice: ClusterChoice, reports: int) -> ClusterChoice:
    """Fill in the unset fields of a choice, with at most one local worker per report."""
    if choice.scheduler is not None:
        return choice
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = max(1, min(choice.workers or cores, reports))
    free = min([psutil.virtual_memory().available, *group_limits()])
    return replace(choice, workers=workers, memory_bytes=choice.memory_bytes or int(free * 0.8) // workers)


def examine_all(
    tasks: Sequence[ReportTask],
    choice: ClusterChoice,
    *,
    known: Mapping[int, ReportAnswer] | None = None,
    keep: Path | None = None,
    strict: bool = False,
    progress: Callable[[str, int], None] = lambda step, done: None,
) -> list[ReportAnswer | ReportFailure]:
    """Return the answers to tasks, in their order. ``known`` are existing answers, by task number; new answers are kept
    in the folder ``keep``. Interrupts are delayed while local workers start and end.

    A dead worker is replaced, and another worker reads the report. With ``strict``, the first failure raises
    `NsysprofError`. Also raises `NsysprofError` if no scheduler answers, or if the scheduler's workers lack nsysprof.
    """
    answers: dict[int, ReportAnswer | ReportFailure] = dict(known or {})
    progress("analysing reports", len(answers))
    rest = [number for number in range(len(tasks)) if number not in answers]
    choice = complete_choice(choice, len(rest))
    if rest:
        with _client(choice) as client:
            for number, answer in _results(client, tasks, rest, choice.memory_bytes):
                if isinstance(answer, ReportFailure):
                    if strict:
                        raise NsysprofError(answer.reason, answer.hint)
                elif keep is not None:
                    keep_answer(answer, answer_file(keep, tasks[number]))
                answers[number] = answer
                progress("analysing reports", 1)
    return [answers[number] for number in range(len(tasks))]


def _results(
    client: Client, tasks: Sequence[ReportTask], numbers: Sequence[int], memory_bytes: int | None
) -> Iterator[tuple[int, ReportAnswer | ReportFailure]]:
    """Yield answers as they arrive; each worker has a few reports in its queue, and ``memory_bytes`` of memory."""
    from distributed import as_completed  # noqa: PLC0415 (an extra)

    waiting = iter(numbers)
    run = uuid4().hex  # a scheduler may be shared, and takes equal keys for equal work
    workers = max(len(client.scheduler_info(n_workers=-1)["workers"]), 1)

    def next_one() -> list[Any]:
        number = next(waiting, None)
        if number is None:
            return []
        task = tasks[number]
        if task.memory_limit is None and memory_bytes:
            task = replace(task, memory_limit=memory_bytes // 2)  # as a program of its own would
        future = client.submit(examine_report, task, pure=False, key=f"report-{run}-{number}")
        under_way[future.key] = number
        return [future]

    under_way: dict[str, int] = {}
    queue = as_completed([future for _ in range(_REPORTS_AHEAD * workers) for future in next_one()])
    for future in queue:
        number = under_way.pop(future.key)
        yield number, _result(future, tasks[number])
        future.release()
        queue.update(next_one())


def _result(future: Any, task: ReportTask) -> ReportAnswer | ReportFailure:
    from distributed import KilledWorker  # noqa: PLC0415 (an extra)
    from distributed.client import FutureCancelledError  # noqa: PLC0415

    try:
        answer = future.result()
    except KilledWorker:
        return ReportFailure(
            task.file.name,
            f"{_MAX_DEATHS} workers crashed while they read this report, perhaps because memory ran out",
            "use fewer workers, so that each has more memory: --workers N",
        )
    except (FutureCancelledError, TimeoutError, OSError) as error:
        raise NsysprofError(
            f"the scheduler is gone: {first_line(error)}", "start the scheduler again, then continue with --resume"
        ) from None
    except (ImportError, AttributeError) as error:
        raise NsysprofError(
            f"the workers cannot run nsysprof: {first_line(error)}",
            f"pip install 'nsysprof[fleet]=={__version__}' on each worker, or .[fleet] of the same checkout",
        ) from None
    except Exception as error:  # one report must not lose the others, whatever is wrong with it
        return ReportFailure(task.file.name, f"{type(error).__name__}: {first_line(error)}")
    if not isinstance(answer, ReportAnswer | ReportFailure) or answer.report != task.file.name:
        raise NsysprofError(
            "the workers run another version of nsysprof",
            f"run on each worker: pip install nsysprof=={__version__}, or pip install . in the same checkout",
        )
    return answer


@contextmanager
def _client(choice: ClusterChoice) -> Iterator[Client]:
    """Connect to the scheduler, or to local processes that end with the client."""
    check_dask(local=choice.scheduler is None)
    import dask  # noqa: PLC0415 (an extra)

    settings = {
        "distributed.scheduler.allowed-failures": _MAX_DEATHS - 1,
        "distributed.comm.timeouts.connect": _TIMEOUT,
        "distributed.worker.memory.spill": False,  # answers are small, and what a report takes cannot be spilled
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.profile.enabled": False,
        # Dask's own has malloc give back every array at once, which makes a report take twice as long
        "distributed.nanny.pre-spawn-environ": {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    }
    with (
        _quiet(),
        dask.config.set(settings),
        _own_workers(choice) if choice.scheduler is None else _connected(choice.scheduler) as client,
    ):
        yield client


@contextmanager
def _own_workers(choice: ClusterChoice) -> Iterator[Client]:
    """Start local processes, and connect to them. Interrupts wait while they start or end: Dask would report a fault.

    Dask runs any code that is sent to its ports, and imports from its scratch folders. To keep other users of the
    machine from running code as this user, ports are on 127.0.0.1 and use TLS (both sides have a certificate that is
    made for this run and kept in memory), no page is served, and only this user can write to the scratch folder.
    """
    import dask  # noqa: PLC0415 (an extra)
    from distributed import Client, LocalCluster  # noqa: PLC0415
    from distributed.security import Security  # noqa: PLC0415

    stack = ExitStack()
    try:
        with _interrupts_held(), _deaf_children():
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="nsysprof-", ignore_cleanup_errors=True))
            closed = {
                "temporary-directory": scratch,
                "distributed.scheduler.http.routes": [],
                "distributed.worker.http.routes": [],
            }
            stack.enter_context(dask.config.set(closed))
            cluster = LocalCluster(
                n_workers=choice.workers,
                threads_per_worker=1,
                processes=True,
                memory_limit=choice.memory_bytes,
                host="127.0.0.1",
                security=Security.temporary(),
                dashboard_address="127.0.0.1:0",  # None takes a port that may be in use, and warns
                scheduler_kwargs={"dashboard": False},
                silence_logs=logging.CRITICAL,
                preload=["nsysprof.fleet.examine"],  # for its dask_setup
            )
            stack.enter_context(cluster)
            client = stack.enter_context(Client(cluster))
        yield client
    finally:
        with _interrupts_held():
            stack.close()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold interrupts back until the end of the block."""
    came: list[int] = []
    with interrupts_to(came.append):
        yield
    if came:
        raise Interrupt(came[0])


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Protect processes started in the block, or later by its threads, from Ctrl-C, which a terminal sends to all."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would unblock the signal where it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _connected(address: str) -> Client:
    from distributed import Client  # noqa: PLC0415 (an extra)

    try:
        client = Client(address, timeout=_TIMEOUT)
    except Exception as error:  # each kind of address has errors of its own
        raise NsysprofError(
            f"no scheduler at {address}: {first_line(error)}", "dask scheduler   (prints its address)"
        ) from None
    try:
        client.wait_for_workers(1, timeout=_TIMEOUT)
    except TimeoutError:
        client.close()
        raise NsysprofError(
            f"the scheduler at {address} has no workers", f"dask worker {address}   (on each machine)"
        ) from None
    return client


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Dask's log, which reports the end of each worker: users do not need this."""
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado", "asyncio")]
    before = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for each, level in zip(loggers, before, strict=True):
            each.setLevel(level)
