"""Hot spots: what limits a kernel by the shapes of its operator and by its launch, and what the step gains."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nsysprof
from nsysprof.analyze.text import summary
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.finding import BOUND, REPLAYED
from nsysprof.diagnosis.reached import REACHABLE
from nsysprof.diagnosis.text import gain_text
from nsysprof.errors import NsysprofError
from nsysprof.forecast.text import forecast_sentence
from nsysprof.hotspots.charts import plan_hotspots
from nsysprof.hotspots.hotspots import Hotspots, hotspots
from nsysprof.hotspots.text import command, hotspots_text, spot_sentence, spot_words
from nsysprof.kernels.shapes import op_work
from tests.conftest import MakeTrace
from tests.kit.bench_samples import write_samples
from tests.kit.command_line import quietly
from tests.kit.counters import Counted, write_counters
from tests.kit.gpu_samples import STEP_NS, gpu_samples
from tests.kit.kineto import Event, annotation, call, gpu_op, operator, write_trace
from tests.kit.program import Program
from tests.kit.reports import attributed, broken_down
from tests.kit.trace import Gpu, Item, Range, Row, global_tid, launch_kernel

US, MS = 1_000, 1_000_000
STEPS, STEP = 8, 150 * US  # of the host, which runs ahead of the GPU
PEAK, BANDWIDTH = 132 * 1980e6 * 4096, 3350e9  # of an H100 in half precision, by its data sheet
MM, ADD, COPY = "ampere_gemm_mm", "vectorized_elementwise_add", "copy_kernel"
SQUARE: dict[str, Any] = {"Input_Dims": [[4096, 4096]] * 2, "Input_type": ["c10::Half"] * 2}


H200 = Gpu(0)
SDPA = "_scaled_dot_product_flash_attention"


def work(
    name: str, op: str, at: int, gpu: tuple[int, int], id: int, *, stream: int = 7, blocks: int = 4096, **shapes: Any
) -> list[Event]:
    """An operator that launches a kernel of so many blocks."""
    geometry = {"grid": [blocks, 1, 1], "block": [256, 1, 1], "registers per thread": 32, "shared memory": 0}
    kernel = gpu_op("kernel", name, *gpu, id, stream)
    kernel["args"] |= geometry
    return [operator(op, at, at + 20 * US, **shapes), call("cudaLaunchKernel", at + 5 * US, at + 10 * US, id), kernel]


def program(tmp_path: Path, *, mm: int = 2 * MS, add: int = MS, **changes: Any) -> Path:
    """Steps whose GPU multiplies two matrices for so long and then adds two; ``changes`` are of the product."""
    events: list[Event] = []
    for step in range(STEPS):
        begin = step * STEP
        gpu = 60 * US + step * (mm + add + 2 * US)
        events.append(annotation("step", begin, begin + 100 * US))
        first: dict[str, Any] = {**SQUARE, **changes}
        events += work(MM, "aten::mm", begin + 10 * US, (gpu, gpu + mm), 2 * step + 1, **first)
        behind = gpu + mm + US
        events += work(ADD, "aten::add", begin + 40 * US, (behind, behind + add), 2 * step + 2, **SQUARE)
    return write_trace(tmp_path / "t.json", events)


def found(path: Path, by: str = "kernel") -> Hotspots:
    """The answer."""
    answer = hotspots(attributed(path), by=by)
    assert answer.diagnosis is not None
    return answer


def test_shapes_say_what_limits_a_kernel(tmp_path: Path) -> None:
    """FLOPs and bytes over time, as parts of the peaks: a product by compute, an addition by memory."""
    flops, moved = 2 * 4096**3, 3 * 2 * 4096**2
    mm, add = round(flops / PEAK / 0.5 * 1e9), round(moved / BANDWIDTH / 0.6 * 1e9)
    answer = found(program(tmp_path, mm=mm, add=add))
    first, second = answer.spots
    assert (first.name, first.limit, first.basis, first.unit) == (MM, "compute", "shapes", "FP16 on tensor cores")
    assert (second.name, second.limit, second.basis) == (ADD, "memory", "shapes")
    assert first.limit_share == pytest.approx(0.5, rel=1e-3)
    assert second.limit_share == pytest.approx(0.6, rel=1e-2)
    assert first.scale == pytest.approx(0.5 / REACHABLE["compute"], abs=0.005)
    assert first.calls_per_step == second.calls_per_step == 1


def test_a_gain_is_that_of_the_forecast(tmp_path: Path) -> None:
    """The printed command replays the same change, and gives the same number."""
    path = program(tmp_path)
    answer = found(path)
    first = answer.spots[0]
    assert answer.best is first
    assert first.gain_basis == REPLAYED
    assert f"--scale {MM}={first.scale:g}" in command(answer, first)
    assert answer.place is not None
    scaled = nsysprof.forecast(attributed(path), "step", as_profiled=True, scale=[f"{MM}={first.scale:g}"])
    assert first.gain_ns == pytest.approx(scaled.gain_ns / answer.place.steps)
    assert first.gain_ns == pytest.approx((1 - first.scale) * first.step_ns, rel=0.01)


def test_what_a_forecast_refuses_is_a_bound_with_another_command(tmp_path: Path) -> None:
    """Two streams without recorded events: their order is unknown, so no command forecasts the saving."""
    events: list[Event] = []
    for step in range(STEPS):
        begin = step * STEP
        gpu = 60 * US + step * 4 * MS
        events.append(annotation("step", begin, begin + 100 * US))
        events += work(MM, "aten::mm", begin + 10 * US, (gpu, gpu + 3 * MS), 2 * step + 1, **SQUARE)
        behind = gpu + 3 * MS + US
        events += work(ADD, "aten::add", begin + 40 * US, (behind, behind + MS // 2), 2 * step + 2, stream=13, **SQUARE)
    answer = found(write_trace(tmp_path / "t.json", events))
    assert answer.spots[0].gain_basis == BOUND
    assert not command(answer, answer.spots[0]).startswith("nsysprof forecast")


def test_a_kernel_that_hides_behind_another_gains_nothing(tmp_path: Path) -> None:
    """Beside a longer kernel of another stream a step waits for that one."""
    events: list[Event] = []
    for step in range(STEPS):
        begin = step * STEP
        events.append(annotation("step", begin, begin + 100 * US))
        gpu = 60 * US + step * (3 * MS + US)
        events += work(MM, "aten::mm", begin + 10 * US, (gpu, gpu + 3 * MS), 2 * step + 1, **SQUARE)
        hidden = (gpu + 30 * US, gpu + 2 * MS)
        events += work(ADD, "aten::add", begin + 40 * US, hidden, 2 * step + 2, stream=13, **SQUARE)
    first, second = found(write_trace(tmp_path / "t.json", events)).spots
    assert (first.name, second.name) == (MM, ADD)
    assert first.gain_ns > 100 * US
    assert second.scale < 0.2
    assert second.gain_ns < US


def test_more_than_the_peak_is_refused_with_what_is_suspect(tmp_path: Path) -> None:
    """A product that took no time, or an input that was expanded, has no share: the limit is unknown, and says why."""
    first = found(program(tmp_path, add=20 * US)).spots[1]
    assert (first.limit, first.basis) == ("unknown", "")
    assert first.limit_share != first.limit_share
    assert first.gain_ns != first.gain_ns
    assert "of the memory peak is impossible; suspect: its shapes" in first.reason


@pytest.mark.parametrize("dims", [[], [[4096, 3], [4096, 4096]], [[-1, 4], [4, 4]], [["x"], [2]], "odd", [3, None]])
def test_without_shapes_that_fit_a_limit_is_unknown(tmp_path: Path, dims: object) -> None:
    """Shapes that are missing or cannot be are never a number; a full GPU says nothing either."""
    first = found(program(tmp_path, Input_Dims=dims)).spots[0]
    assert (first.name, first.limit, first.basis) == (MM, "unknown", "")
    assert first.flops_per_s != first.flops_per_s
    assert first.reason == "shapes of its operator not recorded"


def test_few_blocks_limit_a_kernel_by_occupancy(tmp_path: Path) -> None:
    """33 blocks of 8 warps on 132 multiprocessors, which need 16, keep an eighth of the GPU busy."""
    answer = found(program(tmp_path, blocks=33, Input_Dims=[]))
    first = answer.spots[0]
    assert (first.limit, first.basis, first.limit_share, first.scale) == ("occupancy", "geometry", 0.125, 0.12)
    assert first.reason == "33 blocks on 132 multiprocessors"
    table = answer.table
    assert (table.texts("grid").tolist()[0], table["blocks_per_sm"][0]) == ("33", 8)
    assert table["waves"][0] == pytest.approx(33 / 8 / 132, abs=1e-4)


@pytest.mark.parametrize(
    ("grids", "limit", "share"),
    [
        ((1, 50, 60), "occupancy", 37 / 132 / 4),
        ((1, 2, 3), "occupancy", 2 / 132 / 4),
        ((1, 2000, 3000), "unknown", None),
    ],
)
def test_grids_that_differ_are_few_blocks_on_average_or_unknown(
    trace: MakeTrace, grids: tuple[int, ...], limit: str, share: float | None
) -> None:
    """Of grids that take as long, none stands for the kernel; if most are few blocks, their mean does."""
    made = Program()
    for number in range(6):
        with made.range(f"step{number}"):
            for blocks in grids:
                made.launch("k", 1_000_000 + blocks, blocks=blocks)
            made.wait()
    first = found(trace(*made.items)).spots[0]
    assert first.limit == limit
    assert share is None or first.limit_share == pytest.approx(share, rel=0.1)


def test_a_family_is_one_row(tmp_path: Path) -> None:
    """By family, names are those that `forecast --scale` takes, and shares those of their kernels together."""
    path = program(tmp_path)
    kernels, families = found(path).spots, found(path, "family").spots
    assert [each.name for each in families] == ["gemm", "elementwise"]
    assert [each.share for each in families] == [each.share for each in kernels]
    assert families[0].gain_ns == pytest.approx(kernels[0].gain_ns)


def test_a_screen_says_what_to_optimize_first(tmp_path: Path) -> None:
    """The verdict names kernel, share, limit and gain; the chart is a roofline with the kernels below their roofs."""
    answer = found(program(tmp_path))
    text = hotspots_text(answer)
    assert len(text.splitlines()) <= 40
    assert f"Optimize first: {MM} takes" in text
    assert format_ns(answer.spots[0].gain_ns) in text
    plan = plan_hotspots(answer)
    assert [each.text.split(",")[0] for each in plan.bubbles] == [MM, ADD]  # type: ignore[union-attr]
    assert plan.slopes[0][0] == BANDWIDTH / 1e12  # type: ignore[union-attr]


def test_the_command_writes_kernels_and_a_document(tmp_path: Path) -> None:
    """The CSV has a row per kernel; the document has the same rows, the sentence and the diagnosis."""
    path = program(tmp_path)
    done = quietly("hotspots", path, "-o", tmp_path / "out", "--html")
    assert not done.code, done.err
    out = tmp_path / "out"
    document = json.loads((out / "hotspots.json").read_text())
    assert document["schema"] == "nsysprof-hotspots/1"
    assert [each["kernel"] for each in document["kernels"]] == [MM, ADD]
    assert document["kernels"][0]["gain_basis"] == REPLAYED
    assert document["sentence"] in " ".join((out / "report.html").read_text().split())
    assert (out / "hotspots.csv").read_text().count("\n") == 3


def test_analyze_names_the_longest_kernel_of_a_busy_gpu(tmp_path: Path) -> None:
    """Where the GPU computes for most of the steps, and not where it idles."""
    busy = summary(broken_down(program(tmp_path)))
    idle = write_trace(tmp_path / "idle.json", [annotation("step", 0, MS), *work(MM, "aten::mm", 10, (20, 30), 1)])
    assert "Longest kernel" not in summary(broken_down(idle, select="step"))
    assert f"Longest kernel: {MM} takes 66 % of the step time" in busy
    assert "nsysprof hotspots" in busy


def test_the_longest_kernel_of_several_gpus_is_told_of_one(trace: MakeTrace) -> None:
    """Each of two threads has steps on its own GPU: shares of one GPU are no shares of both, but all steps count."""
    program = Program()

    def work(gpu: int, count: int, heavy: int) -> None:
        for number in range(count):
            with program.range(f"step{number}"):
                program.launch("heavy", heavy, stream=7 + gpu, device=gpu)
                program.launch("light", MS, stream=7 + gpu, device=gpu)
                program.wait(until=program.free[7 + gpu])

    with program.on(2):
        work(1, 9, MS)
    work(0, 12, 9 * MS)
    text = summary(broken_down(trace(*program.items)))
    assert "Longest kernel: heavy takes 90 % of the step time on GPU 0" in text
    assert re.search(r"\nstep\*  +21  ", text)


def test_a_kernel_of_few_steps_has_one_base_and_the_saving_of_its_forecast(trace: MakeTrace) -> None:
    """Time, share and gain are means over all steps; the median step lacks the kernel, so both add up all steps."""
    made = Program()
    for number in range(12):
        with made.range(f"step{number}"):
            made.launch("usual", MS, blocks=4096)
            if number in (5, 9):
                made.launch("rare", 4 * MS, blocks=33)
            made.wait()
    path = trace(*made.items, H200)
    answer = found(path)
    usual, rare = answer.spots
    assert answer.place is not None
    assert answer.best is rare
    assert (usual.some, rare.some) == ("", f"2 of {answer.place.steps} steps")
    assert rare.step_ns == 2 * 4 * MS / answer.place.steps
    assert rare.share == pytest.approx(rare.step_ns * answer.place.steps / answer.place.total_ns)
    total = format_ns(rare.gain_ns * answer.place.steps)
    mean = f"{total} in all ({format_ns(rare.gain_ns)} per step on average)"
    assert f"and runs in {rare.some}, limited" in spot_sentence(answer, rare)
    assert spot_sentence(answer, rare).endswith(f"saves {mean}")
    assert "in steps" in hotspots_text(answer)
    plan = plan_hotspots(answer)
    assert f"limited by occupancy; a step can save {format_ns(rare.gain_ns)}" in plan.heading.title
    asked: dict[str, Any] = {"as_profiled": True, "scale": [f"rare={rare.scale:g}"]}
    assert f"but {rare.some} do: {mean.replace(' in', ' less in')}" in forecast_sentence(
        nsysprof.forecast(attributed(path), "step*", **asked)
    )


def test_a_kernel_that_steps_lack_has_one_base(trace: MakeTrace) -> None:
    """Nine of twelve steps have the kernel and are longer: the bottleneck and the hot spot give the same means."""
    made = Program()
    for number in range(12):
        with made.range(f"step{number}"):
            made.launch("usual", MS, blocks=4096)
            if number % 4:
                made.launch("some", 4 * MS, blocks=33)
            made.wait()
    answer = found(trace(*made.items, H200))
    [spot] = [each for each in answer.spots if each.some]
    [grid] = [each for each in answer.diagnosis.findings if each.kind == "small-grid"]
    assert spot.step_ns == 3 * MS
    assert f": {format_ns(spot.step_ns)} per step on average ({format_share(spot.share)})" in grid.text
    assert gain_text(grid) == f"saves at most {format_ns(spot.gain_ns)} per step"


def test_sizes_in_names_of_ranges_are_shapes(trace: MakeTrace) -> None:
    """Under nsys `emit_nvtx` records sizes in names, and types are those of the kernels; cut names have none."""
    items: list[Item] = []
    for step in range(STEPS):
        at = step * MS
        whole = f"aten::mm, op_id = {step}, sizes = [[4096, 4096], [4096, 4096]]"
        items += [Range("step", at, at + MS), Range(whole, at + 10, at + 100)]
        items += launch_kernel("gemm_half_kernel", (at + 20, at + 30), (at + 40, at + MS // 2), id=2 * step + 1)
        items += [Range("aten::mm, op_id = 1, sizes = [[4096, 40", at + 200, at + 300)]
        items += launch_kernel("other", (at + 220, at + 230), (at + MS // 2, at + MS // 2 + 10), id=2 * step + 2)
    work_of = op_work(attributed(trace(*items)).trace)
    assert work_of.flops.tolist()[:1] == [2 * 4096**3]
    assert work_of.moved.tolist()[:1] == [3 * 2 * 4096**2]
    assert work_of.dtype.tolist()[:1] == ["fp16"]
    assert (work_of.flops == work_of.flops).sum() == STEPS


TENSOR = "{'name': '', 'type': 'tensor', 'shape': %s, 'dtype': 'float16'}"
PYPROF = "{'mod': 'torch.nn.functional', 'op': '%s', 'args': [%s]}"
STRIDE = ", {'name': 'stride', 'type': 'int', 'value': 2}"


def pyprof(op: str, *shapes: str, more: str = "") -> str:
    """The name of a range that pyprof opens around an operator."""
    return PYPROF % (op, ", ".join(TENSOR % shape for shape in shapes) + more)


@pytest.mark.parametrize(
    ("name", "payload", "flops", "moved"),
    [
        (pyprof("linear", "(8, 64)", "(32, 64)"), None, 2 * 8 * 64 * 32, 2 * (8 * 64 + 32 * 64 + 8 * 32)),
        (pyprof("conv2d", "(1, 4, 8, 8)", "(6, 4, 3, 3)"), None, 2 * 6 * 36 * 36, 2 * (256 + 216 + 216)),
        (pyprof("conv2d", "(1, 4, 8, 8)", "(6, 4, 3, 3)", more=STRIDE), None, 2 * 6 * 9 * 36, 2 * (256 + 216 + 54)),
        (pyprof("__add__", "(8, 64)", "(64,)"), None, 8 * 64, 2 * (2 * 8 * 64 + 64)),
        *((pyprof(*call), None, None, None) for call in (
            ("embedding", "(9, 9)", "(9, 9)"), ("linear", "(-8, 64)", "(32, 64)"), ("linear", "7", "(32, 64)"),
            ("linear", "((8, 64), 3)", "(32, 64)"), ("linear", "(8, 10**9)", "(32, 64)"), ("linear", "(" * 999),
            ("linear", "(99999999999999, 64)", "(32, 64)"), ("linear",),
        )),
        (pyprof("linear", "(8, 64)", "(32, 64)")[:90], None, None, None),
        (pyprof("linear", "(8, 64)", "(32, 64)").replace("float16", "\\d"), None, 2 * 8 * 64 * 32, None),  # warned of
        ("mm", {"op": "aten::mm", "Input Dims": [[8, 64], [64, 32]], "Input type": ["c10::Half"] * 2},
         2 * 8 * 64 * 32, 2 * (8 * 64 + 32 * 64 + 8 * 32)),
        *(("mm", {"op": "aten::mm", "Input Dims": json.loads(dims)}, None, None) for dims in (
            "[[-8, 64], [64, 32]]", "[[99999999999999, 64], [64, 32]]", "[[[8, 64]], [64, 32]]", "[8, 64]", "8", "{}",
        )),
        ("ncclAllReduce", {"NCCL communicator ID": 1, "Message size [bytes]": 4}, None, None),
        ("mm", {"op": ["aten::mm"], "Input Dims": [[8, 64], [64, 32]]}, None, None),
    ],
)  # fmt: skip
def test_shapes_in_names_of_pyprof_and_in_payloads(
    trace: MakeTrace, name: str, payload: Any, flops: float | None, moved: float | None
) -> None:
    """Operators that pyprof names, and JSON payloads with `Input Dims`; of anything else, shapes stay unknown."""
    row = {"start": 10, "end": 100, "eventType": 59, "text": name, "globalTid": global_tid(1, 1), "domainId": 0}
    text = json.dumps(payload)
    for more in ({"jsonText": text}, {"jsonTextId": 0}) if payload else ({},):
        first = Range(text, 0, 5, thread=2, text_id=True)  # string 0
        inner = Range("aten::mm", 15, 35) if not payload else first
        file = trace(first, Row("NVTX_EVENTS", row | more), inner, *launch_kernel("gemm", (20, 30), (40, US), id=1))
        work_of = op_work(attributed(file).trace)
        counts = [*work_of.flops, *work_of.moved]
        assert counts == pytest.approx([math.nan if each is None else each for each in (flops, moved)], nan_ok=True)


def test_attention_whose_mask_is_not_recorded_has_no_flops(trace: MakeTrace) -> None:
    """`emit_nvtx` records sizes alone: causal attention does half of the work, so a share may be twice too high."""
    name = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::half_t>>"
    items: list[Item] = []
    for step in range(STEPS):
        at = step * MS
        sizes = ", ".join(["[4, 16, 4096, 64]"] * 3)
        items += [
            Range("step", at, at + MS),
            Range(f"aten::{SDPA}, op_id = {step}, sizes = [{sizes}]", at + 10, at + 100),
        ]
        items += launch_kernel(name, (at + 20, at + 30), (at + 40, at + MS), id=step + 1, grid=(4096, 1, 1),
                               block=(256, 1, 1), registers=32)  # fmt: skip
    [spot] = found(trace(*items, H200)).spots
    assert (spot.limit, spot.reason) == ("unknown", "the recording does not show whether attention is causal")
    assert spot.flops_per_s != spot.flops_per_s


@pytest.mark.parametrize(("many_us", "limit"), [(100, "unknown"), (250, "occupancy")])
def test_blocks_that_take_so_long_each_gain_nothing_from_more(trace: MakeTrace, many_us: int, limit: str) -> None:
    """As long with 5 blocks as with 270, the kernel is promised nothing; longer, the GPU is empty."""
    items: list[Item] = []
    for step in range(STEPS):
        at = step * MS
        items.append(Range("step", at, at + 50 * US))
        for number, (blocks, ns) in enumerate(((5, 100 * US), (5, 100 * US), (5, 100 * US), (270, many_us * US))):
            begin = at + (100 + 110 * number) * US
            call, id = (at + 10 + number, at + 11 + number), 4 * step + number + 1
            items += launch_kernel("solve", call, (begin, begin + ns), id=id, grid=(blocks, 1, 1), block=(32, 1, 1))
    [spot] = found(trace(*items, H200)).spots
    assert spot.limit == limit
    assert (spot.reason == "takes as long with many blocks as with few") == (limit == "unknown")
    assert (spot.gain_ns > 0) == (limit == "occupancy")


def streaming(
    trace: MakeTrace, *more: Any, blocks: int = 4096, gpu: int = 0, read: int = 30, write: int = 25, **launch: Any
) -> Path:
    """Steps of one kernel of 2 ms, which samples of a GPU see read and write so many % of the DRAM bandwidth."""
    items: list[Item] = []
    for step in range(STEPS):
        at, gpu_at = step * 20 * US, 10 * US + step * 2 * MS
        items.append(Range("step", at, at + 19 * US))
        items += launch_kernel("triad", (at + 10, at + 20), (gpu_at, gpu_at + 2 * MS - US), id=step + 1,
                               grid=(blocks, 1, 1), block=(256, 1, 1), registers=32, **launch)  # fmt: skip
    count = STEPS * 2 * MS // STEP_NS
    values = {"sm_active": [99] * count, "dram_read": [read] * count, "dram_write": [write] * count}
    return trace(*items, gpu_samples(values, gpu=gpu), *more)


@pytest.mark.parametrize(
    ("ns", "said"),
    [(2 * US, "kernels this short cannot get much shorter"), (2 * MS, "cutting its time to 21 % saves 1.58 ms")],
)
def test_one_pass_has_no_steps_to_save_in(trace: MakeTrace, ns: int, said: str) -> None:
    """Few blocks leave most of the GPU empty, but a kernel as short as its launch stays as long; no step repeats."""
    kernel = launch_kernel("k", (10, 20), (US, US + ns), id=1, grid=(56, 1, 1), block=(256, 1, 1), registers=32,
                           shared=(0, 100 << 10))  # fmt: skip
    answer = found(trace(kernel, H200))
    assert spot_sentence(answer, answer.spots[0]).endswith(said)


def test_gpu_metrics_say_what_limits_a_kernel_without_shapes(trace: MakeTrace) -> None:
    """55 % of the bandwidth, of which 91 % can be reached; samples of another GPU say nothing about this one."""
    [spot] = found(streaming(trace, H200)).spots
    assert (spot.limit, spot.basis, spot.reason) == ("memory", "GPU metrics", "")
    assert spot.limit_share == pytest.approx(0.55, abs=0.01)
    assert spot.scale == pytest.approx(0.55 / REACHABLE["memory"], abs=0.01)
    [other] = found(streaming(trace, H200, Gpu(1), gpu=1)).spots
    assert (other.limit, other.basis) == ("unknown", "")
    assert other.gain_ns != other.gain_ns


def test_a_full_gpu_still_moves_what_a_small_grid_moves(trace: MakeTrace) -> None:
    """33 blocks use an eighth of the GPU, but 55 % of its bandwidth: neither answer promises more than that leaves."""
    answer = found(streaming(trace, H200, blocks=33))
    [spot] = answer.spots
    assert spot.scale == pytest.approx(0.6, abs=0.01)
    [grid] = [each for each in answer.diagnosis.findings if each.kind == "small-grid"]
    assert grid.gain_ns / grid.total_ns == pytest.approx(1 - 0.55 / 0.91, abs=0.01)


def test_counters_come_before_what_was_sampled(trace: MakeTrace, tmp_path: Path) -> None:
    """Bytes and FLOPs of the same name and grid, over the time of the report; more than the peak is refused."""
    path = streaming(trace, H200)
    flops = round(0.8 * 2e-3 * 132 * 1980e6 * 256)

    def counted(grid: str, times: int = 1) -> Hotspots:
        rows = [Counted("", "triad", 1 << 20, 1 << 20, grid, more={"fp32_flops": times * flops, "tensor_flops": 0})]
        file = write_counters(tmp_path / "c.csv", rows)
        return hotspots(attributed(path), counters=file)

    [spot] = counted("4096x1x1").spots
    assert (spot.limit, spot.basis, spot.unit) == ("compute", "counters", "FP32 on CUDA cores")
    assert spot.limit_share == pytest.approx(0.8, abs=0.01)
    assert counted("8x1x1").spots[0].basis == "GPU metrics"
    assert counted("4096x1x1", times=2).spots[0].basis == "GPU metrics"


def test_bytes_alone_say_no_limit_of_a_product(tmp_path: Path) -> None:
    """Quick counters have no FLOPs: a matrix product that moves little is not limited by latency, its shapes decide."""
    path = program(tmp_path)
    h100 = {"gpus": [{"name": "NVIDIA H100"}]}
    file = write_counters(tmp_path / "c.csv", [Counted("", MM, 1 << 20, 1 << 20, "4096x1x1")], environment=h100)
    counted, shaped = (hotspots(attributed(path), counters=each).spots[0] for each in (file, None))
    assert (counted.limit, counted.basis) == (shaped.limit, "shapes")


def test_counters_of_another_gpu_are_refused(trace: MakeTrace, tmp_path: Path) -> None:
    """Named, they are an error; beside the report a warning ignores them."""
    path = streaming(trace, H200)
    other = {"gpus": [{"name": "NVIDIA A100"}]}
    file = write_counters(path.with_suffix(".counters.csv"), [Counted("", "triad", 1, 1)], environment=other)
    assert "ignoring the counters beside the report" in found(path).warnings[0]
    with nsysprof.open_report(path) as report, pytest.raises(NsysprofError, match="measured on NVIDIA A100"):
        hotspots(nsysprof.attribute(report), counters=file)


def test_measured_peaks_come_before_the_data_sheet(trace: MakeTrace, tmp_path: Path) -> None:
    """All of the 4.1 TB/s that a copy reached can be reached."""
    path = streaming(trace, H200)
    rows = [Counted("", "triad", 2 << 30, 2 << 30, "4096x1x1")]
    file = write_counters(tmp_path / "c.csv", rows)
    [spot] = hotspots(attributed(path), counters=file, peaks=write_samples(tmp_path)).spots
    assert spot.limit_share == pytest.approx((4 << 30) / 1.999e-3 / 4.1e12, rel=0.01)
    assert spot.scale == pytest.approx(spot.limit_share, abs=0.01)


@pytest.mark.parametrize(("read", "gain"), [(10, 0.75), (40, None)])
def test_samples_tell_whether_few_warps_wait(trace: MakeTrace, read: int, gain: float | None) -> None:
    """16 of 64 warps, as shared memory allows no more: a kernel far below all peaks waits, one at 50 % does not."""
    path = streaming(trace, H200, read=read, write=10, shared=(0, 100 << 10))
    counts = [each for each in found(path).diagnosis.findings if each.kind == "low-occupancy"]
    assert [round(each.gain_ns / each.total_ns, 2) for each in counts] == ([gain] if gain else [])


def test_a_kernel_fix_is_not_hidden_by_what_recording_costs_the_cpu(tmp_path: Path) -> None:
    """The profiler makes launching take the whole step, and half without it: 20 of 90 % in a replay are not all."""
    events: list[Event] = []
    for step in range(STEPS):
        at = step * STEP
        events.append(annotation("step", at, at + STEP - US))
        for part in range(15):
            begin, id = at + part * 10 * US, 15 * step + part + 1
            name = "volta_sgemm_128x64_tn" if part < 12 else MM
            kernel = gpu_op("kernel", name, begin + 6 * US, begin + 15 * US, id, 7)
            events += [call("cudaLaunchKernel", begin, begin + 5 * US, id), kernel]
    answer = found(write_trace(tmp_path / "t.json", events))
    [first] = [each for each in answer.diagnosis.findings if each.kind == "tensor-cores"]
    assert first.gain_ns / first.total_ns == pytest.approx(0.5, abs=0.05)


def test_kernels_that_run_at_the_same_time_have_no_share_of_a_step(tmp_path: Path) -> None:
    """Four streams at once take four times as long as a step, which is no share."""
    [spot, *_] = found(program(tmp_path)).spots
    assert spot_words(spot).startswith(f"{MM} takes 6")
    assert spot_words(replace(spot, share=4.0)).startswith(
        f"{MM} runs several times at once, so the sum of its times is 4 times the step time"
    )
