"""Find matrix products that could be faster: products in FP32 on CUDA cores, misaligned products, and products limited
by reads of weights.
"""

import re
from collections.abc import Iterator

import numpy as np

from nsysprof.diagnosis.busy import Busy
from nsysprof.diagnosis.finding import Finding
from nsysprof.diagnosis.kinds import dialect_text
from nsysprof.diagnosis.reached import least_part, shares_of
from nsysprof.errors import NsysprofError
from nsysprof.hardware.peaks import flops_per_clock

_CAUSE = "matrix products in FP32 on CUDA cores"
_TF32 = {
    "pytorch": 'if TF32 or bfloat16 is precise enough, set torch.set_float32_matmul_precision("high") or use autocast',
    "cuda": "if TF32 is precise enough, set CUBLAS_TF32_TENSOR_OP_MATH",
    "jax": 'if TF32 is precise enough, set jax.default_matmul_precision("tensorfloat32")',
}
_HALF = {
    "pytorch": (
        "if half precision is precise enough, run these products under torch.autocast: this GPU gains nothing from TF32"
    ),
    "cuda": "if half precision is precise enough, store these matrices in FP16: this GPU gains nothing from TF32",
}
_FLOAT16 = "use torch.float16 instead of torch.bfloat16, for which this GPU has no tensor cores"
_CONVOLUTIONS = "convolutions in FP32 on CUDA cores"
_CONVOLUTION_TF32 = {
    "pytorch": "if TF32 or half precision is precise enough, set torch.backends.cudnn.allow_tf32 = True, or use"
    " autocast",
    "cuda": "if TF32 is precise enough, set CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION for the convolution",
    "jax": _TF32["jax"],
}
# Where cuDNN runs some convolutions in TF32 it is allowed to: those in FP32 are its choice for their layout and size.
_CONVOLUTION_HALF = {
    "pytorch": (
        "run these convolutions under autocast, with model and input in channels-last format (TF32 is already allowed: "
        "other kernels use it)"
    ),
    "cuda": "give cuDNN half-precision NHWC tensors (TF32 is already allowed: other kernels use it)",
}
# PyTorch's memory-efficient attention multiplies FP32 in three TF32 products from compute capability 8.0 on.
_ATTENTION, _IN_FP32, _THREE = "attention in FP32", re.compile(r"fmha_cutlass[FB]_f32.*sm80"), 3
_HALF_ATTENTION = "if bfloat16 is precise enough, run the model under torch.autocast, which selects flash attention"
_IN_TF32 = re.compile(r"tensorop_s1688gemm|tf32")  # as CUTLASS and cuDNN name what multiplies FP32 there
_DOUBLE = re.compile(r"(?i)(?<![a-z])dgemm|d884gemm|f64f64|gemm_64f|gemm<double")
_OF_DMMA = re.compile(r"d884|sm\d\d_xmma_gemm_f64")
_IN_FP64 = "matrix products in FP64"
_SHORTER = {
    "pytorch": "if FP32 or TF32 is precise enough, convert the inputs of these products: .to(torch.float32), and"
    ' torch.set_float32_matmul_precision("high")',
    "cuda": "if TF32 is precise enough, store these matrices in FP32 and set CUBLAS_TF32_TENSOR_OP_MATH",
}
# CUTLASS and cuBLAS say in the name by how many elements a kernel may load at once: eight of two bytes are a full load.
_NARROW = re.compile(r"align[12](?!\d)")
_MISALIGNED = "matrix products of misaligned sizes"
_PAD = {
    "pytorch": "pad the dimensions of these matrices (features, vocabulary, batch × sequence) to multiples of 8",
    "cuda": "pad the leading dimensions of these matrices to multiples of 16 bytes",
}
# Steps that decode few tokens: vLLM names each by its sequences and tokens, in prefill (context) and decode.
_WEIGHTS, _DECODES = "reads of weights", re.compile(r"context_0\(0\)_generation_\d+\(\d\d?\)\Z")
_MOE, _MUCH, _FEWER = re.compile(r"(?i)fused_?moe"), 0.25, 0.5
_LARGER = "quantize the weights to 8 bits (FP8, INT8), or increase the batch size (each read then serves more tokens)"
# Of aligned products: 4.8 on an H200 for a width of 4,096 in place of 4,095, in half precision.
_ALIGNED_SPEEDUP = 5.0
_FULL = 0.95  # of the steps in which kernels run: CPU code that a replay shows as long may wait for a full queue


def tensor_core_findings(busy: Busy) -> Iterator[Finding]:
    """Yield matrix products that tensor cores would run several times as fast, according to the GPU's peaks (an upper
    bound).
    """
    kinds, names = busy.case.facts.kinds, busy.case.facts.attribution.trace.op_names
    family, unit, cause = (np.array(each) for each in (kinds.family, kinds.math_unit, kinds.cause))
    speedup, convolution, product = _speedup(busy), cause == "convolution", family == "gemm"
    half = speedup <= 1
    speedup = _speedup(busy, fast="fp16") if half else speedup
    allowed = any(map(_IN_TF32.search, names))
    for words, some, texts in (
        (_CAUSE, ~convolution, _TF32),
        (_CONVOLUTIONS, convolution, _CONVOLUTION_HALF if allowed else _CONVOLUTION_TF32),
    ):
        if speedup > 1:
            slow = (product & (unit == "FP32 FMA") & some)[busy.name]
            text = f"{words}: {{amount}}, which tensor cores run up to {speedup:.0f} times as fast"
            remedy = dialect_text(busy.case, _HALF if half else texts)
            mine = slow & busy.matches(lambda code: "bfloat16" in names[code])
            if half and busy.case.dialect == "pytorch" and 2 * busy.length[mine].sum() > busy.length[slow].sum():
                remedy = _FLOAT16
            yield from _faster(busy, slow, speedup, "tensor-cores", words, text, remedy)
    if (speedup := _THREE * _speedup(busy, "tf32", "bf16")) > 1:
        slow = busy.matches(lambda code: _IN_FP32.search(names[code]) is not None)
        text = f"{_ATTENTION}: {{amount}}, which tensor cores run up to {speedup:.0f} times as fast in bfloat16"
        yield from _faster(busy, slow, speedup, "tensor-cores", _ATTENTION, text, _HALF_ATTENTION)
    if (speedup := _speedup(busy, "fp64")) > 1:
        made = busy.case.dialect != "cuda"  # a program in CUDA C++ has chosen FP64, and a library its tensor cores
        found = [bool(_DOUBLE.search(name)) and (made or not _OF_DMMA.search(name)) for name in names]
        double = (product & np.array(found, bool))[busy.name]
        text = f"{_IN_FP64}: {{amount}}, which tensor cores run up to {speedup:.0f} times as fast in TF32"
        yield from _faster(busy, double, speedup, "tensor-cores", _IN_FP64, text, dialect_text(busy.case, _SHORTER))
    loads_little = np.array([bool(_NARROW.search(name)) for name in names], bool)
    narrow = (product & (unit == "tensor core") & loads_little)[busy.name]
    text = f"{_MISALIGNED} load one or two elements at a time: {{amount}}"
    remedy = dialect_text(busy.case, _PAD)
    yield from _faster(busy, narrow, _ALIGNED_SPEEDUP, "misaligned", _MISALIGNED, text, remedy)


def _faster(
    busy: Busy, rows: np.ndarray, speedup: float, kind: str, cause: str, text: str, remedy: str
) -> Iterator[Finding]:
    if not busy.enough(int(busy.length[rows].sum() * (1 - 1 / speedup))):
        return
    least = max(
        1 / speedup, least_part(shares_of(busy, np.flatnonzero(rows)))
    )  # what they move takes its time on any unit
    shorter = np.rint(busy.length[rows] * (1 - least)).astype(np.int64)
    gain, ns, total = busy.gained(busy.op[rows], shorter), int(busy.length[rows].sum()), busy.place.total_ns
    if busy.enough(gain):
        yield busy.finding(kind, cause, text, remedy, gain, busy.op[rows], ns)
    elif 2 * ns >= total and busy.alone.sum() >= _FULL * total:
        text += "; a replay shows that shorter kernels alone save little, because the CPU takes as long"
        yield busy.finding(kind, cause, text, remedy, int(shorter.sum()), busy.op[rows], ns).untried()


def _speedup(busy: Busy, slower: str = "fp32", fast: str = "tf32") -> float:
    """How many times as fast the GPU multiplies in ``fast`` as in a slower type; 0 where it is not known."""
    gpus = busy.case.facts.attribution.trace.report.about.cuda_gpus
    for gpu in sorted(gpus, key=lambda each: each.id != busy.place.gpu):
        if gpu.compute_capability is None:
            continue
        capability = ".".join(map(str, gpu.compute_capability))
        try:
            high, low = (flops_per_clock(capability, dtype, name=gpu.name) for dtype in (fast, slower))
        except NsysprofError:
            continue
        return high / low
    return 0.0


def weight_findings(busy: Busy) -> Iterator[Finding]:
    """Yield matrix products with one or a few rows, as in decoding, which take as long as reading their weights."""
    case, names = busy.case, busy.case.facts.attribution.trace.op_names
    family, vector = (np.array(each) for each in (case.facts.kinds.family, case.facts.kinds.cause))
    mine = (vector == "matrix-vector")[busy.name]
    if _DECODES.search(busy.place.path):
        mine = (family == "gemm")[busy.name] | busy.matches(lambda code: _MOE.search(names[code]) is not None)
    ns = int(busy.length[mine].sum())
    if case.dialect != "pytorch" or ns < _MUCH * busy.place.total_ns:
        return
    gain = busy.gained(busy.op[mine], np.rint(busy.length[mine] * _FEWER).astype(np.int64))
    if busy.enough(gain):
        text = "matrix products of few rows take as long as reading their weights: {amount}"
        yield busy.finding("weight-bound", _WEIGHTS, text, _LARGER, gain, busy.op[mine], ns)
