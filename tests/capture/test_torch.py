"""`nsysprof capture --profiler torch`: programs of every kind, recorded for real on this machine's CPU."""

from __future__ import annotations

import functools
import gzip
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nsysprof.capture.inject import annotate, kineto, modules, recorder, state
from nsysprof.capture.injection import FOLDER, Injection, why_nothing
from nsysprof.capture.torch_session import TorchCapture, judge_traces, next_command
from tests.kit.kineto import annotation, launch, write_trace

pytest.importorskip("torch")

PROGRAMS = Path(__file__).parents[1] / "kit" / "torch_programs.py"
CAPTURES = {
    "modules": ["--modules", "--mark-steps"],
    "ranges": [],
    "loaders": ["--modules", "--depth", "0"],
    "SIGTERM": [],
    "SIGKILL": [],
    "itself": [],
    "replaced": [],
    "ranks": ["--modules"],
    "many": ["--steps", "10:20", "--mark-steps"],
}


@dataclass
class Range:
    """An annotation with the ranges around it, outermost first, and what ran in it and in none inside of it."""

    path: tuple[str, ...]
    start: float
    end: float
    ops: list[dict[str, Any]] = field(default_factory=list)
    inside: list[Range] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path[-1]

    def all_ops(self) -> Counter[str]:
        """Names of the ops in it, with those of the ranges inside."""
        own = Counter(op["name"] for op in self.ops)
        return sum((each.all_ops() for each in self.inside), own)


@dataclass
class Recording:
    """A finished capture: exit code, output, and the folder of its results."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []

    @property
    def record(self) -> dict[str, Any]:
        read = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        assert isinstance(read, dict)
        return read

    def trace(self, name: str = "run.json.gz") -> dict[str, Any]:
        return read_trace(self.folder / name)[0]

    def ranges(self, name: str = "run.json.gz") -> list[Range]:
        """All annotations but torch's own, by thread and time, with their ops."""
        return read_trace(self.folder / name)[1]

    def named(self, name: str) -> list[Range]:
        return [each for each in self.ranges() if each.name == name]


@functools.cache
def read_trace(path: Path) -> tuple[dict[str, Any], list[Range]]:
    """A trace, and its ranges by thread and time."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        read = json.load(file)
    events = [each for each in read["traceEvents"] if each.get("ph") == "X"]
    found = []
    for thread in sorted({each["tid"] for each in events if each.get("cat") == "user_annotation"}):
        found += list(nested([each for each in events if each["tid"] == thread]))
    return read, found


def nested(events: Sequence[dict[str, Any]]) -> Iterator[Range]:
    """Nest the events of a thread by time, as nsysprof does for any trace."""
    stack: list[Range] = []
    for event in sorted(events, key=lambda each: (each["ts"], -each["dur"])):
        while stack and stack[-1].end <= event["ts"]:
            stack.pop()
        if event["cat"] == "cpu_op":
            if stack:
                stack[-1].ops.append(event)
        elif event["cat"] == "user_annotation" and not is_of_torch(event["name"]):
            path = (*(stack[-1].path if stack else ()), event["name"])
            one = Range(path, event["ts"], event["ts"] + event["dur"])
            if stack:
                stack[-1].inside.append(one)
            stack.append(one)
            yield one


def is_of_torch(name: str) -> bool:
    """Whether torch itself made that annotation."""
    return name.startswith(("Optimizer.", "DataParallel.", "DistributedData", "enumerate(")) or "compile_id" in name


def capture(folder: Path, *arguments: str) -> Recording:
    """Run `nsysprof capture --profiler torch` in a folder."""
    command = [sys.executable, "-m", "nsysprof", "capture", "--profiler", "torch", "--seconds", "300"]
    command += ["-o", "traces/run", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    return Recording(done.returncode, done.stdout, done.stderr, folder / "traces")


class Recordings(dict[str, Recording]):
    """Programs by name, each recorded when first asked for; ``plain`` is that of modules without anything of ours."""

    def __init__(self, make: Callable[[str], Path]) -> None:
        self.make = make

    def __missing__(self, name: str) -> Recording:
        folder = self.make(name)
        program = [sys.executable, str(PROGRAMS), *(["dies", name] if name.startswith("SIG") else [name])]
        if name == "plain":
            program[-1] = "modules"
            done = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False)
            self[name] = Recording(done.returncode, done.stdout, done.stderr, folder)
        else:
            self[name] = capture(folder, *CAPTURES[name], "--", *program)
            check_privacy(self[name])
        return self[name]


def check_privacy(done: Recording) -> None:
    """No host, no folder and no argument is in trace and record."""
    for name in (each for each in done.files if each.startswith("run")):
        raw = (done.folder / name).read_bytes()
        text = (gzip.decompress(raw) if name.endswith(".gz") else raw).decode("utf-8")
        assert str(done.folder.parent) not in text
        assert str(PROGRAMS) not in text
        assert "host_name" not in text


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Recordings:
    """Each program recorded once by a worker whose tests look at it."""
    return Recordings(tmp_path_factory.mktemp)


def test_a_recorded_program_computes_the_same_bits(recordings: Recordings) -> None:
    """Losses, gradients, traced graphs and what else it prints, in-place modules and compiled ones included."""
    plain, recorded = recordings["plain"], recordings["modules"]
    assert plain.code == recorded.code == 0, recorded.err
    lines = plain.out.splitlines()
    assert len(lines) > 20
    assert [line for line in recorded.err.splitlines() if line in set(lines)] == lines
    assert plain.err == ""


def test_children_of_fork_end_as_without_a_profiler(recordings: Recordings) -> None:
    """Workers of loaders, and forks that leave by sys.exit and os._exit; the program itself leaves by os._exit(3)."""
    done = recordings["loaders"]
    assert done.code == 3
    codes = [line for line in done.err.splitlines() if line.startswith("child ") and "[" not in line]
    assert codes == ["child 7", "child 8", "child 9"]
    [process] = [each for each in done.record["processes"] if not each.get("worker")]
    assert (process["forks"], process["stopped"]) == (4, "os._exit")
    assert "not recorded: 4 forks of the program" in done.err
    assert "not recorded: 1 spawned worker of a DataLoader" in done.err
    assert done.files == ["run.json", "run.json.gz"]
    steps = [each.name for each in done.ranges() if len(each.path) == 1]
    assert steps == ["fork 0", "fork 1", "spawn 0", "spawn 1"]


def test_a_recording_ends_where_another_program_takes_over(recordings: Recordings) -> None:
    """What came before `exec` is there, nobody was killed, and an `exec` that fails ends nothing."""
    done = recordings["replaced"]
    assert (done.code, "killed" in done.err, "the other program" in done.err) == (0, False, True)
    assert [each.name for each in done.ranges()] == ["before", "still here"]
    assert {each["stopped"] for each in done.record["processes"] if each["state"] == "ended"} >= {"os.exec"}


@pytest.mark.parametrize(("name", "code"), [("ranges", 1), ("SIGTERM", 143)])
def test_what_was_recorded_stays_however_a_program_ends(recordings: Recordings, name: str, code: int) -> None:
    """An exception and SIGTERM pass on their code, and leave trace and record."""
    done = recordings[name]
    assert done.code == code
    assert done.files == ["run.json", "run.json.gz"]
    assert done.record["exit_code"] == code
    assert done.record["report"]["ops"] > 0
    assert done.out.splitlines()[-1] == "   $ nsysprof analyze traces/run.json.gz"
    if name == "ranges":
        assert "RuntimeError: the end of it" in done.err
        assert "failed with exit code 1" in done.err


def test_what_no_process_survives_is_told(recordings: Recordings) -> None:
    """SIGKILL leaves a sentence, the log, and the exit code that a shell gives."""
    killed = recordings["SIGKILL"]
    assert (killed.code, killed.files) == (137, ["run.partial.log"])
    assert "was killed or ran out of disk space while recording" in killed.err


def test_an_interrupt_ends_the_program_and_keeps_its_trace(tmp_path: Path) -> None:
    """Ctrl-C while it runs: the range that was open is in the trace, and the exit code is 130."""
    command = [sys.executable, "-m", "nsysprof", "capture", "--profiler", "torch", "-o", "traces/run", "--"]
    waiting = subprocess.Popen(
        [*command, sys.executable, str(PROGRAMS), "waits"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stderr is not None
    for line in waiting.stderr:
        if line.strip() == "ready":
            waiting.send_signal(signal.SIGINT)
            break
    out, err = waiting.communicate(timeout=120)
    done = Recording(waiting.returncode, out, err, tmp_path / "traces")
    assert done.code == 130, err
    assert done.files == ["run.json", "run.json.gz"]
    assert [each.name for each in done.ranges()] == ["waiting"]


def test_a_program_that_profiles_itself_keeps_its_profiler(recordings: Recordings) -> None:
    """Its own profiler sees its own op; what was recorded until then is there, and a sentence says so."""
    done = recordings["itself"]
    assert done.code == 0
    assert "1" in done.err.splitlines()
    assert "the program starts torch.profiler itself" in done.err
    ops = {each["name"] for each in done.trace()["traceEvents"] if each.get("cat") == "cpu_op"}
    assert "aten::sum" in ops
    assert "aten::cumsum" not in ops


def test_ranges_of_nvtx_become_annotations(recordings: Recordings) -> None:
    """Of torch.cuda.nvtx without CUDA and of the package nvtx; names survive what Kineto does to them."""
    done = recordings["ranges"]
    names = [each.name for each in done.ranges()]
    assert names == [
        *("annotated", "decorated", "pushed", "started"),
        *('quo"te', "back\\slash", "new\nline", "ünïcödé 😀", "50%u", "</script>", "x" * 300, ""),
        *('their "own"', "outer", "inner"),
    ]
    assert done.named("inner")[0].path == ("outer", "inner")
    assert done.named("annotated")[0].all_ops()["aten::add"] == 1
    assert "0 1\n1 0 -1" in done.err  # the depths that NVTX would return
    threads = {each["tid"] for each in done.trace()["traceEvents"] if each.get("name") == "aten::cumsum"}
    assert len(threads) == 1
    assert threads.isdisjoint({each["tid"] for each in done.trace()["traceEvents"] if each.get("name") == "outer"})


def test_modules_are_named_by_their_path_forward_and_backward(recordings: Recordings) -> None:
    """The first step of the decoder, range by range; its backward runs the other way round."""
    [step] = recordings["modules"].named("decoder 0")
    assert step.path == ("step0", "decoder 0")
    forward, backward = step.inside
    layers = ["model.layers.0", "model.layers.1", "head"]
    assert (forward.name, backward.name) == ("Decoder", "Decoder backward")
    assert [each.name for each in forward.inside] == layers
    assert [each.name for each in backward.inside] == [f"{each} backward" for each in reversed(layers)]
    parts = [part for hand in forward.inside[0].inside for part in hand.inside]
    assert [part.name for part in parts] == [f"model.layers.0.{name}" for name in ("norm", "attn", "mlp")]
    assert [each.name.rpartition(".")[2] for each in backward.inside[2].inside] == [
        *("mlp backward", "attn backward", "norm backward")
    ]
    assert [each.name for each in parts[1].inside] == ["model.layers.0.attn.qkv", "model.layers.0.attn.out"]


def test_a_module_has_the_ops_of_ranges_by_hand(recordings: Recordings) -> None:
    """Every range that the program opens by hand around a call holds the ops of the module's own, and no more."""
    hands = recordings["modules"].named("by hand")
    around = [each for each in hands if len(each.inside) == 1 and "compiled" not in str(each.path)]
    assert len(around) > 50
    for each in around:
        assert each.all_ops() == each.inside[0].all_ops()
        assert sum(each.all_ops().values()) > 1


def test_backward_ops_are_in_the_range_whose_forward_made_them(recordings: Recordings) -> None:
    """By the sequence numbers that autograd gives, which the ranges are not made from: every node of three steps."""
    compared = 0
    for number in range(3):
        [step] = recordings["modules"].named(f"decoder {number}")
        forward, backward = step.inside
        made = {
            op["args"]["Sequence number"]: each.path
            for each in below(forward)
            for op in each.ops
            if "Sequence number" in op["args"]
        }
        for each in below(backward):
            for op in each.ops:
                number_of = op["args"].get("Sequence number")
                if op["name"].endswith("Backward0") and number_of in made and "engine" not in op["name"]:
                    path = tuple(f"{name} backward" for name in made[number_of] if name != "by hand")[2:]
                    assert each.path[2:] == path, op
                    compared += 1
    assert compared > 100


def below(one: Range) -> Iterator[Range]:
    """A range and all inside of it."""
    yield one
    for each in one.inside:
        yield from below(each)


def test_odd_calls_of_modules_leave_whole_ranges(recordings: Recordings) -> None:
    """Checkpoints, wrappers, late modules, exceptions, threads, generators, scripted and compiled modules."""
    done = recordings["modules"]

    def inside(name: str) -> list[str]:
        [one] = done.named(name)
        return [each.name for each in one.inside]

    both = ["Decoder", "Decoder backward"]
    [again] = [
        each for each in below(done.named("reentrant")[0]) if each.path[-2:] == ("Decoder backward", "model.layers.1")
    ]
    assert next(part.name for hand in again.inside for part in hand.inside) == "model.layers.1.norm"
    for name in ("checkpoint", "reentrant", "parallel"):
        assert inside(name) == both
    assert inside("cnn") == ["Sequential", "Sequential backward"]
    late = [each.path[-1] for each in below(done.named("late")[0])]
    assert {"0", "0.late", "0.(Tanh)", "0.late backward"} <= set(late)
    assert [each.name for each in below(done.named("bad")[0])] == ["bad", "Sequential", "0", "1", "1.inner"]
    assert inside("after bad") == ["Linear", "Linear backward"]
    assert inside("generator") == ["Decoder", "Decoder"]
    alone = [each for each in done.ranges() if each.path == ("Decoder",)]
    assert len(alone) == 2  # each on a thread of its own, with all that is in it
    assert [len(list(below(each))) for each in alone] == [len(list(below(done.named("decoder 0")[0].inside[0])))] * 2
    assert inside("traced") == inside("scripted") == ["Sequential", "Sequential backward"]
    for name in ("compiled False again", "compiled True again"):
        assert inside(name) == ["Decoder (compiled)", "Decoder (compiled) backward"]
        assert [len(each.inside) for each in done.named(name)[0].inside] == [0, 0]


def test_steps_are_marked_and_the_cost_is_recorded(recordings: Recordings) -> None:
    """A range per optimizer step and one for what comes after; what a call of a module costs stands in the record."""
    done = recordings["modules"]
    assert [each.name for each in done.ranges() if len(each.path) == 1][:4] == ["step0", "step1", "step2", "step3"]
    assert [each.path[0] for each in done.ranges() if each.name == "decoder 2"] == ["step2"]
    [process] = done.record["processes"]
    assert process["steps"] == 3
    assert process["modules"]["calls"] > 200
    assert 0 < process["modules"]["per_call_ns"] < 10**7
    assert process["modules"]["backward_nodes"] > 400


def test_a_window_of_steps_is_all_that_is_recorded(recordings: Recordings) -> None:
    """--steps 10:20 has the ten steps, and their thirty ops of each kind."""
    done = recordings["many"]
    assert [each.name for each in done.ranges()] == [f"step{number}" for number in range(10, 20)]
    ops = Counter(each["name"] for each in done.trace()["traceEvents"] if each.get("cat") == "cpu_op")
    assert ops["aten::linear"] == ops["AddmmBackward0"] == 10
    assert done.record["processes"][0]["stopped"] == "the last step of --steps"


def test_ranks_have_a_trace_each(recordings: Recordings) -> None:
    """Named by rank, with the rank inside; the process that only started them has none."""
    done = recordings["ranks"]
    assert done.code == 0, done.err
    assert done.files == ["run.json", "run.rank0.json.gz", "run.rank1.json.gz"]
    assert done.out.splitlines()[-1] == "   $ nsysprof analyze traces/run.rank0.json.gz"
    ranks = (Path("run.rank0.json.gz"), Path("run.rank1.json.gz"))
    on_gpus = TorchCapture({"report": {"kernels": 9}}, ranks, None)
    assert next_command(on_gpus) == "nsysprof fleet run.rank0.json.gz run.rank1.json.gz"
    for rank in (0, 1):
        name = f"run.rank{rank}.json.gz"
        about = done.trace(name)["distributedInfo"]
        assert (about["rank"], about["world_size"]) == (rank, 2)
        steps = [each for each in done.ranges(name) if each.name.startswith("distributed ")]
        assert [[part.name for part in each.inside] for each in steps] == [["Decoder", "Decoder backward"]] * 2
        assert [part.name for part in steps[1].inside[0].inside] == ["model.layers.0", "model.layers.1", "head"]


def test_a_record_names_the_profiler_and_no_argument(recordings: Recordings) -> None:
    """And how many arguments there were."""
    record = recordings["modules"].record
    assert (record["schema"], record["profiler"]) == ("nsysprof-run/1", "torch")
    assert record["program"].endswith("[2 arguments]")


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    """Neither a trace nor one of a rank, before anything runs."""
    for name in ("run.json.gz", "run.rank3.json.gz"):
        (tmp_path / "traces").mkdir(exist_ok=True)
        (tmp_path / "traces" / name).write_text("mine")
        done = capture(tmp_path, "--", sys.executable, "-c", "print('ran')")
        assert (done.code, f"traces/{name}: exists already" in done.err) == (1, True)
        assert "ran\n" not in done.err
        (tmp_path / "traces" / name).unlink()


def test_fully_shard_is_seen_through() -> None:
    """It makes a class of its own of that of a module; a class that only has such a name keeps it."""
    nn = pytest.importorskip("torch").nn
    model = type("Net", (nn.Linear,), {})
    sharded = type("FSDPNet", (type("FSDPModule", (), {}), model), {})
    assert [modules._kind(each(1, 1)) for each in (model, sharded)] == ["Net", "Net"]
    assert modules._kind(type("FSDPMine", (nn.Linear,), {})(1, 1)) == "FSDPMine"


def test_the_backend_that_ran_is_judged(tmp_path: Path) -> None:
    """By the kernels of the trace with the most of them, as in a report of nsys; a workload on a CPU has no verdict."""
    path = write_trace(
        tmp_path / "t.json.gz",
        [annotation("RUN::math::S64", 0, 100), *launch("pytorch_flash::flash_fwd_kernel<X>", (10, 20), (30, 60), id=1)],
    )
    verdict = judge_traces({tmp_path / "none.json.gz": {"kernels": 0}, path: {"kernels": 1}}, None)
    assert verdict is not None
    [row] = verdict.records()
    assert (row["requested"], row["observed"], row["agrees"]) == ("math", "flash", False)
    assert judge_traces({path: {"kernels": 0}}, None) is None


def test_tensors_are_found_in_whatever_a_module_returns() -> None:
    """In dicts, lists, and objects with a dictionary of fields or with slots, of which some may be empty."""
    pytest.importorskip("torch")
    from nsysprof.capture.inject.modules import _tensors

    class Slotted:
        __slots__ = ("empty", "value")

    class Deeper(Slotted):
        pass

    one = Deeper()
    one.value, one.more = 1.5, [2.5]  # type: ignore[attr-defined]
    assert sorted(_tensors({"a": [one, None]}, float)) == [1.5, 2.5]


def test_modules_leave_backward_to_the_numbers_of_emit_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of backward would begin in the range of one node, and end in that of another."""
    entered = []

    class EmitNvtx:
        enabled = True

        def __enter__(self) -> EmitNvtx:
            entered.append(annotate.emitter.numbered)
            return self

        def __exit__(self, *_: object) -> None:
            pass

    torch = SimpleNamespace(autograd=SimpleNamespace(profiler=SimpleNamespace(emit_nvtx=EmitNvtx)))
    monkeypatch.setattr(state.recording, "order", {"modules": True})
    monkeypatch.setattr(state.recording, "note", entered.append)
    monkeypatch.setattr(annotate.emitter, "on", True)
    recorder._leave_backward_to_numbers(torch)
    hooked = modules._hooks.nodes
    with torch.autograd.profiler.emit_nvtx():
        assert annotate.emitter.numbered == 1
        modules._node_runs(modules._Call("fc", {}, None), None)
    assert annotate.emitter.numbered == 0
    assert entered == [
        0,
        (
            "with emit_nvtx, modules have no backward ranges: the sequence numbers of operators (seq = N) "
            "link backward work to forward ranges"
        ),
    ]
    assert modules._hooks.nodes == hooked


def test_a_gpu_that_has_failed_costs_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an assertion on the device all of CUDA raises: the CPU's part is written, and the exit code stays."""
    notes: list[str] = []

    def failed() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered\nmore")

    torch = SimpleNamespace(
        cuda=SimpleNamespace(synchronize=failed),
        autograd=SimpleNamespace(
            _disable_profiler=lambda: "results", profiler=SimpleNamespace(_run_on_profiler_stop=lambda: None)
        ),
    )
    monkeypatch.setattr(state.recording, "torch", torch)
    monkeypatch.setattr(state.recording, "profiler", SimpleNamespace(use_device="cuda"))
    monkeypatch.setattr(state.recording, "note", notes.append)
    assert kineto._disable() == "results"
    assert notes == ["CUDA had failed: GPU work may be missing (CUDA error: device-side assert triggered)"]


def test_what_cannot_be_reached_is_explained(tmp_path: Path) -> None:
    """A program without torch, and a Python that ignores the environment."""
    done = capture(tmp_path, "--", sys.executable, "-c", "print('ran')")
    assert (done.code, done.files) == (1, ["run.partial.log"])
    assert "no Python process of this program imported torch" in done.err
    assert why_nothing(["/bin/python3", "-I", "x.py"])[1] == "leave -I out"
    assert "ignores PYTHONPATH" in why_nothing(["python", "-uS", "x.py"])[0]


def test_another_sitecustomize_runs_too_and_nothing_of_ours_stays(tmp_path: Path) -> None:
    """The one that would have run without us runs, its error is its own, and our folder is not on the path."""
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['SEEN'] = __file__\n")
    environment = Injection(record=True).environment(tmp_path)
    assert environment is not None
    environment["PYTHONPATH"] += os.pathsep + str(tmp_path)
    program = "import os, sys; print(os.environ.get('SEEN'), sorted(sys.path), sys.modules.get('sitecustomize'))"
    run = [sys.executable, "-c", program]
    out = subprocess.run(run, env=environment, capture_output=True, text=True, check=True).stdout
    assert out.count(str(tmp_path / "sitecustomize.py")) == 2
    assert str(FOLDER) not in out
    (tmp_path / "sitecustomize.py").write_text("raise ValueError('theirs')\n")
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert "ValueError: theirs" in done.stderr
    assert str(FOLDER) not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--profiler", "torch", "--trace", "cuda"], "work only with nsys"),
        (["--steps", "1:2"], "need --profiler torch"),
        (["--profiler", "torch", "--steps", "2:2"], "A:B with A < B"),
        (["--profiler", "torch", "--depth", "2"], "--depth needs --modules"),
    ],
)
def test_misuse_is_told_in_a_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    """Options of one profiler are refused with the other."""
    command = [sys.executable, "-m", "nsysprof", "capture", *arguments, "--", "true"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.replace("│", " ").split())
