"""Kernel names to family, math unit, attention backend and cause."""

# ruff: noqa: E501 (names are data, and long)

import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from nsysprof.errors import NsysprofError
from nsysprof.kernels import rules as kernel_rules
from nsysprof.kernels.classify import FAMILIES, MATH_UNITS, Kinds, classify, function_name, load_rules, short_name

REPORT = Path(__file__).parents[2] / "traces" / "run.sqlite"

TENSOR, FMA, UNKNOWN = "tensor core", "FP32 FMA", "unknown"


def kept(file: str) -> list[str]:
    """The lines of a file of names beside this one, without comments."""
    lines = (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith("#")]


KNOWN = [(name, family, unit) for family, unit, name in (line.split("\t") for line in kept("known_names.tsv"))]
# Kernels of public HPC codes whose names hold words like add, copy or sum, and do something else or more.
PLAIN = " ".join(kept("plain_names.txt")).split()

# The same: lambdas and functors of frameworks, which say what runs in a template argument.
WRAPPED = [
    "void mfem::CuKernel1D<mfem::SparseMatrix::BooleanMult(const mfem::Array<int> &, mfem::Array<int> &) const::[lambda(int) (instance 1)]>(int, T1)",
    "void RAJA::policy::cuda::impl::forall_cuda_kernel<RAJA::policy::cuda::cuda_exec_explicit<RAJA::iteration_mapping::Direct>, (unsigned long)1, void rajaperf::apps::ENERGY::runCudaVariantImpl<(unsigned long)128>(rajaperf::VariantID)::[lambda(long) (instance 1)]>(T4, T3, T5)",
    "void Kokkos::Impl::cuda_parallel_launch_local_memory<Kokkos::Impl::ParallelFor<void sundials::kokkos::impl::N_VLinearSum_Kokkos<sundials::kokkos::Vector<Kokkos::Cuda, Kokkos::CudaSpace>>(double, _generic_N_Vector *)::[lambda(unsigned int) (instance 1)], Kokkos::RangePolicy<Kokkos::Cuda>, Kokkos::Cuda>>(T1)",
    "void amrex::launch_global<(int)256, amrex::ParallelFor<(int)256, WarpX::AddSpaceChargeField(WarpXParticleContainer &)::[lambda(int, int, int) (instance 1)]>>(T2)",
    "Kernel(Node *, int *, bool *, bool *, bool *, int *, int)",
    "Kernel2(bool *, bool *, bool *, bool *, int)",
    "random_walk_step(curandStateXORWOW *, float *, int)",
]  # fmt: skip

# Family, cause and math unit of names that once had a wrong label.
LABELS = [
    ("matmul_wmma_kernel(const __half *, const __half *, float *, int)", "gemm", "gemm", TENSOR),
    ("void tcnn::kernel_mlp_fused<(int)64, (int)8, __half, (tcnn::Activation)0, (bool)1>(tcnn::Activation, const __half *, const __half *)", "gemm", "fused MLP", TENSOR),
    ("void tcnn::kernel_mlp_fused_backward<(int)64, (int)8, __half, (tcnn::Activation)0>(const __half *)", "gemm", "fused MLP backward", TENSOR),
    ("fermiCgemm_v3_kernel", "gemm", "gemm", FMA),
    ("kernel_sgemm_NT_NT", "gemm", "gemm", FMA),
    ("cupy_inclusive_batch_scan_kernel", "reduction", "scan", UNKNOWN),
    ("cupy_scan_naive", "reduction", "scan", UNKNOWN),
    ("cupy_nonzero_kernel", "other", "selection", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__merge_sort::BlockSortAgent<int *, int *, long, thrust::less<int>>, bool>(bool)", "other", "sort", UNKNOWN),
    ("_ZN6thrust8cuda_cub4core13_kernel_agentINS0_12__merge_sort14BlockSortAgentIPiS4_lNS_4lessIiEEEEbEEvT0_", "other", "sort", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__copy_if::CopyIfAgent<int *, int *>, int *>(int *)", "other", "selection", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__scan::ScanAgent<int *, int *, thrust::plus<int>>, int *>(int *)", "reduction", "scan", UNKNOWN),
    ("_ZN6thrust8cuda_cub4core13_kernel_agentINS0_6__scan9ScanAgentIPiS4_EES4_EEvT0_", "reduction", "scan", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<thrust::cuda_cub::__fill::functor<int *, int>, long>, long>(long)", "fill", "fill", UNKNOWN),
    ("void thrust::cuda_cub::core::_kernel_agent<thrust::cuda_cub::__parallel_for::ParallelForAgent<thrust::cuda_cub::__transform::unary_transform_f<int *, float *, thrust::identity<int>>, long>, long>(long)", "copy", "copy", UNKNOWN),
    ("void at::native::unrolled_elementwise_kernel<at::native::copy_device_to_device(at::TensorIterator &, bool)::[lambda() (instance 2)]::operator ()() const::[lambda(float) (instance 1)], at::detail::Array<char *, (int)2>>(int, T1)", "copy", "copy", UNKNOWN),
    ("void DSE::vector_fft<(int)0, (int)1, (int)128, (int)8, (int)8, (int)1, float, float, float2>(T9 *, T9 *)", "gemm", "convolution", UNKNOWN),
    ("setup_rand_states(curandStateXORWOW *, unsigned long, unsigned long)", "rng", "random", UNKNOWN),
    ("setup_kernel(curandStateXORWOW *)", "rng", "random", UNKNOWN),
    ("sm50_xmma_pooling_coalescedC_NHWC_kMAX_3_False_execute_kernel_trt", "reduction", "pooling", UNKNOWN),
    ("void tensorflow::functor::PadInputCustomKernelNCHW<float, (int)4>(int, const float *)", "copy", "copy", UNKNOWN),
    ("_gemma_rms_layernorm_forward", "norm", "norm", UNKNOWN),
    ("spgemm_reuse", "gemm", "sparse product", UNKNOWN),
    ("dot_kernel", "reduction", "reduction", UNKNOWN),
    ("kernVectorAdd(const float *, const float *, float *, int)", "elementwise", "elementwise", UNKNOWN),
    ("unpermuteVector_kernel", "copy", "copy", UNKNOWN),
    ("batch_topK_kernel", "other", "sort", UNKNOWN),
    ("attention_query_key_kernel1", "attention", "fused attention", UNKNOWN),
    ("embedding_f16x8_pack_kernel", "copy", "embedding", UNKNOWN),
    ("transposeNoBankConflicts", "copy", "copy", UNKNOWN),
    ("__pgi_uacc_cuda_fill_42_gpu", "fill", "fill", UNKNOWN),
]  # fmt: skip

# What runs forward, what backward, and the cause of the former.
BOTH_WAYS = [
    ("flash_fwd_kernel", "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "fused attention"),
    ("void cutlass::device_kernel<flash::FlashAttnFwdSm90<X>>(T1)", "void cutlass::device_kernel<flash::FlashAttnBwdSm90<X>>(T1)", "fused attention"),
    ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", "fmha_cutlassB_f16_aligned_64x64_k64_sm80", "fused attention"),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", "fused attention"),
    ("_attn_fwd", "_attn_bwd_dkdv", "fused attention"),
    ("flash_fwd_splitkv_combine_kernel", "flash_bwd_dot_do_o_kernel", "attention helper"),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int)", "void at::native::(anonymous namespace)::layer_norm_grad_input_kernel<float, float>(int)", "norm"),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<__half>(int)", "void cudnn::bn_bw_1C11_kernel_new<__half>(int)", "batch norm"),
    ("void vllm::rms_norm_kernel<float>(int)", "_rmsnorm_backward_kernel", "norm"),
    ("void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float>(int)", "void at::native::nll_loss_backward_reduce_cuda_kernel_2d<float>(int)", "loss"),
    ("liger_cross_entropy_kernel", "cross_entropy_backward_kernel", "log-softmax"),
    ("void at::native::EmbeddingBag_updateOutputKernel_sum_mean<float>(int)", "void at::native::embedding_backward_feature_kernel<float>(int)", "embedding"),
    ("void hpco::cuda::embedding_kernel<float>(T1 *)", "void at::native::compute_grad_weight<float, long>(long)", "embedding"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>(int)", "void at::native::vectorized_elementwise_kernel<4, at::native::GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&)>(int)", "activation"),
    ("silu_forward_kernel", "silu_backward_kernel", "activation"),
    ("void pooling_fw_4d_kernel<float>(int)", "void pooling_bw_kernel_max_nchw_fully_packed_small<float>(int)", "pooling"),
    ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 7, false, false>(float*)", "void (anonymous namespace)::softmax_warp_backward<float, float, float, 7, false, false>(float*)", "softmax"),
]  # fmt: skip

# The same kernel as the demangled and the mangled column of one report have it.
TWINS = [
    ("void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::<unnamed>::where_kernel_impl(at::TensorIterator &)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 11)]::operator ()() const::[lambda(bool, float, float) (instance 1)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
     "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_22gpu_kernel_impl_nocastIZZZNS0_49_GLOBAL__N__d2ba64fb_16_TensorCompare_cu_71e06f4e17where_kernel_implERNS_14TensorIteratorEENKUlvE_clEvENKUlvE9_clEvEUlbffE_EEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_"),
    ("void at::native::vectorized_elementwise_kernel<(int)8, at::native::float16_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>>(int, T2, T3)",
     "_ZN2at6native29vectorized_elementwise_kernelILi8EZNS0_24float16_copy_kernel_cudaERNS_18TensorIteratorBaseEEUlfE_St5arrayIPcLm2EEEEviT0_T1_"),
    ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const::[lambda() (instance 7)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, (unsigned long)2>, (int)4, TrivialOffsetCalculator<(int)1, unsigned int>, TrivialOffsetCalculator<(int)1, unsigned int>, at::native::memory::LoadWithCast<(int)1>, at::native::memory::StoreWithCast<(int)1>>(int, T1, T2, T4, T5, T6, T7)",
     "_ZN2at6native27unrolled_elementwise_kernelIZZZNS0_23direct_copy_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE5_clEvEUlfE_St5arrayIPcLm2EELi4E23TrivialOffsetCalculatorILi1EjESB_NS0_6memory12LoadWithCastILi1EEENSC_13StoreWithCastILi1EEEEEviT_T0_T2_T3_T4_T5_"),
    ("void at::native::vectorized_elementwise_kernel<(int)4, at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>, std::array<char *, (unsigned long)2>>(int, T2, T3)",
     "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_13AUnaryFunctorIfffNS0_15binary_internal10MulFunctorIfEEEESt5arrayIPcLm2EEEEviT0_T1_"),
    ("void at::native::triu_tril_kernel<bool, int, (bool)0, (int)8, (bool)0>(at::cuda::detail::TensorInfo<T1, T2>, at::cuda::detail::TensorInfo<const T1, T2>, long, long, T2)",
     "_ZN2at6native16triu_tril_kernelIbiLb0ELi8ELb0EEEvNS_4cuda6detail10TensorInfoIT_T0_EENS4_IKS5_S6_EEllS6_"),
]  # fmt: skip


@pytest.fixture(scope="module")
def rules() -> kernel_rules.Rules:
    """The shipped rules."""
    return load_rules()


def write(folder: Path, text: str) -> Path:
    """A rule file with this text."""
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_known_names(rules: kernel_rules.Rules) -> None:
    """Every collected name gets the family and the math unit that an engineer gave it."""
    names = [name for name, _, _ in KNOWN]
    kinds = classify(rules, names)
    found = list(zip(names, kinds.family, kinds.math_unit, strict=True))
    assert [row for row, known in zip(found, KNOWN, strict=True) if row != known] == []


def test_names_of_hpc_codes_stay_other(rules: kernel_rules.Rules) -> None:
    """A word that may mean anything in a program's own name decides nothing: no rule takes any of these names."""
    assert len(set(PLAIN)) == len(PLAIN) >= 250
    kinds = classify(rules, PLAIN + WRAPPED)
    assert [row for row in zip(PLAIN + WRAPPED, kinds.family, kinds.rule, strict=True) if row[2] != "unmatched"] == []


def test_words_of_names_in_any_case_stay_other(rules: kernel_rules.Rules) -> None:
    """`expand_frontier`, `ExpandFrontier` and `EXPAND_FRONTIER` are one name: how it is written does not matter."""
    snakes = [name for name in PLAIN if name.islower() and "_" in name]
    camels = ["".join(word.capitalize() for word in name.split("_")) for name in snakes]
    names = [name.upper() for name in snakes] + camels + [f"app::{name}" for name in snakes]
    kinds = classify(rules, names)
    assert [row for row in zip(names, kinds.family, kinds.rule, strict=True) if row[2] != "unmatched"] == []


@pytest.mark.parametrize(("name", "family", "cause", "unit"), LABELS)
def test_labels(rules: kernel_rules.Rules, name: str, family: str, cause: str, unit: str) -> None:
    """Family, cause and math unit of names that are easily taken for something else."""
    kinds = classify(rules, [name])
    assert (kinds.family, kinds.cause, kinds.math_unit) == ([family], [cause], [unit])


@pytest.mark.parametrize(("forward", "backward", "cause"), BOTH_WAYS)
def test_forward_and_backward_are_different_causes(
    rules: kernel_rules.Rules, forward: str, backward: str, cause: str
) -> None:
    """The backward kernel of a pair has the family of the forward one, and the cause says that it is backward."""
    kinds = classify(rules, [forward, backward])
    assert kinds.cause == [cause, f"{cause} backward"]
    assert kinds.family[0] == kinds.family[1]


def test_plain_words_count_for_libraries_and_in_plain_names(rules: kernel_rules.Rules) -> None:
    """Beside other words a word counts only in a library's function."""
    names = ["scale_kernel", "vectorScale2", "app::scale<float>", "scale_forces", "vllm::scale_forces"]
    assert classify(rules, names).family == ["elementwise"] * 3 + ["other", "elementwise"]


def test_known_names_cover_every_family_and_unit() -> None:
    """The collected names are many, distinct, and leave no family and no unit out."""
    assert len({name for name, _, _ in KNOWN}) == len(KNOWN) >= 250
    assert {family for _, family, _ in KNOWN} == {*FAMILIES} - {"migration"}  # no kernel's name tells of one
    assert {unit for _, _, unit in KNOWN} == set(MATH_UNITS)


def test_mangled_names_classify_as_their_demangled_twins(rules: kernel_rules.Rules) -> None:
    """Family, unit, backend, cause and deciding rule are the same for both spellings of a kernel."""
    assert classify(rules, [d for d, _ in TWINS]) == classify(rules, [m for _, m in TWINS])


def test_short_names_of_the_report_column_classify(rules: kernel_rules.Rules) -> None:
    """The short names that nsys stores still give the family where the function alone decides it."""
    names = ["softmax_warp_forward", "flash_fwd_kernel", "triu_tril_kernel", "reduce_all_kernel", "CatArrayBatchedCopy"]
    assert classify(rules, names).family == ["softmax", "attention", "mask", "reduction", "copy"]


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", "efficient"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1", "cudnn"),
        ("void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)64>>(T1)", "flash"),
        ("void pytorch_flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<(int)64>>(T1)", "flash"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<X>>>(T1::Params)", "flash"),
        ("triton_tem_fused_flex_attention_3", "flex"),
        ("void tiled_o0<64>(float *)", "tiled_o0"),
        ("tiled_o4", "tiled_o4"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_ffma", None),
    ],
)
def test_attention_backend(rules: kernel_rules.Rules, name: str, backend: str | None) -> None:
    """A fused attention kernel tells its backend, a GEMM does not: math attention is made of ordinary kernels."""
    assert classify(rules, [name]).attention_backend == [backend]


@pytest.mark.parametrize(
    ("index", "cause"), [(0, "where"), (1, "cast float→half"), (2, "cast to float"), (3, "scale"), (4, "mask build")]
)
def test_causes_of_math_attention(index: int, cause: str) -> None:
    """The extra work of math attention gets a finer label than its family, in both spellings."""
    assert classify(load_rules(), TWINS[index]).cause == [cause, cause]


def test_cause_defaults_to_the_family(rules: kernel_rules.Rules) -> None:
    """Where no rule says more, the cause repeats the family; an unknown kernel is other on both counts."""
    kinds = classify(rules, ["ampere_sgemm_128x64_tn", "qwxyz"])
    assert (kinds.cause, kinds.family, kinds.rule) == (
        ["gemm", "other"],
        ["gemm", "other"],
        ["cuBLAS sgemm", "unmatched"],
    )


def test_real_report_leaves_under_one_percent_to_other(rules: kernel_rules.Rules) -> None:
    """On the shipped report `other` holds under 1 % of kernel time, and every attention backend is seen."""
    with closing(sqlite3.connect(f"file:{REPORT}?mode=ro", uri=True)) as file:
        rows = file.execute(
            "SELECT value, sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName GROUP BY 1"
        ).fetchall()
    kinds = classify(rules, [name for name, _ in rows])
    other = sum(ns for (_, ns), family in zip(rows, kinds.family, strict=True) if family == "other")
    assert other * 100 < sum(ns for _, ns in rows)
    assert {"flash", "efficient", "cudnn"} <= set(kinds.attention_backend)


def test_every_shipped_rule_is_well_formed(rules: kernel_rules.Rules) -> None:
    """The shipped file passes the checks that a user's file must pass, with distinct rule names."""
    assert load_rules(kernel_rules.SHIPPED_RULES).rules == rules.rules * 2
    assert len({rule.name for rule in rules.rules}) == len(rules.rules)


def test_needed_words_never_hide_a_match(rules: kernel_rules.Rules) -> None:
    """Asking by candidates gives exactly what searching every expression in order gives."""
    names = [name for name, _, _ in KNOWN] + [mangled for _, mangled in TWINS]
    names += PLAIN + WRAPPED + [name for name, *_ in LABELS]
    everything = kernel_rules.Rules(rules.rules, rules.checks, ("",) * len(rules.checks))
    assert classify(rules, names) == classify(everything, names)


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("flash_fwd_kernel", "flash"),
        ("nvjets?_tst", "nvjet"),
        ("(?:copy|cast)_gemm", "gemm"),
        ("copy|cast", ""),
        ("[a-z]+x[^abc]softmax", "softmax"),
        (r"\bwhere\d", "where"),
        ("[]abc]fill", "fill"),
        ("SoftMax", "softmax"),
        ("[1-9]+", ""),
    ],
)
def test_needed_word(pattern: str, word: str) -> None:
    """The word an expression is asked by stands in every name that it can match."""
    assert kernel_rules._needed_word(pattern) == word


def test_own_rules_are_asked_first(tmp_path: Path) -> None:
    """A user's rule beats the shipped one for the same name and leaves other names alone."""
    path = write(
        tmp_path,
        '[[rule]]\nname = "mine"\nmatch = ["^ampere_(?P<kind>s)gemm", "renderCUDA"]\nfamily = "norm"\n'
        'math_unit = "tensor core"\nattention_backend = "tiled"\ncause = ["by {kind}", "plain"]\n',
    )
    kinds = classify(load_rules(path), ["ampere_sgemm_32x32", "renderCUDA(int)", "volta_sgemm_128x64_nn"])
    assert kinds.family == ["norm", "norm", "gemm"]
    assert kinds.math_unit == ["tensor core", "tensor core", "FP32 FMA"]
    assert kinds.attention_backend == ["tiled", "tiled", None]
    assert kinds.cause == ["by s", "plain", "gemm"]
    assert kinds.rule == ["mine", "mine", "cuBLAS sgemm"]


@pytest.mark.parametrize("match", ["(a+)+$", "(a|aa)+$", "a*a*a*a*a*a*b"])
def test_rules_that_go_back_and_forth_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, match: str) -> None:
    """An expression that would take for ever is refused in a sentence; other names and rules are not."""
    monkeypatch.setattr("nsysprof.core.expressions._PATIENCE_S", 0.1)
    rules = load_rules(write(tmp_path, f'[[rule]]\nname = "mine"\nmatch = "{match}"\nfamily = "norm"\n'))
    assert classify(rules, ["gemm"]).family == ["gemm"]
    with pytest.raises(NsysprofError, match=r"the kernel rules take more than 0\.1 s"):
        classify(rules, ["a" * 500 + "!"])
    assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] == 0


def test_where_words_looks_at_the_words_of_the_own_name(tmp_path: Path) -> None:
    """Words are found however the name joins them, and `only` says which others may stand beside them."""
    path = write(
        tmp_path,
        '[[rule]]\nname = "mine"\nmatch = "^rainy day"\nwhere = "words"\nonly = "rainy day seattle"\nfamily = "norm"\n',
    )
    names = ["rainy_day_kernel", "ns::RainyDay2<int>(int)", "RAINY_DAY_SEATTLE", "rainy_day_london", "a_rainy_day_b_c"]
    assert classify(load_rules(path), names).rule == ["mine", "mine", "mine", "unmatched", "mine"]


def test_where_function_looks_at_the_function_only(tmp_path: Path) -> None:
    """An expression on the function ignores template arguments and parameters."""
    path = write(tmp_path, '[[rule]]\nname = "mine"\nmatch = "secret"\nwhere = "function"\nfamily = "norm"\n')
    assert classify(load_rules(path), ["void secret<int>(int)", "void zzz<secret>(secret)"]).rule == [
        "mine",
        "unmatched",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rule = 3", r"expected only \[\[rule\]\] tables"),
        ("", r"expected only \[\[rule\]\] tables"),
        ("[[rules]]\nname = 'a'", r"expected only \[\[rule\]\] tables"),
        ("[[rule]\n", "not TOML: .*line 1"),
        ("[[rule]]\nmatch = 'abc'\nfamily = 'gemm'", "rule 1: 'name' is missing"),
        ("[[rule]]\nname = 'a'\nfamily = 'gemm'", r"rule 1 \(\"a\"\): 'match' is missing"),
        ("[[rule]]\nname = 'a'\nmatch = 'abc'", r"rule 1 \(\"a\"\): 'family' is missing"),
        ("[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gem'", "family: 'gem' is not one of gemm, attention"),
        (
            "[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gemm'\nmath_unit = 'FP64'",
            "math_unit: 'FP64' is not one of tensor",
        ),
        (
            "[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gemm'\nwhere = 'all'",
            "where: 'all' is not one of name, function",
        ),
        ("[[rule]]\nname = 'a'\nmatch = 'a(b'\nfamily = 'gemm'", r"expression 'a\(b' does not compile: missing \)"),
        (
            "[[rule]]\nname = 'a'\nmatch = '[[a]'\nfamily = 'gemm'",
            r"does not compile: Possible nested set at position 1",
        ),
        ("[[rule]]\nname = 'a'\nmatch = '.*'\nfamily = 'gemm'", r"expression '\.\*' matches every name"),
        (
            f"[[rule]]\nname = 'a'\nmatch = '{'(' * 5000}'\nfamily = 'gemm'",
            r"expression '\({9,}…\({9,}' does not compile: maximum recursion",
        ),
        ("[[rule]]\nname = 'a'\nmatch = []\nfamily = 'gemm'", "match: expected array of length >= 1"),
        ("[[rule]]\nname = 'a'\nmatch = [1]\nfamily = 'gemm'", r"match\[0\]: expected str, got int"),
        ("[[rule]]\nname = 1\nmatch = 'abc'\nfamily = 'gemm'", "rule 1: name: expected str, got int"),
        ("[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = ['gemm']", "family: expected str, got array"),
        ("[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gemm'\nunit = 'x'", "unknown key 'unit'"),
        ("[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gemm'\nonly = 'x'", "'only' needs where = \"words\""),
        ("[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gemm'\nbackward = 1", "backward: expected bool, got int"),
        ("[[rule]]\nname = 'a'\nmatch = 'abc'\nfamily = 'gemm'\ncause = 'to {dst}'", "cause uses {dst}"),
        (
            "[[rule]]\nname = 'a'\nmatch = 'b'\nfamily = 'gemm'\n[[rule]]\nname = 'c'",
            r"rule 2 \(\"c\"\): 'match' is missing",
        ),
    ],
)
def test_malformed_rule_files_say_file_rule_and_reason(tmp_path: Path, text: str, reason: str) -> None:
    """A bad rule file is refused in one line that names the file, the rule and what is wrong, with a hint."""
    path = write(tmp_path, text)
    with pytest.raises(NsysprofError, match=reason) as caught:
        load_rules(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert "\n" not in caught.value.message
    assert str(kernel_rules.SHIPPED_RULES) in (caught.value.hint or "")


def test_unreadable_rule_files(tmp_path: Path) -> None:
    """A missing file, a directory and bytes that are not text are refused with a reason each."""
    with pytest.raises(NsysprofError, match=r"absent\.toml: cannot read the rule file: No such file"):
        load_rules(tmp_path / "absent.toml")
    with pytest.raises(NsysprofError, match="cannot read the rule file: Is a directory"):
        load_rules(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(NsysprofError, match=r"bytes.toml: not UTF-8, so no rule file: byte 0"):
        load_rules(tmp_path / "bytes.toml")


def test_empty_input(rules: kernel_rules.Rules) -> None:
    """No names give no kinds, and an empty name is other."""
    assert classify(rules, []) == Kinds([], [], [], [], [])
    assert classify(rules, [""]).family == ["other"]


def test_twenty_thousand_names_are_quick(rules: kernel_rules.Rules) -> None:
    """20,000 distinct names take less than a second of CPU, on a busy machine too."""
    names = [f"{KNOWN[i % len(KNOWN)][0]}_{i}" for i in range(20_000)]
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        classify(rules, names)
        best = min(best, time.process_time() - start)
    assert best < 1


def test_long_names_do_not_blow_up(rules: kernel_rules.Rules) -> None:
    """Names of many thousand characters with much to backtrack over take milliseconds, not minutes."""
    lambdas = TWINS[2][1].replace("12LoadWithCast", "4Load").replace("13StoreWithCast", "5Store")
    names = [
        lambdas[:-30] + "EEvRNS_18TensorIteratorBaseERKT_EUliE_" * 60,
        "void thrust::a<" + "thrust::cuda_cub::b<thrust::c<float>>, " * 100 + "int>(int)",
        "void cutlass::Kernel<" + "cutlass::gemm::threadblock::MmaX<cutlass::half_t>, " * 100 + ">(int)",
        "void f<" + "flashinfer::cusparse::at::native::" * 150 + "int>(int)",
        "a_" * 3000,
    ]
    start = time.process_time()
    assert classify(rules, names).family == ["copy", "other", "gemm", "other", "other"]
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void <unnamed>::softmax_warp_forward<float, (int)9>(T2 *)", "softmax_warp_forward"),
        (
            "void at::native::(anonymous namespace)::max_pool_forward_nchw<float>(int)",
            "at::native::max_pool_forward_nchw",
        ),
        (
            "std::enable_if<T2>(int)0&&vllm::_typeConvert<T1>::exists, void>::type vllm::fused<c10::Half>(T1 *)",
            "vllm::fused",
        ),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("cudapy::__main__::foo$241(Array<double, 2>)", "cudapy::__main__::foo"),
        ("_ZN2at6native13reduce_kernelILi512EEEvT_", "at::native::reduce_kernel"),
        ("_ZN2at6native12_GLOBAL__N_128vectorized_layer_norm_kernelIfEEvi", "at::native::vectorized_layer_norm_kernel"),
        ("_Z9vectorAddPKfS0_Pfi", "vectorAdd"),
        ("_Z", "_Z"),
    ],
)
def test_function_name(name: str, function: str) -> None:
    """The function's qualified name comes out of demangled, mangled and plain names."""
    assert function_name(name) == function


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (TWINS[3][0], "vectorized_elementwise MulFunctor float"),
        (TWINS[3][1], "vectorized_elementwise MulFunctor float"),
        (TWINS[0][0], "elementwise where bool float"),
        (TWINS[1][0], "vectorized_elementwise float16_copy float"),
        (KNOWN[0][0], "vectorized_elementwise FillFunctor bool"),
        (
            "void <unnamed>::softmax_warp_forward<float, float, float, (int)11, (bool)0, (bool)0>(T2 *)",
            "softmax_warp_forward float 11",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)",
            "cutlass_80_simt_sgemm_256x128_8x4_nn_align1",
        ),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas",
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_128x128x8_ffma",
        ),
        ("triton_poi_fused_0", "triton_poi_fused_0"),
        ("", ""),
    ],
)
def test_short_name(name: str, short: str) -> None:
    """A short name keeps the function, the functor, the type and the tile, and drops the rest."""
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("name", "short", "function"),
    [
        ("__omp_offloading_10303_4e2ec6__Z4main_l21", "main:21 (OpenMP)", "main"),
        ("__omp_offloading_34_8975356_saxpy_l8", "saxpy:8 (OpenMP)", "saxpy"),
        ("__omp_offloading_4f_5896da36__ZN7gpumath13uniform_rangeIiEEvRNS_5ArrayIT_EE__l28", "uniform_range:28 (OpenMP)", "gpumath::uniform_range"),
        ("__omp_offloading_10303_4e2ec6__QMsolverPstep_l204", "step:204 (OpenMP)", "step"),
        ("nvkernel_solve_F1L204_2", "solve:204 (OpenMP)", "solve"),
        ("nvkernel_add2s2_omp__F1L1959_25_", "add2s2_omp:1959 (OpenMP)", "add2s2_omp"),
        ("nvkernel__ZN10coreneuron18solve_interleaved1Ei_F1L653_4", "solve_interleaved1:653 (OpenMP)", "coreneuron::solve_interleaved1"),
        ("kmeans_235_gpu", "kmeans:235 (OpenACC)", "kmeans"),
        ("kmeans_235_gpu__red", "kmeans:235 (OpenACC reduction)", "kmeans"),
        ("__pgi_uacc_cuda_fill_42_gpu", "pgi_uacc_cuda_fill:42 (OpenACC)", "pgi_uacc_cuda_fill"),
        ("conv_2_gpu", "conv_2_gpu", "conv_2_gpu"),
        ("kmeans_235_gpu(float *)", "kmeans_235_gpu", "kmeans_235_gpu"),
        ("solve_$ck_L204_1", "solve:204 (Cray)", "solve"),
        ("main$_omp_fn$0", "main (GCC)", "main"),
        ("julia_vadd_kernel_1234(CuKernelContext, CuDeviceArray<Float32, (int)1, (int)1>)", "vadd (Julia)", "vadd_kernel"),
        ("_Z16julia_vadd__1234", "vadd (Julia)", "vadd"),
        ("gpu_broadcast_kernel_linear(CompilerMetadata<DynamicSize, DynamicCheck>, Int64)", "broadcast_kernel_linear (Julia)", "broadcast_kernel_linear"),
        ("cudapy::__main__::reduce_kernel[abi:v1,cw51cXTLSUwv](Array<long long, (int)1, C>)", "reduce (Numba)", "cudapy::__main__::reduce_kernel"),
        ("matmul_kernel_0d1d2d3de4de5de6de7c8de9c10de11c", "matmul (Triton)", "matmul_kernel"),
        ("src_solver_rk_stage_kernel_I6A6A6A6AcB6A6A_3c8d0c8e9d13eed8", "src_solver_rk_stage (Mojo)", "src_solver_rk_stage_kernel"),
        ("p16_naive_matmul_Layout_Int6A6AcB6A6AsA6A6A", "p16_naive_matmul (Mojo)", "p16_naive_matmul"),
        ("void Kokkos::Impl::cuda_parallel_launch_local_memory<Kokkos::Impl::ParallelFor<Push<double>, Kokkos::RangePolicy<Kokkos::Cuda>, Kokkos::Cuda>>(T1)", "Kokkos ParallelFor Push double", "Kokkos::Impl::cuda_parallel_launch_local_memory"),
    ],
)  # fmt: skip
def test_names_of_other_languages(name: str, short: str, function: str) -> None:
    """Regions of directives show function, line and language, functions of other languages their own name."""
    assert short_name(name) == short
    assert function_name(name) == function


def test_families_of_other_languages(rules: kernel_rules.Rules) -> None:
    """What a function is called decides about regions of directives too."""
    names = ["nvkernel_matmult_mkn_offload_F1L85_3", "__omp_offloading_34_8975356_saxpy_l8", "feed_input_23_gpu"]
    names += ["gpu_broadcast_kernel_cartesian(CompilerMetadata<DynamicSize>)", "partial_mapreduce_grid(identity)"]
    assert classify(rules, names).family == ["gemm", "elementwise", "other", "elementwise", "reduction"]


def test_short_names_fit_and_survive_damage() -> None:
    """No short name is longer than asked, whatever the input, and cut-off names do not fail."""
    for name in [name for name, _, _ in KNOWN] + [name for twins in TWINS for name in twins]:
        for cut in (len(name), len(name) * 2 // 3, len(name) // 3):
            assert 0 < len(short_name(name[:cut], 40)) <= 40
    assert short_name("x" * 100, 20) == "x" * 13 + "…" + "x" * 6


def test_short_names_tell_tiles_apart() -> None:
    """Two GEMMs that differ only in their tile keep different short names."""
    name = "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize{}_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__5x_cublas"
    assert short_name(name.format("128x64x8")) != short_name(name.format("256x64x8"))
