"""The workloads on a CPU with tiny shapes: exit codes, table, results, NVTX ranges; by their path, what goes wrong."""

import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

WORKLOADS = Path(__file__).parents[2] / "workloads"
SHAPE = ["--device", "cpu", "--heads", "2", "--head-dim", "16", "--warmup", "2", "--iterations", "3"]


@dataclass(frozen=True)
class Outcome:
    """A finished workload: exit code, output, results and the paths of its ranges in order."""

    code: int
    out: str
    err: str
    results: dict[str, Any]
    ranges: list[str]

    @property
    def runs(self) -> dict[str, dict[str, Any]]:
        return {run["range"]: run for run in self.results["runs"]}


def recorder(ranges: list[str]) -> Callable[[str], AbstractContextManager[None]]:
    """Takes the place of `nvtx.annotate`, and keeps every range with the ranges around it."""
    around: list[str] = []

    @contextmanager
    def annotate(message: str) -> Iterator[None]:
        around.append(message)
        ranges.append("/".join(around))
        try:
            yield
        finally:
            assert around.pop() == message

    return annotate


def run(folder: Path, workload: str, *arguments: str, record: bool = False) -> Outcome:
    """Run a workload in this process, where torch is imported once for all of them, with results in ``folder``; with
    ``record`` without the real ranges.
    """
    results, out, err = folder / "results.json", io.StringIO(), io.StringIO()
    ranges: list[str] = []
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.syspath_prepend(str(WORKLOADS))
        if record:
            patch.setattr("nvtx.annotate", recorder(ranges))
        module = importlib.import_module(workload)
        code = module.main(module.WORKLOAD, [*arguments, "--results", str(results)])
    found = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
    return Outcome(code, out.getvalue(), err.getvalue(), found, ranges)


FORWARD = ["math", "math_reduced", "flash", "efficient", "auto", "naive", "flash_attn"]


@pytest.fixture(scope="module")
def forward(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """`sdpa.py`, forward, of two lengths by the backends that need no compiler."""
    shape = [*SHAPE, "--seq", "24", "17", "--backend", *FORWARD]
    return run(tmp_path_factory.mktemp("forward"), "sdpa", *shape, record=True)


@pytest.fixture(scope="module")
def backward(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """`sdpa.py --backward` in bf16, of two batches, with the real nvtx."""
    shape = [*SHAPE, "--seq", "24", "--batch", "1", "3", "--dtype", "bf16", "--no-causal"]
    backends = ["--backend", "naive", "--backend", "flash", "flex"]
    return run(tmp_path_factory.mktemp("backward"), "sdpa", "--backward", *shape, *backends)


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """`transformer_block.py --train` in fp32."""
    shape = [*SHAPE, "--seq", "24", "--batch", "2", "--dtype", "fp32", "--backend", "math", "flash"]
    return run(tmp_path_factory.mktemp("block"), "transformer_block", "--train", *shape, record=True)


def test_attention_by_every_backend(forward: Outcome) -> None:
    """Right within the tolerance, a latency for each call, sizes to the byte; what cannot run says why."""
    assert forward.code == 0, forward.err
    assert forward.results["schema"] == "nsysprof-workload/1"
    assert forward.results["workload"] == "sdpa"
    assert list(forward.runs) == [f"RUN::{name}::S{seq}" for seq in (24, 17) for name in FORWARD]
    for run_ in forward.results["runs"]:
        assert (run_["batch"], run_["heads"], run_["head_dim"]) == (1, 2, 16)
        assert (run_["dtype"], run_["causal"], run_["backward"]) == ("fp16", True, False)
        assert run_["latency_clock"] == "perf_counter"
        assert "tokens_per_s" not in run_
        if run_["backend"] in ("efficient", "flash_attn"):
            assert run_["status"] == "unsupported"
            assert re.match(r"No viable backend|flash-attn runs on NVIDIA GPUs only, not on cpu", run_["reason"])
            assert (run_["latency_ns"], run_["errors"]) == ([], {})
            continue
        assert (run_["status"], run_["reason"]) == ("measured", None)
        assert run_["tolerance"] == (1e-2 if run_["backend"] in ("math_reduced", "naive") else 2e-3)
        assert 0 < run_["errors"]["output"] <= run_["tolerance"]
        assert len(run_["latency_ns"]) == 3
        assert all(isinstance(latency, int) and latency > 0 for latency in run_["latency_ns"])
        one = 2 * run_["seq"] * 16 * 2
        assert run_["memory"] == {
            **{"before_bytes": None, "inputs_bytes": 3 * one, "outputs_bytes": one},
            **{"temporary_bytes": None, "peak_bytes": None},
        }


def test_ranges_hold_what_their_names_say(forward: Outcome) -> None:
    """Check, warm-up and run of each backend in order; the reference once for each length; a range for each call."""
    measured = [name for name in FORWARD if name not in ("efficient", "flash_attn")]
    expected = []
    for seq in (24, 17):
        for name in FORWARD:
            where = f"{name}::S{seq}"
            expected.append(f"CHECK::{where}")
            if name == "math":
                expected.append(f"CHECK::{where}/REFERENCE::S{seq}")
            if name in measured:
                expected += [f"WARMUP::{where}", f"RUN::{where}"]
                expected += [f"RUN::{where}/iter{number}" for number in range(3)]
    assert forward.ranges == expected
    assert forward.results["order"] == [f"RUN::{name}::S{seq}" for seq in (24, 17) for name in measured]


def test_the_environment_is_told(forward: Outcome) -> None:
    """Options, versions, and the precision switches, with the one that a backend turned on."""
    options = forward.results["options"]
    assert (options["backend"], options["seq"], options["device"]) == (FORWARD, [24, 17], "cpu")
    assert (options["warmup"], options["iterations"], options["seed"]) == (2, 3, 0)
    assert not {"results", "force"} & set(options)
    environment = forward.results["environment"]
    assert environment["device"] == "cpu"
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert re.match(r"2\.\d+", environment["torch"])
    assert re.match(r"0\.2\.\d+", environment["nvtx"])
    precision = environment["precision"]
    assert precision["float32_matmul_precision"] == "highest"
    assert precision["allow_tf32_matmul"] is False
    reduced = precision["fp16_bf16_reduction_math_sdp"]
    assert reduced == {name: name == "math_reduced" for name in FORWARD}


def test_the_table_has_a_line_for_each_run(forward: Outcome) -> None:
    """On stdout with units and reasons; on stderr a line as each run ends, and nothing else."""
    lines = forward.out.splitlines()
    assert lines[0].startswith("sdpa: forward, causal, fp16, batch 1, heads 2, head_dim 16; cpu, torch 2.")
    table = [line.split() for line in lines if line.startswith("RUN::") and ": " not in line]
    assert [row[0] for row in table] == list(forward.runs)
    assert {row[1] for row in table} == {"measured", "unsupported"}
    assert re.search(
        r"^RUN::math::S24 +measured +[\d.]+ [mµ]s \([^)]*–[^)]*\) +output \d\.\de-04 +2\.0e-03 ", forward.out, re.M
    )
    why = "flash-attn runs on NVIDIA GPUs only, not on cpu"
    assert f"RUN::flash_attn::S24, RUN::flash_attn::S17: unsupported: {why}" in lines
    progress = forward.err.splitlines()
    assert [line.split(": ")[0] for line in progress] == list(forward.runs)


def test_gradients_are_checked_too(backward: Outcome) -> None:
    """All three within twice the tolerance; the batch, which varies, is in the names; flex refuses on a CPU."""
    assert backward.code == 0, backward.err
    names = [f"RUN::{name}::B{batch}::S24" for batch in (1, 3) for name in ("naive", "flash", "flex")]
    assert list(backward.runs) == names
    for name, run_ in backward.runs.items():
        if "flex" in name:
            assert run_["status"] == "unsupported"
            assert "FlexAttention" in run_["reason"]
            continue
        assert list(run_["errors"]) == ["output", "dq", "dk", "dv"]
        limit = 8e-2 if "naive" in name else 1.6e-2
        limits = {"output": limit, **dict.fromkeys(("dq", "dk", "dv"), 2 * limit)}
        assert run_["tolerances"] == pytest.approx(limits)
        assert all(0 < error <= limits[of] for of, error in run_["errors"].items())
        one = run_["batch"] * 2 * 24 * 16 * 2
        assert run_["memory"]["inputs_bytes"] == run_["memory"]["outputs_bytes"] == 4 * one
    assert backward.results["order"] == [name for name in names if "flex" not in name]


def test_a_training_step_of_the_block(block: Outcome) -> None:
    """Checked with gradients, measured in tokens per second, with its parts as ranges."""
    assert block.code == 0, block.err
    assert list(block.runs) == ["RUN::math::S24", "RUN::flash::S24"]
    for run_ in block.results["runs"]:
        assert run_["status"] == "measured"
        assert list(run_["errors"]) == ["output", "branch", "grad_x", "grad_qkv", "grad_proj"]
        assert max(run_["errors"].values()) < 5e-6
        median = sorted(run_["latency_ns"])[1]
        assert run_["tokens_per_s"] == pytest.approx(2 * 24 / (median / 1e9))
        tokens, weights = 2 * 24 * 32 * 4, (32 + 32 + 3 * 32 * 32 + 32 * 32) * 4
        assert run_["memory"]["inputs_bytes"] == run_["memory"]["outputs_bytes"] == 2 * tokens + weights
    first = block.ranges[block.ranges.index("RUN::math::S24") :][:11]
    parts = ["", "/forward", "/forward/attention", "/backward", "/optimizer"]
    steps = [f"RUN::math::S24/iter{number}{part}" for number in range(2) for part in parts]
    assert first == ["RUN::math::S24", *steps]
    assert re.search(r"^RUN::flash::S24 .* ([\d,]+) ", block.out, re.M)
    assert "tokens/s" in block.out


@pytest.mark.parametrize("program", ["sdpa.py", "transformer_block.py"])
def test_help_and_mistakes_do_not_wait_for_torch(program: str, tmp_path: Path) -> None:
    """Neither help, nor a wrong option, nor a bad target for the results imports torch."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')", encoding="utf-8")
    (tmp_path / "kept.json").write_text("{}", encoding="utf-8")
    for arguments, code, said in (
        (["--help"], 0, "--backend NAME"),
        (["--backend", "nope"], 2, "invalid choice: 'nope'"),
        (["--results", "kept.json"], 1, "kept.json exists\n  hint: --force replaces it\n"),
        (["--results", "gone/out.json"], 1, "cannot write gone/out.json: No such file or directory\n"),
    ):
        done = subprocess.run(
            [sys.executable, str(WORKLOADS / program), *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert said in done.stdout + done.stderr
    assert (tmp_path / "kept.json").read_text(encoding="utf-8") == "{}"


def test_what_is_missing_is_said_in_a_line(tmp_path: Path) -> None:
    """Without torch, and without a GPU, with what to type."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')", encoding="utf-8")
    command = [sys.executable, str(WORKLOADS / "sdpa.py")]
    without = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=without, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "sdpa: no module named 'torch'\n  hint: pip install torch\n"
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=hidden, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"sdpa: no CUDA device: .+\n  hint: --device cpu\n", done.stderr)


@pytest.mark.skipif(os.name != "posix", reason="an interrupt is sent as a signal")
def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """While a backend is measured: exit code 130, a line instead of a traceback, no file."""
    long = ["--iterations", "1000000", "--results", "results.json", "--backend", "efficient", "math"]
    started = subprocess.Popen(
        [sys.executable, str(WORKLOADS / "sdpa.py"), *SHAPE, "--seq", "8", *long],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert started.stderr is not None
    assert started.stderr.readline().startswith("RUN::efficient::S8: unsupported")
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    assert (started.returncode, out) == (130, "")
    assert err == "sdpa: interrupted, no results are written\n"
    assert list(tmp_path.iterdir()) == []


# Like torch while it imports numpy: whatever happens there, it goes on to fail with something else.
CATCHING_ALL = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
except BaseException:
    raise ImportError("cannot load module more than once per process")
"""


@pytest.mark.skipif(os.name != "posix", reason="an interrupt is sent as a signal")
def test_an_interrupt_while_torch_is_imported(tmp_path: Path) -> None:
    """Ends it with the same line, although torch catches the exception."""
    (tmp_path / "torch.py").write_text(CATCHING_ALL, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(WORKLOADS / "sdpa.py"), *SHAPE],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "sdpa: interrupted, no results are written\n"
