"""Counters matched with reports: which launch is which, which have no figures, and the sentences about both."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsysprof.compare.comparison import Comparison, compare
from nsysprof.compare.files import gap_document
from nsysprof.compare.roofline import roofline
from nsysprof.compare.text import comparison_text
from nsysprof.compare.traffic import Measured, tensor_share
from nsysprof.errors import NsysprofError
from nsysprof.kernels.names import plain_name
from tests.compare.conftest import answer
from tests.conftest import MakeTrace
from tests.kit.calls import FLASH, GEMM, SOFTMAX, math_and_flash, run
from tests.kit.counters import Counted, write_counters
from tests.kit.reports import RUN, TRACES, attributed
from tests.kit.trace import Gpu, Items, Range, launch_graph, launch_kernel, launch_memcpy

MATH = [(GEMM, 200), (SOFTMAX, 300), (GEMM, 100)]
PAIR = {"base": "RUN::math::S8", "new": "RUN::flash::S8"}
SHAPE = "B=1,H=2,D=4,fp16,causal"


def call(name: str, number: int, *kernels: tuple[str, int, int], pid: int = 1) -> list[Counted]:
    """The rows of one call: of each kernel what it reads and writes."""
    return [Counted(f"{name}/iter{number}", kernel, read, write, pid=pid) for kernel, read, write in kernels]


def both_calls() -> list[Counted]:
    """One call of `math_and_flash`: of math 100, 200 and 300 bytes read, 1, 2, 3 written; of flash 40 and 4."""
    math = call("RUN::math::S8", 0, (GEMM, 100, 1), (SOFTMAX, 200, 2), (GEMM, 300, 3))
    return [*math, *call("RUN::flash::S8", 0, (FLASH, 40, 4))]


def compared(path: Path, rows: list[Counted], how: dict[str, Any] | None = None, **record: Any) -> Comparison:
    """The comparison of a report with counters beside it."""
    write_counters(path.with_name(f"{path.stem}.counters.csv"), rows, **record)
    return answer(path, **(how or PAIR))


def measured(found: Comparison, side: int = 0) -> Measured:
    """What was measured of the base, or of the new side, of the only pair."""
    (both,) = found.measured.values()
    one = both[side]
    assert one is not None
    return one


def reads(found: Comparison, side: int = 0) -> dict[str, float]:
    """Bytes read per call of each cause of a side."""
    frame = measured(found, side).causes
    return {str(cause): float(value) for cause, value in frame["dram_read_bytes"].items()}


SAME = [
    (
        "void at::native::elementwise_kernel<(int)128, (int)2, void at::native::gpu_kernel_impl_nocast<at::native::"
        "<unnamed>::where_kernel_impl(at::TensorIterator &)::[lambda() (instance 1)]::operator ()() const::"
        "[lambda() (instance 11)]::operator ()() const::[lambda(bool, float, float) (instance 1)]>"
        "(at::TensorIteratorBase &, const T1 &)::[lambda(int) (instance 1)]>(int, T3)",
        "void at::elementwise_kernel<128, 2, void at::gpu_kernel_impl_nocast<at::<unnamed>::where_kernel_impl("
        "at::TensorIterator &)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 11)]::operator ()() "
        "const::[lambda(bool, float, float) (instance 1)]>(at::TensorIteratorBase &, const T1 &)::[lambda(int) "
        "(instance 1)]>(int, T3)",
    ),
    (
        "void at::native::triu_tril_kernel<bool, int, (bool)0, (int)8, (bool)0>(at::cuda::detail::TensorInfo<T1, T2>, "
        "at::cuda::detail::TensorInfo<const T1, T2>, long, long, T2)",
        "void at::triu_tril_kernel<bool, int, 0, 8, 0>(cuda::TensorInfo<T1, T2>, cuda::TensorInfo<const T1, T2>, long, "
        "long, T2)",
    ),
    ("void f<std::array<char *, (unsigned long)2>, (bool)1>(T1)", "void f<std::array<char*, 2ul>, true>(T1)"),
    ("void g<[lambda(float) (instance 2)]>(T1)", "void g<{lambda(float)#2}>(T1)"),
]


@pytest.mark.parametrize("at", range(len(SAME)))
def test_names_are_one_however_they_are_written(at: int) -> None:
    """As Nsight Systems, Nsight Compute and c++filt write casts, namespaces, lambdas and blanks."""
    assert plain_name(SAME[at][0]) == plain_name(SAME[at][1])


def test_other_kernels_have_other_names() -> None:
    """Template arguments and the number of a lambda tell kernels apart."""
    names = [
        "void f<(int)2>(T1)", "void f<(int)4>(T1)", "void f<float>(T1)", "void g<[lambda() (instance 1)]>(T1)",
        "void g<[lambda() (instance 2)]>(T1)", "void g<[lambda(float) (instance 1)]>(T1)",
    ]  # fmt: skip
    assert len({plain_name(name) for name in names}) == len(names)


def test_order_within_a_call_tells_kernels_of_one_name_apart(trace: MakeTrace) -> None:
    """The first product has the first figures, the second the last; every call of the report has them."""
    found = compared(math_and_flash(trace), both_calls())
    assert reads(found) == {"softmax": 200, "Q·Kᵀ GEMM": 100, "P·V GEMM": 300}
    assert reads(found, 1) == {"fused attention": 40}
    assert (measured(found).launches, measured(found).matched, measured(found).matched_share) == (6, 6, 1.0)
    assert found.warnings == ()


def test_several_calls_are_one_by_their_median(trace: MakeTrace) -> None:
    """Place by place, whatever process they are of."""
    rows = both_calls()
    for number, more in ((1, 50), (2, 20)):
        rows += call("RUN::math::S8", number, (GEMM, 100 + more, 1), (SOFTMAX, 200, 2), (GEMM, 300, 3))
    rows += call("RUN::math::S8", 0, (GEMM, 9, 1), (SOFTMAX, 200, 2), (GEMM, 300, 3), pid=2)
    found = compared(math_and_flash(trace), rows)
    assert reads(found)["Q·Kᵀ GEMM"] == np.median([100, 150, 120, 9])
    assert measured(found).calls == 4


def test_a_range_that_repeats_is_cut_into_its_calls(trace: MakeTrace) -> None:
    """Instances of one name have one range text: its rows are that often the sequence of a call."""
    path = trace(
        *[item for at in range(3) for item in run(f"other{at}", 20_000 + 2000 * at, [(GEMM, 5)], 1, 900 + at)],
        *[
            item
            for at in range(3)
            for item in (
                Range("a", 1000 * at, 1000 * at + 900),
                launch_kernel(GEMM, (1000 * at + 1, 1000 * at + 2), (1000 * at + 10, 1000 * at + 60), id=2 * at + 1),
                launch_kernel(SOFTMAX, (1000 * at + 3, 1000 * at + 4), (1000 * at + 60, 1000 * at + 90), id=2 * at + 2),
            )
        ],
        duration=90_000,
    )
    rows = [Counted("a", kernel, size, 0) for size in (10, 30) for kernel in (GEMM, SOFTMAX)]
    found = compared(path, rows, {"base": "a", "new": "other0"})
    assert reads(found) == {"gemm": 20, "softmax": 20}
    assert measured(found).calls == 2


def test_counters_that_stop_within_a_call_leave_the_rest_without_figures(trace: MakeTrace) -> None:
    """What is there is matched by its place; what is not is named, with its share of the time."""
    rows = call("RUN::math::S8", 0, (GEMM, 100, 1), (SOFTMAX, 200, 2))
    found = compared(math_and_flash(trace), rows)
    values = reads(found)
    assert (values["Q·Kᵀ GEMM"], values["softmax"]) == (100, 200)
    assert np.isnan(values["P·V GEMM"])
    assert not measured(found).complete
    path = found.sides[0].base.loaded.path
    assert found.warnings == (
        f"{path.with_suffix('.counters.csv')} has no kernels of 'RUN::flash::S8'; it has kernels of 'RUN::math::S8'",
        "RUN::math::S8: counters cover only 83 % of the kernel time, so there are no totals per "
        "call: no counters of report.counters.csv match ampere_sgemm_128x64_tn; run nsysprof counters "
        "on the recorded program",
    )
    assert "math moves at least 303 B measured" in " ".join(found.findings["RUN::math::S8 → RUN::flash::S8"])


def test_a_kernel_more_is_passed_over_and_one_less_is_not_guessed(trace: MakeTrace) -> None:
    """Where sequences differ, names decide if both have as many of one."""
    rows = call("RUN::math::S8", 0, ("warm", 7, 7), (GEMM, 100, 1), (SOFTMAX, 200, 2), (GEMM, 300, 3))
    assert reads(compared(math_and_flash(trace), rows)) == {"softmax": 200, "Q·Kᵀ GEMM": 100, "P·V GEMM": 300}
    rows = call("RUN::math::S8", 0, ("warm", 7, 7), (GEMM, 100, 1), (SOFTMAX, 200, 2))
    values = reads(compared(math_and_flash(trace), rows))
    assert values["softmax"] == 200
    assert np.isnan([values["Q·Kᵀ GEMM"], values["P·V GEMM"]]).all()


def test_a_call_that_launched_more_holds_the_report_s_call_in_one_place(trace: MakeTrace) -> None:
    """A counted call that is the report's with a kernel more of a name: the stretch that is the same, by its places."""
    rows = call("RUN::math::S8", 0, (GEMM, 7, 7), (GEMM, 100, 1), (SOFTMAX, 200, 2), (GEMM, 300, 3))
    assert reads(compared(math_and_flash(trace), rows)) == {"softmax": 200, "Q·Kᵀ GEMM": 100, "P·V GEMM": 300}
    twice = [(GEMM, 100, 1), (SOFTMAX, 200, 2), (GEMM, 300, 3), (SOFTMAX, 400, 4), (GEMM, 500, 5)]
    values = reads(compared(math_and_flash(trace), call("RUN::math::S8", 0, *twice)))
    assert np.isnan(list(values.values())).all()


def test_another_grid_is_other_work(trace: MakeTrace) -> None:
    """The same kernel launched with other blocks has none of these figures; without any grid the name is enough."""
    rows = both_calls()
    rows[1] = Counted(rows[1].range, SOFTMAX, 200, 2, grid="2x1x1")
    assert np.isnan(reads(compared(math_and_flash(trace), rows))["softmax"])
    plain = [Counted(row.range, row.kernel, row.read, row.write, grid="") for row in rows]
    assert reads(compared(math_and_flash(trace), plain))["softmax"] == 200


def test_ranges_inside_a_call_and_work_outside_of_calls(trace: MakeTrace) -> None:
    """A call is all that its inner ranges launch, in order; what runs between calls is a sequence of its own."""
    items: list[Items] = [Range("a", 0, 5000), launch_kernel("warm", (1, 2), (5, 9), id=1)]
    for at in (1000, 2000):
        items += [Range(f"iter{at // 1000}", at, at + 900), Range("one/two", at + 1, at + 100)]
        items += [launch_kernel(GEMM, (at + 5, at + 6), (at + 10, at + 20), id=at)]
        items += [launch_kernel(GEMM, (at + 200, at + 201), (at + 210, at + 240), id=at + 1)]
    path = trace(*items, *run("b", 9000, [(FLASH, 9)], first_id=50), duration=90_000)
    rows = [
        Counted("a", "warm", 4, 0),
        Counted("a/iter9/one\\/two", GEMM, 10, 0),
        Counted("a/iter9", GEMM, 30, 0),
        Counted("ab/iter9", GEMM, 999, 0),
        Counted("", GEMM, 999, 0),
    ]
    found = compared(path, rows, {"base": "a", "new": "b"})
    assert reads(found) == {"gemm": 40, "other": 2}  # warm once in two calls
    kernels = measured(found).kernels
    assert kernels.loc[kernels["cause"] == "gemm", "dram_read_bytes"].tolist() == [20]


def test_launch_order_counts_where_kernels_run_at_once(trace: MakeTrace) -> None:
    """On two streams what was launched first may start last."""
    path = trace(
        Range("a", 0, 1000),
        launch_kernel("one", (1, 2), (300, 400), id=1, stream=7),
        launch_kernel("two", (3, 4), (100, 200), id=2, stream=8),
        *run("b", 9000, [(FLASH, 9)], first_id=50),
        duration=90_000,
    )
    rows = [Counted("a", "one", 10, 0), Counted("a", "two", 30, 0)]
    kernels = measured(compared(path, rows, {"base": "a", "new": "b"})).kernels
    assert dict(zip(kernels["kernel"], kernels["dram_read_bytes"], strict=True)) == {"one": 10, "two": 30}


def test_what_no_counters_are_made_of(trace: MakeTrace) -> None:
    """Copies are no kernels and lack nothing; of a graph traced whole the kernels are not known."""
    path = trace(
        Range("a", 0, 1000),
        launch_memcpy((1, 2), (10, 500), id=1),
        launch_kernel(GEMM, (3, 4), (500, 600), id=2),
        Range("b", 2000, 3000),
        launch_kernel(GEMM, (2001, 2002), (2010, 2110), id=3),
        launch_graph((2003, 2004), (2110, 2210), id=4),
    )
    found = compared(path, [Counted("a", GEMM, 1, 1), Counted("b", GEMM, 1, 1)], {"base": "a", "new": "b"})
    assert measured(found).matched_share == 1
    assert measured(found, 1).matched_share == 0.5


def test_figures_stand_in_the_ledger(trace: MakeTrace) -> None:
    """Bytes per call over the time of the report, the share of the GPU's bandwidth, and what the model expects."""
    rows = both_calls()
    rows[1].more.update(l2_bytes=5000, tensor_flops=0, fp32_flops=60, fp16_flops=20)
    rows[3].more.update(tensor_flops=90, fp32_flops=10)
    found = compared(math_and_flash(trace), rows, {**PAIR, "shape": SHAPE})
    gaps = found.gaps.set_index("cause")
    softmax = gaps.loc["softmax"].to_dict()
    assert softmax["base_dram_bytes"] == softmax["base_dram_read_bytes"] + softmax["base_dram_write_bytes"] == 202
    assert softmax["base_dram_bytes_per_s"] == pytest.approx(202 / 300e-9)
    assert softmax["base_dram_share"] == pytest.approx(202 / 300e-9 / 4_814_304_000_000)
    assert (softmax["base_l2_bytes"], softmax["base_fp32_flops"], softmax["base_expected_bytes"]) == (5000, 60, 512)
    assert np.isnan(softmax["new_dram_bytes"])
    assert gaps.loc["fused attention", "new_tensor_flops"] == 90
    assert tensor_share(measured(found, 1).total) == 0.9
    assert measured(found, 1).total["flops"] == 100
    assert measured(found).total["dram_bytes"] == 606
    assert np.isnan(measured(found).total["flops"])  # not of every kernel


def test_files_have_the_columns_only_where_there_are_counters(trace: MakeTrace) -> None:
    """Behind those that there always are; the document says how much was matched, and holds every kernel."""
    path = math_and_flash(trace)
    without = answer(path, **PAIR)
    assert not any("dram" in name for name in without.gaps.columns)
    assert "counters" not in gap_document(without)["pairs"][0]
    [pair] = gap_document(compared(path, both_calls()))["pairs"]
    assert pair["base_counters"]["matched"] == 6
    assert pair["base_counters"]["dram_bytes"] == 606
    assert pair["base_counters"]["flops"] is None
    assert [(row["side"], row["dram_read_bytes"]) for row in pair["counters"]] == [
        ("base", 200), ("base", 100), ("base", 300), ("new", 40),
    ]  # fmt: skip
    assert json.loads(json.dumps(pair, allow_nan=False))["gaps"][0]["base_dram_read_bytes"] == 200


def test_more_than_the_memory_can_do_is_refused(trace: MakeTrace) -> None:
    """100 bytes in a nanosecond are no bandwidth of an H200: no rate, and the suspects are named."""
    rows = call("RUN::math::S8", 0, (GEMM, 100, 1), (SOFTMAX, 3_000_000, 2), (GEMM, 300, 3))
    found = compared(math_and_flash(trace), [*rows, *both_calls()[3:]])
    gaps = found.gaps.set_index("cause")
    assert gaps.loc[["softmax"], ["base_dram_share", "base_dram_bytes_per_s"]].isna().to_numpy().all()
    assert gaps.loc["softmax", "base_dram_bytes"] == 3_000_002
    assert found.warnings == (
        "RUN::math::S8: DRAM bytes of softmax over their time: 208 % of the peak is impossible; the "
        "likely error is in the counters (they also count write-backs of earlier kernels, "
        "and reads that hit L2 in a run without counters) or the memory bandwidth that the report"
        " records",
    )


def test_sentences_compare_the_measurement_with_the_model(trace: MakeTrace) -> None:
    """How much moves, why that is not what was expected, and who uses tensor cores."""
    rows = both_calls()
    for row in rows:
        row.more.update(fp32_flops=1000, tensor_flops=0)
    rows[3].more.update(tensor_flops=3000)
    found = compared(math_and_flash(trace), rows, {**PAIR, "shape": SHAPE})
    sentences = found.findings["RUN::math::S8 → RUN::flash::S8"]
    assert sentences[-4:] == (
        "memory traffic per call at B=1 H=2 S=8 D=4, fp16, causal: math moves 606 B measured, 1.50 KiB expected (6.0"
        " times its score matrix of 256 B); flash moves 44 B measured, 512 B expected",
        "math causes 61 % less memory traffic than expected: its score matrix of 256 B fits in the "
        "L2 cache (60.0 MiB), so accesses to it may cause no DRAM traffic",
        "flash causes 91 % less memory traffic than expected: its input and output of 512 B fit in "
        "the L2 cache (60.0 MiB), so accesses to them may cause no DRAM traffic",
        "measured: tensor cores do none of the 3,000 FLOP of math and 75 % of the 4,000 FLOP of flash per call",
    )


def test_without_dram_columns_there_is_no_sentence_on_traffic(trace: MakeTrace) -> None:
    """FLOPs were counted, bytes were not, and no shape is known: no sentence on bytes, nothing left blank."""
    flops = {"tensor_flops": 0, "fp32_flops": 500, "fp16_flops": 0, "fp64_flops": 0}
    rows = [Counted(row.range, row.kernel, more=flops) for row in both_calls()]
    (sentences,) = compared(math_and_flash(trace), rows).findings.values()
    assert not [text for text in sentences if text.startswith("memory traffic")]
    assert "tensor cores do none of the 1,500 FLOP of math" in " ".join(sentences)


def test_what_the_model_does_not_know_is_named(trace: MakeTrace) -> None:
    """A kernel that no model has may be what moves more."""
    path = trace(
        *run("RUN::math::S8", 0, MATH),
        *run("RUN::flash::S8", 5000, [(FLASH, 150), ("void pytorch_flash::flash_fwd_splitkv_combine_kernel<>()", 9)],
             first_id=50),
        duration=20_000,
    )  # fmt: skip
    combine = Counted("RUN::flash::S8/iter0", "void flash_fwd_splitkv_combine_kernel<>()", 700, 0)
    flash = Counted("RUN::flash::S8/iter0", FLASH, 500, 0)
    found = compared(path, [*both_calls()[:3], flash, combine], {**PAIR, "shape": SHAPE})
    assert (
        "flash causes 134 % more memory traffic than expected, most of it in split-KV combine (700 "
        "B), which the model does not include" in found.findings["RUN::math::S8 → RUN::flash::S8"]
    )


def test_a_cause_that_differs_is_named_where_the_call_does_not(trace: MakeTrace) -> None:
    """The total agrees within a fifth; one kernel moves half as much again as the model says."""
    rows = call("RUN::math::S8", 0, (GEMM, 510, 0), (SOFTMAX, 700, 50), (GEMM, 400, 100))
    found = compared(math_and_flash(trace), [*rows, *both_calls()[3:]], {**PAIR, "shape": SHAPE})
    sentences = found.findings["RUN::math::S8 → RUN::flash::S8"]
    assert "softmax in math causes 46 % more memory traffic than expected: 750 B measured, 512 B expected" in sentences
    assert not any(text.startswith("math moves") for text in sentences)


TABLES = """\
measured, math      expected    DRAM    of expected    bandwidth        L2    FLOP    tensor cores
----------------  ----------  ------  -------------  -----------  --------  ------  --------------
softmax                512 B   202 B           39 %       <0.1 %  4.00 KiB      80            25 %
Q·Kᵀ GEMM              512 B   101 B           20 %       <0.1 %  4.00 KiB      80            25 %
P·V GEMM               512 B   303 B           59 %       <0.1 %  4.00 KiB      80            25 %
----------------  ----------  ------  -------------  -----------  --------  ------  --------------
total               1.50 KiB   606 B           39 %               12.0 KiB     240            25 %
per call, one call in report.counters.csv; 6 of 6 kernels in this report have counters (100 % of kernel time);
expected: computed for B=1 H=2 S=8 D=4, fp16, causal

measured, flash      expected    DRAM    of expected    bandwidth
-----------------  ----------  ------  -------------  -----------
fused attention         512 B    44 B          8.6 %       <0.1 %
-----------------  ----------  ------  -------------  -----------
total                   512 B    44 B          8.6 %
per call, one call in report.counters.csv; 2 of 2 kernels in this report have counters (100 % of kernel time);
expected: computed for B=1 H=2 S=8 D=4, fp16, causal; DRAM: bytes read and written while a kernel runs,
including writes of data that an earlier kernel left in L2; bandwidth: DRAM bytes ÷ kernel time in this
report, in % of the GPU's memory bandwidth

"""


def test_the_tables_of_the_sides(trace: MakeTrace) -> None:
    """A row per cause with kernels and their total; columns that nothing is known of are left out."""
    rows = both_calls()
    for row in rows[:3]:
        row.more.update(l2_bytes=4096, fp32_flops=60, tensor_flops=20)
    found = compared(math_and_flash(trace), rows, {**PAIR, "shape": SHAPE})
    text = comparison_text(found, every=True)
    assert TABLES in text
    assert "expected traffic" not in text
    markdown = comparison_text(found, markdown=True, every=True)
    assert "| measured, flash   |   expected |   DRAM |   of expected |   bandwidth |" in markdown
    assert "| total             |      512 B |   44 B |         8.6 % |             |" in markdown


def test_the_same_sentence_on_caches_stands_once(trace: MakeTrace) -> None:
    """What holds for all kernels of the file is told, and what one column means below the last table."""
    text = comparison_text(compared(math_and_flash(trace), both_calls()[:3], cache_control="all"), every=True)
    assert text.count("the caches were empty at the start of every kernel") == 1
    assert text.count("DRAM: bytes read and written while a kernel runs") == 1


def test_counters_of_other_ranges_are_reported(trace: MakeTrace) -> None:
    """Beside the report a warning, named an error; both tell what the file has."""
    path = math_and_flash(trace)
    rows = call("RUN::cudnn::S8", 0, (GEMM, 1, 1))
    found = compared(path, rows)
    file = path.with_suffix(".counters.csv")
    sentence = f"{file} has no kernels of 'RUN::math::S8', 'RUN::flash::S8'; it has kernels of 'RUN::cudnn::S8'"
    assert found.warnings == (sentence,)
    assert found.measured == {"RUN::math::S8 → RUN::flash::S8": (None, None)}
    with pytest.raises(NsysprofError) as raised:
        answer(path, **PAIR, counters=[file])
    assert raised.value.message == sentence


def test_another_gpu_is_refused(trace: MakeTrace) -> None:
    """Named, it is an error with the way out; beside the report it is left out with a warning."""
    path = math_and_flash(trace)
    found = compared(path, both_calls(), environment={"gpus": [{"name": "NVIDIA T4"}]})
    file = path.with_suffix(".counters.csv")
    message = f"{file} was measured on NVIDIA T4, but {path} was recorded on NVIDIA H200"
    assert found.warnings == (f"ignoring the counters beside the report: {message}",)
    assert found.measured == {}
    with pytest.raises(NsysprofError) as raised:
        answer(path, **PAIR, counters=[file])
    assert (raised.value.message, raised.value.hint) == (message, "nsysprof counters, on the report's GPU")


def test_a_gpu_that_nobody_knows_is_doubted(trace: MakeTrace) -> None:
    """The counters count, with a warning."""
    path = math_and_flash(trace)
    found = compared(path, both_calls(), environment={})
    assert found.warnings == (f"{path.with_suffix('.counters.csv')}: the record does not name the GPU",)
    assert reads(found)["softmax"] == 200


def test_other_libraries_are_reported(trace: MakeTrace) -> None:
    """Versions that both records know and that differ."""
    path = math_and_flash(trace)
    run_record = {
        "schema": "nsysprof-run/1",
        "environment": {"driver": "580", "workload": {"torch": "2.10", "cuda": "13.0"}},
        "workload": None,
    }
    path.with_suffix(".json").write_text(json.dumps(run_record), encoding="utf-8")
    environment = {"driver": "580", "workload": {"device": "NVIDIA H200", "torch": "2.11", "cudnn": 9}}
    found = compared(path, both_calls(), environment=environment)
    assert found.warnings == (
        f"{path.with_suffix('.counters.csv')} was measured with other library versions than {path}: torch 2.11 there,"
        " 2.10 in the report",
    )


def test_each_report_has_its_own_counters(trace: MakeTrace) -> None:
    """The first file goes with the report before, the second with the one after."""
    before, after = (trace(*run("a", 0, [(GEMM, 100)]), name=name) for name in ("b.sqlite", "a.sqlite"))
    files = [write_counters(before.with_name(f"{size}.csv"), call("a", 0, (GEMM, size, 0))) for size in (10, 30)]
    found = answer(before, after, counters=files)
    assert (reads(found), reads(found, 1)) == ({"gemm": 10}, {"gemm": 30})
    with_one = answer(before, after, counters=[None, files[1]])
    assert with_one.measured["a"][0] is None
    assert reads(with_one, 1) == {"gemm": 30}


def test_a_gpu_of_unknown_bandwidth_has_bytes_and_no_share(trace: MakeTrace) -> None:
    """Nothing is assumed of the hardware."""
    path = trace(
        *run("RUN::math::S8", 0, MATH),
        *run("RUN::flash::S8", 5000, [(FLASH, 150)], first_id=50),
        Gpu(0, more={"memoryBandwidth": None, "l2CacheSize": None}),
        duration=20_000,
    )
    found = compared(path, both_calls())
    assert found.gaps["base_dram_share"].isna().all()
    assert found.gaps["base_dram_bytes_per_s"].notna().sum() == 3
    assert measured(found).l2_bytes is None


COUNTERS = TRACES / "run.counters.csv"
shipped = pytest.mark.skipif(not COUNTERS.exists(), reason="traces/run.counters.csv is not there")


@pytest.fixture(scope="module")
def real() -> Comparison:
    """Math against flash, at every size."""
    return compare(attributed(RUN), base="RUN::math::*", new="RUN::flash::*", counters=[COUNTERS])


def sides(real: Comparison, size: int) -> tuple[Measured, Measured]:
    """What was measured of math and of flash at a size."""
    base, new = real.measured[f"RUN::math::S{size} → RUN::flash::S{size}"]
    assert base is not None
    assert new is not None
    return base, new


@shipped
@pytest.mark.parametrize("size", [1024, 2048, 4096])
def test_every_kernel_has_counters(real: Comparison, size: int) -> None:
    """Two calls of the counters stand for all of the report, kernel by kernel."""
    for side in sides(real, size):
        assert (side.matched, side.matched_share, side.warnings) == (side.launches, 1.0, ())
    assert not any("counters" in text for text in real.warnings)


@shipped
def test_the_model_is_what_the_hardware_counts(real: Comparison) -> None:
    """Where nothing fits into the cache, within 10 %; where the score matrix does, less; inputs of flash stay there."""
    large, small = sides(real, 4096)[0], sides(real, 1024)[0]
    assert large.total["dram_bytes"] / large.total["expected_bytes"] == pytest.approx(1, abs=0.1)
    assert small.total["dram_bytes"] < 0.8 * small.total["expected_bytes"]
    for cause in ("softmax", "Q·Kᵀ GEMM", "P·V GEMM", "cast down", "safe-softmax guard"):
        row = large.causes.loc[[cause]]
        assert (row["dram_bytes"] / row["expected_bytes"]).tolist() == pytest.approx([1], abs=0.05)
    for size in (1024, 2048, 4096):
        flash = sides(real, size)[1]
        assert flash.total["dram_bytes"] < 0.1 * flash.total["expected_bytes"]


@shipped
def test_flops_are_those_of_the_shape(real: Comparison) -> None:
    """Two products of S x S x D for each head, on FP32 units in math, nearly all on tensor cores in flash."""
    for size in (1024, 2048, 4096):
        math, flash = sides(real, size)
        products = 2 * 2 * 8 * 64 * size * size
        both = math.causes.loc[["Q·Kᵀ GEMM", "P·V GEMM"], "fp32_flops"].sum()
        assert both == pytest.approx(products, rel=0.03)
        assert tensor_share(math.total) == 0
        assert tensor_share(flash.total) > 0.95
        assert 0.5 * products < flash.total["tensor_flops"] < 0.75 * products  # causal, in whole tiles


@shipped
def test_no_kernel_is_above_a_roof(real: Comparison) -> None:
    """All of them are points, and none is faster than memory or arithmetic allow."""
    for pair in real.pairs["pair"]:
        answer = roofline(real, pair)
        assert answer is not None
        assert (answer.refused, answer.lost) == ({}, 0)
        assert answer.bytes_per_s is not None
        assert (answer.points["bytes_per_s"] <= answer.bytes_per_s).all()
        assert (answer.points["flops_per_s"] <= answer.ceilings[1].flops_per_s).all()
