"""The parts of a capture one by one: its command, its failures, and what it costs."""

import shutil
import sys
from pathlib import Path

import pytest

from nsysprof.capture.compose import Request, nsys_command
from nsysprof.capture.failure import check_ended, last_message
from nsysprof.capture.outputs import Outputs
from nsysprof.capture.session import capture_program, overhead_of
from nsysprof.errors import NsysprofError
from nsysprof.tools.child import Ended
from nsysprof.tools.nsys import Nsys

NSYS = Nsys(Path("/n/nsys"), (2025, 3, 2), "2025.3.2.474-v0")
PROGRAM = ("./a",)


def test_an_old_nsys_is_not_given_options_that_it_does_not_know() -> None:
    """Graph tracing came with 2021.5, context switches with 2021.3."""
    old = Nsys(Path("/n/nsys"), (2021, 2, 4), "2021.2.4.12")
    assert nsys_command(Request(("./a", "--b"), old), Path("out")) == [
        "/n/nsys", "profile", "--trace=cuda,nvtx,osrt", "--sample=none", "--output=out", "./a", "--b",
    ]  # fmt: skip
    assert "--cuda-graph-trace=node" in nsys_command(Request(PROGRAM, NSYS), Path("out"))
    assert "--cuda-graph-trace=node" not in nsys_command(Request(PROGRAM, NSYS, ("nvtx",)), Path("out"))


@pytest.mark.parametrize(
    ("extra", "left"),
    [
        (("--sample=process-tree",), "--sample=none"),
        (("-s", "process-tree"), "--sample=none"),
        (("-sprocess-tree",), "--sample=none"),
        (("--cuda-graph-trace=graph",), "--cuda-graph-trace=node"),
    ],
)
def test_an_argument_for_nsys_takes_the_place_of_our_own(extra: tuple[str, ...], left: str) -> None:
    """nsys ends with an error where an option is there twice."""
    command = nsys_command(Request(PROGRAM, NSYS, extra=extra), Path("out"))
    assert left not in command
    assert [one for one in command if one in extra] == list(extra)
    assert left in nsys_command(Request(PROGRAM, NSYS), Path("out"))


@pytest.mark.parametrize("extra", ["--output=x", "-o", "-ox"])
def test_nobody_else_says_where_the_report_goes(extra: str) -> None:
    """It would not be found there, and -o alone would swallow the next option."""
    with pytest.raises(NsysprofError, match="--output is set by nsysprof itself"):
        nsys_command(Request(PROGRAM, NSYS, extra=(extra,)), Path("out"))


@pytest.mark.parametrize("extra", [("--env-var=A=B",), ("--env-var", "A=B"), ("-eA=B",), ("-e", "A=B")])
def test_a_range_to_capture_goes_with_other_variables(extra: tuple[str, ...]) -> None:
    """Both set environment variables, by one option that nsys takes once, in whichever way it is written."""
    request = Request(PROGRAM, NSYS, capture_range="nvtx:step", extra=extra)
    command = nsys_command(request, Path("out"))
    assert command[-len(extra) - 2 : -2] == [*extra[:-1], f"{extra[-1]},NSYS_NVTX_PROFILER_REGISTER_ONLY=0"]
    assert str(command).count("REGISTER_ONLY") == 1


def test_a_percent_sign_in_a_folder_is_one(tmp_path: Path) -> None:
    """nsys would put its process id for %p."""
    assert "--output=100%%p/out" in nsys_command(Request(PROGRAM, NSYS), Path("100%p", "out"))


def test_a_program_that_nsys_ends_after_its_duration_did_not_fail(tmp_path: Path) -> None:
    """Otherwise the same exit code, SIGTERM's, is a failure, told with the name of the signal."""
    limited = Request(PROGRAM, NSYS, extra=("--duration=5",))
    check_ended(Ended(143, 0), limited, tmp_path)
    with pytest.raises(NsysprofError, match=r"exit code 143 \(SIGTERM\)") as caught:
        check_ended(Ended(143, 0), Request(PROGRAM, NSYS), tmp_path)
    assert caught.value.exit_code == 143


def test_a_full_folder_for_temporary_files_is_refused_before_nsys_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nsys records there, and waits for ever where it cannot."""
    usage = shutil.disk_usage(tmp_path)._replace(free=1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(NsysprofError, match=r"only 1.00 MiB free in .*, where nsys stores") as caught:
        capture_program(Request((sys.executable,), NSYS), tmp_path, Outputs(tmp_path, "run"), (), print)
    assert "TMPDIR=FOLDER" in str(caught.value.hint)


USAGE = "\n\nusage: nsys profile [<args>]\nTry 'nsys profile --help' for more information.\n"
CHATTER = "\nGenerating '/tmp/x.qdstrm'\nGenerated:\n    /tmp/x.qdstrm\n"
SAID = {
    f"option '--sample' cannot be specified more than once{USAGE}": "option '--sample' cannot",
    f"Illegal --trace argument 'x'\nPossible values are 'cuda'{USAGE}": "Illegal --trace",
    f"hello\nFailed to create 'x': No space left on device.{CHATTER}": "Failed to create",
    f"so far\nValueError: no{CHATTER}": "ValueError: no",
}


@pytest.mark.parametrize("text", SAID)
def test_the_reason_of_a_failure_is_neither_usage_nor_chatter(text: str) -> None:
    """What nsys prints around it says nothing."""
    assert last_message(Ended(1, 0, text)).startswith(SAID[text])


def test_the_overhead_is_a_ratio_of_medians_per_range() -> None:
    """Ranges that were measured in one of the runs only are left out."""
    plain = {"runs": [{"range": "a", "latency_ns": [10, 20, 30]}, {"range": "b", "latency_ns": []}]}
    profiled = {"runs": [{"range": "a", "latency_ns": [30, 31, 29]}, {"range": "c", "latency_ns": [1]}]}
    overhead = overhead_of(Ended(0, 100), Ended(0, 250), plain, profiled)
    assert overhead["wall_ratio"] == 2.5
    assert overhead["median_ratio"] == 1.5
    assert overhead["ranges"] == [
        {"range": "a", "samples": 3, "plain_median_ns": 20, "profiled_median_ns": 30, "ratio": 1.5}
    ]
    assert overhead_of(Ended(0, 100), Ended(0, 250), None, None)["median_ratio"] is None
