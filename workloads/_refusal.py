"""Why a backend cannot do something: PyTorch's warnings and exceptions as one line."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from _workload import Backend


class BackendError(Exception):
    """A backend that could not do it: the status of the run, and the reason in PyTorch's words."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@contextmanager
def refusals(backend: Backend, *, probing: bool = False) -> Iterator[None]:
    """Turns what is raised inside into a `BackendError`; ``probing`` also collects PyTorch's warnings about why."""
    said: list[warnings.WarningMessage] = []
    try:
        if probing:
            with _listening(said):
                yield
        else:
            yield
    except Exception as error:
        if is_out_of_memory(error):
            raise BackendError("out of memory", sentence(str(error))) from None
        reason = why_not(backend.named, [str(each.message) for each in said]) or _raised(error)
        raise BackendError("unsupported", reason) from None


@contextmanager
def _listening(said: list[warnings.WarningMessage]) -> Iterator[None]:
    """Adds every warning to ``said``, also those that PyTorch would give once only."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            finally:
                said.extend(caught)
    finally:
        torch.set_warn_always(always)


def why_not(named: str, messages: Sequence[str]) -> str:
    """What PyTorch's warnings say about one backend, or nothing.

    Before it gives up it goes through all fused backends: a heading for each, "Flash attention kernel not used
    because:", and then what is wrong with it. That another is switched off is no reason.
    """
    reasons: list[str] = []
    heading = ""
    for message in messages:
        text = sentence(message)
        if found := re.match(r"(.+?) kernel not used because", text):
            heading = found[1].lower()
        elif named and heading.startswith(named) and text not in reasons:
            reasons.append(text)
    return " ".join(reasons)


def _raised(error: Exception) -> str:
    """An exception as one line, with its type where the text alone may say too little."""
    # torch.compile reports what it met while tracing deep in a text about itself.
    if inner := re.search(r"""raised exception \w+\(.*?(['"])(.+)\1""", str(error)):
        return sentence(inner[2])
    text = sentence(str(error))
    if isinstance(error, (RuntimeError, ImportError)) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def sentence(text: str) -> str:
    """The first line that says something, without where in PyTorch's sources it was said."""
    text = re.sub(r"\s*\(Triggered internally at [^)]*\)\.?", "", text)
    text = re.sub(r"\[enforce fail at [^\]]*\] (err == 0\. )?", "", text)
    # Of course they are turned off: that is how one backend is chosen.
    text = text.replace(" This is likely due to turning off both the math kernel and the fused kernels.", "")
    lines = (line.strip() for line in text.splitlines())
    line = next((line for line in lines if line and not line.endswith("raised:")), text.strip())
    return line if len(line) <= 300 else f"{line[:297]}..."


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory was lacking: CUDA's allocator raises a type of its own, the others tell it in the text."""
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    signs = ("can't allocate memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)
