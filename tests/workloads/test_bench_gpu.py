"""What is measured on a GPU, on one that is made up: what the two latencies hold, graphs, memory, and broken CUDA."""

import json
import sys
import weakref
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.made_up_gpu import MadeUpGpu

torch = pytest.importorskip("torch")
pytest.importorskip("nvtx")

AT: dict[str, Any] = {"batch": 1, "heads": 1, "seq": 4, "head_dim": 2, "dtype": "fp16", "causal": True}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> MadeUpGpu:
    """A GPU whose launches take 5 µs."""
    made = MadeUpGpu()
    made.install(monkeypatch)
    return made


def three_kernels(gpu: MadeUpGpu, ns: float = 1000, out: Any = None) -> Any:
    """A step of three short kernels, the last of which writes its output."""
    from _measure import Step

    right = torch.arange(4.0)

    def call() -> Any:
        made = torch.zeros(4)
        gpu.launch("kernel", ns)
        gpu.launch("kernel", ns)
        gpu.launch("kernel", ns, lambda: made.copy_(right))
        return made

    return Step(call, lambda: {"output": call()}, lambda: None, 1, 1)


def test_the_eager_latency_has_the_launches_and_the_graph_has_not(gpu: MadeUpGpu) -> None:
    """Three kernels of 1 µs that take 5 µs to launch: 16 µs from an idle GPU, 3 µs replayed."""
    from _bench_clock import call_clock, captured

    clock = call_clock("cuda", warm_cache=False)
    step = three_kernels(gpu)
    assert clock.replay is not None
    assert clock.eager(step) == pytest.approx(15_000 + 1_000, abs=1)
    assert clock.replay(captured(step)) == pytest.approx(3_000, abs=1)
    long = three_kernels(gpu, 1e6)
    assert clock.eager(long) == pytest.approx(3e6 + 5000, abs=1)
    assert clock.replay(captured(long)) == pytest.approx(3e6, abs=1)


@pytest.mark.parametrize("warm", [False, True])
def test_the_cache_is_flushed_before_every_call(gpu: MadeUpGpu, warm: bool) -> None:
    """With twice the L2 cache, outside of the events, and then the GPU is idle; not when it is to stay warm."""
    from _bench_clock import call_clock, captured

    clock = call_clock("cuda", warm_cache=warm)
    step = three_kernels(gpu)
    graph = captured(step)
    assert clock.replay is not None
    assert clock.cache == ("warm" if warm else "cold")
    assert (f"buffer of {120 << 20}" in gpu.log) == (not warm)
    gpu.log.clear()
    clock.eager(step)
    clock.replay(graph)
    flush = [] if warm else ["flush"]
    assert gpu.log == [
        *[*flush, "synchronize", "event", "kernel", "kernel", "kernel", "event"],
        *["synchronize", "sleep", *flush, "event", "replay", "event"],
    ]


def test_a_replay_is_measured_once_the_cpu_is_ahead(gpu: MadeUpGpu) -> None:
    """A CPU that takes long to queue it gets more time; what it cannot do in time is no latency."""
    from _bench_clock import GraphError, call_clock, captured

    clock = call_clock("cuda", warm_cache=True)
    graph = captured(three_kernels(gpu))
    assert clock.replay is not None
    gpu.log.clear()
    gpu.replay_ns = 300_000
    assert clock.replay(graph) == pytest.approx(3_000, abs=1)
    assert gpu.log.count("replay") == 2
    gpu.replay_ns = 1e9
    with pytest.raises(GraphError, match="too slow to queue"):
        clock.replay(graph)


def test_a_graph_that_does_not_compute_is_none(gpu: MadeUpGpu) -> None:
    """Work that the capture did not see is missed in the replay, and not measured without it."""
    from _bench_clock import GraphError, captured
    from _measure import Step

    def call() -> Any:
        gpu.launch("kernel", 1)
        return torch.ones(4)  # made by the CPU, as it were

    with pytest.raises(GraphError, match="the replay and the call give different results"):
        captured(Step(call, lambda: {}, lambda: None, 0, 0))


def test_a_graph_of_a_step_that_never_repeats_has_to_be_finite(gpu: MadeUpGpu) -> None:
    """A step that learns, or drops at random, returns something else each time, in a list as well as in a tuple."""
    from _bench_clock import GraphError, captured
    from _measure import Step

    calls = 0

    def call() -> list[Any]:
        nonlocal calls
        calls += 1
        made, right = torch.zeros(4), torch.full((4,), 2.0**calls)
        gpu.launch("kernel", 1, lambda: made.copy_(right))
        return [made]

    step = Step(call, lambda: {}, lambda: None, 0, 0)
    with pytest.raises(GraphError, match="the replay and the call give different results"):
        captured(step)
    captured(replace(step, repeats=False))
    with pytest.raises(GraphError, match="relative errors"):
        captured(Step(lambda: torch.ones(4), lambda: {}, lambda: None, 0, 0, repeats=False))


def test_the_graph_of_a_decoding_step_keeps_what_it_reads(gpu: MadeUpGpu) -> None:
    """A CUDA graph holds addresses alone: weights and cache that nothing else keeps would be gone by its replay."""
    from gpt import _graphed

    class Call:
        def __call__(self) -> Any:
            return torch.ones(1)

    call = Call()
    kept = weakref.ref(call)
    replay = _graphed(Namespace(cuda_graph=True, device="cuda"), call)
    del call
    assert kept() is not None
    assert replay() == 1
    assert gpu.log[-1] == "replay"


# --- a whole configuration ---


Make = Callable[..., Any]


def itself(step: Any) -> Any:
    """What stands for the workload: a made-up backend is a step already."""
    return step


def always(step: Any) -> Callable[[object], Any]:
    """What gives this step for every problem."""
    return lambda problem: step


@pytest.fixture
def setting(gpu: MadeUpGpu, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a configuration of made-up backends: each name with its step."""
    import _bench_rounds
    from _attention import BACKENDS, Backend
    from _bench_check import Setting
    from _workload import Work
    from sdpa import WORKLOAD

    monkeypatch.setattr(_bench_rounds, "WARM_LEAST_S", 0)

    def make(steps: dict[str, Any], **how: Any) -> Any:
        for name, step in steps.items():
            monkeypatch.setitem(BACKENDS, name, Backend(name, always(step)))
        plan = {"device": "cuda", "seed": 0, "warm_cache": False, "graph": True}
        plan |= {"samples": 12, "ci_width": None, "min_sample_ns": 20_000, **how}
        configuration = {"id": "x", **AT, "backends": list(steps)}
        return Setting(WORKLOAD, plan, configuration, Work(itself, lambda: {}), None)

    return make


def sampled(setting: Any, alone: str | None = None) -> tuple[dict[str, Any], list[str], Any]:
    """The points by backend, who is to be sampled alone, and what broke CUDA."""
    from _bench_sampling import sample

    names = setting.configuration["backends"]
    checked = {name: {"status": "measured", "reason": None} for name in names}
    points, crowded, broken = sample(setting, names, checked, alone)
    return {point["backend"]: point for point in points}, crowded, broken


def test_a_point_has_samples_of_all_three_kinds(gpu: MadeUpGpu, setting: Make) -> None:
    """As many of each as were asked for; short calls are repeated, more of them in the graph, which is shorter."""
    points, crowded, broken = sampled(setting({"a": three_kernels(gpu), "b": three_kernels(gpu, 50_000)}))
    assert not crowded
    assert broken is None
    a, b = points["a"], points["b"]
    assert set(a["latency_ns"] + a["aa_latency_ns"]) == {16_000.0}
    assert set(a["graph_latency_ns"]) == {3_000.0}
    assert (a["calls_per_sample"], a["graph_calls_per_sample"]) == (2, 7)
    assert (b["calls_per_sample"], b["graph_calls_per_sample"]) == (1, 1)
    for name in ("latency_ns", "aa_latency_ns", "graph_latency_ns", "throttled", "aa_throttled", "order"):
        assert len(a[name]) == 12, name
    assert a["order"] == list(range(12))
    assert (a["graph_reason"], a["sampled_with"], a["cache"]) == (None, ["b"], "cold")
    assert a["latency_clock"] == "cuda events"
    assert a["configuration"] == {"id": "x", **AT}


def test_a_capture_that_fails_costs_no_sample(gpu: MadeUpGpu, setting: Make) -> None:
    """The reason is in the point; the other backend has its graph."""
    from _measure import Step

    def call() -> Any:
        if gpu.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        gpu.launch("kernel", 9_000)
        return torch.zeros(4)

    bad = Step(call, lambda: {}, lambda: None, 0, 0)
    points, _, broken = sampled(setting({"bad": bad, "good": three_kernels(gpu)}))
    assert str(broken) == "no CUDA graph of bad"  # the next configuration is for a new process
    assert len(points["bad"]["latency_ns"]) == 12
    assert points["bad"]["graph_latency_ns"] is None
    assert points["bad"]["graph_reason"] == "operation not permitted when stream is capturing"
    assert len(points["good"]["graph_latency_ns"]) == 12
    without, _, _ = sampled(setting({"good": three_kernels(gpu)}, graph=False))
    assert without["good"]["graph_reason"] == "not requested"


def failing(gpu: MadeUpGpu, error: Callable[[], Exception], after: int) -> Any:
    """A step that fails after some calls."""
    from _measure import Step

    made = []

    def call() -> Any:
        made.append(1)
        if len(made) > after:
            raise error()
        gpu.launch("kernel", 30_000)
        return torch.zeros(4)

    return Step(call, lambda: {}, lambda: None, 0, 0)


@pytest.mark.parametrize("after", [0, 3, 20])
def test_what_failed_holds_no_memory_when_the_rest_goes_on(
    gpu: MadeUpGpu, setting: Make, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """An exception holds what was on the stack: it is gone before the memory is given back."""
    import _bench_check
    import _bench_sampling
    from _measure import Step

    alive: list[Any] = []
    left: list[int] = []
    real = _bench_check.give_back
    calls = []

    class Large:
        """A tensor that memory was found for before it ran out."""

    def call() -> Any:
        calls.append(1)
        if len(calls) > after:
            scores = Large()
            alive.append(weakref.ref(scores))
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        gpu.launch("kernel", 30_000)
        return torch.zeros(4)

    def give_back(device: str) -> None:
        left.append(sum(each() is not None for each in alive))
        real(device)

    monkeypatch.setattr(_bench_sampling, "give_back", give_back)
    bad = Step(call, lambda: {}, lambda: None, 0, 0)
    made = setting({"bad": bad, "good": three_kernels(gpu)}, graph=False)
    sampled(made)
    assert left[0] == 0
    assert len(alive) == 1


@pytest.mark.parametrize("after", [0, 3, 30])
def test_who_runs_out_of_memory_beside_others_is_to_be_sampled_alone(gpu: MadeUpGpu, setting: Make, after: int) -> None:
    """At once, in its warm-up, or in the middle of the rounds; the others go on. Alone, it is its result."""

    def error() -> Exception:
        return torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")

    points, crowded, broken = sampled(
        setting({"large": failing(gpu, error, after), "small": three_kernels(gpu)}, graph=False)
    )
    assert (crowded, broken) == (["large"], None)
    assert len(points["small"]["latency_ns"]) == 12
    assert points["small"]["sampled_with"] == []
    alone, crowded, _ = sampled(setting({"large": failing(gpu, error, after)}, graph=False), alone="too large")
    assert crowded == []
    assert alone["large"]["status"] == "out of memory"
    assert alone["large"]["latency_ns"] == []
    assert "Tried to allocate" in alone["large"]["reason"]


def test_a_kernel_that_breaks_cuda_is_told_from_the_others(gpu: MadeUpGpu, setting: Make) -> None:
    """It has its point; the others have none, and are measured by the next process."""

    def error() -> Exception:
        gpu.broken = "CUDA error: an illegal memory access was encountered"
        return RuntimeError(gpu.broken)

    points, crowded, broken = sampled(
        setting({"bad": failing(gpu, error, 25), "good": three_kernels(gpu)}, graph=False)
    )
    assert list(points) == ["bad"]
    assert points["bad"]["status"] == "unsupported"
    assert "illegal memory access" in points["bad"]["reason"]
    assert crowded == []
    assert "illegal memory access" in str(broken)


def test_cuda_that_breaks_in_a_capture_costs_no_eager_sample(gpu: MadeUpGpu, setting: Make) -> None:
    """All points are there with their eager samples, and say why they have no graph."""
    from _measure import Step

    def call() -> Any:
        if gpu.capturing is not None:
            gpu.broken = "CUDA error: misaligned address"
            raise RuntimeError(gpu.broken)
        gpu.launch("kernel", 30_000)
        return torch.zeros(4)

    bad = Step(call, lambda: {}, lambda: None, 0, 0)
    points, _, broken = sampled(setting({"first": three_kernels(gpu), "bad": bad, "last": three_kernels(gpu)}))
    assert broken is not None
    assert {name: point["graph_reason"] for name, point in points.items()} == {
        "first": "another backend broke CUDA first",
        "bad": "CUDA error: misaligned address",
        "last": "another backend broke CUDA first",
    }
    assert all(len(point["latency_ns"]) == 12 and point["graph_latency_ns"] is None for point in points.values())


def test_as_many_are_sampled_together_as_fit(gpu: MadeUpGpu) -> None:
    """The small ones first; what does not fit beside them is alone, and so is who was with them in a killed process."""
    from _bench_check import fitting

    gpu.free_bytes = 1000
    held = {"math": 850, "flash": 10, "auto": 20, "naive": 500}
    assert fitting(held, set(), "cuda") == [["flash", "auto", "naive"], ["math"]]
    assert fitting({"math": 5000}, set(), "cuda") == [["math"]]
    assert fitting({"math": 500, "naive": 450}, set(), "cuda") == [["naive"], ["math"]]  # not to the last byte
    assert fitting(held, {"flash", "math"}, "cuda") == [["auto", "naive"], ["flash"], ["math"]]
    assert fitting(held, set(held), "cuda") == [["flash"], ["auto"], ["naive"], ["math"]]
    assert fitting(dict.fromkeys(held, 0), set(), "cpu") == [["math", "flash", "auto", "naive"]]


# --- the state of the GPU ---


class NvmlError(Exception):
    """As the library raises it."""


def nvml(**more: Any) -> Any:
    """The library nvidia-ml-py for an H200 that is warm and busy."""
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: f"handle of {uuid}",
        "nvmlDeviceGetClockInfo": lambda handle, kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda handle, kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetMemoryBusWidth": lambda handle: 6144,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
        "nvmlDeviceGetPowerUsage": lambda handle: 655_250,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 4,
        "NVMLError": NvmlError,
    }
    return SimpleNamespace(**answers | more)


def refusing(*_: Any) -> int:
    """A question that this GPU does not answer."""
    raise NvmlError("Not Supported")


def test_the_gpu_is_asked_for_its_state(gpu: MadeUpGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clocks, temperature, power and the reasons for the clocks; what never changes is asked once."""
    from _bench_nvml import watch_gpu

    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    watch, why = watch_gpu()
    assert why is None
    assert watch is not None
    state = watch.read()
    assert state.pop("t") > 1.7e9
    assert state == {
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "temperature_c": 61,
        "power_w": 655.25,
        "throttle": 4,
    }
    assert watch.facts == {
        "max_sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "memory_bus_width_bits": 6144,
        "power_limit_w": 700,
    }


def test_an_old_driver_has_another_name_for_the_reasons(gpu: MadeUpGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does not tell is left out, or None where it stops telling; without any answer there is no watch."""
    from _bench_nvml import watch_gpu

    old = {
        "nvmlDeviceGetCurrentClocksEventReasons": refusing,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x40,
        "nvmlDeviceGetPowerUsage": refusing,
    }
    monkeypatch.setitem(sys.modules, "pynvml", nvml(**old))
    watch, _ = watch_gpu()
    assert watch is not None
    state = watch.read()
    assert state["throttle"] == 0x40
    assert "power_w" not in state
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlInit=partial(refusing)))
    assert watch_gpu() == (None, "NvmlError: Not Supported")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert watch_gpu() == (None, "no package nvidia-ml-py")


def test_only_slowdowns_that_the_work_did_not_cause_count_as_throttled() -> None:
    """Heat and power supply do; idle, application clocks and the power cap do not."""
    from _bench_nvml import RULE, is_throttled

    assert [bit for bit in range(10) if is_throttled({"throttle": 1 << bit})] == [3, 5, 6, 7]
    assert is_throttled({"throttle": 0x4 | 0x40})
    assert not is_throttled({"throttle": None})
    assert not is_throttled(None)
    assert all(f"0x{1 << bit:x}" in RULE for bit in (2, 3, 5, 6, 7))


# --- the whole program ---


def sweep(folder: Path, backends: list[str], **how: Any) -> Path:
    """The file of a sweep of one configuration."""
    plan = {"schema": "nsysprof-bench-plan/1", "workload": "sdpa", "device": "cuda", "seed": 0, "backward": False}
    plan |= {"samples": 10, "ci_width": None, "min_sample_ns": 1000, "warm_cache": False, "graph": True, **how}
    plan["configurations"] = [{"id": "x", **AT, "backends": backends}]
    path = folder / "points.jsonl"
    head = {"kind": "sweep", "schema": "nsysprof-bench-points/1", "plan": plan, "measure_peaks": False}
    path.write_text(json.dumps(head) + "\n")
    return path


def lines(path: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind in the file of a sweep."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


@pytest.fixture
def made_up_work(gpu: MadeUpGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends `good` and `bad`, the second of which breaks CUDA, on a workload that needs no GPU."""
    import _bench_rounds
    from _attention import BACKENDS, Backend
    from _workload import Work

    monkeypatch.setattr(_bench_rounds, "WARM_LEAST_S", 0)
    monkeypatch.setitem(sys.modules, "pynvml", nvml())

    def error() -> Exception:
        gpu.broken = "CUDA error: an illegal memory access was encountered"
        return RuntimeError(gpu.broken)

    monkeypatch.setitem(BACKENDS, "good", Backend("good", lambda problem: three_kernels(gpu)))
    monkeypatch.setitem(BACKENDS, "bad", Backend("bad", lambda problem: failing(gpu, error, 25)))
    working(monkeypatch, Work(itself, lambda: {"output": torch.arange(4.0)}))


def working(monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    """Lets the workload prepare this, whatever it is asked for."""
    import _bench
    import sdpa

    changed = replace(sdpa.WORKLOAD, prepare=lambda at: work)
    monkeypatch.setattr(_bench, "load", lambda program: changed)


def test_a_sweep_on_a_gpu(made_up_work: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Environment and limits of the GPU, a point with the state of every sample, and a line for people."""
    from _bench import main

    path = sweep(tmp_path, ["good"])
    assert main([str(path), "sdpa.py"]) == 0
    (start,) = lines(path, "start")
    expected = {"device": "made up", "compute_capability": "9.0", "sm_count": 132, "l2_cache_bytes": 60 << 20}
    expected |= {"memory_clock_mhz": 3201, "memory_bus_width_bits": 6144, "max_sm_clock_mhz": 1980}
    assert start["environment"].items() >= expected.items()
    assert start["gpu_watch"] == {"answers": True, "reason": None}
    (line,) = lines(path, "point")
    point = line["point"]
    assert point["status"] == "measured"
    assert [state["sm_clock_mhz"] for state in point["gpu"]] == [1980] * 10
    assert point["throttled"] == [False] * 10
    assert lines(path, "done")
    assert "good: 16.0 µs (10 samples), graph 3.00 µs (10 samples)" in capsys.readouterr().out


def test_a_sweep_whose_cuda_breaks_goes_on_in_a_new_process(
    made_up_work: None,
    gpu: MadeUpGpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 75; started again, it measures the others and leaves alone who did it."""
    import _bench_check
    from _bench import START_ANEW, main

    def unchecked(*_: Any) -> dict[str, Any]:
        return {"status": "measured", "reason": None, "latency_ns": []}

    monkeypatch.setattr(_bench_check, "measure", unchecked)
    path = sweep(tmp_path, ["good", "bad"], graph=False)
    assert main([str(path), "sdpa.py"]) == START_ANEW
    assert [line["point"]["backend"] for line in lines(path, "point")] == ["bad"]
    gpu.broken = ""
    assert main([str(path), "sdpa.py"]) == 0
    points = {line["point"]["backend"]: line["point"] for line in lines(path, "point")}
    assert points["bad"]["status"] == "unsupported"
    assert len(points["good"]["latency_ns"]) == 10
    assert "starting anew: CUDA error: an illegal memory access" in capsys.readouterr().out


def test_cuda_that_breaks_in_the_check_gives_that_backend_its_point(
    made_up_work: None, gpu: MadeUpGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can say of the others yet what they are."""
    import _bench_check
    from _bench import START_ANEW, main

    def breaking(*_: Any) -> dict[str, Any]:
        gpu.broken = "CUDA error: unspecified launch failure"
        return {"status": "measured", "reason": None, "latency_ns": []}

    monkeypatch.setattr(_bench_check, "measure", breaking)
    path = sweep(tmp_path, ["bad", "good"])
    assert main([str(path), "sdpa.py"]) == START_ANEW
    (line,) = lines(path, "point")
    assert (line["point"]["backend"], line["point"]["status"]) == ("bad", "unsupported")
    assert "unspecified launch failure" in line["point"]["reason"]


def test_workspaces_of_the_reference_are_no_backends(
    made_up_work: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They go when its products are there: the first backend's memory is measured without them."""
    import _bench_check
    import _measure
    from _bench import main
    from _workload import Work

    done: list[str] = []

    def told(backend: Any, make: Any, build: Any, reference: Any, plan: Any) -> dict[str, Any]:
        def asked() -> Any:
            want = reference()
            done.append("reference")
            return want

        return dict(_measure.measure(backend, make, build, asked, plan))

    def computed() -> dict[str, Any]:
        done.append("computed")
        return {"output": torch.arange(4.0)}

    monkeypatch.setattr(_bench_check, "measure", told)
    monkeypatch.setattr(_bench_check, "_forget_workspaces", lambda: done.append("forget"))
    working(monkeypatch, Work(itself, computed))
    assert main([str(sweep(tmp_path, ["good"], graph=False)), "sdpa.py"]) == 0
    assert done == ["forget", "computed", "forget", "reference"]
