"""What attention workloads say of themselves, for samples that were written before workloads did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nsysprof.formats.workload import Axis, Backend, Cost, Described, Flag, Mode
from nsysprof.hardware.attention_cost import (
    UNFUSED,
    AttentionShape,
    attention_flops,
    attention_traffic,
    block_flops,
    block_traffic,
    score_matrix_bytes,
    score_pairs,
    score_traffic_bytes,
)

__all__ = ["attention_cost", "attention_described"]

_BLOCK = "transformer_block"
_NAMES = {"sdpa": "attention", _BLOCK: "transformer block"}
_MODES = {"sdpa": Mode("backward", "forward and backward", "forward"), _BLOCK: Mode("train", "training step")}
_AXES = (
    Axis("batch", "B", "batch", 1),
    Axis("heads", "H", "heads", 8),
    Axis("seq", "S", "sequence length", 1024),
    Axis("head_dim", "D", "head dimension", 64),
)


def attention_described(workload: str) -> Described:
    """What a workload of this name would have said."""
    return Described(
        schema="nsysprof-describe/1",
        name=workload,
        says=_NAMES.get(workload, workload),
        axes=[*_AXES],
        sweep="seq",
        flags=[Flag("causal", "causal", "full")],
        dtypes=["fp16", "bf16", "fp32"],
        mode=_MODES.get(workload),
        backends={name: Backend() for name in ("math", "flash")},
        default_backends=["math", "flash"],
        base=["math", "naive"],
        reference="attention",
        flops="of the matrix products, masked scores not counted",
        traffic="the score matrices of unfused backends as often as they must be moved",
        unit="score matrices",
        tokens_shown=workload == _BLOCK,
    )


def attention_cost(workload: str, at: Mapping[str, Any], *, backward: bool) -> Cost:
    """What a call of a configuration would have been said to cost."""
    sizes = [at[name] for name in ("batch", "heads", "seq", "head_dim", "causal")]
    shape, dtype = AttentionShape(*sizes), at["dtype"]
    if workload == _BLOCK:
        flops, least = block_flops(shape, train=backward), block_traffic(shape, dtype, train=backward)
    else:
        flops = attention_flops(shape, backward=backward)
        least = attention_traffic(shape, dtype, backward=backward)
    masked = score_pairs(replace(shape, causal=True))
    said = "causal counting (all scores are counted, a mask would halve them)"
    return Cost(
        flops=flops,
        read_bytes=least.read_bytes,
        written_bytes=least.written_bytes,
        tokens=shape.batch * shape.seq,
        unit_bytes=score_matrix_bytes(shape, dtype),
        extra_bytes={name: score_traffic_bytes(shape, dtype, name, backward=backward) for name in UNFUSED},
        suspects={} if shape.causal else {said: flops * masked // score_pairs(shape)},
    )
