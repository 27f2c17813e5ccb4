"""The minimal cost of attention: exact FLOPs and bytes from the shape, for any backend.

Only FLOPs of matrix products count; a multiply-add counts as two FLOPs. Softmax, scaling, masks, LayerNorm and the
optimizer are left out, as in the FlashAttention papers. Masked scores do not count: causal attention is counted element
by element, and not as half of the square.
"""

from dataclasses import dataclass

_ITEM_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True)
class AttentionShape:
    """The shape of queries, keys and values: (batch, heads, seq, head_dim)."""

    batch: int
    heads: int
    seq: int
    head_dim: int
    causal: bool = False

    @property
    def elements(self) -> int:
        """Return the number of elements of the queries (equal for keys, values and output)."""
        return self.batch * self.heads * self.seq * self.head_dim

    @property
    def scores(self) -> int:
        """Return the number of elements of the score matrices, including masked ones."""
        return self.batch * self.heads * self.seq**2


def item_bytes(dtype: str) -> int:
    """The bytes of one element; raises KeyError for a dtype that no workload has."""
    return _ITEM_BYTES[dtype]


def score_pairs(shape: AttentionShape) -> int:
    """Count the unmasked scores over all heads: B·H·S², or B·H·S(S+1)/2 if causal."""
    return shape.batch * shape.heads * shape.seq * (shape.seq + 1) // 2 if shape.causal else shape.scores


def attention_flops(shape: AttentionShape, *, backward: bool = False) -> int:
    """Count the FLOPs of the matrix products of attention over all heads.

    The forward pass has 2 products of 2·D FLOPs for each score: Q·Kᵀ and P·V. With ``backward``, a call includes both
    passes, with 4 more products: dP = dO·Vᵀ, dV = Pᵀ·dO, dQ = dS·K and dK = dSᵀ·Q. Fused kernels compute Q·Kᵀ a second
    time, which gives the factor 2.5 of the FlashAttention papers (Dao 2023, section 4.1); this product is not counted.
    """
    return (12 if backward else 4) * shape.head_dim * score_pairs(shape)


def attention_traffic(shape: AttentionShape, dtype: str, *, backward: bool = False) -> int:
    """Count the compulsory bytes of one call: each input read once, each result written once, nothing else.

    The forward pass reads Q, K and V, and writes O. With ``backward``, a call includes both passes: it reads Q, K, V
    and dO, and writes O, dQ, dK and dV. Data passed from forward to backward (O, and the log-sum-exp of each row) could
    stay in a cache and is not counted.
    """
    return (8 if backward else 4) * shape.elements * item_bytes(dtype)
