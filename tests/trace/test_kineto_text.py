"""Damaged and hostile traces of PyTorch take time by their length, and memory by what is kept of them."""

import gzip
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import astuple

from nsysprof.trace.kineto import text as kineto_text
from nsysprof.trace.kineto.text import TraceText
from tests.kit.kept import hold
from tests.kit.kineto import trace_text
from tests.kit.mutations import _by_events, by_tokens, some_trace

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


def _written(seed: int) -> bytes:
    """A trace as text with values beside its events, compact or not, and what of it is dropped, doubled or inserted."""
    rng = random.Random(seed)
    events = some_trace(rng, 2)
    if seed % 3 == 0:
        _by_events(rng, events)
    text = trace_text(events, long="x" * rng.randrange(200), y=[{"a\\": '"{[\\'}]).encode("utf-8", "surrogatepass")
    content = bytearray(re.sub(rb"\n *", b"", text) if seed % 4 == 0 else text)
    if seed % 7 == 0:
        del content[: content.index(b"[", content.index(b"traceEvents"))]
    if seed % 5:
        by_tokens(rng, content)
    return bytes(content)


def _packed(seed: int) -> bytes:
    """A trace in another coding, or compressed: in two parts, cut, damaged, or with something behind it."""
    rng, content = random.Random(seed), _written(seed)
    half, packed = len(content) // 2, bytearray(gzip.compress(content, mtime=0))
    if seed % 6 == 0:
        return content.decode("utf-8", "replace").encode(rng.choice(["utf-8-sig", "utf-16", "utf-32", "utf-16-be"]))
    if seed % 6 == 1:
        parts = [gzip.compress(part, mtime=0) for part in (content[:half], content[half:])]
        return bytes(rng.choice([0, 900])).join(parts)
    if seed % 6 == 2:
        del packed[rng.randrange(len(packed)) :]
    elif seed % 6 == 3:
        packed[rng.randrange(12, len(packed))] ^= 1 << rng.randrange(8)
    elif seed % 6 == 4:
        packed += rng.randbytes(rng.randrange(1, 400))
    return bytes(packed)


def _all_of(path: Path) -> list[Any]:
    """All events with their arguments, what stands beside them, and what is known of damage."""
    text = TraceText(path)
    events = [each for some in text.events() for each in some]
    fields = [[*astuple(each)[:-1], *(astuple(each.args) if each.args else ())] for each in events]
    values = [[bytes(value) if isinstance(value, Raw) else value for value in row] for row in fields]
    beside = (sorted(text.beside.items()), text.cut, text.behind, text.found, text.broken, text.mended)
    return [len(events), ascii(values).replace(" ", ""), ascii(beside).replace(" ", "")]


def test_texts_are_read_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event of whole and spoiled texts, equal wherever a file is read in two; of damaged gzip as far as it goes.

    Events of whole texts were compared with those of `json` when they were first kept.
    """
    path, kept = tmp_path / "t.json", []
    for make in (_written, _packed):
        for seed in range(60):
            path.write_bytes(make(seed))
            monkeypatch.undo()
            kept.append(_all_of(path))
            for block in (300, 4096):
                monkeypatch.setattr(kineto_text, "_BLOCK", block)
                found = _all_of(path)
                kept.append(found)
                assert found == kept[-2] or "damaged" in found[-1], (make.__name__, seed, block)
    hold(__file__, "kineto text", {"texts": kept})


@pytest.mark.parametrize("more", [0, 1])
def test_long_values_are_left_out(tmp_path: Path, more: int) -> None:
    """An event may have 16 MiB, a value beside the events 4 MiB, all of these 16 MiB; a longer event ends the text."""
    event, value = b'{"name": "%b"}', b'"%b"'
    name = b"x" * ((1 << 24) - len(event) + 2 + more)
    values = [b'"v%d": %b, ' % (at, value % (b"x" * ((1 << 22) - 2 + more * (at > 0)))) for at in range(4)]
    path = tmp_path / "t.json"
    path.write_bytes(b'{"b": 1, %b"c": 2, "traceEvents": [{}, %b, {}], "d": 3}' % (b"".join(values), event % name))
    text = TraceText(path)
    events = [each.name for some in text.events() for each in some]
    kept = {key: len(each) for key, each in text.beside.items()}
    if more:
        assert (events, text.cut) == ([""], "an event exceeds 16 MiB")
        assert kept == {"b": 1, "v0": 1 << 22, "v1": 4, "v2": 4, "v3": 4, "c": 1}
    else:
        assert (len(events), len(events[1]), text.cut) == (3, len(name), "")
        assert kept == {"b": 1, "v0": 1 << 22, "v1": 1 << 22, "v2": 1 << 22, "v3": 4, "c": 1, "d": 1}


@pytest.mark.parametrize(("good", "bad", "cut"), [(0, 32768, False), (3, 32772, True)])
def test_a_text_of_nothing_but_damage_ends(tmp_path: Path, good: int, bad: int, cut: bool) -> None:
    """After 32,768 more events that cannot be read than events that can, the rest is no trace either."""
    path = tmp_path / "t.json"
    path.write_bytes(b"[%b]" % b", ".join([_GOOD] * good + [b"1"] * bad + [_GOOD] * 2))
    text = TraceText(path)
    read = sum(map(len, text.events()))
    assert (read, text.broken, bool(text.cut)) == (good if cut else good + 2, bad, cut)
