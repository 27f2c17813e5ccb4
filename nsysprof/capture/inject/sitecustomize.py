"""This file runs at the start of each Python process in a captured program, and waits for the import of torch.

`nsysprof capture` puts this folder first in the command's PYTHONPATH, and its request into an environment variable. In
a Python process that never imports torch, the only change is an entry in ``sys.meta_path``. The original sitecustomize
runs afterwards.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import types
from collections.abc import Callable
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib takes 10 ms to import
_ORDER = "NSYSPROF_CAPTURE"
_PACKAGE = "_nsysprof"


class _Imports:
    """A finder that delegates to the other finders, and calls a function once an awaited module is imported."""

    def __init__(self, after: dict[str, Callable[[], None]]) -> None:
        self.after = after

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that other finders return for an awaited module, and None for any other module."""
        if name not in self.after:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    self._call_after(spec.loader, name)
                return spec
        return None

    def _call_after(self, loader: Any, name: str) -> None:
        load = loader.exec_module

        def exec_module(module: Any) -> None:
            loader.__dict__.pop("exec_module", None)
            load(module)
            call = self.after.pop(name, None)
            if call is not None:
                call()

        with contextlib.suppress(AttributeError):  # a loader without room for it
            loader.exec_module = exec_module


def _begin() -> None:
    package = types.ModuleType(_PACKAGE)
    package.__path__ = [_HERE]
    sys.modules[_PACKAGE] = package

    def call(function: str) -> None:
        getattr(importlib.import_module(f"{_PACKAGE}.recorder"), function)()

    after = {"torch": lambda: call("torch_imported"), "nvtx": lambda: call("nvtx_imported")}
    sys.meta_path.insert(0, _Imports(after))


def _chain() -> None:
    """Run the sitecustomize that this one hides."""
    ours = sys.modules.pop(__name__)
    try:
        importlib.import_module(__name__)
    except ModuleNotFoundError as error:
        sys.modules[__name__] = ours
        if error.name != __name__:
            raise
    except BaseException:
        sys.modules[__name__] = ours
        raise


if __name__ == "sitecustomize":
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]  # noqa: PTH100
    if os.environ.get(_ORDER):
        _begin()
    _chain()
