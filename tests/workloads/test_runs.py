"""The course of a workload: what a backend can do to it, and how a GPU is measured (with a GPU that is made up)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

SMALL = ["--device", "cpu", "--seq", "8", "--heads", "2", "--head-dim", "4", "--warmup", "1", "--iterations", "2"]


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Adds a backend to the registry: `add("mine", attend)`, as the README says it is done."""
    from _attention import BACKENDS, Backend, Problem

    def register(name: str, attend: Callable[..., Any], **more: Any) -> None:
        def make(_problem: Problem) -> Callable[..., Any]:
            return attend

        monkeypatch.setitem(BACKENDS, name, Backend("made up", make, **more))

    return register


def right(q: Any, k: Any, v: Any) -> Any:
    """Causal attention, by PyTorch."""
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def run(backends: str, folder: Path, *more: str, workload: str = "sdpa") -> tuple[int, dict[str, Any]]:
    """The exit code and the results of a workload in this process."""
    import importlib

    from _workload import main

    target = folder / "out.json"
    code = main(
        importlib.import_module(workload).WORKLOAD,
        [*SMALL, "--backend", *backends.split(), "--results", str(target), *more],
    )
    return code, json.loads(target.read_text(encoding="utf-8")) if target.exists() else {}


def statuses(found: dict[str, Any]) -> dict[str, str]:
    """The status of each run by its backend."""
    return {each["backend"]: each["status"] for each in found["runs"]}


def test_out_of_memory_is_one_backends_affair(add: Callable[..., None], tmp_path: Path) -> None:
    """Of a GPU, of the CPU, of Python: it is said, and the others go on."""
    import torch

    def gpu(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.\nGPU 0 has ...")

    def cpu(*_: Any) -> Any:
        return torch.empty(1 << 60)

    def python(*_: Any) -> None:
        raise MemoryError

    add("gpu", gpu)
    add("cpu", cpu)
    add("python", python)
    code, found = run("gpu cpu python math", tmp_path)
    assert code == 0
    assert statuses(found) == {**dict.fromkeys(("gpu", "cpu", "python"), "out of memory"), "math": "measured"}
    reasons = [each["reason"] for each in found["runs"]]
    assert reasons[0] == "CUDA out of memory. Tried to allocate 8.00 GiB."
    assert reasons[1].startswith("DefaultCPUAllocator: can't allocate memory: you tried to allocate")
    assert found["order"] == ["RUN::math::S8"]


def test_memory_may_also_lack_later(add: Callable[..., None], tmp_path: Path) -> None:
    """A backend that fails only after its check has no numbers; its errors stay."""
    import torch

    calls = []

    def once(q: Any, k: Any, v: Any) -> Any:
        calls.append(1)
        if len(calls) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return right(q, k, v)

    add("once", once)
    code, found = run("once", tmp_path)
    (only,) = found["runs"]
    assert code == 1
    assert (only["status"], only["latency_ns"]) == ("out of memory", [])
    assert only["errors"]["output"] < only["tolerance"]
    assert found["order"] == []


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("first line\nsecond line"), "first line"),
        (ImportError("No module named 'mine'"), "No module named 'mine'"),
        (KeyError("head_dim"), "KeyError: 'head_dim'"),
        (AssertionError(), "AssertionError"),
        (RuntimeError("backend='inductor' raised:\nRuntimeError: no compiler\n\nmore"), "RuntimeError: no compiler"),
        (
            RuntimeError("Observed exception\n  Explanation: …\n  context: raised exception ValueError('too small')"),
            "too small",
        ),
        (RuntimeError("x" * 1000), "x" * 297 + "..."),
    ],
)
def test_any_exception_means_unsupported(
    error: Exception, reason: str, add: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the line that says why; when nothing else ran, the exit code is 1."""

    def fails(*_: Any) -> None:
        raise error

    add("mine", fails)
    code, found = run("mine", tmp_path)
    assert code == 1
    assert (found["runs"][0]["status"], found["runs"][0]["reason"]) == ("unsupported", reason)
    assert "nothing was measured" in capsys.readouterr().err


def test_a_wrong_result_is_not_measured(
    add: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Others are; the exit code is 1, and the line on stderr names it."""
    add("wrong", lambda q, k, v: right(q, k, v) * 1.01)
    add("nan", lambda q, k, v: right(q, k, v) / 0)
    code, found = run("wrong nan math", tmp_path)
    assert code == 1
    assert statuses(found) == {"wrong": "wrong", "nan": "wrong", "math": "measured"}
    wrong, nan, _ = found["runs"]
    assert wrong["errors"]["output"] == pytest.approx(0.01, rel=0.1)
    assert wrong["reason"] == "output differs from the float64 reference by 1.0e-02 (tolerance: 2.0e-03)"
    assert nan["errors"] == {"output": None}
    assert wrong["latency_ns"] == nan["latency_ns"] == []
    said = capsys.readouterr()
    assert "wrong results, not measured: RUN::wrong::S8, RUN::nan::S8" in said.err
    assert "RUN::nan::S8    wrong" in said.out


def test_wrong_gradients_are_found(add: Callable[..., None], tmp_path: Path) -> None:
    """An attention whose output is right can have wrong gradients."""

    def hooked(q: Any, k: Any, v: Any) -> Any:
        return right(q, k * 1.0, v) + 0 * v.detach() + (q - q.detach())

    add("mine", hooked)
    code, found = run("mine", tmp_path, "--backward", "--dtype", "fp32")
    (only,) = found["runs"]
    assert (code, only["status"]) == (1, "wrong")
    assert only["reason"].startswith("dq differs ")
    assert only["errors"]["output"] <= 1e-5 < only["errors"]["dq"]
    assert only["tolerances"] == pytest.approx({"output": 1e-5, "dq": 2e-5, "dk": 2e-5, "dv": 2e-5})


def test_the_residual_does_not_hide_a_wrong_attention(add: Callable[..., None], tmp_path: Path) -> None:
    """In the block the branch is compared on its own."""
    add("mine", lambda q, k, v: right(q, k, v) * 1.004)
    _, found = run("mine math", tmp_path, workload="transformer_block")
    wrong, fine = found["runs"]
    assert (wrong["status"], fine["status"]) == ("wrong", "measured")
    assert wrong["errors"]["branch"] > 2e-3
    assert wrong["reason"].startswith("branch differs ")


def test_settings_are_put_back(tmp_path: Path) -> None:
    """After a run every switch is as before, and the results say what was set while a backend ran."""
    import torch

    def switches() -> list[bool]:
        cuda = torch.backends.cuda
        return [
            *(cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled()),
            *(cuda.cudnn_sdp_enabled(), cuda.fp16_bf16_reduction_math_sdp_allowed()),
            torch.is_warn_always_enabled(),
        ]

    torch.set_warn_always(False)
    before = switches()
    code, found = run("math_reduced math flash efficient", tmp_path)
    assert code == 0
    assert switches() == before
    allowed = found["environment"]["precision"]["fp16_bf16_reduction_math_sdp"]
    assert allowed == {"math_reduced": True, "math": False, "flash": False, "efficient": False}


def test_warnings_become_the_reason(add: Callable[..., None], tmp_path: Path) -> None:
    """A backend that warns and then raises is reported by its warning."""
    import warnings

    def fails(*_: Any) -> None:
        warnings.warn("Flash attention kernel not used because:", UserWarning, stacklevel=1)
        warnings.warn("the head is too large.", UserWarning, stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    add("mine", fails, named="flash")
    _, found = run("mine", tmp_path)
    assert found["runs"][0]["reason"] == "the head is too large."


def test_an_interrupt_leaves_no_results(
    add: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 130 and one line."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    add("mine", interrupted)
    code, found = run("math mine", tmp_path)
    assert (code, found) == (130, {})
    assert list(tmp_path.iterdir()) == []
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[-1] == "sdpa: interrupted, no results are written"


def test_a_broken_gpu_ends_the_measuring(
    monkeypatch: pytest.MonkeyPatch, add: Callable[..., None], tmp_path: Path
) -> None:
    """When CUDA fails for good, the runs that cannot be made are not blamed on their backends."""
    import _measure

    def fails(*_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    def give_back(_device: str) -> None:
        fails()

    add("mine", fails)
    monkeypatch.setattr(_measure, "_give_back", give_back)
    code, found = run("mine math", tmp_path)
    assert code == 1
    assert [each["reason"] for each in found["runs"]] == [
        "CUDA error: an illegal memory access was encountered",
        "not run, CUDA is broken: CUDA error: an illegal memory access was encountered",
    ]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize(("workload", "training"), [("sdpa", "--backward"), ("transformer_block", "--train")])
def test_what_is_measured_is_what_was_checked(workload: str, training: str, trains: bool) -> None:
    """A call computes the output that was compared, and a reset forgets its gradients."""
    import importlib

    import torch

    import _workload

    module = importlib.import_module(workload)
    options = _workload.parse(module.WORKLOAD, "", [*SMALL, "--dtype", "fp32", *([training] if trains else [])])
    ((_, case),) = _workload.cases(module.WORKLOAD, options)
    step = module.prepare(case).build(right)
    first = {name: tensor.detach().clone() for name, tensor in step.results().items()}
    step.reset()
    called = step.call()
    assert torch.allclose(called if torch.is_tensor(called) else called[0], first["output"], atol=1e-4)
    step.reset()
    again = step.results()
    for name, tensor in first.items():
        assert torch.allclose(again[name], tensor, atol=1e-3), name


def test_each_call_starts_without_the_gradients_of_the_last() -> None:
    """After the check, after each warm-up call and after each measured one."""
    import torch

    from _attention import BACKENDS
    from _measure import Plan, Step, measure

    log: list[str] = []

    def results() -> dict[str, Any]:
        log.append("results")
        return {"output": torch.ones(1)}

    step = Step(lambda: log.append("call"), results, lambda: log.append("reset"), 1, 1)
    plan = Plan("x", "fp16", "cpu", 2, 2, lambda: log.append("profiler"))
    found = measure(
        BACKENDS["auto"],
        lambda: right,
        lambda _attend: step,
        lambda: {"output": torch.ones(1, dtype=torch.float64)},
        plan,
    )
    assert found["status"] == "measured"
    assert log == ["results", "reset", *["call", "reset"] * 2, "profiler", *["call", "reset"] * 2]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A made-up GPU: what torch.cuda was asked, in order, with a clock that events read and bytes in use."""
    import nvtx
    import torch

    made = SimpleNamespace(log=[], clock=0.0, current=1000, peak=0)

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            made.log.append("record")
            self.at = made.clock

        def elapsed_time(self, end: Event) -> float:
            assert "synchronize" in made.log[-2:], "times are read before the GPU is done"
            return float(end.at - self.at)

    @contextmanager
    def annotate(name: str) -> Iterator[None]:
        made.log.append(f"<{name}>")
        yield
        made.log.append(f"</{name}>")

    def log(what: str) -> Callable[[], None]:
        return lambda: made.log.append(what)

    monkeypatch.setattr(nvtx, "annotate", annotate)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, log(name))
    stats = {"requested_bytes.all.current": "current", "requested_bytes.all.peak": "peak"}
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {key: getattr(made, value) for key, value in stats.items()})
    return made


def test_a_gpu_is_measured_with_events(gpu: SimpleNamespace) -> None:
    """Profiler on before RUN, an event on each side of a call, a synchronize before RUN closes, memory in parts."""
    from _measure import Plan, Step, _numbers

    def call() -> None:
        gpu.log.append("call")
        gpu.clock += 0.25
        gpu.peak = 1850

    def reset() -> None:
        gpu.log.append("reset")

    step = Step(call, dict, reset, inputs_bytes=300, outputs_bytes=100)
    plan = Plan("x::S1", "fp16", "cuda", 1, 2, lambda: gpu.log.append("profiler"))
    found = _numbers(step, plan)
    assert found["latency_ns"] == [250_000, 250_000]
    assert found["memory"] == {
        "before_bytes": 700,
        "inputs_bytes": 300,
        "outputs_bytes": 100,
        "temporary_bytes": 750,
        "peak_bytes": 1850,
    }
    assert gpu.log == [
        *("synchronize", "empty_cache"),
        *("<WARMUP::x::S1>", "call", "reset"),
        *("synchronize", "reset_peak_memory_stats", "<memory>", "call", "</memory>", "reset"),
        *("synchronize", "</WARMUP::x::S1>", "profiler"),
        *("record", "record", "record", "record", "synchronize", "<RUN::x::S1>"),
        *("<iter0>", "record", "call", "record", "</iter0>", "reset"),
        *("<iter1>", "record", "call", "record", "</iter1>", "reset"),
        *("synchronize", "</RUN::x::S1>"),
    ]


def test_the_profiler_is_on_from_the_first_run_to_the_last(
    gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One start, before the first RUN; one stop, after the last; none when nothing is measured."""
    import torch

    import sdpa

    monkeypatch.setitem(sys.modules, "flash_attn", None)  # as if it were not installed
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: gpu.log.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: gpu.log.append("stop"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "made up")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    step, reference = sdpa._step, sdpa._float64
    monkeypatch.setattr(sdpa, "_step", lambda tensors, attend, _device: step(tensors, attend, "cpu"))
    monkeypatch.setattr(sdpa, "_float64", lambda tensors, causal, _device: reference(tensors, causal, "cpu"))
    code, found = run("flash_attn math flash", tmp_path, "--device", "cuda")
    assert code == 0
    kept = [each for each in gpu.log if each in ("start", "stop") or each.startswith("<RUN")]
    assert kept == ["start", "<RUN::math::S8>", "<RUN::flash::S8>", "stop"]
    assert (found["environment"]["device"], found["environment"]["compute_capability"]) == ("made up", "9.0")
    gpu.log.clear()
    run("flash_attn", tmp_path, "--device", "cuda", "--force")
    assert not {"start", "stop"} & set(gpu.log)


@pytest.mark.parametrize("listener", [True, False])
@pytest.mark.parametrize("nvtx", ["0.2.11", "0.2.12", "another"])
def test_ranges_are_pushed_whatever_nvtx_believes(monkeypatch: pytest.MonkeyPatch, nvtx: str, listener: bool) -> None:
    """From 0.2.12 on nvtx gives out a dummy where an older nsys listens; only there it gets the real domain."""
    from _harness import _push_ranges_anyway

    class Domain:
        """A domain as nvtx 0.2.12 makes it: never, as this nsys does not answer."""

        handle: Any = None

        def __new__(cls, name: str | None = None) -> Any:
            return dummy

        def __init__(self, name: str | None = None) -> None:
            self.name = name

    dummy = type("DummyDomain", (), {})()
    inner = {"Domain": Domain, "DomainHandle": lambda: "the default domain", "DummyDomain": type(dummy)}
    lib = SimpleNamespace(**inner if nvtx == "0.2.12" else {})
    module = SimpleNamespace(**{} if nvtx == "another" else {"get_domain": Domain})
    package = SimpleNamespace(nvtx=module, _lib=SimpleNamespace(lib=lib))
    for name, one in {"nvtx": package, "nvtx.nvtx": module, "nvtx._lib": package._lib}.items():
        monkeypatch.setitem(sys.modules, name, one)
    if listener:
        monkeypatch.setenv("NVTX_INJECTION64_PATH", "/nsys/libToolsInjection64.so")
    else:
        monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    _push_ranges_anyway()
    if nvtx != "another":
        got = module.get_domain(None)
        expected = "the default domain" if listener and nvtx == "0.2.12" else None
        assert getattr(got, "handle", None) == expected
