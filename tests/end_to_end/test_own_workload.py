"""A workload of one's own, one file that is not shaped like attention: benched, captured, and told what is wrong."""

import csv
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from nsysprof.bench.diff import compare_runs
from nsysprof.bench.results import read_bench_results
from nsysprof.errors import NsysprofError
from nsysprof.formats.workload import TAKEN, ask_workload
from tests.conftest import MakeTrace
from tests.kit import fake_nsys
from tests.kit.command_line import Run
from tests.kit.trace import Range, launch_kernel

ROOT = Path(__file__).parents[2]
ANALYSIS = ROOT / "analysis"
MATMUL = '''
"""A matrix product of m x k and k x n in float32: at once, or row block by row block."""

from __future__ import annotations

import functools
import sys

from _workload import Axis, Backend, Case, Cost, Work, Workload, main


def cost(at: Case) -> Cost:
    read, written = 4 * (at.m * at.k + at.k * at.n), 4 * at.m * at.n
    held = dict.fromkeys(("fp32", "blocks"), read + written)
    return Cost(2 * at.m * at.n * at.k, read, written, extra_bytes={"blocks": read}, held_bytes=held)


def prepare(at: Case) -> Work:
    import torch
    from _measure import Step

    @functools.cache
    def inputs():
        random = torch.Generator().manual_seed(at.seed)
        return torch.randn(at.m, at.k, generator=random), torch.randn(at.k, at.n, generator=random)

    def build(multiply):
        a, b = (tensor.to(at.device) for tensor in inputs())
        size = 4 * at.m * at.n
        return Step(
            call=lambda: multiply(a, b),
            results=lambda: {"output": multiply(a, b)},
            reset=lambda: None,
            inputs_bytes=4 * (a.numel() + b.numel()),
            outputs_bytes=size,
        )

    return Work(build, lambda: {"output": inputs()[0].double() @ inputs()[1].double()})


def blocks(at: Case):
    import torch

    return lambda a, b: torch.cat([part @ b for part in a.split(8)])


WORKLOAD = Workload(
    name="matmul",
    says="matrix product",
    axes={"m": Axis("M", "rows", 64), "n": Axis("N", "columns", 32), "k": Axis("K", "inner size", 16)},
    sweep="m",
    dtypes=("fp32",),
    backends={"fp32": Backend("at once", lambda at: lambda a, b: a @ b), "blocks": Backend("by rows", blocks)},
    base=("blocks",),
    cost=cost,
    prepare=prepare,
)

if __name__ == "__main__":
    sys.exit(main(WORKLOAD))
'''
needs_torch = pytest.mark.skipif(find_spec("torch") is None or find_spec("nvtx") is None, reason="needs torch")


@pytest.fixture
def matmul(tmp_path: Path) -> Path:
    """The file, alone in its folder."""
    path = tmp_path / "mine" / "matmul.py"
    path.parent.mkdir()
    path.write_text(MATMUL.lstrip())
    return path


@pytest.fixture
def command(trace: MakeTrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Run:
    """Runs `nsysprof ARGUMENTS`, where nsys is a made-up one."""
    report = trace(
        Range("RUN::fp32::M32", 0, 100), launch_kernel("gemm", (10, 20), (30, 60), id=1), name="export.sqlite"
    )
    monkeypatch.delenv("NSYSPROF_NSYS", raising=False)
    for name, value in fake_nsys.install(tmp_path / "nsys", report).items():
        monkeypatch.setenv(name, value)
    return run


@needs_torch
def test_it_is_benched_with_its_own_axes_charts_and_words(command: Run, matmul: Path, tmp_path: Path) -> None:
    """Sizes are columns (`n_size`: n means something else), sweeps go along m, and nothing speaks of attention."""
    sizes = ["--axis", "m=16,32,64", "--axis", "k=8"]
    done = command("bench", "--workload", "mine/matmul.py", *sizes, "--device=cpu", "--samples=12", "--runs=1")
    assert done.code == 0, done.err
    folder = tmp_path / "matmul.bench"
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    shapes = [(row["m"], row["n_size"], row["k"], row["dtype"], row["backend"]) for row in rows]
    backends = ("fp32", "blocks")
    assert shapes == [(m, "32", "8", "fp32", backend) for m in ("16", "32", "64") for backend in backends]
    for row in rows:
        assert (row["workload"], row["status"]) == ("matmul", "measured")
        assert int(row["flops"]) == 2 * int(row["m"]) * 32 * 8
        extra = int(row["traffic_bytes"]) - int(row["compulsory_bytes"])
        assert extra == (4 * (int(row["m"]) * 8 + 8 * 32) if row["backend"] == "blocks" else 0)
        assert not {"seq", "heads", "causal"} & set(row)
    crossings = list(csv.DictReader((folder / "crossovers.csv").read_text().splitlines()))
    assert [(row["first_m"], row["last_m"]) for row in crossings] == [("16", "64")]
    assert {row["sweep"] for row in crossings} == {"N32 K8"}
    report = (folder / "report.md").read_text()
    assert "matrix product in float64" in report
    assert "## Growth with M" in report
    for text in (done.out, report):
        assert "vs blocks" in text or "speed-up over blocks" in text
        assert not any(word in text for word in ("attention", "score", "S=", "S^", "causal"))
    assert len(list(folder.glob("*.png"))) == 6
    again = command("bench", "report", "matmul.bench", "-o", "again", "--no-charts")
    assert again.code == 0, again.err
    assert (tmp_path / "again" / "results.csv").read_bytes() == (folder / "results.csv").read_bytes()
    assert command("bench", "diff", "matmul.bench", "again").code == 0


@needs_torch
def test_it_is_captured_under_its_own_name(command: Run, matmul: Path, tmp_path: Path) -> None:
    """By the harness, so that the file finds what it imports; its runs are in the record."""
    done = command("capture", "--workload", str(matmul), "--axis", "m=16,32", "--device=cpu", "--iterations=2")
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "traces" / "matmul-m16-m32.json").read_text())
    runs = record["workload"]["runs"]
    assert [run["range"] for run in runs] == [f"RUN::{name}::M{m}" for m in (16, 32) for name in ("fp32", "blocks")]
    assert all(run["status"] == "measured" and (run["n"], run["k"]) == (32, 16) for run in runs)


def test_what_it_does_not_have_is_refused_with_what_it_has(command: Run, matmul: Path) -> None:
    """Axes, backends and modes by name; and a matrix of memory without anything being run."""
    for options, said in {
        ("--seq", "8"): "matmul has no axis 'seq'\n  hint: its axes: m, n, k",
        ("--backend", "flash"): "no backend 'flash'\n  hint: --backend is one of: fp32, blocks",
        ("--dtype", "bf16"): "no dtype 'bf16'",
        ("--train",): "matmul has no --train",
        ("--axis", "m=0"): "--axis m=0",
        ("--axis", "m=2000000000", "--axis", "n=2000000000", "--axis", "k=2000000000"): "exceeds 64 bits",
    }.items():
        done = command("bench", "--workload", str(matmul), *options)
        assert done.code in (1, 2)
        assert said in done.err, done.err
    dry = command("bench", "--workload", str(matmul), "--dry-run")
    assert dry.out.splitlines()[:3] == [
        "configuration         fp32    blocks",
        "----------------  --------  --------",
        "M64.N32.K16.fp32  14.0 KiB  14.0 KiB",
    ]
    assert "matmul (matrix product)" in dry.out


WRONG = {
    "no workload": ("x = 1", "declares no workload"),
    "a mistake in it": ("raise ValueError('what')", "--describe fails: ValueError: what"),
    "a sweep along nothing": (MATMUL.replace('sweep="m"', 'sweep="q"'), "sweep: 'q' is not one of the axes"),
    "a name that is taken": (
        MATMUL.replace('"k": Axis', '"id": Axis').replace("at.k", "at.id"),
        "'id' cannot be the name of an axis",
    ),
    "no FLOPs": (MATMUL.replace("2 * at.m * at.n * at.k,", "0,"), "configurations[0].cost.flops: expected int >= 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_describes_itself_wrongly_is_refused(tmp_path: Path, name: str) -> None:
    """The message has the file and the place, the hint the command that shows it."""
    text, said = WRONG[name]
    path = tmp_path / "matmul.py"
    path.write_text(text.lstrip())
    with pytest.raises(NsysprofError) as refused:  # noqa: PT012  (the second asks about costs)
        ask_workload(path)
        ask_workload(path, [{}])
    assert said in refused.value.message
    assert refused.value.message.startswith(str(path))
    assert "--describe" in str(refused.value.hint)


def test_describing_needs_no_torch(tmp_path: Path) -> None:
    """Of the shipped ones and of any other: torch is not imported, whether it is there or not."""
    (tmp_path / "matmul.py").write_text(MATMUL.lstrip())
    look = "import runpy, sys; sys.modules['torch'] = None; sys.path.insert(0, sys.argv[1]); del sys.argv[:2];"
    look += "runpy.run_path(sys.argv[0], run_name='__main__')"
    for program in (
        ROOT / "workloads" / "sdpa.py",
        ROOT / "workloads" / "transformer_block.py",
        ROOT / "workloads" / "gpt.py",
        tmp_path / "matmul.py",
    ):
        command = [sys.executable, "-c", look, "x", str(ROOT / "workloads"), str(program), "--describe"]
        command.remove("x")
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["name"] == program.stem


def test_no_axis_can_take_the_column_of_something_else(tmp_path: Path) -> None:
    """All names of columns that could be the name of an axis are known as taken."""
    results = read_bench_results(ANALYSIS / "scaling")
    frames = [results.results, results.comparisons, results.decisions, results.auto]
    frames += [results.exponents, results.crossovers, compare_runs(results.samples, results.samples).rows]
    columns = {name for frame in frames for name in frame.columns} - set(results.about.shape)
    plain = {name for name in columns if "_" not in name} - {"backend", "device", "dtype", "backward"}
    assert plain <= TAKEN
