"""Damaged and hostile traces of PyTorch take time by their length, and memory by what is kept of them."""

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsysprof.trace.kineto.text import TraceText
from tests.kit.kineto import annotation

_HEAD, _END = b'{"deviceProperties": [], "traceEvents": [', b"]}"
_EVENT = b'{"ph": "X", "name": "k", "ts": 1, "dur": 1%b}'
_GOOD = _EVENT % b', "args": {"stream": 7}'
_MANY = 10_000
# Each takes a tenth of a second or so. Where its end is looked for again and again, it takes minutes.
_DAMAGED = {
    "an open brace too many": (b", ".join([_EVENT % b', "args": {{"a": 1}'] * _MANY), 0, _MANY),
    "a closing brace too many": (b", ".join([_EVENT % b"" + b"}"] * _MANY), _MANY, _MANY),
    "braces that close at last": (b", ".join([_EVENT[:-3] + b', "args": {'] * _MANY) + b"}" * 2 * _MANY, 0, 1),
    "an open quote": (b", ".join([_EVENT % b', "cat": "a'] * _MANY + [_GOOD]), 1, _MANY // 2),
    "nan( without its end": (_EVENT % (b', "args": {"a": [%b1}' % (b"nan( ," * 200_000)), 0, 0),
    "escaped quotes without end": (_EVENT % (b', "args": {"a": "' + b'\\"' * 500_000), 0, 0),
    "nothing but events of another kind": (b", ".join([b'{"a": 1}', b"{}"] * 40 * _MANY), 40 * _MANY, 0),
    "a list for each event": (
        b"".join([_GOOD + b'], "deviceProperties": [], "traceEvents": ['] * 2 * _MANY) + _GOOD,
        2 * _MANY,
        0,
    ),
    "four million lists": (b"[], " * 4_000_000, 0, 1 << 15),
    "a million times no event": (b"{1}, " * 1_000_000, 0, 1 << 15),
    "blanks": (b"} " + b" " * 4_000_000 + _GOOD, 0, 1),
}
_READ = """
import resource, sys
from pathlib import Path
from nsysprof.trace.kineto.text import TraceText
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    text = TraceText(Path(path))
    print(sum(map(len, text.events())), text.broken, len(text.beside), int(bool(text.cut)))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def _read(*paths: Path) -> list[list[int]]:
    """Read traces in a process that may take 20 s: events, broken ones, values beside, cut; and the MiB it took."""
    done = subprocess.run([sys.executable, "-c", _READ, *map(str, paths)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-300:]
    return [[int(word) for word in line.split()] for line in done.stdout.splitlines()]


def test_damage_takes_time_by_its_length(tmp_path: Path) -> None:
    """Where braces, quotes or words have no end, each place is read a few times at most, and events count as broken."""
    paths = []
    for name, (text, _, _) in _DAMAGED.items():
        paths.append(tmp_path / name)
        paths[-1].write_bytes(_HEAD + text + _END)
    for name, (events, broken, beside, _) in zip(_DAMAGED, _read(*paths), strict=False):
        _, least_events, least_broken = _DAMAGED[name]
        assert events >= least_events, name
        assert broken >= least_broken, name
        assert beside == 1, name


def _bombs() -> Iterator[tuple[str, list[bytes], list[int]]]:
    million = b"a" * (1 << 20)
    last = [b'"], "z": 1, "traceEvents": [', _GOOD, _END]
    yield "a long value", [b'{"x": ["', *[million] * 40, *last], [1, 0, 2, 0]
    yield ("an escape at each end of a block", [b'{"x": ["', *[million[:-3] + b'\\\\\\"'] * 40, *last], [1, 0, 2, 0])
    few = [b'"k%d": "%b",' % (number, million) for number in range(40)]
    yield "many values", [b"{", *few, b'"traceEvents": [', _GOOD, _END], [1, 0, 40, 0]
    yield "a long event", [_HEAD, _EVENT[:20], *[million] * 40, b'"}', _END], [0, 0, 1, 1]


def test_gzip_of_much_text_takes_little_memory(tmp_path: Path) -> None:
    """Of values beside the events 16 MiB are kept, an event has 16 MiB at most, and the rest is read all the same."""
    paths = []
    for name, parts, _ in _bombs():
        paths.append(tmp_path / f"{name}.json.gz")
        with gzip.open(paths[-1], "wb", 1) as file:
            file.writelines(parts)
    *found, [mebibytes] = _read(*paths)
    assert found == [expected for _, _, expected in _bombs()]
    assert mebibytes < 120


@pytest.mark.parametrize("at", range(-3, 4))
def test_a_text_may_end_anywhere_in_a_block(tmp_path: Path, at: int) -> None:
    """Texts, escapes and values beside the events are the same wherever the file is read in two."""
    text = 'a\\"b{[\\\\' * 5 + "\n"
    steps = [annotation(f"{text}{number}", number, number + 1) for number in range(9)]
    long = "-" * ((1 << 20) - 30 + at)
    (tmp_path / "t.json").write_text(json.dumps({"long": long, "x": [text], "traceEvents": steps}))
    read = TraceText(tmp_path / "t.json")
    assert [event.name for events in read.events() for event in events] == [step["name"] for step in steps]
    assert json.loads(read.beside["x"]) == [text]
    assert json.loads(read.beside["long"]) == long
