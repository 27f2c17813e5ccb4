"""Which keys a query of attention sees: masks by their names, as a predicate, as a tensor, and counted without torch.

A mask comes on top of causality, which starts at the top left: query i sees keys up to i.

    none        all of them
    window:N    the N last keys, its own included; without causality as many ahead
    padding     those that its sequence of the batch has: these are from half of the length to one step below it
    bool        every second key and the first one, by a tensor of the mask: a pattern without blocks to be skipped
    float       all of them, with a bias that falls with the distance, by a tensor of it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from _attention import Problem

NONE, PADDING, BOOL, FLOAT, WINDOW = "none", "padding", "bool", "float", "window"
DENSE = (BOOL, FLOAT)  # those that are a tensor by their nature: no other form of them is there
BIAS_STEP = 64  # keys over which the bias falls by one


def read_mask(text: str) -> Mapping[str, Any]:
    """What `--mask` sets; `none` and `causal` are the flag of that name. Raises ValueError."""
    if text in (NONE, "causal"):
        return {"mask": NONE, "causal": text == "causal"}
    name, _, width = text.partition(":")
    if text in (PADDING, *DENSE) or (name == WINDOW and width.isdecimal() and int(width) > 0):
        return {"mask": text}
    raise ValueError(f"{text!r} is not one of: none, causal, padding, window:N, bool, float")


def window_of(mask: str) -> int | None:
    """The width of a window."""
    name, _, width = mask.partition(":")
    return int(width) if name == WINDOW else None


def lengths(batch: int, keys: int) -> list[int]:
    """How many keys each sequence of a padded batch has: evenly from one step below the whole length down to half."""
    return [max(1, keys - keys * (number + 1) // (2 * batch)) for number in range(batch)]


def seen_pairs(at: Problem) -> int:
    """Pairs of a query and a key that it sees, over the batch, for one head."""
    keys = at.kv_seq or at.seq
    if at.mask in (NONE, FLOAT):
        rows = min(at.seq, keys)
        return at.batch * (rows * (rows + 1) // 2 + (at.seq - rows) * keys if at.causal else at.seq * keys)
    ends = lengths(at.batch, keys) if at.mask == PADDING else [keys]
    return sum(map(sum, (_seen(at, end) for end in ends))) * (at.batch // len(ends))


def _seen(at: Problem, keys: int) -> Iterator[int]:
    """How many of the first ``keys`` each query sees."""
    window = window_of(at.mask)
    for row in range(at.seq):
        end = min(keys, row + 1) if at.causal else keys
        first = 0
        if window:
            first, end = max(0, row - window + 1), min(end, row + window)
        seen = max(0, end - first)
        if at.mask == BOOL:
            seen = (end - row % 2 + 1) // 2 + row % 2
        yield seen


def sees(at: Problem, batch: Any, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Whether queries see keys: of their places, and of the number of the sequence in the batch; all broadcast."""
    seen = key <= row if at.causal else key >= 0
    if window := window_of(at.mask):
        seen = seen & (row - key < window) & (key - row < window)
    elif at.mask == PADDING:
        keys = at.kv_seq or at.seq
        # As `lengths`, in whole numbers.
        short = keys * (batch + 1) // (2 * at.batch)
        seen = seen & ((key < keys - short) | (key == 0))
    elif at.mask == BOOL:
        seen = seen & ((key % 2 == row % 2) | (key == 0))
    return seen


def bias(row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """What a float mask adds to scores."""
    return -(row - key).abs() / BIAS_STEP


def dense_mask(at: Problem, device: str, dtype: torch.dtype) -> torch.Tensor:
    """The mask as `attn_mask` of PyTorch has it: boolean, or a bias in the dtype; of (1 or batch, 1, L, S)."""
    import torch

    row = torch.arange(at.seq, device=device)[:, None]
    key = torch.arange(at.kv_seq or at.seq, device=device)[None, :]
    batch = torch.arange(at.batch if at.mask == PADDING else 1, device=device)[:, None, None, None]
    seen = sees(at, batch, row, key).expand(len(batch), 1, at.seq, -1)
    if at.mask != FLOAT:
        return seen.contiguous()
    return bias(row, key).to(dtype).masked_fill(~seen, float("-inf"))
