"""Make ranges in a captured program: turn NVTX ranges into profiler annotations, and emit nsysprof's ranges."""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

Begin = Callable[[str], Any]
End = Callable[[Any], None]

# Kineto puts names between quotes as they are, and calls those that are not ASCII "unknown": such characters travel as
# %uXXXX, which `nsysprof.scrub.report_copy` turns into the escapes of JSON.
_UNSAFE = re.compile(r"[^ -~]|[\"\\]|%(?=u)")
_STEP = re.compile(r"(?i)\W*(profiler|train(ing)?)?[ _-]*(step|iter(ation)?|batch)[ #_:=-]*\d+\W*")


class _Emitter:
    """The target of ranges; ``on`` is False while nothing is recorded, ``steps`` True once the program names its steps.

    ``numbered`` counts the open `emit_nvtx` contexts.
    """

    def __init__(self) -> None:
        self.on = False
        self.numbered = 0
        self.steps = False
        self.sign: Callable[[], None] | None = None  # called once, at the first range
        self.enter: Begin = lambda _name: None
        self.exit: End = lambda _handle: None
        # a range that may begin inside of one of the program's and end inside of another
        self.open: Begin = lambda _name: None
        self.close: End = lambda _handle: None


emitter = _Emitter()
_local = threading.local()


def begin(name: str) -> Any:
    """Begin a range on this thread; return the handle for `end`."""
    return emitter.enter(name) if emitter.on else None


def end(handle: Any) -> None:
    """End a range; under NVTX, the last range begun on this thread."""
    if handle is not None:
        emitter.exit(handle)


def to_torch(torch: Any) -> None:
    """Emit ranges as annotations of torch's profiler."""
    enter = torch.autograd._record_function_with_args_enter  # not an op: tracing and dispatch modes do not see it

    def begin_annotation(name: str) -> Any:
        return enter(_UNSAFE.sub(_escaped, name))

    emitter.enter = emitter.open = begin_annotation
    emitter.exit = emitter.close = torch.autograd._record_function_with_args_exit


def to_nvtx(torch: Any) -> str | None:
    """Emit ranges as NVTX ranges, through torch or otherwise the package nvtx; return the reason if neither works."""
    real = getattr(torch._C, "_nvtx", None)
    if real is not None:
        push, pop = real.rangePushA, real.rangePop
        emitter.open, emitter.close = real.rangeStartA, real.rangeEnd
    else:
        try:
            import nvtx  # noqa: PLC0415  of the program
        except ImportError:
            return "torch was built without NVTX, and the nvtx package is missing: pip install nvtx"
        push, pop = nvtx.push_range, nvtx.pop_range
        emitter.open, emitter.close = nvtx.start_range, nvtx.end_range

    def push_range(name: str) -> bool:
        push(name)
        return True

    emitter.enter, emitter.exit = push_range, lambda _handle: pop()
    return None


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"%u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _push(name: object, domain: object = None) -> int:
    """Begin a range of the program; returns its depth, as NVTX does."""
    stack = _local.__dict__.setdefault("stacks", {}).setdefault(domain, [])
    text = name if isinstance(name, str) else "" if name is None else str(name)
    emitter.steps = emitter.steps or _STEP.fullmatch(text) is not None
    if emitter.sign is not None:
        emitter.sign()
    stack.append(begin(text))
    return len(stack) - 1


def _pop(domain: object = None) -> int:
    """End the last range of a domain on this thread; returns its depth, -1 without one."""
    stack = _local.__dict__.setdefault("stacks", {}).setdefault(domain, [])
    if stack:
        end(stack.pop())
        return len(stack)
    return -1


class TorchNvtx:
    """Replacement of ``torch._C._nvtx`` in ``torch.cuda.nvtx``; ``real``: the original, None without CUDA."""

    def __init__(self, torch: Any, real: Any) -> None:
        self._torch, self._real = torch, real
        self._open: dict[int, Any] = {}

    def rangePushA(self, message: Any) -> int:
        """Begin a range; return its depth."""
        if self._torch.compiler.is_compiling():
            return 0
        depth = _push(message)
        return depth if self._real is None else int(self._real.rangePushA(message))

    def rangePop(self) -> int:
        """End a range; return its depth."""
        if self._torch.compiler.is_compiling():
            return 0
        depth = _pop()
        return depth if self._real is None else int(self._real.rangePop())

    def rangeStartA(self, message: Any) -> int:
        """Begin a range that any thread may end; return its number."""
        number = len(self._open) + 1 if self._real is None else int(self._real.rangeStartA(message))
        while self._real is None and number in self._open:
            number += 1
        self._open[number] = begin(str(message))
        return number

    def rangeEnd(self, number: int) -> None:
        """End the range with this number."""
        end(self._open.pop(number, None))
        if self._real is not None:
            self._real.rangeEnd(number)

    def markA(self, message: Any) -> None:
        """Ignore a mark: Kineto has no equivalent."""
        if self._real is not None:
            self._real.markA(message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def follow_nvtx() -> None:
    """Make ranges of the package nvtx begin and end annotations too, even if nvtx was imported under another name."""
    package = sys.modules["nvtx"]
    if not getattr(package, "enabled", lambda: True)():
        return
    inner = sys.modules.get("nvtx.nvtx", package)
    for name, replaced in _NVTX.items():
        own = getattr(package, name, None)
        if own is not None:
            new = replaced(own)
            for module in {package, inner}:
                setattr(module, name, new)


def _domain(more: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the domain among the arguments that follow the message and the color."""
    return more[1] if len(more) > 1 else named.get("domain")


def _annotate(own: Any) -> Any:
    class Annotate(own):  # type: ignore[misc]
        def __init__(self, message: Any = None, *more: Any, **named: Any) -> None:
            super().__init__(message, *more, **named)
            self._nsysprof = message, _domain(more, named)

        def __enter__(self) -> Any:
            _push(*self._nsysprof)
            return super().__enter__()

        def __exit__(self, *error: Any) -> Any:
            _pop(self._nsysprof[1])
            return super().__exit__(*error)

        def __call__(self, function: Any) -> Any:
            called = super().__call__(function)
            message, domain = self._nsysprof

            @functools.wraps(function)
            def ranged(*args: Any, **kwargs: Any) -> Any:
                _push(message or function.__name__, domain)
                try:
                    return called(*args, **kwargs)
                finally:
                    _pop(domain)

            return ranged

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(Annotate, name, getattr(own, name))
    return Annotate


def _push_range(own: Any) -> Any:
    @functools.wraps(own)
    def push_range(message: Any = None, *more: Any, **named: Any) -> Any:
        _push(message, _domain(more, named))
        return own(message, *more, **named)

    return push_range


def _pop_range(own: Any) -> Any:
    @functools.wraps(own)
    def pop_range(domain: Any = None) -> Any:
        _pop(domain)
        return own(domain)

    return pop_range


def _start_range(own: Any) -> Any:
    @functools.wraps(own)
    def start_range(message: Any = None, *more: Any, **named: Any) -> Any:
        return own(message, *more, **named), begin(str(message))

    return start_range


def _end_range(own: Any) -> Any:
    @functools.wraps(own)
    def end_range(range_id: Any) -> Any:
        number, handle = range_id
        end(handle)
        return own(number)

    return end_range


_NVTX = {
    "annotate": _annotate,
    "push_range": _push_range,
    "pop_range": _pop_range,
    "start_range": _start_range,
    "end_range": _end_range,
}
