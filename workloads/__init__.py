"""Runnable, NVTX-annotated PyTorch programs, run by path; and `Attention`, a module by any of their backends."""

import importlib
from typing import Any

__all__ = ["Attention"]


def __getattr__(name: str) -> Any:
    """Import torch only for what needs it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("._module", __name__).Attention
