"""What can be taken out of a program, or done otherwise: each change against a program that never did it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nsysprof
from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.core.units import format_ns
from nsysprof.forecast import forecast as forecasts
from nsysprof.forecast.forecast import Forecast, changes_that_help
from nsysprof.forecast.text import changes_text, parts_table
from nsysprof.kernels.classify import load_rules
from nsysprof.waits.changes import Changes
from tests.conftest import MakeTrace
from tests.kit.program import MS, US, Program
from tests.kit.reports import BLOCK, RUN, attributed
from tests.kit.trace import CudaDevice, Gpu, Items, Kernel, Launch, Memcpy, PageFault, Range, launch_kernel

STEPS, GEMMS = 6, 8


@pytest.fixture(autouse=True)
def nothing_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are of the model: its record widens intervals, and changes with each study."""
    monkeypatch.setattr(forecasts, "PUBLISHED", {})


def ask(path: Path, **changes: Any) -> Forecast:
    """The forecast of the steps of a report."""
    return nsysprof.forecast(attributed(path), "step", **changes)


def steps(do: Callable[[Program], None] = lambda _: None) -> Program:
    """Steps that do something, launch kernels faster than they run, and read a value."""
    program = Program()
    for _ in range(STEPS):
        with program.range("step"):
            do(program)
            with program.range("layers"):
                program.layers(GEMMS, 60 * US, 5 * US)
            program.copy(2, 4, 2 * US, blocks=True)
            program.wait()
    return program


def copy_in(program: Program, host: int = 0, rate: float = 5.0, size: int = 8 << 20) -> None:
    """Copy memory to the GPU at so many GB/s by a call that returns a little before the copy ends; wait for it."""
    begun, id = program.now, program.call("cudaMemcpyAsync")
    start = max(begun + 20 * US, program.free.get(7, 0))
    end = start + round(size / rate)
    program.items[-1] = Launch(begun, end - 7 * US, id, program.thread, api="cudaMemcpyAsync_v3020")
    program.items.append(Memcpy(start, end, id, bytes=size, kind=1, stream=7, host=host))
    program.now, program.free[7] = end - 7 * US, end
    program.wait()


def test_copies_whose_calls_end_before_them_block_the_host(trace: MakeTrace) -> None:
    """Without that the host launches meanwhile, and the copy keeps its length."""
    answer = ask(trace(*steps(copy_in).items), async_copies=True)
    copied = (8 << 20) / 5.0
    assert copied < answer.forecast_ns < answer.base_ns - 10 * US


@pytest.mark.parametrize("known", [True, False])
def test_pinned_copies_are_as_fast_as_those_that_are(trace: MakeTrace, known: bool) -> None:
    """As pinned copies of the report, or as the link; what was assumed is said."""
    program = steps(copy_in)
    if known:
        program.copy(1, 8 << 20, (8 << 20) // 50)
        copy = program.items[-1]
        assert isinstance(copy, Memcpy)
        program.items[-1] = replace(copy, stream=7, host=1)
    answer = ask(trace(Gpu(0), CudaDevice(0, 0), *program.items), pinned=True)
    gone = (8 << 20) / 5.0 - (8 << 20) / (50 if known else 63.02)
    assert answer.base_ns - answer.forecast_ns == pytest.approx(gone, rel=0.05)
    [note] = [note for note in answer.notes if "pinned copies to the GPU" in note]
    assert ("like other pinned copies of this report" in note) == known


def test_code_of_a_range_is_removed_also_on_the_thread_that_works_for_it(trace: MakeTrace) -> None:
    """Code of backward is that of autograd's thread."""

    def backward(ns: int) -> Callable[[Program], None]:
        def do(program: Program) -> None:
            with program.range("backward"):
                program.code(10 * US)
                with program.on(2):
                    for _ in range(3):
                        program.code(ns)
                        program.launch("grad", 20 * US)
                    until = program.now
                program.now = until + 10 * US

        return do

    short = ask(trace(*steps(backward(0)).items), delay=["step=0us"]).base_ns
    answer = ask(trace(*steps(backward(400 * US)).items), remove_code=["backward"])
    assert answer.base_ns > short + 1 * MS
    assert answer.forecast_ns == pytest.approx(short, rel=0.05)


def test_code_between_ranges_is_removed_by_a_name_of_its_own(trace: MakeTrace) -> None:
    """`outside every range`, as the answers of why call it."""

    def program(pause: int) -> Program:
        out = Program()
        for _ in range(STEPS):
            with out.range("step"):
                out.layers(GEMMS, 60 * US, 5 * US)
                out.wait()
            out.code(pause)
        return out

    never = ask(trace(*program(0).items), delay=["step=0us"]).base_ns
    answer = ask(trace(*program(900 * US).items), remove_code=["outside every range"])
    assert answer.base_ns > 1.5 * never
    assert answer.forecast_ns == pytest.approx(never, rel=0.02)


def test_a_fused_optimizer_keeps_its_kernels_time_and_loses_launches(trace: MakeTrace) -> None:
    """Forty launches become one; the kernels take 2 us each, in one piece."""

    def optimizer(count: int, ns: int) -> Callable[[Program], None]:
        def do(program: Program) -> None:
            with program.range("optimizer"):
                for _ in range(count):
                    program.code(10 * US)
                    program.launch("adam", ns)

        return do

    never = ask(trace(*steps(optimizer(1, 80 * US)).items), delay=["step=0us"]).base_ns
    answer = ask(trace(*steps(optimizer(40, 2 * US)).items), fuse=["optimizer"])
    assert answer.base_ns > never + 400 * US
    assert answer.forecast_ns == pytest.approx(never, rel=0.03)
    with pytest.raises(nsysprof.NsysprofError, match="launches no kernels to fuse"):
        ask(trace(*steps(copy_in_range).items), fuse=["only copies"])


def copy_in_range(program: Program) -> None:
    """A range that launches nothing but a copy."""
    with program.range("only copies"):
        copy_in(program)


def test_without_page_faults_a_kernel_is_shorter_by_what_it_waited_for_pages(trace: MakeTrace) -> None:
    """At most by that, and the answer says so; a report without any has no forecast."""
    program = steps()
    kernels = [item for item in program.items if isinstance(item, Kernel)]
    faults = [PageFault(each.start, each.start + 30 * US) for each in kernels]
    answer = ask(trace(Gpu(0), CudaDevice(0, 0), *program.items, *faults), no_page_faults=True)
    assert answer.base_ns - answer.forecast_ns == pytest.approx(GEMMS * 30 * US, rel=0.1)
    assert any("upper bound" in note for note in answer.notes)
    with pytest.raises(nsysprof.NsysprofError, match="has no page faults or migrations"):
        ask(trace(*program.items), no_page_faults=True)


def test_without_a_late_rank_the_answer_is_of_the_one_that_waited(trace: MakeTrace) -> None:
    """The late rank itself gains nothing; it is among the other paths."""
    name, items = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", list[Items]()
    items += [Gpu(0), Gpu(1), CudaDevice(0, 0, 1), CudaDevice(1, 0, 2)]
    for at in range(0, 60 * MS, 10 * MS):
        for process, late in ((1, 0), (2, 5 * MS)):
            begin, id = at + late, at // MS + 1
            items += [
                Range("step", at, at + 9 * MS, process=process),
                launch_kernel("gemm", (at, at + 5 * US), (at + 10 * US, at + 1 * MS + late), id=id, process=process),
                launch_kernel(name, (at + 10 * US, at + 15 * US),
                              (begin + 1 * MS + 2 * US, at + 8 * MS), id=id + 1, process=process),
                Launch(at + 20 * US, at + 8 * MS + 5 * US, id + 2, process=process, api="cudaStreamSynchronize_v3020"),
            ]  # fmt: skip
    answer = ask(trace(*items), no_late_peer=True)
    assert answer.gpu == 0
    assert answer.base_ns - answer.forecast_ns > 4 * MS


def test_changes_are_written_as_options() -> None:
    """What an answer prints is what the command line takes."""
    changes = Changes(remove_calls=["cudaMalloc*", "cudaFree"], pinned=True)
    assert changes.options == "--pinned --remove-calls 'cudaMalloc*' --remove-calls cudaFree"


def test_a_step_without_a_cause_is_never_shorter_than_what_stays(trace: MakeTrace) -> None:
    """Its kernels run all the same."""
    answer = ask(trace(*steps(copy_in).items), remove=["*HtoD*"], remove_code=["step", "layers"])
    assert (answer.forecast >= GEMMS * 60 * US).all()
    assert (np.asarray(answer.forecast) <= answer.base).all()


def test_an_interval_without_a_cause_is_of_steps_and_of_what_it_slowed(
    trace: MakeTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is published of other kinds widens it, that of removals not; below lies 5 % of the gain, at most 20 %."""
    monkeypatch.setattr(forecasts, "PUBLISHED", {"remove": (0.1, 0.7, 0.66, 5), "delay": (0.1, 0.2, 0.5, 5)})

    def copy_and_run(program: Program) -> None:
        copy_in(program)
        program.code(600 * US)

    path = trace(*steps(copy_and_run).items)
    alone = ask(path, remove=["*HtoD*"])
    gain = alone.base_ns - alone.forecast_ns
    assert alone.low_ns == pytest.approx(alone.forecast_ns - 0.05 * gain, rel=0.01)
    assert alone.high_ns == pytest.approx(alone.forecast_ns, rel=0.01)
    assert alone.widened == 0
    large = ask(trace(*steps(lambda program: copy_in(program, size=256 << 20)).items), remove=["*HtoD*"])
    assert large.low_ns >= 0.8 * large.forecast_ns
    assert ask(path, remove=["*HtoD*"], delay=["layers=1us"]).widened == 0.5


def test_an_interval_ends_where_the_gpu_has_what_stays_to_do(trace: MakeTrace) -> None:
    """However far off such forecasts were: eight kernels of 60 us take 480."""
    path = trace(*steps(copy_in).items)
    forecasts.PUBLISHED["delay"] = (0.1, 0.9, 0.99, 5)  # of a copy of the record
    answer = ask(path, delay=["layers=1us"])
    assert answer.low_ns >= GEMMS * 60 * US


def of_kernels(range_glob: str, scale: str) -> Forecast:
    """The forecast of steps of the shipped report with other kernels."""
    return nsysprof.forecast(attributed(RUN), range_glob, as_profiled=True, scale=[scale])


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("softmax", "1 kernel, 19.8 ms, 17 %"),
        ("Softmax", "1 kernel, 19.8 ms, 17 %"),
        ("*SOFTMAX*", "2 kernels, 26.0 ms, 23 %"),  # the guard of a safe softmax, too
    ],
)
def test_kernels_are_found_by_family_in_any_case_and_counted(glob: str, found: str) -> None:
    """A family is what tables print, whatever its kernels are called; a note says how much of the steps matched."""
    answer = of_kernels("RUN::math::S4096/iter*", f"{glob}=0.1")
    assert f"{glob}: {found} of the steps" in answer.notes
    assert 0.7 < answer.forecast_ns / answer.base_ns < 0.9


def test_a_family_is_more_than_kernels_that_are_called_so() -> None:
    """cuBLAS calls its matrix products nvjet."""
    answer = of_kernels("RUN::math_reduced::S4096/iter*", "*gemm*=0.5")
    assert answer.forecast_ns < 0.99 * answer.base_ns


def test_parts_add_up_to_the_headline() -> None:
    """The last row has the medians of the sentence, and the rows above it add up to them."""
    answer = of_kernels("RUN::math::S4096/iter*", "softmax=0.1")
    rows = parts_table(answer).rows
    assert rows[-1][1:3] == [format_ns(answer.base_ns), format_ns(answer.forecast_ns)]
    assert rows[-2][0] == "median step minus this step"


def test_without_a_change_those_that_gain_most_are_listed() -> None:
    """From the diagnosis, each with the command that forecasts it."""
    with nsysprof.open_report(BLOCK) as report:
        attribution = nsysprof.attribute(report)
        diagnosis = changes_that_help(attribution, None, load_rules(), DEFAULT_MERGE)
        text = changes_text(diagnosis, report.path)
    gains = [each.gain_ns for each in diagnosis.findings if each.change]
    assert text.count("   $ nsysprof forecast ") == min(len(gains), 5)
    assert text.index("Largest gains") < text.index("--graph")
    first = next(each for each in diagnosis.findings if each.change)
    for number, more in ((0, None), (5, None), (6, "1 more change"), (7, "2 more changes")):
        several = replace(diagnosis, findings=(*[first] * number, replace(first, change=())))
        text = changes_text(several, BLOCK)
        assert ("more change" in text) == (more is not None)
        assert more is None or more in text
        assert ("No bottleneck has a change that forecast can replay." in text) == (not number)
        assert "more change" not in changes_text(several, BLOCK, full=True)
    assert "No change" not in changes_text(replace(diagnosis, findings=()), BLOCK)
