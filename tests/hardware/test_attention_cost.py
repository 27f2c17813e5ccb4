"""The cost of attention: every formula against a count of elements."""

from __future__ import annotations

from itertools import product

import pytest

from nsysprof.hardware.attention_cost import (
    AttentionShape,
    attention_flops,
    attention_traffic,
    block_flops,
    block_traffic,
    score_matrix_bytes,
    score_pairs,
    score_traffic_bytes,
)

LENGTHS = (1, 2, 3, 5, 8)


def seen(shape: AttentionShape) -> list[tuple[int, int, int, int]]:
    """Every score that is not masked, as (batch, head, query, key), by looking at each of them."""
    shift = shape.key_count - shape.seq if shape.bottom_right else 0
    places = product(range(shape.batch), range(shape.heads), range(shape.seq), range(shape.key_count))
    return [place for place in places if not shape.causal or place[3] <= place[2] + shift]


def counted_flops(shape: AttentionShape, *, backward: bool, recompute: bool) -> int:
    """Two for each multiply-add of each matrix product, score by score and component by component."""
    values = shape.value_dim or shape.head_dim
    products = [shape.head_dim, values]
    if backward:
        products += [values, values, shape.head_dim, shape.head_dim] + [shape.head_dim] * recompute
    return sum(2 for _ in seen(shape) for inner in products for _ in range(inner))


@pytest.mark.parametrize("bottom_right", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_pairs_are_those_that_a_count_finds(causal: bool, bottom_right: bool) -> None:
    """Square and rectangular, with the mask in either corner."""
    for seq, keys in product(LENGTHS, LENGTHS):
        shape = AttentionShape(2, 3, seq, 4, causal, keys=keys, bottom_right=bottom_right)
        assert score_pairs(shape) == len(seen(shape)), (seq, keys)


def test_the_causal_square_is_a_triangle_with_its_diagonal() -> None:
    """S(S+1)/2, not half of the square."""
    assert score_pairs(AttentionShape(1, 1, 1024, 64, causal=True)) == 1024 * 1025 // 2


@pytest.mark.parametrize(("backward", "recompute"), [(False, False), (True, False), (True, True)])
def test_flops_are_those_of_counted_products(backward: bool, recompute: bool) -> None:
    """Grouped-query heads, a value size of its own and rectangles included."""
    for causal, keys, kv_heads, value_dim in product((False, True), (None, 3, 7), (None, 1), (None, 5)):
        shape = AttentionShape(2, 2, 5, 3, causal=causal, keys=keys, kv_heads=kv_heads, value_dim=value_dim)
        expected = counted_flops(shape, backward=backward, recompute=recompute)
        assert attention_flops(shape, backward=backward, recompute=recompute) == expected


def test_backward_is_two_and_a_half_times_forward_with_recomputation() -> None:
    """The factor of the FlashAttention papers; twice without."""
    shape = AttentionShape(4, 8, 512, 64, causal=True)
    forward = attention_flops(shape)
    assert attention_flops(shape, forward=False, backward=True, recompute=True) == 2.5 * forward
    assert attention_flops(shape, forward=False, backward=True) == 2 * forward
    assert attention_flops(shape, backward=True) == 3 * forward


def test_published_figure() -> None:
    """4·S²·D·H of the papers is the square without a mask: 34.4 GFLOP at S=4096, H8, D64."""
    assert attention_flops(AttentionShape(1, 8, 4096, 64)) == 4 * 4096**2 * 64 * 8 == 34_359_738_368


def test_traffic_is_the_size_of_the_tensors() -> None:
    """Every element of every tensor once, with fewer heads of keys and values where they are shared."""
    shape = AttentionShape(2, 4, 6, 8, kv_heads=2, keys=5, value_dim=3)
    q, k, v, out = 2 * 4 * 6 * 8, 2 * 2 * 5 * 8, 2 * 2 * 5 * 3, 2 * 4 * 6 * 3
    forward = attention_traffic(shape, "fp16")
    assert (forward.read_bytes, forward.written_bytes) == (2 * (q + k + v), 2 * out)
    both = attention_traffic(shape, "fp32", backward=True)
    assert (both.read_bytes, both.written_bytes) == (4 * (q + k + v + out), 4 * (q + k + v + out))
    assert both.total_bytes == 8 * (q + k + v + out)


def test_block_flops_are_those_of_counted_products() -> None:
    """Four W × W projections of every token and the attention; three times as much for a training step."""
    shape = AttentionShape(2, 2, 3, 4, causal=True)
    width = 8
    projections = sum(2 for _ in range(2 * 3) for _ in range(4) for _ in range(width) for _ in range(width))
    attention = counted_flops(shape, backward=False, recompute=False)
    assert block_flops(shape) == projections + attention
    assert block_flops(shape, train=True) == 3 * (projections + attention)


def test_block_traffic_is_the_size_of_the_tensors() -> None:
    """Input, weights and output; a training step adds the gradients and the new weights."""
    shape = AttentionShape(2, 2, 3, 4)
    tokens, weights = 2 * 3 * 8, 3 * 8 * 8 + 8 * 8 + 8 + 8
    forward, train = block_traffic(shape, "fp16"), block_traffic(shape, "fp16", train=True)
    assert (forward.read_bytes, forward.written_bytes) == (2 * (tokens + weights), 2 * tokens)
    assert (train.read_bytes, train.written_bytes) == (2 * (2 * tokens + weights), 4 * (tokens + weights))


def test_score_matrices_are_whole_whatever_the_mask() -> None:
    """An unfused backend stores masked scores too."""
    for causal in (False, True):
        assert score_matrix_bytes(AttentionShape(2, 8, 1024, 64, causal), "fp16") == 2 * 8 * 1024**2 * 2


# Reads and writes of the score matrix, operation by operation.
FORWARD = {"Q·Kᵀ": 1, "softmax": 2, "P·V": 1}
BACKWARD = {"dV": 1, "dP": 1, "softmax": 3, "dQ": 1, "dK": 1}


@pytest.mark.parametrize(
    ("backend", "causal", "backward", "passes", "size"),
    [
        ("naive", False, False, sum(FORWARD.values()) + 2, 2),
        ("naive", True, False, sum(FORWARD.values()) + 4, 2),
        ("naive", True, True, sum(FORWARD.values()) + 4 + sum(BACKWARD.values()) + 4, 2),
        ("math", True, False, sum(FORWARD.values()) + 2, 4),
        ("math_reduced", True, False, sum(FORWARD.values()) + 2, 2),
        ("math", True, True, sum(FORWARD.values()) + 2 + sum(BACKWARD.values()), 4),
        ("flash", True, True, 0, 2),
    ],
)
def test_score_traffic_is_passes_over_the_matrix(
    backend: str, causal: bool, backward: bool, passes: int, size: int
) -> None:
    """Each pass is the whole matrix; `math` holds it in float32, a fused backend nowhere."""
    shape = AttentionShape(2, 3, 16, 64, causal, keys=8)
    expected = passes * 2 * 3 * 16 * 8 * size
    assert score_traffic_bytes(shape, "fp16", backend, backward=backward) == expected
