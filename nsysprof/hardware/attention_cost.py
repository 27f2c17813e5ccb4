"""The minimal cost of attention: exact FLOPs and bytes from the shape, for any backend.

FLOPs are those of the matrix products, a multiply-add counts two; softmax, scaling, masks, LayerNorm and the optimizer
are left out, as in the FlashAttention papers. Masked scores are not counted: causal attention is counted element by
element, not as half of the square.
"""

from __future__ import annotations

from dataclasses import dataclass

_ITEM_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
_FLOAT32 = 4

# Backends that keep whole score matrices in memory.
UNFUSED = ("math", "math_reduced", "naive")


@dataclass(frozen=True)
class AttentionShape:
    """Queries, keys and values of (batch, heads, seq, head_dim)."""

    batch: int
    heads: int
    seq: int
    head_dim: int
    causal: bool = False

    @property
    def width(self) -> int:
        """Return the model's width in a transformer block: heads × head dimension."""
        return self.heads * self.head_dim

    @property
    def elements(self) -> int:
        """Return the elements of the queries, which are those of keys, values and output."""
        return self.batch * self.seq * self.width

    @property
    def scores(self) -> int:
        """Return the elements of the score matrices, masked ones included."""
        return self.batch * self.heads * self.seq**2


@dataclass(frozen=True)
class Traffic:
    """Bytes that have to be read and written at least once."""

    read_bytes: int
    written_bytes: int

    @property
    def total_bytes(self) -> int:
        """Return the sum of both."""
        return self.read_bytes + self.written_bytes


def item_bytes(dtype: str) -> int:
    """Return the bytes of one element; KeyError for a dtype that no workload has."""
    return _ITEM_BYTES[dtype]


def score_pairs(shape: AttentionShape) -> int:
    """Count the scores that are not masked, over all heads: B·H·S², or B·H·S(S+1)/2 where causal."""
    return shape.batch * shape.heads * shape.seq * (shape.seq + 1) // 2 if shape.causal else shape.scores


def attention_flops(shape: AttentionShape, *, backward: bool = False) -> int:
    """Count the FLOPs of the matrix products of attention over all heads.

    Forward, 2 products of 2·D for each score: Q·Kᵀ and P·V. With ``backward`` a call is both passes, 4 more:
    dP = dO·Vᵀ, dV = Pᵀ·dO, dQ = dS·K and dK = dSᵀ·Q. Fused kernels do Q·Kᵀ once more, which makes the factor 2.5 of the
    FlashAttention papers (Dao 2023, section 4.1); that one is not counted.
    """
    return (12 if backward else 4) * shape.head_dim * score_pairs(shape)


def block_flops(shape: AttentionShape, *, train: bool = False) -> int:
    """Count the FLOPs of a transformer block without MLP: projections to Q, K, V and of the output, and the attention.

    A projection of B·S tokens from W to N is 2·B·S·W·N; training adds the gradients of its input and of its weights,
    as many each. W = H·D, N is 3·W and W.
    """
    projections = 2 * shape.batch * shape.seq * shape.width * 4 * shape.width
    return projections * (3 if train else 1) + attention_flops(shape, backward=train)


def attention_traffic(shape: AttentionShape, dtype: str, *, backward: bool = False) -> Traffic:
    """Count the compulsory bytes of one call: each input read once, each result written once, and nothing else.

    Forward: Q, K, V in, O out. With ``backward`` a call is both passes: Q, K, V, dO in; O, dQ, dK, dV out. What one
    pass hands to the other (O again, the log-sum-exp of each row) could stay in a cache and is not counted.
    """
    size = shape.elements * item_bytes(dtype)
    return Traffic(4 * size, 4 * size) if backward else Traffic(3 * size, size)


def block_traffic(shape: AttentionShape, dtype: str, *, train: bool = False) -> Traffic:
    """Count the compulsory bytes of one call of the transformer block: input and weights in, output out.

    Training also reads the gradient of the output, and writes the gradients of input and weights, and the new weights.
    """
    tokens, weights = shape.elements, 4 * shape.width**2 + 2 * shape.width
    size = item_bytes(dtype)
    if train:
        return Traffic((2 * tokens + weights) * size, (2 * tokens + 2 * weights) * size)
    return Traffic((tokens + weights) * size, tokens * size)


def score_matrix_bytes(shape: AttentionShape, dtype: str) -> int:
    """Count the bytes of the whole score matrices of a batch, B·H·S² elements: the unit for comparing memory."""
    return shape.scores * item_bytes(dtype)


def score_traffic_bytes(shape: AttentionShape, dtype: str, backend: str, *, backward: bool = False) -> int:
    """Count the least bytes that an unfused backend moves for its score matrices, masked ones too; 0 for a fused one.

    Passes over the matrix, each a read or a write. Forward: Q·Kᵀ writes, softmax reads and writes, P·V reads: 4; each
    operation between them (scale in `naive`, mask where causal) reads and writes: 2 more. Backward: dV reads P, dP is
    written, the gradient of softmax reads P and dP and writes dS, dQ and dK read dS: 7; the operations between them 2
    each, but adding a mask, as `math` does, passes its gradient on. `math` holds them in float32, the others in the
    dtype. Guards against rows without keys, casts and dropout come on top in some versions of PyTorch.
    """
    if backend not in UNFUSED:
        return 0
    naive = backend == "naive"
    passes = 4 + 2 * naive + 2 * shape.causal
    if backward:
        passes += 7 + 2 * naive * (1 + shape.causal)
    size = max(_FLOAT32, item_bytes(dtype)) if backend == "math" else item_bytes(dtype)
    return passes * shape.scores * size
