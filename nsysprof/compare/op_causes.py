"""Assign each GPU op a cause (Q·Kᵀ GEMM, softmax, mask, …) from the kernel name and the neighbours in the call.

Unfused attention is a matrix product, a softmax and a matrix product, with only small kernels in between. In this
sequence, the first product is Q·Kᵀ, the second is P·V, and the small kernels belong to the same attention. A fill
before Q·Kᵀ builds the mask; a fill after the softmax handles rows without valid keys. Other kernels (convolutions,
backward passes, optimizers) keep the cause that their rule gives them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nsysprof.core.arrays import AnyInts, Bytes, Index, Ints32, Mask
from nsysprof.core.columns import marked
from nsysprof.kernels.classify import Kinds, function_name
from nsysprof.trace.trace import KERNEL

CAST_UP, CAST_DOWN, SCALING = "cast up", "cast down", "scaling"
MASK_BUILD, MASK_ADD = "mask build", "mask add"
QK, SOFTMAX, GUARD, PV = "Q·Kᵀ GEMM", "softmax", "safe-softmax guard", "P·V GEMM"
FUSED, COMBINE = "fused attention", "split-KV combine"

# The roles of names that matter for the order.
_PLAIN, _CORE_GEMM, _CORE_SOFTMAX, _ANCHOR, _SPLIT_K, _FILL, _MASK, _ADD, _SCALE, _GUARD, _ALL = range(11)
_IS_ANCHOR = np.array([kind in (_CORE_GEMM, _CORE_SOFTMAX, _ANCHOR) for kind in range(11)])
_ROLES = {
    "split-K reduction": _SPLIT_K,
    "fill": _FILL,
    "mask build": _MASK,
    "where": _MASK,
    "masked_fill": _MASK,
    "add": _ADD,
    "scale": _SCALE,
    "safe-softmax guard": _GUARD,
    "all-reduction": _ALL,
}
_WIDTH = {"double": 8, "float": 4, "half": 2, "bfloat16": 2, "uint8": 1, "int8": 1, "bool": 1}


@dataclass(frozen=True)
class Causes:
    """``of`` int32: a code of ``texts`` per GPU op."""

    of: Ints32
    texts: list[str]


def op_causes(names: Sequence[str], kinds: Kinds, *, name: AnyInts, kind: Bytes, group: AnyInts) -> Causes:
    """Return the `Causes` of GPU ops sorted by group and, within a group, by time.

    A group is the GPU ops of one call on one stream. ``name`` is an index into ``names``, and ``kinds`` has one entry
    per name; ``kind`` is the kind in `Ops`; GPU ops other than kernels have their name as cause.
    """
    used, place = np.unique(name, return_inverse=True)
    codes: dict[str, int] = {}
    role, own = np.zeros(len(used), np.uint8), np.zeros(len(used), np.int32)
    kind_of_name = np.zeros(len(used), np.uint8)
    kind_of_name[place] = kind
    for at, (code, op_kind) in enumerate(zip(used.tolist(), kind_of_name.tolist(), strict=True)):
        text = _own_cause(names[code], kinds, code) if op_kind == KERNEL else names[code]
        own[at] = codes.setdefault(text, len(codes))
        role[at] = _role(kinds, code, text) if op_kind == KERNEL else _PLAIN
    of = own[place]
    for text, rows in _by_order(role[place], group):
        of[rows] = codes.setdefault(text, len(codes))
    return Causes(of, list(codes))


def _own_cause(name: str, kinds: Kinds, code: int) -> str:
    cause = kinds.cause[code]
    if cause.startswith("cast "):
        return _direction(cause)
    if cause == "attention helper" and "combine" in function_name(name).lower():
        return COMBINE
    return cause


def _direction(cause: str) -> str:
    """The direction of a cast: PyTorch casts to 16 bits from wider types, and to 32 bits from narrower types.

    `cast half→float` is up, `cast to half` down.
    """
    source, _, target = cause.removeprefix("cast ").removeprefix("to ").rpartition("→")
    to = _WIDTH.get(target, 1 if target.startswith("float8") else 0)
    since = _WIDTH.get(source, 1 if source.startswith("float8") else 0)
    if not to or (source and (not since or since == to)):
        return cause
    up = to > since if source else to >= 4
    return CAST_UP if up else CAST_DOWN


def _role(kinds: Kinds, code: int, cause: str) -> int:
    family = kinds.family[code]
    if family == "gemm" and cause not in _ROLES:
        return _CORE_GEMM if cause in ("gemm", "matrix-vector") else _ANCHOR
    if family == "softmax":
        return _CORE_SOFTMAX if cause == "softmax" else _ANCHOR
    if cause.startswith(FUSED):
        return _ANCHOR
    return _ROLES.get(cause, _PLAIN)


def _by_order(role: Bytes, group: AnyInts) -> list[tuple[str, Mask]]:
    """Causes that follow from the order of ops, each with its GPU ops.

    They depend on the nearest anchors before and after a GPU op: matrix products, softmaxes and fused kernels.
    """
    anchors = np.flatnonzero(_IS_ANCHOR[role])
    kind, of_group = role[anchors], group[anchors]
    middle = np.zeros(len(anchors), bool)
    if len(anchors) > 2:
        middle[1:-1] = (
            (kind[1:-1] == _CORE_SOFTMAX)
            & (kind[:-2] == _CORE_GEMM)
            & (kind[2:] == _CORE_GEMM)
            & (of_group[:-2] == of_group[2:])
        )
    if not middle.any():
        return []
    softmax = anchors[middle]
    first, last = anchors[np.flatnonzero(middle) - 1], anchors[np.flatnonzero(middle) + 1]
    is_qk, is_softmax, is_pv = (marked(rows, len(role)) for rows in (first, softmax, last))
    before, behind = _neighbours(anchors, group)
    to_qk = _at(is_qk, behind)
    scores = _at(is_qk, before) & _at(is_softmax, behind)
    weights = _at(is_softmax, before) & _at(is_pv, behind)
    masks = role == _MASK
    building = to_qk & _shared(behind, masks & to_qk)
    adding = scores & _shared(behind, masks & scores)
    guarding = weights & _shared(behind, (role == _GUARD) & weights)
    small = (role == _FILL) | masks
    return [
        (SCALING, (role == _SCALE) & (to_qk | scores)),
        (MASK_BUILD, building & small),
        (MASK_ADD, (scores & (role == _ADD)) | (adding & small)),
        (GUARD, guarding & (small | (role == _ALL) | (role == _GUARD))),
        (QK, is_qk | ((role == _SPLIT_K) & scores)),
        (PV, is_pv | ((role == _SPLIT_K) & _at(is_pv, before))),
    ]


def _neighbours(anchors: Index, group: AnyInts) -> tuple[Index, Index]:
    """For each GPU op, the nearest anchors before and after it in its group, -1 for none.

    An anchor is never its own neighbour.
    """
    at = np.arange(len(group))
    place = np.searchsorted(anchors, at, side="left")
    padded = np.append(anchors, -1)
    before = padded[place - 1]
    behind = padded[np.minimum(np.searchsorted(anchors, at, side="right"), len(anchors))]
    before = np.where((before >= 0) & (group[before] == group), before, -1)
    behind = np.where((behind >= 0) & (group[behind] == group), behind, -1)
    return before, behind


def _at(mark: Mask, rows: Index) -> Mask:
    """The mark of each row; False for -1."""
    return np.append(mark, False)[rows]


def _shared(behind: Index, some: Mask) -> Mask:
    """Mark the GPU ops between the same anchors as one of ``some``."""
    stretch = marked(behind[some], len(some) + 1)
    stretch[-1] = False
    return stretch[behind]
