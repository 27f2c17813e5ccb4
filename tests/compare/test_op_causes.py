"""What each kernel of a call is there for: names first, then the order within the call."""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest

from nsysprof.compare.op_causes import (
    CAST_DOWN,
    CAST_UP,
    COMBINE,
    FUSED,
    GUARD,
    MASK_ADD,
    MASK_BUILD,
    PV,
    QK,
    SCALING,
    SOFTMAX,
    op_causes,
)
from nsysprof.kernels.classify import classify, load_rules
from nsysprof.trace.trace import KERNEL, MEMCPY, MEMSET

AT = "at::native::"
ELEMENTWISE = f"void {AT}vectorized_elementwise_kernel<(int)4, {AT}"
NAMES = {
    "up": f"void {AT}unrolled_elementwise_kernel<{AT}direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() "
    f"(instance 3)]::operator ()() const::[lambda(float) (instance 1)], {AT}memory::LoadWithCast<(int)1>>(int, T1)",
    "down": f"{ELEMENTWISE}float16_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float) (instance 1)]>(int, T2)",
    "scale": f"{ELEMENTWISE}AUnaryFunctor<float, float, float, {AT}binary_internal::MulFunctor<float>>>(int, T2)",
    "fill": f"{ELEMENTWISE}FillFunctor<float>, std::array<char *, (unsigned long)1>>(int, T2, T3)",
    "tril": f"void {AT}triu_tril_kernel<bool, int, (bool)0, (int)8, (bool)0>(T1)",
    "where": f"void {AT}elementwise_kernel<(int)128, (int)2, void {AT}gpu_kernel_impl_nocast<{AT}<unnamed>::"
    "where_kernel_impl(at::TensorIterator &)::[lambda(bool, float, float) (instance 1)]>>(int, T3)",
    "add": f"void {AT}elementwise_kernel<(int)128, (int)2, void {AT}gpu_kernel_impl_nocast<"
    f"{AT}CUDAFunctor_add<float>>>(int, T3)",
    "gemm": "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_kernel",
    "splitk": "void splitKreduce_kernel<(int)32, (int)16, int, float, float>(T1)",
    "conv": "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32_kernel",
    "softmax": "void <unnamed>::softmax_warp_forward<float, float, float, (int)9, (bool)0, (bool)0>(T2 *, int)",
    "backward": "void <unnamed>::softmax_warp_backward<float, float, float, (int)9, (bool)0, (bool)0>(T2 *, int)",
    "log": f"void {AT}<unnamed>::cunn_SoftMaxForward<(int)8, float, float, float, {AT}<unnamed>::"
    "LogSoftMaxForwardEpilogue>(T4 *, int)",
    "isneginf": f"{ELEMENTWISE}<unnamed>::isneginf_kernel_impl(at::TensorIteratorBase &)::[lambda(float)]>(int, T2)",
    "all": f"void {AT}reduce_kernel<(int)512, (int)1, {AT}ReduceOp<bool, {AT}func_wrapper_t<bool, {AT}"
    "and_kernel_cuda(at::TensorIterator &)::[lambda(bool, bool)]>>>(T3)",
    "flash": "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)64, (int)64>>(T1)",
    "combine": "void pytorch_flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<(int)64>>(T1)",
    "relu": f"{ELEMENTWISE}<unnamed>::launch_clamp_scalar(at::TensorIteratorBase &)::[lambda(float)]>(int, T2)",
    "mystery": "frobnicate",
}
# The kernels of one call of PyTorch's math attention, in half precision and with a causal mask, and what they do.
MATH = "up up up scale fill tril fill fill where scale gemm add softmax isneginf all fill where down gemm down"
MATH_CAUSES = [
    *[CAST_UP] * 3,
    SCALING,
    *[MASK_BUILD] * 5,
    SCALING,
    QK,
    MASK_ADD,
    SOFTMAX,
    *[GUARD] * 4,
    CAST_DOWN,
    PV,
    CAST_DOWN,
]


def causes(*groups: str, names: Sequence[str] | None = None) -> list[str]:
    """The causes of kernels by their short names above, a text per group."""
    known = list(NAMES) if names is None else list(names)
    texts = [NAMES.get(name, name) for name in known]
    words = [group.split() for group in groups]
    found = op_causes(
        texts,
        classify(load_rules(), texts),
        name=np.array([known.index(word) for word in chain(*words)], np.int32),
        kind=np.full(sum(map(len, words)), KERNEL, np.uint8),
        group=np.repeat(np.arange(len(words)), [len(group) for group in words]),
    )
    return [found.texts[code] for code in found.of.tolist()]


def test_every_kernel_of_math_attention_has_its_cause() -> None:
    """The twenty kernels of a real call, down to which fill builds the mask and which belongs to the guard."""
    assert causes(MATH) == MATH_CAUSES


def test_calls_do_not_see_each_other() -> None:
    """The last product of one call and the first of the next stay apart: groups end the order."""
    assert causes(MATH, MATH) == MATH_CAUSES * 2
    assert causes("gemm softmax", "gemm") == ["gemm", "softmax", "gemm"]


def test_layers_of_a_model_are_kept_apart() -> None:
    """Two layers with projections around their attention: only the products next to a softmax are Q·Kᵀ and P·V."""
    layer = "gemm scale gemm add softmax gemm gemm relu gemm"
    expected = ["gemm", SCALING, QK, MASK_ADD, SOFTMAX, PV, "gemm", "activation", "gemm"]
    assert causes(f"{layer} {layer}") == expected * 2


def test_a_softmax_without_a_product_behind_it_is_no_attention() -> None:
    """A classifier ends in product and softmax; a loss has a softmax of its own: both keep what the rules say."""
    assert causes("gemm softmax") == ["gemm", "softmax"]
    assert causes("gemm log gemm") == ["gemm", "log-softmax", "gemm"]
    assert causes("conv softmax gemm") == ["convolution", "softmax", "gemm"]


def test_backward_passes_keep_the_causes_of_the_rules() -> None:
    """The gradient of a softmax stands between products too, but these are not Q·Kᵀ and P·V."""
    assert causes("gemm gemm backward gemm gemm") == ["gemm", "gemm", "softmax backward", "gemm", "gemm"]


def test_a_fill_or_where_beside_no_attention_is_only_that() -> None:
    """The same kernels without an attention around them are named after what they do."""
    assert causes("fill where add scale all") == ["fill", "where", "add", "scale", "all-reduction"]
    assert causes("fill gemm softmax gemm") == ["fill", QK, SOFTMAX, PV]


def test_without_a_guard_a_where_after_the_softmax_is_its_own_cause() -> None:
    """What makes the four kernels a guard is the search for rows of minus infinity."""
    assert causes("gemm softmax all fill where gemm") == [QK, SOFTMAX, "all-reduction", "fill", "where", PV]


def test_split_products_are_one_cause() -> None:
    """cuBLAS splits a product and adds its parts up in a second kernel: both are Q·Kᵀ, or P·V."""
    assert causes("gemm splitk add softmax gemm splitk down") == [QK, QK, MASK_ADD, SOFTMAX, PV, PV, CAST_DOWN]


def test_fused_kernels_are_one_row_and_their_combine_another() -> None:
    """Flash attention with split keys: the kernel itself, and the one that puts the parts together."""
    assert causes("flash combine") == [FUSED, COMBINE]


def test_a_mask_can_be_put_on_by_a_where_as_well() -> None:
    """A `where` between product and softmax masks the scores, with the scalar it fills in."""
    assert causes("gemm scale fill where softmax gemm") == [QK, SCALING, MASK_ADD, MASK_ADD, SOFTMAX, PV]


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        (NAMES["up"], CAST_UP),
        (NAMES["down"], CAST_DOWN),
        (
            NAMES["down"].replace("float16_copy", "bfloat16_copy").replace("(float)", "(c10::Half)"),
            "cast half→bfloat16",
        ),
        ("frobnicate", "other"),
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)", "communication"),
    ],
)
def test_what_a_name_alone_tells(name: str, cause: str) -> None:
    """Casts go up or down by their types; what no rule knows is `other`."""
    kinds = classify(load_rules(), [name])
    one = np.zeros(1, np.int32)
    found = op_causes([name], kinds, name=one, kind=np.zeros(1, np.uint8), group=one)
    assert found.texts[found.of[0]] == cause


def test_what_is_no_kernel_is_called_by_its_name() -> None:
    """Copies and memsets are causes of their own, whatever a rule says of a kernel of that name."""
    names = ["memset", "memcpy HtoD"]
    place = np.array([0, 1, 0], np.int32)
    found = op_causes(
        names,
        classify(load_rules(), names),
        name=place,
        kind=np.array([MEMSET, MEMCPY, MEMSET], np.uint8),
        group=np.zeros(3, np.int64),
    )
    assert [found.texts[code] for code in found.of.tolist()] == ["memset", "memcpy HtoD", "memset"]


def test_no_ops_have_no_causes() -> None:
    """An empty range is no special case."""
    none = np.empty(0, np.int32)
    found = op_causes([], classify(load_rules(), []), name=none, kind=none.astype(np.uint8), group=none)
    assert (found.texts, found.of.tolist()) == ([], [])
