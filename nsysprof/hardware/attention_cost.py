"""The minimal cost of attention: exact FLOPs and bytes from the shape, for any backend.

FLOPs are those of the matrix products, a multiply-add counts two; softmax, scaling, masks, LayerNorm and the optimizer
are left out, as in the FlashAttention papers. Masked scores are not counted: causal attention is counted element by
element, not as half of the square.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

_ITEM_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}
_FLOAT32 = 4

# Backends that keep whole score matrices in memory.
UNFUSED = ("math", "math_reduced", "naive")


@dataclass(frozen=True)
class AttentionShape:
    """Queries of (batch, heads, seq, head_dim); keys and values of equal length and number by default.

    ``keys`` is the length of keys and values, ``kv_heads`` their heads (grouped-query attention), ``value_dim`` the
    size of a value. Where ``causal`` and ``keys != seq``, the mask starts at the top left, as `is_causal` of PyTorch's
    `scaled_dot_product_attention` has it, or with ``bottom_right`` ends in that corner, as in FlashAttention from 2.1.
    With a ``window`` a query sees that many keys back, its own included, and as many ahead where not causal; with
    ``lengths`` the sequences of the batch have that many keys, the rest is padding. ``mask_bytes``: the size of a mask
    that comes as a tensor.
    """

    batch: int
    heads: int
    seq: int
    head_dim: int
    causal: bool = False
    keys: int | None = None
    kv_heads: int | None = None
    value_dim: int | None = None
    bottom_right: bool = False
    window: int | None = None
    lengths: tuple[int, ...] | None = None
    mask_bytes: int = 0

    @property
    def masked(self) -> bool:
        """Return whether scores are masked in any way."""
        return bool(self.causal or self.window or self.lengths or self.mask_bytes)

    @property
    def key_count(self) -> int:
        """Return the length of keys and values."""
        return self.seq if self.keys is None else self.keys

    @property
    def width(self) -> int:
        """Return the model's width in a transformer block: heads × head dimension."""
        return self.heads * self.head_dim

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Return the elements of the queries, the keys, the values and the output."""
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        value_dim = self.head_dim if self.value_dim is None else self.value_dim
        rows, columns = self.batch * self.heads * self.seq, self.batch * kv_heads * self.key_count
        return rows * self.head_dim, columns * self.head_dim, columns * value_dim, rows * value_dim


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
    """Count the scores that are not masked, over all heads: pairs of a query and a key that it sees.

    Not causal: B·H·L·S. Causal, L = S: B·H·S(S+1)/2. Row i of a causal L × S matrix sees min(i+1, S) keys (top left),
    or the first i+1+S−L of them, none where that is not positive (bottom right). Of a window of w row i sees the keys
    from i−w+1 on, and without causality those up to i+w−1; a tensor of a mask may hide any, and is not looked into.
    """
    rows, keys = shape.seq, shape.key_count
    if shape.lengths:
        parts = [replace(shape, batch=1, keys=length, lengths=None) for length in shape.lengths]
        return sum(score_pairs(part) for part in parts)
    if shape.window:
        row = np.arange(rows, dtype=np.int64) + (keys - rows if shape.bottom_right else 0)
        last = np.minimum(row + (0 if shape.causal else shape.window - 1), keys - 1)
        seen = np.maximum(last - np.maximum(row - shape.window + 1, 0) + 1, 0)
        return shape.batch * shape.heads * int(seen.sum())
    if not shape.causal:
        return shape.batch * shape.heads * rows * keys
    first = 1 + keys - rows if shape.bottom_right else 1  # what row 0 sees, negative: that many rows see none
    skipped = max(0, 1 - first)
    first, rows = first + skipped, max(0, rows - skipped)
    rising = min(rows, max(0, keys - first + 1))  # rows before every key is seen
    triangle = rising * first + rising * (rising - 1) // 2 + (rows - rising) * keys
    return shape.batch * shape.heads * triangle


def attention_flops(
    shape: AttentionShape, *, forward: bool = True, backward: bool = False, recompute: bool = False
) -> int:
    """Count the FLOPs of the matrix products of attention over all heads.

    Forward, 2 products: Q·Kᵀ and P·V, 2·D and 2·Dv for each score. Backward, 4: dP = dO·Vᵀ and dV = Pᵀ·dO (2·Dv each),
    dQ = dS·K and dK = dSᵀ·Q (2·D each), and with ``recompute`` Q·Kᵀ once more, which fused kernels do instead of
    keeping P: with D = Dv that is the factor 2.5 of the FlashAttention papers (Dao 2023, section 4.1), otherwise 2.
    Sharing keys between heads (GQA) saves bytes, no FLOPs.
    """
    head_dim = shape.head_dim
    value_dim = head_dim if shape.value_dim is None else shape.value_dim
    each = 2 * (head_dim + value_dim) if forward else 0
    if backward:
        each += 4 * (head_dim + value_dim) + (2 * head_dim if recompute else 0)
    return each * score_pairs(shape)


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
    q, k, v, out = shape.sizes
    size = item_bytes(dtype)
    if backward:
        return Traffic((q + k + v + out) * size + shape.mask_bytes, (out + q + k + v) * size)
    return Traffic((q + k + v) * size + shape.mask_bytes, out * size)


def block_traffic(shape: AttentionShape, dtype: str, *, train: bool = False) -> Traffic:
    """Count the compulsory bytes of one call of the transformer block: input and weights in, output out.

    Training also reads the gradient of the output, and writes the gradients of input and weights, and the new weights.
    """
    tokens, weights = shape.batch * shape.seq * shape.width, 4 * shape.width**2 + 2 * shape.width
    size = item_bytes(dtype)
    if train:
        return Traffic((2 * tokens + weights) * size, (2 * tokens + 2 * weights) * size)
    return Traffic((tokens + weights) * size, tokens * size)


def score_matrix_bytes(shape: AttentionShape, dtype: str) -> int:
    """Count the bytes of the whole score matrices of a batch, B·H·L·S elements: the unit for comparing memory."""
    return shape.batch * shape.heads * shape.seq * shape.key_count * item_bytes(dtype)


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
    passes = 4 + 2 * naive + 2 * shape.masked
    if backward:
        passes += 7 + 2 * naive * (1 + shape.masked)
    size = max(_FLOAT32, item_bytes(dtype)) if backend == "math" else item_bytes(dtype)
    return passes * shape.batch * shape.heads * shape.seq * shape.key_count * size
