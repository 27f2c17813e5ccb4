"""Split the text of a trace into events, a few thousand at a time, in bounded memory.

A trace is one JSON object; its list ``traceEvents`` may take gigabytes. A chunk that ends between two events is decoded
at once. If this fails, smaller chunks are decoded, and finally single events, token by token, so that a defect affects
only one event.
"""

import codecs
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from nsysprof.core.files import open_regular

_BLOCK = 1 << 20  # bytes read, and characters decoded, at a time
_SMALL = 1 << 8  # bytes of damaged gzip data that are read at a time, and of a bare word
_MOST = 1 << 24  # characters of one event, and of all that is kept of what stands beside the events
_VAIN = 1 << 15  # more events that cannot be read than events that can: the rest is nothing either
_KEPT = 1 << 22  # characters of one value beside the events that are kept
# Where one event ends and the next begins: in JSON this cannot stand inside of a text, whose quotes are escaped.
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|ts|args)"\s*:)')
_PERHAPS = re.compile(rb"\}\s*,\s*(?=\{)")  # of events that begin with something else, or a place inside of one
# None of these looks at the same text again and again: what is damaged may have no end.
_TEXT = rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
_TOKEN = re.compile(rb'["\[\]{}]|\\.', re.DOTALL)
_SPACE = re.compile(rb"\s*")
_PLAIN = re.compile(rb"[^\s,\]}]{1,%d}" % _SMALL)
# What is no JSON, but was written: bare numbers that are none, control characters, and lone backslashes.
_FAULTS = re.compile(_TEXT + rb"|-?\b(?:nan|inf|infinity)\b(?:\(\w{0,32}\))?", re.DOTALL | re.IGNORECASE)
_IN_TEXT = re.compile(rb'[\x00-\x1f]|\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt])|\\')
BOMS = (
    *((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16")),
    *((codecs.BOM_UTF16_BE, "utf-16"), (codecs.BOM_UTF8, "utf-8-sig")),
)
GZIP = b"\x1f\x8b"


_NOTHING = msgspec.Raw()


class Arguments(msgspec.Struct, gc=False):
    """The ``args`` of an event, as recorded; None if absent."""

    correlation: Any = None
    device: Any = None
    stream: Any = None
    size: Any = msgspec.field(name="bytes", default=None)
    grid: Any = None
    block: Any = None
    registers: Any = msgspec.field(name="registers per thread", default=None)
    shared: Any = msgspec.field(name="shared memory", default=None)
    graph_node: Any = msgspec.field(name="graph node id", default=None)
    sequence: Any = msgspec.field(name="Sequence number", default=None)
    forward_thread: Any = msgspec.field(name="Fwd thread id", default=None)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=_NOTHING)
    sync: Any = msgspec.field(name="cuda_sync_kind", default=None)
    wait_stream: Any = msgspec.field(name="wait_on_stream", default=None)
    wait_record: Any = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)
    allocated: Any = msgspec.field(name="Bytes", default=None)
    address: Any = msgspec.field(name="Addr", default=None)
    reserved: Any = msgspec.field(name="Total Reserved", default=None)
    device_id: Any = msgspec.field(name="Device Id", default=None)
    device_type: Any = msgspec.field(name="Device Type", default=None)
    name: Any = None
    collective: Any = msgspec.field(name="Collective name", default=None)
    elements_in: Any = msgspec.field(name="In msg nelems", default=None)
    elements_out: Any = msgspec.field(name="Out msg nelems", default=None)
    dtype: Any = None
    group: Any = msgspec.field(name="Process Group Name", default=None)
    group_about: Any = msgspec.field(name="Process Group Description", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)


class Event(msgspec.Struct, gc=False):
    """An event as recorded. Times are the exact texts, in µs."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: Decimal | None = None
    dur: Decimal | None = None
    id: Any = None
    args: Arguments | None = None


_EVENTS = msgspec.json.Decoder(list[Event])
_EVENT = msgspec.json.Decoder(Event)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FAILS = (msgspec.DecodeError, ValueError, RecursionError)  # UnicodeDecodeError is a ValueError


@dataclass
class TraceText:
    """The text of a trace: the fields are known after one iteration over `events`.

    ``beside``: the data outside the events (name and JSON); ``found``: whether there is a list of events; ``broken``:
    number of unreadable events; ``mended``: number of events with some unreadable fields; ``cut``: why the text ended
    early, empty if it is complete; ``behind``: whether text follows the trace.
    """

    path: Path
    beside: dict[str, bytes] = field(default_factory=dict)
    found: bool = False
    broken: int = 0
    mended: int = 0
    cut: str = ""
    behind: bool = False
    _blocks: Iterator[bytes] = field(init=False, repr=False)
    _text: bytes = field(default=b"", repr=False)
    _at: int = field(default=0, repr=False)
    _good: int = field(default=0, repr=False)  # events that could be read
    _credit: int = field(default=_BLOCK, repr=False)  # characters that may yet be searched in vain
    _window: int = field(default=_BLOCK, repr=False)  # characters that may hold events without a fault

    def __post_init__(self) -> None:
        self._blocks = self._read()

    def events(self) -> Iterator[list[Event]]:
        """Yield all events in file order, a few thousand at a time."""
        try:
            if self._next() == b"[":
                self.found = True
                self._at += 1
                yield from self._list()
            else:
                yield from self._members()
            with suppress(_Ended):
                self.behind = not self.cut and bool(self._next())
        except _Ended:
            self.cut = self.cut or "the text ends before the JSON is complete"
        except _TooLongError:
            self.cut = f"an event exceeds {_MOST >> 20} MiB"

    def _read(self) -> Iterator[bytes]:
        """Blocks of the text in UTF-8, of plain or compressed files."""
        with open_regular(self.path) as file:
            head = file.read(_BLOCK)
            blocks = iter(lambda: file.read(_BLOCK), b"")
            raw = self._inflated(head, blocks) if head.startswith(GZIP) else _chained(head, blocks)
            first = next(raw, b"")
            coding = next((name for mark, name in BOMS if first.startswith(mark)), None)
            if coding is None:
                yield first
                yield from raw
                return
            decoder = codecs.getincrementaldecoder(coding)("replace")
            for block in _chained(first, raw):
                yield decoder.decode(block).encode("utf-8", "replace")

    def _inflated(self, block: bytes, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """The text of a gzip file (of one or several members), as far as it is readable."""
        inflate = zlib.decompressobj(31)
        while True:
            before = inflate.copy()
            try:
                text = inflate.decompress(block, _BLOCK)
            except zlib.error:
                self.cut = "the gzip data is damaged there"
                yield from _before_damage(before, block)
                return
            if text:
                yield text
            block = inflate.unconsumed_tail
            if inflate.eof:
                block = inflate.unused_data
                while not (block := block.lstrip(b"\0")) and (more := next(blocks, b"")):
                    block = more
                if not block.startswith(GZIP[: max(len(block), 1)]):
                    return
                inflate = zlib.decompressobj(31)
            elif not block and not (block := next(blocks, b"")):
                # what is left is small
                self.cut = "the gzip data ends early"
                yield inflate.flush()
                return

    def _more(self) -> None:
        """Read at least as much more text as is still unused."""
        block = next(self._blocks, None)
        if block is None:
            raise _Ended
        parts = [self._text[self._at :], block]
        wanted = len(parts[0]) - len(block)
        while wanted > 0 and (block := next(self._blocks, None)) is not None:
            parts.append(block)
            wanted -= len(block)
        self._text, self._at = b"".join(parts), 0

    def _next(self) -> bytes:
        """The next character that is not a space, without taking it."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at : self._at + 1]
            self._more()

    def _value(self, most: int, *, skip: bool = False) -> bytes:
        """Take the JSON value that begins here; each character is scanned once.

        A value of more than ``most`` characters is taken as ``null`` if ``skip`` is set; otherwise it raises
        `_TooLongError`.
        """
        if self._next() not in b'{["':
            self._try_more(_SMALL)
            match = _PLAIN.match(self._text, self._at)
            begin, self._at = self._at, match.end() if match else self._at + 1
            return self._text[begin : self._at]
        seen, depth, inside, whole = self._at, 0, False, True
        while True:
            stop = len(self._text) if skip else self._at + most
            for token in _TOKEN.finditer(self._text, seen, stop):
                mark, seen = token[0], token.end()
                if mark == b'"':
                    inside = not inside
                elif inside:
                    continue
                else:
                    depth += (mark in b"{[") - (mark in b"}]")
                if not (inside or depth):
                    whole &= seen - self._at <= most
                    value, self._at = self._text[self._at : seen] if whole else b"null", seen
                    return value
            seen = max(seen, len(self._text) - self._text.endswith(b"\\"))  # it may begin an escape
            if len(self._text) - self._at > most:
                if not skip:
                    raise _TooLongError
                whole, self._at = False, seen
            seen -= self._at
            self._more()

    def _members(self) -> Iterator[list[Event]]:
        """Read the members of the document, one of which is the list of events."""
        if self._next() != b"{":
            raise _Ended
        self._at += 1
        room = _MOST
        while (mark := self._next()) != b"}":
            if mark == b",":
                self._at += 1
                continue
            if mark != b'"':
                self.cut = "the text is no JSON there"
                return
            name = _text_of(self._value(_KEPT, skip=True))
            if self._next() != b":":
                self.cut = "the text is no JSON there"
                return
            self._at += 1
            if name == "traceEvents" and self._next() == b"[":
                self.found = True
                self._at += 1
                yield from self._list()
            else:
                value = self._value(min(_KEPT, room), skip=True)
                room -= len(name) + len(value)
                if room >= 0:
                    self.beside[name] = value
        self._at += 1

    def _list(self) -> Iterator[list[Event]]:
        """Take the events up to the end of their list."""
        while True:
            mark = self._next()
            if mark in b",]":
                self._at += 1
                if mark == b"]":
                    return
                continue
            self._try_more(_BLOCK)
            events, end = self._several()
            if end:
                self._credit = min(self._credit + end - self._at, _BLOCK)
                self._at, self._window = end, min(2 * self._window, _BLOCK)
                self._good += len(events)
                yield events
            elif self._window > 1 << 11:
                self._window //= 8
            else:
                yield self._one()
                self._window = 1 << 11
                if self.broken > self._good + _VAIN:
                    self.cut = f"the trace has {self.broken:,} unreadable events"
                    raise _Ended

    def _try_more(self, least: int) -> None:
        """Read more text (if the file has more) if fewer than ``least`` characters are left."""
        with suppress(_Ended):
            if len(self._text) - self._at < least:
                self._more()

    def _several(self) -> tuple[list[Event], int]:
        """Decode the complete events in the next characters, and find where they end: 0 if there are none."""
        stop, last = min(self._at + self._window, len(self._text)), None
        for form, begin in ((_BETWEEN, stop - (1 << 14)), (_BETWEEN, self._at), (_PERHAPS, self._at)):
            for last in form.finditer(self._text, max(begin, self._at), stop):  # noqa: B007
                pass
            if last:
                break
        if last is None:
            return [], 0
        try:
            return _EVENTS.decode(b"[%b]" % self._text[self._at : last.start() + 1]), last.end()
        except _FAILS:
            return [], 0

    def _one(self) -> list[Event]:
        """Take one event, even if damaged; none if nothing in it can be read.

        A damaged event may seem to continue far past its end. Once the searches for such ends have scanned as much text
        as was read, an event is assumed to end where the next event may begin.
        """
        behind = None if self._credit > 0 else _BETWEEN.search(self._text, self._at)
        try:
            text = self._value(behind.start() + 1 - self._at if behind else _MOST)
        except (_Ended, _TooLongError):
            behind = behind or _BETWEEN.search(self._text, self._at)
            if behind is None:
                raise
            self._credit -= min(len(self._text) - behind.end(), _MOST)
            self._at, self.broken = behind.end(), self.broken + 1
            return []
        event, lost = mended(text)
        if event is None:
            self.broken += 1
            inner = _BETWEEN.search(text)  # a quote too many or too few: the next event begins inside
            if inner:
                self._at -= len(text) - inner.end()
                self._credit -= len(text) - inner.end()
            return []
        self.mended += lost
        self._good += 1
        return [event]


class _Ended(Exception):  # noqa: N818 (no error: what was read counts)
    """The text ends too early."""


class _TooLongError(Exception):
    """A value is too long to be kept in memory."""


def _before_damage(inflate: Any, block: bytes) -> Iterator[bytes]:
    """The readable part of a damaged block of gzip data."""
    with suppress(zlib.error):
        for at in range(0, len(block), _SMALL):
            if text := inflate.decompress(block[at : at + _SMALL]):
                yield text


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _text_of(value: bytes) -> str:
    try:
        return str(msgspec.json.decode(value))
    except _FAILS:
        return value.decode("utf-8", "replace")


def mended(text: bytes) -> tuple[Event | None, bool]:
    """Decode the readable fields of an event with broken JSON or wrong types (None if there are none); also return
    whether fields are missing.
    """
    with suppress(*_FAILS):
        return _EVENT.decode(text), False
    text = _FAULTS.sub(_mend, text.decode("utf-8", "replace").encode())
    with suppress(*_FAILS):
        return _EVENT.decode(text), False
    try:
        fields = _FIELDS.decode(text)
    except _FAILS:
        return None, False
    event = Event()
    arguments = fields.pop("args", None)
    whole = _fill(event, fields)
    if arguments is not None:
        event.args = Arguments()
        try:
            whole &= _fill(event.args, _FIELDS.decode(arguments))
        except _FAILS:
            whole = False
    return event, not whole


def _fill(target: msgspec.Struct, values: dict[str, msgspec.Raw]) -> bool:
    """Set the readable fields; returns whether all are."""
    whole = True
    for each in msgspec.structs.fields(target):
        if each.encode_name in values:
            try:
                value = msgspec.json.decode(values[each.encode_name], type=each.type)
            except _FAILS:
                whole = False
                continue
            setattr(target, each.name, value)
    return whole


def _mend(match: re.Match[bytes]) -> bytes:
    text = match[0]
    if not text.startswith(b'"'):
        return b"null"
    return _IN_TEXT.sub(_escape, text)


def _escape(match: re.Match[bytes]) -> bytes:
    mark = match[0]
    if mark == b"\\":
        return b"\\\\"
    return b"\\u%04x" % mark[0] if mark[0] < 32 else mark
