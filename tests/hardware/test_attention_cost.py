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


def seen(shape: AttentionShape) -> int:
    """Count the scores that are not masked, looking at each of them."""
    places = product(range(shape.batch), range(shape.heads), range(shape.seq), range(shape.seq))
    return sum(not shape.causal or key <= query for *_, query, key in places)


def counted_flops(shape: AttentionShape, *, backward: bool) -> int:
    """Two for each multiply-add of each matrix product, score by score and component by component."""
    return sum(2 for _ in range(seen(shape)) for _ in range((6 if backward else 2) * shape.head_dim))


@pytest.mark.parametrize("causal", [False, True])
def test_pairs_are_those_that_a_count_finds(causal: bool) -> None:
    """With a mask and without."""
    for seq in (1, 2, 3, 5, 8):
        shape = AttentionShape(2, 3, seq, 4, causal)
        assert score_pairs(shape) == seen(shape), seq


def test_the_causal_square_is_a_triangle_with_its_diagonal() -> None:
    """S(S+1)/2, not half of the square."""
    assert score_pairs(AttentionShape(1, 1, 1024, 64, causal=True)) == 1024 * 1025 // 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_flops_are_those_of_counted_products(backward: bool, causal: bool) -> None:
    """Two products forward, four more backward."""
    shape = AttentionShape(2, 2, 5, 3, causal)
    assert attention_flops(shape, backward=backward) == counted_flops(shape, backward=backward)


def test_published_figure() -> None:
    """4·S²·D·H of the papers is the square without a mask: 34.4 GFLOP at S=4096, H8, D64."""
    assert attention_flops(AttentionShape(1, 8, 4096, 64)) == 4 * 4096**2 * 64 * 8 == 34_359_738_368


def test_traffic_is_the_size_of_the_tensors() -> None:
    """Every element of every tensor once."""
    shape, each = AttentionShape(2, 4, 6, 8), 2 * 4 * 6 * 8
    forward = attention_traffic(shape, "fp16")
    assert (forward.read_bytes, forward.written_bytes) == (2 * 3 * each, 2 * each)
    both = attention_traffic(shape, "fp32", backward=True)
    assert (both.read_bytes, both.written_bytes) == (4 * 4 * each, 4 * 4 * each)
    assert both.total_bytes == 8 * 4 * each


def test_block_flops_are_those_of_counted_products() -> None:
    """Four W × W projections of every token and the attention; three times as much for a training step."""
    shape = AttentionShape(2, 2, 3, 4, causal=True)
    width = 8
    projections = sum(2 for _ in range(2 * 3) for _ in range(4) for _ in range(width) for _ in range(width))
    attention = counted_flops(shape, backward=False)
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
    shape = AttentionShape(2, 3, 16, 64, causal)
    expected = passes * 2 * 3 * 16 * 16 * size
    assert score_traffic_bytes(shape, "fp16", backend, backward=backward) == expected
