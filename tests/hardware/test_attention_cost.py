"""The cost of attention: every formula against a count of elements."""

from itertools import product

import pytest

from nsysprof.hardware.attention_cost import AttentionShape, attention_flops, attention_traffic, score_pairs


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
    """Every element of every tensor once: four of them forward, eight with the gradients."""
    shape, each = AttentionShape(2, 4, 6, 8), 2 * 4 * 6 * 8
    assert attention_traffic(shape, "fp16") == 2 * 4 * each
    assert attention_traffic(shape, "fp32", backward=True) == 4 * 8 * each
