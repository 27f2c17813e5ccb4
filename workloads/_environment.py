"""What the numbers depend on: versions, the device, and the precision switches of torch."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch


def environment(device: str, reduced_math: Mapping[str, bool]) -> dict[str, Any]:
    """The part "environment" of the results; ``reduced_math`` says what each backend found set while it ran."""
    on_gpu = device == "cuda"
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "nvtx": _version("nvtx"),
        "triton": _version("triton"),
        "flash_attn": _version("flash_attn"),
        **({"flash_attn_4": found} if (found := _version("flash-attn-4")) else {}),
        "device": torch.cuda.get_device_name() if on_gpu else "cpu",
        "compute_capability": ".".join(map(str, torch.cuda.get_device_capability())) if on_gpu else None,
        "cpu_threads": torch.get_num_threads(),
        "precision": _precision(reduced_math),
    }


def _precision(reduced_math: Mapping[str, bool]) -> dict[str, Any]:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some versions of torch announce new names for the same switches
        deterministic = torch.are_deterministic_algorithms_enabled()
        return {
            **({"deterministic": True} if deterministic else {}),
            "allow_tf32_matmul": bool(matmul.allow_tf32),
            "allow_tf32_cudnn": bool(cudnn.allow_tf32),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "fp16_reduced_precision_reduction": bool(matmul.allow_fp16_reduced_precision_reduction),
            "bf16_reduced_precision_reduction": bool(matmul.allow_bf16_reduced_precision_reduction),
            "fp16_bf16_reduction_math_sdp": dict(reduced_math),
        }


def reduced_math_allowed() -> bool:
    """Whether `math` may stay in half precision at this moment; torch before 2.5 has no such switch."""
    allowed = getattr(torch.backends.cuda, "fp16_bf16_reduction_math_sdp_allowed", None)
    return bool(allowed()) if allowed is not None else False


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
