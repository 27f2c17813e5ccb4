"""Which metrics of a chip make which column."""

import pytest

from nsysprof.counters.metrics import TRAFFIC, WORK, plan_runs
from nsysprof.formats.counters import METRICS
from tests.kit.fake_ncu import DEFAULT_METRICS

SASS = "sm__sass_thread_inst_executed_op_"
OPS = "sm__ops_path_tensor_src_"


def columns(*metrics: str) -> dict[str, dict[str, int]]:
    """The columns of all runs for a chip with these metrics."""
    return {name: dict(terms) for run in plan_runs(metrics) for name, terms in run.columns.items()}


def test_an_unknown_chip_is_taken_for_an_h100() -> None:
    """Every column has its metrics, and no metric is asked for twice."""
    traffic, work = plan_runs(None)
    assert (traffic.name, work.name) == (TRAFFIC, WORK)
    assert {*traffic.columns, *work.columns} == {*METRICS}
    assert len({*traffic.metrics, *work.metrics}) == len(traffic.metrics) + len(work.metrics)
    assert traffic.missing == work.missing == ()


def test_what_needs_no_flops_is_one_run() -> None:
    """Bytes and times, in which no kernel is to be replayed: no sampled throughput with a dozen parts among them."""
    (traffic,) = plan_runs(DEFAULT_METRICS, quick=True)
    assert "dram_read_bytes" in traffic.columns
    assert not any("sass" in metric or "ops_path" in metric for metric in traffic.metrics)
    assert not any(metric.startswith(("sm__throughput", "lts__throughput")) for metric in traffic.metrics)


def test_constants_that_are_loaded_through_the_tensor_pipe_do_not_count() -> None:
    """HFMA2.MMA is taken off where the chip tells; else it cannot be."""
    pipe = "sm__inst_executed_pipe_tensor"
    assert columns(*DEFAULT_METRICS)["tensor_instructions"] == {f"{pipe}.sum": 1, f"{pipe}_op_hmma_type_hfma2.sum": -1}
    assert columns(pipe)["tensor_instructions"] == {f"{pipe}.sum": 1}


def test_a_multiply_add_is_two() -> None:
    """In every precision, and a packed one four."""
    found = columns(*DEFAULT_METRICS)
    for column, letter in (("fp32_flops", "f"), ("fp16_flops", "h"), ("fp64_flops", "d")):
        assert found[column] == {
            f"{SASS}{letter}add_pred_on.sum": 1,
            f"{SASS}{letter}mul_pred_on.sum": 1,
            f"{SASS}{letter}fma_pred_on.sum": 2,
        }
    packed = [f"{SASS}f{name}2_pred_on" for name in ("add", "mul", "fma")]
    assert columns(*DEFAULT_METRICS, *packed)["fp32_flops"][f"{SASS}ffma2_pred_on.sum"] == 4


@pytest.mark.parametrize(("chip", "kinds"), [
    (["fp16", "fp8", "fp8_sparsity_on", "fp8_sparsity_off", "int8", "bf16_dst_fp32"], ["bf16_dst_fp32", "fp16", "fp8"]),
    (["fp16_dst_fp16", "fp16_dst_fp32", "fp16_dst_fp32_sparsity_on"], ["fp16_dst_fp16", "fp16_dst_fp32"]),
    (["fp4_fp6_fp8_dst_fp32", "fp4_fp6_fp8_dst_fp32_realtime", "int4"], ["fp4_fp6_fp8_dst_fp32"]),
    (["fp16_bf16_tf32_dst_fp32", "int1"], ["fp16_bf16_tf32_dst_fp32"]),
])  # fmt: skip
def test_tensor_flops_are_those_of_each_type_once(chip: list[str], kinds: list[str]) -> None:
    """As Hopper, Ampere, Blackwell and Turing name them: no subtype beside its type, no integers."""
    found = columns(*(f"{OPS}{kind}" for kind in chip))["tensor_flops"]
    assert found == {f"{OPS}{kind}.sum": 1 for kind in kinds}


def test_other_names_of_the_same_are_taken() -> None:
    """Newer chips spell reads and writes otherwise; what a chip has nothing for is told."""
    found = columns(
        "dram__bytes_op_read", "dram__bytes_op_write", *(f"smsp{SASS[2:]}f{x}_pred_on" for x in ("add", "mul", "fma"))
    )
    assert found["dram_read_bytes"] == {"dram__bytes_op_read.sum": 1}
    assert all(metric.startswith("smsp__") for metric in found["fp32_flops"])
    (run,) = plan_runs(["dram__bytes_read"])
    assert list(run.columns) == ["dram_read_bytes"]
    assert "duration_ns" in run.missing
