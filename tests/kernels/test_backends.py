"""Which attention backend ran in each `RUN::` range, by names of kernels as profilers recorded them."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.attribution import range_work
from nsysprof.capture.text import backend_table, difference_lines
from nsysprof.kernels.backends import BackendVerdict, judge_backends
from nsysprof.kernels.classify import classify, load_rules
from tests.conftest import MakeTrace
from tests.kit.reports import RUN, attributed, broken_down
from tests.kit.trace import Items, Range, launch_graph, launch_kernel, launch_memcpy, launch_memset

FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)64, (int)128, (int)128, (int)4>>(T1)"
SPLIT = "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<(int)64, (int)64>>(T1)"
COMBINE = "void pytorch_flash::flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<(int)64, (int)64>>(T1)"
FLASH_BACKWARD = (
    "void pytorch_flash::flash_bwd_dot_do_o_kernel<(bool)1, Flash_bwd_kernel_traits<(int)64>>(T1)",
    "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<(int)64>>(T1)",
    "void pytorch_flash::flash_bwd_convert_dq_kernel<Flash_bwd_kernel_traits<(int)64>>(T1, int)",
)
FLASH_4 = "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_object_at__tensor0000o11101213_0"
NAMED_FLASH_4 = f"flash_fwd_sm90_bf16_head_dim128_tile128x128_threads384_causal_{FLASH_4}"
FLASH_4_HELPER = "kernel_cutlass_kernel_flash_attncuteflash_bwd_preprocessFlashAttentionBackwardPreprocess_object_at__0"
FLASH_3 = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<X>>>(T1::Params)"
EFFICIENT = "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<X>::Params)"
EFFICIENT_BACKWARD = "fmha_cutlassB_f16_aligned_128x64_k64_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<X>)"
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0"
CUDNN_BACKWARD = (
    "void cudnn::fusion::compute_dot_do_o_specialized<(bool)1, (int)64>(void *)",
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1_cga1x1x1_kernel0_0",
    "void cudnn::fusion::convert_dq_to_16bits<(bool)1>(void *)",
    "void cudnn::fusion::fmha_reduce_head<(bool)1>(void *)",
)
FLEX, FLEX_BACKWARD = "triton_tem_fused_flex_attention_0", "triton_tem_fused_flex_attention_backward_1"
GEMM, FP32_GEMM = "nvjet_sm90_hsh_64x32_64x16_1x2_h_bz_TNN", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_ffma"
SOFTMAX = "void <unnamed>::softmax_warp_forward<float, float, float, (int)9, (bool)0, (bool)0>(T2 *)"
SOFTMAX_BACKWARD = "void at::native::<unnamed>::cunn_SoftMaxBackward<(int)8, float, float, float, X>(T2 *)"
LOG_SOFTMAX = (
    "void <unnamed>::softmax_warp_forward<c10::Half, c10::Half, float, (int)9, (bool)1, (bool)0>(T2 *)",
    "void at::native::<unnamed>::cunn_SoftMaxBackward<(int)8, float, X, at::native::LogSoftMaxBackwardEpilogue>(T2 *)",
    "triton_red_fused__log_softmax_nll_loss_forward_2",
    "liger_cross_entropy_kernel",
)
NORM = "void at::native::<unnamed>::vectorized_layer_norm_kernel<c10::Half, float>(int)"
ADD = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>>(int)"
STRANGE = "void mine::qwxyz<(int)64>(float *)"
BLOCK = (NORM, GEMM, ADD)

END = 10_000


def run(name: str, *kernels: str, at: int = 0, **where: Any) -> list[Items]:
    """A range of 500 ns with these kernels launched in it, the first 10 ns long, each further one 1 ns less."""
    items: list[Items] = [Range(name, at, at + 500, **where)]
    where = {key: value for key, value in where.items() if key in ("thread", "process")}
    for i, kernel in enumerate(kernels):
        start = at + 10 * i
        items.append(
            launch_kernel(kernel, (start + 1, start + 2), (start + 20, start + 30 - i), id=at + i + 1, **where)
        )
    return items


def judged(path: Path, threads: str = "follow", rules: Path | None = None) -> BackendVerdict:
    return judge_backends(attributed(path, threads), load_rules(rules))


def observed(verdict: BackendVerdict) -> list[tuple[str, str]]:
    """Range and backend of each row."""
    return list(zip(verdict.ranges["range"], verdict.ranges["observed"], strict=True))


def agreement(verdict: BackendVerdict) -> list[object]:
    """True, False or None for each row."""
    return [row["agrees"] for row in verdict.records()]


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ((FLASH,), "flash"),
        ((SPLIT, COMBINE), "flash"),
        ((FLASH_3,), "flash"),
        ((FLASH_4,), "flash_attn_4"),
        ((NAMED_FLASH_4, FLASH_4_HELPER), "flash_attn_4"),
        ((FLASH, *FLASH_BACKWARD), "flash"),
        ((EFFICIENT,), "efficient"),
        ((EFFICIENT, ADD, EFFICIENT_BACKWARD), "efficient"),
        ((CUDNN,), "cudnn"),
        ((CUDNN, *CUDNN_BACKWARD), "cudnn"),
        ((FLEX, FLEX_BACKWARD), "flex"),
        ((FP32_GEMM, ADD, SOFTMAX, FP32_GEMM), "math"),
        ((GEMM, SOFTMAX, GEMM, SOFTMAX_BACKWARD, GEMM), "math"),
        ((GEMM, SOFTMAX, STRANGE), "math"),
        ((*BLOCK, FLASH, GEMM), "flash"),
        ((*BLOCK, GEMM, SOFTMAX, GEMM), "math"),
        ((SOFTMAX, FLASH), "flash"),
        ((STRANGE, FLASH), "flash"),
        ((FLASH, GEMM, SOFTMAX_BACKWARD, GEMM), "flash + math"),
        ((FLASH, CUDNN), "cudnn + flash"),
        ((FLASH, EFFICIENT_BACKWARD, GEMM, SOFTMAX), "efficient + flash + math"),
        (BLOCK, "no attention"),
        ((SOFTMAX, ADD), "no attention"),
        ((STRANGE, *BLOCK), "unknown"),
        (("my_attention_kernel",), "unknown"),
        ((), "none"),
    ],
)
def test_kernels_show_the_backend(trace: MakeTrace, kernels: tuple[str, ...], expected: str) -> None:
    """Fused kernels name themselves, forward or backward; products with a softmax are math; norms say nothing."""
    verdict = judged(trace(*run("RUN::auto::S64", *kernels), duration=END))
    assert observed(verdict) == [("RUN::auto::S64", expected)]


@pytest.mark.parametrize("loss", LOG_SOFTMAX)
def test_the_softmax_of_a_loss_is_no_attention(trace: MakeTrace, loss: str) -> None:
    """A training step with flash attention and a cross entropy is flash, not flash + math."""
    verdict = judged(trace(*run("RUN::flash::S64", *BLOCK, FLASH, loss), duration=END))
    assert (observed(verdict), agreement(verdict)) == ([("RUN::flash::S64", "flash")], [True])


@pytest.mark.parametrize(
    ("name", "family", "backend"),
    [
        *[(name, "attention", "flash") for name in FLASH_BACKWARD],
        *[(name, "attention", "cudnn") for name in CUDNN_BACKWARD],
        ("_ZN5cudnn6fusion28compute_dot_do_o_specializedILb1ELi64EEEvPv", "attention", "cudnn"),
        ("_ZN5cudnn6fusion20convert_dq_to_16bitsILb1EEEvPv", "attention", "cudnn"),
        ("void cudnn::fusion::compute_dot_do_o_ragged_specialized<true, 128>(void*)", "attention", "cudnn"),
        ("convert_dq_to_16bits_ragged", "attention", "cudnn"),
        ("void cudnn::fusion::lean_reduction_kernel<true>(void*)", "attention", "cudnn"),
        ("cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_3_64x64x128", "attention", "cudnn"),
        ("cudnn_generated_fort_native_sdpa_sm100_flash_bprop_f16_knob_31_128x128x128", "attention", "cudnn"),
        ("triton_tem_fused_flex_attention_backward_transpose_view_3", "attention", "flex"),
        ("triton_per_fused_flex_attention_backward_mul_0", "attention", "flex"),
        ("void flash::flash_bwd_clear_dkvaccum_kernel<Flash_bwd_kernel_traits<64>>(int)", "attention", "flash"),
        ("void cutlass::device_kernel<flash::FlashAttnBwdPostprocessConvertdQ<X>>(T1)", "attention", "flash"),
        ("void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnBwdSm90<X>>>(T1)", "attention", "flash"),
        ("triton_tem_fused__scaled_dot_product_flash_attention_mm_t_view_12", "gemm", None),
        ("triton_tem_fused__scaled_dot_product_efficient_attention_clone_addmm_native_group_norm_3", "gemm", None),
        (SOFTMAX, "softmax", None),
        ("_ZN12_GLOBAL__N_120softmax_warp_forwardIN3c104HalfES2_fLi10ELb1ELb0EEEvPT0_", "softmax", None),
    ],
)  # fmt: skip
def test_rules_know_the_kernels_around_attention(name: str, family: str, backend: str | None) -> None:
    """Helpers of a backward pass belong to their backend; a product that torch.compile names after one does not."""
    kinds = classify(load_rules(), [name])
    assert (kinds.family, kinds.attention_backend) == ([family], [backend])


def test_log_softmax_has_a_cause_of_its_own() -> None:
    """By the cause the softmax of a loss is told from that of attention, mangled names included."""
    mangled = "_ZN12_GLOBAL__N_120softmax_warp_forwardIN3c104HalfES2_fLi10ELb{}ELb0EEEvPT0_"
    names = [*LOG_SOFTMAX, mangled.format(1), SOFTMAX, SOFTMAX_BACKWARD, mangled.format(0)]
    causes = classify(load_rules(), names).cause
    assert [cause.removesuffix(" backward") for cause in causes] == ["log-softmax"] * 5 + ["softmax"] * 3


@pytest.mark.parametrize(
    ("requested", "kernels", "expected"),
    [
        ("flash", (FLASH,), True),
        ("Flash", (FLASH,), True),
        ("flash", (CUDNN,), False),
        ("flash", (FLASH, GEMM, SOFTMAX, GEMM), False),
        ("flash", BLOCK, False),
        ("flash_attn", (FLASH_3,), True),
        ("flash_attn", (EFFICIENT,), False),
        ("flash_attn_4", (FLASH_4,), True),
        ("flash_attn_4", (FLASH,), False),
        ("flash", (FLASH_4,), False),
        ("efficient", (EFFICIENT,), True),
        ("cudnn", (FLASH,), False),
        ("flex", (FLEX,), True),
        ("flex", (GEMM, SOFTMAX), False),
        ("tiled_o3", ("tiled_o3",), True),
        ("tiled_o3", ("tiled_o2",), False),
        ("math", (GEMM, SOFTMAX), True),
        ("math_reduced", (GEMM, SOFTMAX), True),
        ("naive", (GEMM, SOFTMAX), True),
        ("naive", (FLASH,), False),
        ("auto", (CUDNN,), True),
        ("auto", (FLASH, GEMM, SOFTMAX), True),
        ("my own", (GEMM, SOFTMAX), True),
        ("auto", BLOCK, None),
        ("flash", (STRANGE,), None),
        ("flash", (), None),
    ],
)
def test_what_ran_is_compared_with_what_was_asked_for(
    trace: MakeTrace, requested: str, kernels: tuple[str, ...], expected: bool | None
) -> None:
    """Names of one thing agree, `auto` and unknown names agree with all, and where nothing is known nothing is said."""
    verdict = judged(trace(*run(f"RUN::{requested}::S64", *kernels), duration=END))
    assert verdict.ranges["requested"].tolist() == [requested]
    assert agreement(verdict) == [expected]
    assert len(verdict.differences) == (expected is False)


def test_own_rules_name_own_backends(trace: MakeTrace, tmp_path: Path) -> None:
    """A rule for the user's kernel makes its backend known: asked for and not run, it differs."""
    rules = tmp_path / "mine.toml"
    rules.write_text('[[rule]]\nname = "m"\nmatch = "qwxyz"\nfamily = "attention"\nattention_backend = "Naive"\n')
    path = trace(*run("RUN::naive::S64", STRANGE), *run("RUN::naive::S128", GEMM, SOFTMAX, at=1000), duration=END)
    verdict = judged(path, rules=rules)
    assert observed(verdict) == [("RUN::naive::S64", "Naive"), ("RUN::naive::S128", "math")]
    assert agreement(verdict) == [True, False]
    assert verdict.warnings == ()


BACKWARD = [
    launch_kernel(name, (100 + i, 101 + i), (200 + 10 * i, 205 + 10 * i), id=900 + i, thread=2)
    for i, name in enumerate([GEMM, SOFTMAX_BACKWARD, GEMM])
]
WHOLE = (
    "the backend of RUN::flash::S64 is unknown: CUDA graphs were recorded as a whole; "
    "capture with --cuda-graph-trace=node"
)
# what ran; name, backend, kernels and instances of each row; whether it is what was asked for; the warning
COUNTED: dict[str, tuple[list[Items], list[tuple[str, str, int, int]], list[bool | None], str]] = {
    "what iterations and their inner ranges launch is the run's, wherever it lies and in whatever domain": (
        [
            *(Range("main", 0, 5000), *run("RUN::flash::S64", FLASH, FLASH, at=100, domain=3)),
            *(Range("iter0", 101, 110), Range("iter1", 110, 150, domain=2)),
        ],
        [("flash::S64", "flash", 2, 1)],
        [True],
        "",
    ),
    "warm-up, checks and other names beside the run say nothing of it": (
        [
            *(*run("WARMUP::flash::S64", CUDNN), *run("CHECK::flash::S64", GEMM, SOFTMAX, at=600)),
            *(*run("RUN::flash::S64", FLASH, at=1200), *run("RUN::flash", CUDNN, at=1800)),
            *run("xRUN::flash::S64", CUDNN, at=2400),
        ],
        [("flash::S64", "flash", 1, 1)],
        [True],
        "",
    ),
    "a run inside a run is a part of it and gets no row": (
        [*run("RUN::auto::B1", FLASH), Range("x", 3, 400), Range("RUN::cudnn::S64", 5, 300)],
        [("auto::B1", "flash", 1, 1)],
        [True],
        "",
    ),
    "a window counts what is launched in it, though iterations own that": (
        [*run("RUN::flash::S64", FLASH, SPLIT, kind="start_end"), Range("iter0", 1, 60, thread=1)],
        [("flash::S64", "flash", 2, 1)],
        [True],
        "",
    ),
    "what a helper thread launches for `backward` is the run's": (
        [*run("RUN::flash::S64", FLASH), *BACKWARD],
        [("flash::S64", "flash + math", 4, 1)],
        [False],
        "",
    ),
    "unless threads are told apart (strict)": (
        [*run("RUN::flash::S64", FLASH), *BACKWARD],
        [("flash::S64", "flash", 1, 1)],
        [True],
        "",
    ),
    "work of a helper thread while two threads have ranges open is nobody's": (
        [
            *(*run("RUN::flash::S64", FLASH), Range("loader", 0, 600, thread=3)),
            launch_kernel(CUDNN, (100, 101), (200, 210), id=900, thread=2),
        ],
        [("flash::S64", "flash", 1, 1)],
        [True],
        "GPU ops not used to detect backends, because their range is uncertain: 1",
    ),
    "memory operations are no kernels, and copies alone no sign of any backend": (
        [
            *(*run("RUN::cudnn::S64", CUDNN), launch_memset((50, 51), (60, 61), id=50)),
            *(*run("RUN::cudnn::S128", at=1000), launch_memcpy((1001, 1002), (1010, 1020), id=2000)),
        ],
        [("cudnn::S64", "cudnn", 1, 1), ("cudnn::S128", "none", 0, 1)],
        [True, None],
        "",
    ),
    "where one process ran another backend the name has two rows": (
        [
            *(*run("RUN::flash::S64", CUDNN, process=2), *run("RUN::flash::S64", FLASH, at=1000)),
            *run("RUN::flash::S64", FLASH, at=2000, process=2),
        ],
        [("flash::S64", "cudnn", 1, 1), ("flash::S64", "flash", 2, 2)],
        [False, True],
        "",
    ),
    "rows come in the order of the program, not by name nor by process": (
        [
            *(*run("RUN::math::S64", GEMM, SOFTMAX, at=2000), *run("RUN::flash::S64", FLASH, at=1000, process=2)),
            *run("RUN::auto::S64", CUDNN),
        ],
        [("auto::S64", "cudnn", 1, 1), ("flash::S64", "flash", 1, 1), ("math::S64", "math", 2, 1)],
        [True, True, True],
        "",
    ),
    "a graph that was traced whole may hold any kernel": (
        [*run("RUN::flash::S64", FLASH), launch_graph((50, 51), (60, 90), id=50)],
        [("flash::S64", "unknown", 1, 1)],
        [None],
        WHOLE,
    ),
    "the nodes of a graph are kernels like others": (
        [Range("RUN::flash::S64", 0, 100), launch_kernel(CUDNN, (10, 11), (20, 30), id=1, graph_node=4)],
        [("flash::S64", "cudnn", 1, 1)],
        [False],
        "",
    ),
}


@pytest.mark.parametrize("case", COUNTED)
def test_which_kernels_count(trace: MakeTrace, case: str) -> None:
    """For which run, and what is to be said of it."""
    items, rows, agrees, warning = COUNTED[case]
    verdict = judged(trace(*items, duration=END), "strict" if "strict" in case else "follow")
    found = [(row["range"], row["observed"], row["kernels"], row["instances"]) for row in verdict.records()]
    assert found == [(f"RUN::{name}", *rest) for name, *rest in rows]
    assert agreement(verdict) == agrees
    assert verdict.differences.index.tolist() == [at for at, each in enumerate(agrees) if each is False]
    assert verdict.warnings == ((warning,) if warning else ())


@pytest.mark.parametrize("pieces", [1, 3, 1 << 22])
def test_overlapping_windows_each_count_all(trace: MakeTrace, monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    """Counts are those of plain loops, also when the work is added up in small pieces."""
    monkeypatch.setattr(range_work, "_PIECE", pieces)
    random = np.random.default_rng(7)
    starts = random.integers(0, 900, 40).tolist()
    windows = [
        Range(f"RUN::w{i % 5}::S{i}", start, start + 1 + 9 * i, kind="start_end", range_id=i, thread=i % 3)
        for i, start in enumerate(starts)
    ]
    names = [FLASH, CUDNN, GEMM, SOFTMAX]
    calls = [(at, at + 1, names[i % 4]) for i, at in enumerate(sorted(random.choice(1200, 60, replace=False).tolist()))]
    work = [
        launch_kernel(name, (start, end), (2000 + 10 * i, 2005 + 10 * i), id=i + 1, thread=9)
        for i, (start, end, name) in enumerate(calls)
    ]
    verdict = judged(trace(*windows, *work, duration=END))
    found = {row["range"]: row["kernels"] for row in verdict.records()}
    assert found == {
        window.name: sum(window.start <= start and end <= (window.end or 0) for start, end, _ in calls)
        for window in windows
    }
    assert sum(found.values()) > 60


def test_instances_that_agree_share_a_row(trace: MakeTrace) -> None:
    """A name of several processes, threads and times is one row with all their kernels."""
    path = trace(
        *run("RUN::flash::S64", FLASH),
        *run("RUN::flash::S64", FLASH, FLASH, at=1000),
        *run("RUN::flash::S64", SPLIT, COMBINE, process=2),
        duration=END,
    )
    [row] = judged(path).records()
    assert (row["instances"], row["kernels"]) == (3, 5)
    assert row["evidence"] == (
        "flash_fwd 64x128x128x4 x 3, flash_fwd_splitkv 64x64 x 1, flash_fwd_splitkv_combine 64x64 x 1"
    )


def test_evidence_is_what_decided(trace: MakeTrace) -> None:
    """Most time first: of math the products and the softmax, of a mixture no products, of fused kernels themselves."""
    path = trace(
        *run("RUN::auto::S1", ADD, GEMM, SOFTMAX, GEMM),
        *run("RUN::auto::S2", GEMM, FLASH, SOFTMAX_BACKWARD, at=1000),
        *run("RUN::auto::S3", GEMM, COMBINE, SPLIT, SPLIT, NORM, at=2000),
        *run("RUN::auto::S4", ADD, at=3000),
        *run("RUN::auto::S5", at=4000),
        duration=END,
    )
    verdict = judged(path)
    assert verdict.ranges["evidence"].tolist() == [
        "nvjet_sm90_hsh_64x32_64x16_1x2_h_bz_TNN x 2, softmax_warp_forward float 9 x 1",
        "flash_fwd 64x128x128x4 x 1, cunn_SoftMaxBackward float 8 x 1",
        "flash_fwd_splitkv 64x64 x 2, flash_fwd_splitkv_combine 64x64 x 1",
        "vectorized_elementwise CUDAFunctor_add float x 1",
        "",
    ]
    math = verdict.kernels[verdict.kernels["row"] == 0]
    assert math.to_numpy().tolist() == [[0, GEMM, 2, 16], [0, SOFTMAX, 1, 8]]


def test_a_report_without_runs_has_no_rows(trace: MakeTrace) -> None:
    """Neither ranges of other names, nor no ranges, nor no events at all are a reason to complain."""
    for path in (
        trace(*run("step", FLASH), duration=END),
        trace(launch_kernel(FLASH, (1, 2), (3, 4), id=1), duration=END),
        trace(duration=END),
    ):
        verdict = judged(path)
        assert (len(verdict.ranges), len(verdict.kernels), verdict.warnings) == (0, 0, ())
        assert (verdict.records(), difference_lines(verdict), backend_table(verdict)) == ([], [], "")


def test_unknown_kernels_are_named_with_the_way_out(trace: MakeTrace) -> None:
    """One warning for all ranges whose kernels no rule knows: it names both, and the option that helps."""
    path = trace(
        *run("RUN::mine::S64", STRANGE, ADD),
        *run("RUN::mine::S128", "qwxyz2", STRANGE, at=1000),
        *run("RUN::cpu::S64", at=2000),
        duration=END,
    )
    verdict = judged(path)
    assert [row for _, row in observed(verdict)] == ["unknown", "unknown", "none"]
    assert verdict.warnings == (
        "the backend of RUN::mine::S64, RUN::mine::S128 is unknown, because no rule matches the "
        "attention kernels qwxyz 64, qwxyz2: name them in a rule file (--rules FILE)",
    )
    assert verdict.ranges["evidence"].tolist() == ["qwxyz 64 x 1", "qwxyz2 x 1, qwxyz 64 x 1", ""]


def test_many_unknown_names_are_not_all_listed(trace: MakeTrace) -> None:
    """The warning stays readable: five ranges and five kernels, and how many more."""
    items = [run(f"RUN::mine::S{i}", f"qwxyz{i}", at=1000 * i) for i in range(7)]
    [warning] = judged(trace(*[item for each in items for item in each], duration=END)).warnings
    assert "RUN::mine::S4 and 2 more is unknown" in warning
    assert "qwxyz4 and 2 more:" in warning


def mixed(trace: MakeTrace) -> BackendVerdict:
    """One of each: agreeing, differing, differing in one of two, chosen by PyTorch, unknown, none."""
    return judged(
        trace(
            *run("RUN::math::S1024", FP32_GEMM, SOFTMAX, FP32_GEMM),
            *run("RUN::flash::S1024", *[CUDNN] * 20, at=1000),
            *run("RUN::efficient::S1024", EFFICIENT, at=2000),
            *run("RUN::efficient::S1024", EFFICIENT, EFFICIENT, GEMM, SOFTMAX_BACKWARD, at=3000),
            *run("RUN::auto::S1024", SPLIT, COMBINE, at=4000),
            *run("RUN::mine::S1024", STRANGE, at=5000),
            *run("RUN::flex::S1024", at=6000),
            duration=END,
        )
    )


def test_the_table_as_printed(trace: MakeTrace) -> None:
    """Range, request, what ran and the first kernel that says so, with the warnings below."""
    assert backend_table(mixed(trace)) == (
        """\
range                           requested    ran                         evidence
------------------------------  -----------  --------------------------  ------------------------------------
RUN::math::S1024                math         math                        sm80_xmma_gemm_f32f3… x 2 and 1 more
RUN::flash::S1024               flash        cudnn (differs)             cudnn_generated_fort_native_sd… x 20
RUN::efficient::S1024 (1 of 2)  efficient    efficient                   fmha_cutlassF_f16_aligned_64x64… x 1
RUN::efficient::S1024 (1 of 2)  efficient    efficient + math (differs)  fmha_cutlassF_f16_al… x 2 and 1 more
RUN::auto::S1024                auto         flash                       flash_fwd_splitkv 64… x 1 and 1 more
RUN::mine::S1024                mine         unknown                     qwxyz 64 x 1
RUN::flex::S1024                flex         none
  warning  the backend of RUN::mine::S1024 is unknown, because no rule matches the attention kernels qwxyz 64:
           name them in a rule file (--rules FILE)
"""
    )


def test_difference_lines_as_printed(trace: MakeTrace) -> None:
    """One line says what was asked for, what ran, and by which kernels that is known."""
    assert difference_lines(mixed(trace)) == [
        "RUN::flash::S1024: requested flash, ran cudnn"
        " (cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f1… x 20)",
        "RUN::efficient::S1024: requested efficient, ran efficient + math in 1 of 2"
        " (fmha_cutlassF_f16_aligned_64x64_rf_sm80 x 2, cunn_SoftMaxBackward float 8 x 1)",
    ]


def test_a_difference_line_names_three_kernels(trace: MakeTrace) -> None:
    """Math attention is told by several kernels; what is more is counted."""
    gemms = [f"sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_{i}_ffma" for i in range(4)]
    [line] = difference_lines(judged(trace(*run("RUN::flash::S64", *gemms, SOFTMAX), duration=END)))
    assert line.endswith("_2_ffma x 1 and 2 more)")


def test_names_cannot_command_the_terminal(trace: MakeTrace) -> None:
    """Control characters in names of ranges and kernels are written out."""
    verdict = judged(trace(*run("RUN::fla\x1b[2Jsh::S\x07", "qw\x1b[31mxyz", FLASH, CUDNN), duration=END))
    text = backend_table(verdict) + "".join(difference_lines(verdict))
    assert "\\x1b" in text
    assert text.replace("\n", "").isprintable()


def test_records_are_json(trace: MakeTrace) -> None:
    """Rows become plain values; what is not known is null."""
    records = mixed(trace).records()
    assert json.loads(json.dumps(records, allow_nan=False)) == records
    assert [row["agrees"] for row in records] == [True, False, True, False, True, None, None]
    assert records[1] == {
        "range": "RUN::flash::S1024",
        "requested": "flash",
        "observed": "cudnn",
        "agrees": False,
        "instances": 1,
        "kernels": 20,
        "evidence": f"{CUDNN} x 20",
    }


# What each request must have run.
RUNS_AS = {"math": "math", "math_reduced": "math", "flash": "flash", "efficient": "efficient", "cudnn": "cudnn"}


def renamed(folder: Path, old: str, new: str) -> BackendVerdict:
    """The verdict on a copy of the report in which a part of the names of ranges is another."""
    path = folder / "renamed.sqlite"
    shutil.copy(RUN, path)
    path.chmod(0o644)
    with closing(sqlite3.connect(path)) as connection:
        change = "UPDATE {} SET {} = replace({}, ?, ?) WHERE {} LIKE 'RUN::%'"
        for table, column in (("NVTX_EVENTS", "text"), ("StringIds", "value")):
            connection.execute(change.format(table, *[column] * 3), (old, new))
        connection.commit()
    return judged(path)


def test_every_run_ran_what_its_name_says() -> None:
    """Each `RUN::` range of the H200 run agrees with its kernels; `auto` chose one backend."""
    verdict = judge_backends(attributed(RUN))
    assert set(verdict.ranges["requested"]) == {*RUNS_AS, "auto"}
    for row in verdict.records():
        assert row["agrees"] is True, row
        assert row["observed"] == (RUNS_AS | {"auto": "cudnn"})[row["requested"]], row
        assert row["instances"] == 1
    assert (difference_lines(verdict), verdict.warnings) == ([], ())


def test_kernels_are_those_of_the_breakdown() -> None:
    """The verdict counts the kernels that the table of ranges counts."""
    merged = broken_down(RUN).merged
    outer = merged[merged["name"].str.startswith("RUN::")]
    verdict = judge_backends(attributed(RUN))
    assert dict(zip(verdict.ranges["range"], verdict.ranges["kernels"], strict=True)) == dict(
        zip(outer["name"], outer["kernels"], strict=True)
    )
    assert len(verdict.ranges) == len(outer) > 0


def test_a_wrong_request_is_found_out(tmp_path: Path) -> None:
    """With cuDNN's ranges renamed, the verdict says what was asked for, what ran, and by which kernel."""
    verdict = renamed(tmp_path, "RUN::cudnn::S4096", "RUN::flash::S4097")
    [line] = difference_lines(verdict)
    assert line.startswith(
        "RUN::flash::S4097: requested flash, ran cudnn (cudnn_generated_fort_native_sdpa_sm90_flash_fprop"
    )
    assert line.endswith(" x 40)")
    [row] = [line for line in backend_table(verdict).splitlines() if "(differs)" in line]
    assert row.split()[:4] == ["RUN::flash::S4097", "flash", "cudnn", "(differs)"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line per range, none longer than the terminal; in a narrow one there is less evidence."""
    monkeypatch.setattr("nsysprof.results.table.screen_width", lambda: width)
    verdict = judge_backends(attributed(RUN))
    lines = backend_table(verdict).splitlines()
    assert len(lines) == 2 + len(verdict.ranges)
    assert max(map(len, lines)) <= width
    assert (" x 40 and 2 more" in lines[2]) == (width == 120)
