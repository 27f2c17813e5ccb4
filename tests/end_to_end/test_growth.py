"""No command takes more than near-linear time, whatever a recording has much of."""

import tempfile
import time
from pathlib import Path

import pytest

from nsysprof.fleet import cluster
from tests.kit.command_line import quietly
from tests.kit.fuzz import examine_here
from tests.kit.growing import GROWS, program
from tests.kit.trace import write

_COMMANDS: dict[str, tuple[str, ...]] = {  # of a FILE, into the file or folder OUT
    "analyze": ("analyze", "FILE", "--no-charts", "-o", "OUT", "--force"),
    "by stream": ("analyze", "FILE", "--by", "stream", "--no-charts", "-o", "OUT", "--force"),
    "by thread": ("analyze", "FILE", "--by", "thread", "--no-charts", "-o", "OUT", "--force"),
    "fleet": ("fleet", "FILE", "--workers", "1", "--no-charts", "-o", "OUT", "--force"),
    "ranges": ("ranges", "FILE"),
    "why": ("why", "FILE", "--no-charts", "-o", "OUT", "--force"),
    "steps": ("steps", "FILE", "--no-charts", "-o", "OUT", "--force"),
    "forecast": ("forecast", "FILE", "--scale", "kernel*=0.5", "--no-charts", "-o", "OUT", "--force"),
    "hotspots": ("hotspots", "FILE", "--no-charts", "-o", "OUT", "--force"),
    "compare": ("compare", "FILE", "FILE", "--no-charts", "-o", "OUT", "--force"),
    "history": ("history", "FILE", "FILE", "--no-charts", "-o", "OUT", "--force"),
    "scrub": ("scrub", "FILE", "-o", "OUT.sqlite", "--force"),
    "export": ("export", "FILE", "--to", "csv", "-o", "OUT", "--force"),
    "check": ("check", "FILE", "--init", "-o", "OUT.toml"),
}
_TIMES = 4  # the larger program is so many times as large
_MOST = 1.25  # the exponent of the time: n log n is 1.1 here, a square 2
_NOTHING_S = 0.3  # of the processor: what takes less does not matter
_TRIES = 4  # the fastest counts: nothing makes a program faster than it is


@pytest.mark.parametrize("what", GROWS)
def test_time_grows_no_faster_than_the_recording(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times as much of one thing takes each command less than 5.7 times as long, of the processor's time."""
    monkeypatch.setattr(cluster, "examine_all", examine_here)
    least = {"processes": 20, "ranks": 15, "threads": 400, "streams": 2000}.get(what, 750)
    files = [tmp_path / f"{count}.sqlite" for count in (least, _TIMES * least)]
    for file, count in zip(files, (least, _TIMES * least), strict=True):
        write(file, program(what, count))
    for name, command in _COMMANDS.items():
        if name.startswith("by ") and what not in (f"{name[3:]}s", "processes", "ranks"):
            continue  # rows of streams or threads of which there are few: the same as `analyze`
        small = large = float("inf")
        for _ in range(_TRIES):
            large = min(large, _seconds(command, files[1], tmp_path))
            if large < _NOTHING_S:
                break
            small = min(small, _seconds(command, files[0], tmp_path))
            if large <= small * _TIMES**_MOST:
                break
        assert large < _NOTHING_S or large <= small * _TIMES**_MOST, (name, small, large)


def _seconds(command: tuple[str, ...], file: Path, folder: Path) -> float:
    """How many seconds of the processor a command takes for a file."""
    out = tempfile.mkdtemp(dir=folder)
    begun = time.process_time()
    done = quietly(*(word.replace("FILE", str(file)).replace("OUT", f"{out}/out") for word in command))
    assert done.code in (0, 3), (command, done.err)
    return time.process_time() - begun
