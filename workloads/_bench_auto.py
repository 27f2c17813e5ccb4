"""Which backend PyTorch picked by itself: seen in the operation that it really calls, below the public function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Attend = Callable[..., Any]

# Parts of the names of operations, the more special ones first.
_FUSED = {
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_flash_attention": "flash",  # also that for CPUs, whose name goes on
}
_UNFUSED = "softmax"


def watched(make: Callable[[], Attend], seen: list[str]) -> Callable[[], Attend]:
    """The same, but the first call adds to ``seen`` the backend that it came to; nothing where that cannot be told."""

    def make_watched() -> Attend:
        attend, calls = make(), 0

        def call(*tensors: torch.Tensor) -> Any:
            nonlocal calls
            calls += 1
            if calls > 1:
                return attend(*tensors)
            operations: list[str] = []
            with _recording(operations):
                out = attend(*tensors)
            if name := picked(operations):
                seen.append(name)
            return out

        return call

    return make_watched


def picked(operations: list[str]) -> str | None:
    """The backend that calls these operations: a fused one by its own, `math` by a softmax without any of these."""
    for part, backend in _FUSED.items():
        if any(part in operation for operation in operations):
            return backend
    if any("_scaled_dot_product" in operation for operation in operations):
        return None  # a fused one that is not known here
    return "math" if any(_UNFUSED in operation for operation in operations) else None


def _recording(operations: list[str]) -> Any:
    """A context that adds the name of every operation that is dispatched to a kernel."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recording(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            operations.append(str(func))
            return func(*args, **(kwargs or {}))

    return Recording()
