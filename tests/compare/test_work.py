"""The ledger of work: what either side launches and moves, what is flagged, and what more recordings say."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsysprof.attribution.attribute import attribute
from nsysprof.compare.comparison import Comparison, compare
from nsysprof.compare.work import LESS_WORK, MOVED, SPILLS, UNJUDGED, element_type
from nsysprof.errors import NsysprofError
from nsysprof.trace.report import open_report
from tests.conftest import MakeTrace
from tests.kit.calls import GEMM
from tests.kit.trace import Items, Memcpy, Range, launch_kernel, launch_memcpy

ADD, MUL, FUSED = "vectorAdd(float*)", "vectorMul(float*)", "fusedAddMul(float*)"


def program(
    kernels: dict[str, tuple[int, int, int]], *, copied: int = 0, outside: bool = False, pause: int = 20
) -> list[Items]:
    """Twelve steps: of each kernel so many per step, blocks and ns; and copies in the steps or before them."""
    items: list[Items] = []
    at, number = 100_000, 1
    if outside:
        for copy in range(12):
            items.append(launch_memcpy((10 + copy, 11 + copy), (1000 * copy, 1000 * copy + 900), id=5000 + copy))
    for step in range(12):
        begin = at + pause
        start = begin + 10
        inside: list[Items] = []
        if copied:
            inside.append(launch_memcpy((start, start + 1), (start + 2, start + 2 + copied), id=9000 + step))
            start += copied + 5
        for name, (count, blocks, ns) in kernels.items():
            for _ in range(count):
                inside.append(
                    launch_kernel(
                        name,
                        (start, start + 1),
                        (start + 2, start + 2 + ns),
                        id=number,
                        grid=(blocks, 1, 1),
                        block=(256, 1, 1),
                    )
                )
                number, start = number + 1, start + ns + 4
        items += [Range(f"step{step}", begin, start + 5), *inside]
        at = start + 6
    return items


def compared(trace: MakeTrace, base: list[Items], new: list[Items], **how: Any) -> Comparison:
    """The comparison of two programs."""
    paths = (trace(*base, name="base.sqlite"), trace(*new, name="new.sqlite"))
    return compare(*(attributed(path) for path in paths), **how)


def attributed(path: Path) -> Any:
    """A report, attributed and closed again."""
    with open_report(path) as report:
        found = attribute(report)
        found.trace.report.reader.op_details(found.trace)
    return found


@pytest.mark.parametrize(
    ("new", "verdict", "said"),
    [
        ({ADD: (2, 100, 500)}, "same", None),
        (
            {ADD: (2, 25, 150)},
            "less",
            "vectorAdd runs 0.25x the threads, in as many launches: check that the result is correct",
        ),
        ({ADD: (1, 100, 500)}, "same", "most kernels run 0.50x as often per step"),
        (
            {ADD: (2, 100, 100)},
            "same",
            "vectorAdd takes 0.20x as long with the same grid, block and registers: only hardware counters can show",
        ),
        ({ADD: (2, 400, 500)}, "more", None),
        ({ADD: (2, 95, 200)}, "same", None),
        (
            {ADD: (8, 10, 50)},
            "less",
            "vectorAdd runs 0.40x the threads, in 4.00x the launches: check that the result is correct",
        ),
        ({ADD: (8, 10, 50), MUL: (1, 100, 200)}, "less", None),  # which may do the rest
        ({ADD: (8, 25, 130)}, "same", None),
        ({FUSED: (1, 100, 500)}, "other", "other work: hardly any kernel runs on both sides"),
    ],
)
def test_less_work_is_no_gain(
    new: dict[str, tuple[int, int, int]], verdict: str, said: str | None, trace: MakeTrace
) -> None:
    """Fewer threads or launches, or no time for as many: the reader is asked to check; fusion is other work."""
    found = compared(trace, program({ADD: (2, 100, 500)}), program(new))
    rows = found.work.set_index("name")
    assert rows.loc[ADD, "verdict"] == verdict
    doubts = [doubt.text for doubt in found.differences[found.largest].doubts]
    assert [said in text for text in doubts] == [True] * len(doubts) if said else doubts == []
    assert bool(doubts) is (said is not None)


def test_a_few_threads_less_elsewhere_are_not_less_work(trace: MakeTrace) -> None:
    """A kernel of 4 % of the time that runs a quarter of its threads may have been fused, and half of a program's
    kernels do not lose threads; matrix products of one name that run half the blocks in half the time do less.
    """

    def doubts(*sides: dict[str, tuple[int, int, int]]) -> list[str]:
        found = compared(trace, *map(program, sides))
        return [doubt.text for doubt in found.differences[found.largest].doubts if doubt.kind == LESS_WORK]

    assert not doubts({ADD: (1, 100, 9600), MUL: (1, 100, 400)}, {ADD: (1, 100, 9600), MUL: (1, 25, 100)})
    assert not doubts({GEMM: (2, 100, 5000)}, {GEMM: (2, 50, 5000)})
    other = GEMM.replace("128", "256")
    [few] = doubts(
        {GEMM: (2, 100, 5000), ADD: (2, 100, 60)},
        {other: (2, 50, 2500), ADD: (2, 50, 30)},  # all whose threads tell their work do half
    )
    assert "vectorAdd runs 0.50x the threads" in few
    [said] = doubts({GEMM: (2, 100, 5000)}, {GEMM: (2, 50, 2500)})
    assert "runs 0.50x the threads, in as many launches: check that the result is correct" in said


def test_the_ledger_of_work_counts(trace: MakeTrace) -> None:
    """Launches, threads and time per step, of either side."""
    found = compared(trace, program({ADD: (2, 100, 500)}), program({ADD: (2, 100, 500), GEMM: (1, 7, 50)}))
    rows = found.work.set_index("name")
    assert list(rows.loc[ADD, ["base_launches", "base_threads", "base_ns"]]) == [2, 2 * 100 * 256, 1000]
    assert list(rows.loc[GEMM, ["base_launches", "new_launches", "verdict"]]) == [0, 1, "other"]


def test_work_that_moves_out_of_the_steps_is_said(trace: MakeTrace) -> None:
    """Copies before the first step in place of those in each: the steps are faster, and the program is not."""
    found = compared(trace, program({ADD: (1, 100, 2000)}, copied=900), program({ADD: (1, 100, 2000)}, outside=True))
    [text] = [doubt.text for doubt in found.differences[found.largest].doubts if doubt.kind == MOVED]
    assert text.startswith("work moved out of the steps of new; the times exclude this work: copies ")


@pytest.mark.parametrize(
    ("also", "verdict", "said"),
    [
        ({"also_base": [510, 505], "also_new": [305, 302]}, "faster", "over 3 recordings against 3"),
        ({"also_base": [510, 290], "also_new": [305, 520]}, "no clear change", "over 3 recordings against 3"),
        ({"noise": [490, 505]}, "faster", "over 3 recordings against 1"),
        ({"noise": [440]}, "too few samples", "to decide, record both sides again: --also-base, --also-new"),
        ({"noise": [200, 700]}, "no clear change", "recordings of one side differ by up to"),
    ],
)
def test_recordings_are_the_unit(also: dict[str, list[int]], verdict: str, said: str, trace: MakeTrace) -> None:
    """With more recordings of either side the verdict is over them; unchanged ones show what is noise."""
    more = {
        option: [attributed(trace(*program({ADD: (1, 100, ns)}), name=f"{option}{ns}.sqlite")) for ns in lengths]
        for option, lengths in also.items()
    }
    found = compared(trace, program({ADD: (1, 100, 500)}), program({ADD: (1, 100, 300)}), **more)
    assert found.pairs["verdict"].tolist() == [verdict]
    assert any(said in text for text in found.findings[found.largest])


def test_spills_are_said_where_the_base_had_none(trace: MakeTrace) -> None:
    """A kernel that uses local memory in the new recording alone; as much as before is no news."""
    paths = [trace(*program({ADD: (1, 100, 500)}), name=f"{name}.sqlite") for name in ("base", "new", "other")]
    for path, size in zip(paths, (0, 96, 96), strict=True):
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET localMemoryPerThread = ?", (size,))

    def spills(base: Path, new: Path) -> list[str]:
        found = compare(attributed(base), attributed(new))
        return [doubt.text for doubt in found.differences[found.largest].doubts if doubt.kind == SPILLS]

    said = "threads of new use more local memory (spilled registers): vectorAdd 96 bytes (0 in base)"
    assert spills(paths[0], paths[1]) == [said]
    assert spills(paths[1], paths[2]) == [] == spills(paths[1], paths[0])


def test_a_kernel_that_waited_for_pages_is_no_cheat(trace: MakeTrace) -> None:
    """Launched alike and faster, after copies to unified memory: pages may have moved before; nobody is accused."""
    slow = [*program({ADD: (1, 100, 2000)}), launch_memcpy((1, 2), (3, 9), id=99_000, host=4)]
    found = compared(trace, slow, program({ADD: (1, 100, 200)}))
    [doubt] = found.differences[found.largest].doubts
    assert doubt.kind == UNJUDGED
    assert "page faults may have stalled the kernel there" in doubt.text
    assert "check that the result is correct" not in doubt.text


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x64x32", "TF32"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN", "BF16"),
        ("void at::native::vectorized_elementwise_kernel<4, c10::Half>(int)", "FP16"),
        ("cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64>", "BF16"),
        ("ampere_sgemm_128x64_tn", "FP32"),
        ("flash_fwd_kernel<__half>", "FP16"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n", "FP8"),
        ("half_of_the_rows(int)", ""),
    ],
)
def test_names_of_kernels_tell_their_types(name: str, element: str) -> None:
    """The narrowest type in the name; none where it has none."""
    assert element_type(name) == element


def test_more_work_explains_a_longer_time(trace: MakeTrace) -> None:
    """Four times the threads in more time are more work; more threads in less time are another layout."""

    def kinds(new: tuple[int, int, int]) -> list[str]:
        found = compared(trace, program({ADD: (2, 100, 500)}), program({ADD: new}))
        return [doubt.kind for doubt in found.differences[found.largest].doubts]

    assert kinds((2, 400, 2000)) == ["more work"]
    assert kinds((2, 400, 400)) == []


def test_pages_that_are_fetched_before_count_as_moved(trace: MakeTrace) -> None:
    """A prefetch before the first kernel is in no time of whole traces: with it, a gain of 10x is one of 1.2x."""

    def pages(at: int) -> Memcpy:
        return Memcpy(at, at + 3000, id=None, kind=11, cause=1)

    base: list[Items] = [*launch_kernel(ADD, (10, 11), (10_000, 20_000), id=1), pages(12_000)]
    new: list[Items] = [*launch_kernel(ADD, (10, 11), (10_000, 11_000), id=1), pages(2600)]
    found = compared(trace, base, new)
    [doubt] = [each for each in found.differences[found.largest].doubts if each.kind == MOVED]
    assert "where timing starts (7.40 µs); including the migrations, " in doubt.text
    assert doubt.text.endswith(" is 1.19x faster")


@pytest.mark.parametrize("option", ["also_base", "also_new", "noise"])
def test_a_recording_given_twice_is_refused(option: str, trace: MakeTrace) -> None:
    """It would seem not to vary, and any difference would be clear."""
    again = attributed(trace(*program({ADD: (1, 100, 500)}), name="again.sqlite"))
    with pytest.raises(NsysprofError, match="are the same recording"):
        compared(trace, program({ADD: (1, 100, 500)}), program({ADD: (1, 100, 300)}), **{option: [again]})


@pytest.mark.parametrize(
    ("size", "verdict", "said"), [(64, "same", None), (32, "less", "0.50x"), (128, "more", "2.00x")]
)
def test_shapes_tell_the_work_of_matrix_products(size: int, verdict: str, said: str | None, trace: MakeTrace) -> None:
    """FLOPs per step by the sizes in the names of operators, whatever grids are; half of them is less work."""

    def products(inner: int, ns: int) -> list[Items]:
        items: list[Items] = []
        for step in range(12):
            at = 100_000 + step * 10_000
            name = f"aten::mm, op_id = {step}, sizes = [[64, {inner}], [{inner}, 64]]"
            kernel = launch_kernel(GEMM, (at + 20, at + 30), (at + 40, at + 40 + ns), id=step + 1)
            items += [Range(f"step{step}", at, at + 9_000), Range(name, at + 10, at + 50), *kernel]
        return items

    found = compared(trace, products(64, 5000), products(size, 5000 if size == 64 else 4000))
    [row] = found.work.to_dict("records")
    assert (row["base_flops"], row["new_flops"], row["verdict"]) == (2 * 64**3, 2 * 64 * 64 * size, verdict)
    doubts = [doubt.text for doubt in found.differences[found.largest].doubts]
    assert (
        [f"{verdict} work in new: matrix products compute {said} the FLOPs per step" in doubts[0]]
        if said
        else not doubts
    )


def test_iterations_that_are_found_beside_ranges_are_compared(trace: MakeTrace) -> None:
    """Ranges that are no steps do not hide the loop that both recordings run, nor of a further recording."""

    def loop(ns: int) -> list[Items]:
        work = program({ADD: (1, 100, ns), MUL: (2, 50, ns // 2)}, pause=200)
        return [Range("load", 10, 40), *(each for each in work if not isinstance(each, Range))]

    noise = [attributed(trace(*loop(ns), name=f"noise{ns}.sqlite")) for ns in (4950, 5020)]
    found = compared(trace, loop(5000), loop(2500), noise=noise)
    assert found.largest == "iteration*"
    assert list(found.pairs.set_index("pair").loc["iteration*", ["clock", "verdict"]]) == ["step", "faster"]
    assert not any("whole recordings are compared" in text for text in found.warnings)
