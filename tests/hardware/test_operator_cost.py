"""FLOPs and bytes of operators, from the shapes that PyTorch's profiler records."""

import importlib.util
from pathlib import Path

import pytest

from nsysprof.hardware.operator_cost import flops_bytes

HALF, FLOAT = "c10::Half", "float"
STUDY = Path(__file__).resolve().parents[2] / "analysis" / "operator-cost"


@pytest.mark.parametrize(
    ("op", "dims", "flops", "elements"),
    [
        ("aten::mm", [[8, 4], [4, 2]], 2 * 8 * 4 * 2, 8 * 4 + 4 * 2 + 8 * 2),
        ("aten::bmm", [[3, 8, 4], [3, 4, 2]], 3 * 2 * 8 * 4 * 2, 3 * (8 * 4 + 4 * 2 + 8 * 2)),
        ("aten::matmul", [[3, 8, 4], [4, 2]], 3 * 2 * 8 * 4 * 2, 3 * 8 * 4 + 4 * 2 + 3 * 8 * 2),
        ("aten::addmm", [[2], [8, 4], [4, 2], [], []], 2 * 8 * 4 * 2, 2 + 8 * 4 + 4 * 2 + 8 * 2),
        ("aten::linear", [[5, 8, 4], [2, 4], [2]], 5 * 2 * 8 * 4 * 2, 5 * 8 * 4 + 8 + 2 + 5 * 8 * 2),
        ("aten::add_", [[16, 8], [8], []], 128, 128 + 8 + 128),
        ("aten::where", [[16, 1], [16, 8], [16, 8]], 128, 16 + 3 * 128),
        ("aten::sum", [[16, 8], []], 128, 128),
        ("aten::_softmax", [[16, 8], [], []], 5 * 128, 2 * 128),
        ("aten::native_layer_norm", [[16, 8], [], [8], [8], []], 5 * 128, 2 * 128 + 16),
        ("aten::copy_", [[16, 8], [16, 8], []], 0, 2 * 128),
        ("aten::fill_", [[16, 8], []], 0, 128),
        ("aten::embedding", [[100, 8], [16]], 0, 2 * 128),
        ("aten::embedding", [[10, 8], [1000]], 0, 80 + 8000),
        ("aten::gather", [[100, 8], [], [16, 8]], 0, 2 * 128),
        ("triton_poi_fused_add_mul_0", [[16, 8], [16, 8], [16, 8], []], 128, 3 * 128),
    ],
)
def test_the_cost_of_an_operator_is_that_of_its_shapes(
    op: str, dims: list[list[int]], flops: int, elements: int
) -> None:
    """Multiply-adds count two, each input is read once and the result written once."""
    found = flops_bytes(op, dims, [HALF if each else "Scalar" for each in dims])
    assert found is not None
    assert found[:2] == (flops, 2 * elements)


def test_elements_have_the_size_of_their_type() -> None:
    """A comparison writes bytes, a cast reads one type and writes another; without types no bytes are known."""
    assert flops_bytes("aten::gt", [[4, 4], []], [FLOAT, "Scalar"]) == (16, 16 * (4 + 1), "elementwise")
    assert flops_bytes("aten::copy_", [[4, 4], [4, 4], []], [HALF, FLOAT, "Scalar"]) == (0, 16 * (2 + 4), "copy")
    assert flops_bytes("aten::mm", [[8, 4], [4, 2]]) == (128, None, "matrix product")


def test_a_convolution_is_a_product_per_output() -> None:
    """Stride and padding make the output; backward costs as much for the input as for the weights."""
    dims, types = [[8, 16, 32, 32], [64, 8, 3, 3], [64]], [HALF] * 3
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1]", "False", "[0, 0]", "2"]
    forward = 2 * (8 * 64 * 16 * 16) * (8 * 3 * 3)
    moved = 2 * (8 * 16 * 32 * 32 + 64 * 8 * 9 + 8 * 64 * 16 * 16)
    assert flops_bytes("aten::convolution", dims, types, values) == (forward, moved, "convolution")
    out = [[8, 64, 16, 16], *dims[:2]]
    for mask, times in (("[True, True, False]", 2), ("[False, True, False]", 1)):
        found = flops_bytes("aten::convolution_backward", out, types, [""] * 10 + [mask])
        assert found is not None
        assert found[0] == times * forward
    assert flops_bytes("aten::convolution", dims, types) is None  # without its stride
    for odd in ([[8, 3, 2, 2], [4, 3, 9, 9]], [[8, 3, 9, 9], [4, 2, 3, 3]]):  # larger than the input, other channels
        assert flops_bytes("aten::convolution", odd, types, values) is None


def test_masked_scores_of_attention_are_not_counted() -> None:
    """Causal attention counts the scores at and below the diagonal, backward twice the products of forward."""
    dims, types = [[2, 4, 8, 16]] * 3, [HALF] * 3
    op = "aten::_scaled_dot_product_flash_attention"
    full, causal = 4 * 16 * 2 * 4 * 8 * 8, 4 * 16 * 2 * 4 * 8 * 9 // 2
    moved = 4 * 2 * (2 * 4 * 8 * 16)
    assert flops_bytes(op, dims, types, ["", "", "", "0.", "False"]) == (full, moved, "attention")
    assert flops_bytes(op, dims, types, ["", "", "", "0.", "True"]) == (causal, moved, "attention")
    assert flops_bytes(op, dims, types) == (None, moved, "attention")  # half as many if it is causal
    back = flops_bytes(f"{op}_backward", [dims[0], *dims], [HALF] * 4, [""] * 11 + ["True"])
    assert back == (2 * causal, 2 * moved, "attention")
    last = flops_bytes("aten::_flash_attention_forward", [[2, 8, 4, 16]] * 3, types, [""] * 8 + ["False"])
    assert last == (full, moved, "attention")


@pytest.mark.parametrize(
    ("op", "dims"),
    [
        ("aten::mm", [[8, 4], [3, 2]]),
        ("aten::mm", [[8, 4]]),
        ("aten::mm", [[-8, 4], [4, 2]]),
        ("aten::mm", [[1 << 31, 1 << 31], [1 << 31, 2]]),
        ("aten::add", [[8, 4], [3, 4]]),
        ("aten::sum", [[]]),
        ("aten::view", [[8, 4]]),
        ("cub::sort", [[8]]),
    ],
)
def test_shapes_that_do_not_fit_have_no_cost(op: str, dims: list[list[int]]) -> None:
    """Shapes that cannot be, and operators that are not known, are no number."""
    assert flops_bytes(op, dims, [FLOAT] * len(dims)) is None


def test_costs_are_what_the_counters_of_an_h100_say() -> None:
    """FLOPs of products, convolutions and attention are within 5 %, bytes no more than counted, as the study tells."""
    spec = importlib.util.spec_from_file_location("compare", STUDY / "compare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = module.compare()
    assert table.to_csv(index=False) == (STUDY / "results.csv").read_text()
    table = table.set_index("range")
    products = table.filter(regex="mm|conv|sdpa", axis=0)
    assert len(products) == 12
    assert products.flops_ratio.between(0.95, 1.0001).all()
    once = table.drop(products.filter(regex="^OP::(mm|addmm|conv_f32)", axis=0).index)
    once = once.drop(["OP::embedding", "OP::batch_norm", "OP::max_pool", "OP::cat"])
    assert len(once) == 20
    assert once.bytes_ratio.between(0.89, 1.015).all()
    assert table.bytes_ratio.max() < 1.015
