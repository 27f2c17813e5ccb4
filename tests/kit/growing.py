"""Programs of any size in one respect: more kernels, names, ranges, threads and so on, and nothing else that grows."""

from collections.abc import Iterator

from tests.kit.trace import EventRecord, Items, Launch, Range, StreamWait, launch_kernel, launch_memcpy

STEPS = 6
GROWS = (
    *("kernels", "names", "ranges", "depth", "streams", "threads"),
    *("waits", "synchronizations", "copies", "processes", "ranks", "steps"),
)
_LONG = 200  # ns from one kernel to the next


def program(what: str, count: int) -> Iterator[Items]:
    """The items of a program of a few steps that has ``count`` of ``what``, one of `GROWS`, and few of all else."""
    several = what in ("processes", "ranks")
    steps = count if what == "steps" else STEPS
    each = 1 if several or what in ("steps", "depth") else max(count // steps, 1)
    for process in range(1, count + 1 if several else 2):
        now = 1_000
        for step in range(steps):
            start = now
            now += 100 + (count if what == "depth" else 0)
            for number in range(step * each, (step + 1) * each):
                yield from _kernel(what, number, now, process)
                now += _LONG
            if what == "depth":
                for at in range(1, count + 1):
                    yield Range(f"level{at % 50}" if at % 2 else "step", start + at, now + count - at, process=process)
                now += count
            yield Range(f"step {step}", start, now, process=process)
            now += 50


def _kernel(what: str, number: int, now: int, process: int) -> Iterator[Items]:
    """A kernel, and what comes with it where that is what there is much of."""
    id, call, run = 10 * number + 1, (now, now + 10), (now + 30, now + 90)
    thread, stream = 1 + number * (what == "threads"), 7 + number * (what == "streams")
    name = f"kernel_{number}" if what == "names" else "kernel"
    where = {"process": process, "device": process - 1 if what == "ranks" else 0}
    yield launch_kernel(name, call, run, id=id, thread=thread, stream=stream, **where)
    if what in ("ranges", "threads"):
        yield Range(f"part{number % 7}", now - 5, now + 20, thread=thread, process=process)
    elif what == "copies":
        yield launch_memcpy((now + 50, now + 60), (now + 100, now + 110), id=id + 1, process=process)
    elif what == "waits":
        yield (EventRecord(7, now + 50, id + 1), StreamWait(8, now + 55, id + 1))
        yield launch_kernel("other", (now + 60, now + 65), (now + 110, now + 120), id=id + 2, stream=8)
    elif what == "synchronizations":
        yield Launch(now + 50, now + 110, id + 1, process=process, api="cudaDeviceSynchronize_v3020")
    elif what == "ranks":
        late = now + 100 + process % 3
        yield launch_kernel("ncclDevKernel_AllReduce_Sum", (now + 20, now + 30), (late, now + 180), id=id + 1, **where)
