"""Read NVTX ranges from NVTX_EVENTS, with names and domains."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from nsysprof.core.arena import IN_MEMORY, ColumnArena
from nsysprof.core.arrays import Bytes, Index, Ints, Ints32, Mask
from nsysprof.core.columns import Coder, Words, distinct
from nsysprof.trace.autograd import shape_of_payload
from nsysprof.trace.details import NO_OPERATORS, OperatorCalls, RangeName
from nsysprof.trace.nsys.blocks import Block, Growing, Rows, Source, column, has_all, known, present, times
from nsysprof.trace.trace import DEFAULT_DOMAIN, PROCESS_OF_THREAD, PUSH_POP, START_END, Progress

NVTX = "NVTX_EVENTS"
NVTX_NEEDS = ("start", "end", "eventType", "globalTid")  # without them a row is no range
# 70, 71: imported NVTX text files
PUSH_POP_EVENT = 59
_KIND_OF_EVENT = {PUSH_POP_EVENT: PUSH_POP, 60: START_END, 70: PUSH_POP, 71: START_END}
_THREAD_NAME, _DOMAIN_CREATE = 39, 75
_MISSING = -1
_Domain: TypeAlias = tuple[int, int]  # process and number


@dataclass(frozen=True)
class NvtxRanges:
    """NVTX ranges in file order.

    ``start``, ``end`` int64 ns; if ``open``, the end is not recorded and equals the start; ``kind`` uint8 (PUSH_POP,
    START_END); ``thread`` int32: a code of the `Coder` passed to `ranges_of` (for a start/end range, the thread that
    started it); ``name`` int32 into ``names``; ``moved`` bool: whether it is a start/end range for which the report
    names the thread that ended it. ``thread_names`` maps globalTids to names set by `nvtxNameOsThread`.
    """

    start: Ints
    end: Ints
    open: Mask
    kind: Bytes
    thread: Ints32
    name: Ints32
    moved: Mask
    names: list[RangeName]
    thread_names: dict[int, str]


def range_rows(source: Source, progress: Progress | None = None, arena: ColumnArena = IN_MEMORY) -> Rows:
    """Read all push/pop and start/end ranges, and thread names; marks and categories are left out."""
    rows = Growing(arena, start="i8", end="i8", open="?", kind="u1", thread="i4", name="i4", moved="?")
    names, threads = _Names(), Coder()
    ints = ["start", "end", "eventType", "globalTid", "endGlobalTid", "textId", "domainId"]
    columns = present(source, NVTX, ints), present(source, NVTX, ["text"])
    kinds = np.full(256, 255, np.uint8)
    kinds[list(_KIND_OF_EVENT)] = list(_KIND_OF_EVENT.values())
    for block in source.blocks(NVTX, *columns, names.words) if has_all(source, NVTX, NVTX_NEEDS) else ():
        event = column(block, "eventType")
        kind = np.where((event >= 0) & (event < 256), kinds[event & 255], np.uint8(255))
        names.note_domains(block, np.flatnonzero(event == _DOMAIN_CREATE))
        names.note_threads(block, np.flatnonzero(event == _THREAD_NAME))
        ranges = np.flatnonzero(kind != 255)
        start, end = times(block)
        unended = block.nulls.get("end")
        rows.add(
            len(ranges),
            start=start[ranges],
            end=end[ranges],
            open=False if unended is None else unended[ranges],
            kind=kind[ranges],
            thread=threads.encode(column(block, "globalTid")[ranges]),
            name=names.encode(block, ranges),
            moved=column(block, "endGlobalTid")[ranges] != 0,
        )
        if progress:
            progress("reading NVTX ranges", block.rows)
    values, created, named = names.resolve(source)
    return Rows(rows.take_rest(), {"thread": threads.values.tolist(), "name": values}, (created, named))


def ranges_of(rows: Rows, threads: Coder, arena: ColumnArena = IN_MEMORY) -> NvtxRanges:
    """Make the ranges of the report from the rows of `range_rows`. Thread ids are added to ``threads``."""
    created: dict[tuple[int, int], str] = {}
    for domain, text in rows.notes[0]:
        created.setdefault(domain, text)  # the create row may come twice
    # several names of one thread at the same time: the alphabetically last
    thread_names = {tid: name for _, name, tid in sorted(rows.notes[1])}
    found: dict[RangeName, int] = {}
    recode = [
        found.setdefault(
            RangeName(text, created.get(domain, f"domain {domain[1]}" if domain[1] else DEFAULT_DOMAIN)), len(found)
        )
        for text, domain in rows.values["name"]
    ]
    columns = dict(rows.columns)
    columns["name"] = arena.take(np.array(recode, np.int32), columns["name"])
    columns["thread"] = arena.take(threads.encode(np.array(rows.values["thread"], np.int64)), columns["thread"])
    return NvtxRanges(**columns, names=list(found), thread_names=thread_names)


def read_payloads(source: Source) -> OperatorCalls:
    """Return the operator calls whose shapes are JSON payloads of push/pop ranges, see `shape_of_payload`."""
    texts, ids, words = present(source, NVTX, ["jsonText"]), present(source, NVTX, ["jsonTextId"]), Words()
    if not (texts or ids) or not has_all(source, NVTX, NVTX_NEEDS):
        return NO_OPERATORS

    def codes(block: Block) -> tuple[Ints, Ints]:
        text = block.values.get("jsonText", np.full(block.rows, _MISSING))
        return text, column(block, "jsonTextId", _MISSING)

    if not any(np.max(codes(block)) >= 0 for block in source.blocks(NVTX, ids, texts, words)):
        return NO_OPERATORS  # most reports: the other columns need not be read
    found: list[tuple[Ints, ...]] = []
    for block in source.blocks(NVTX, (*NVTX_NEEDS, *ids), texts, words):
        (text, text_id), (start, end) = codes(block), times(block)
        rows = np.flatnonzero((np.maximum(text, text_id) >= 0) & (column(block, "eventType") == PUSH_POP_EVENT))
        found.append((column(block, "globalTid")[rows], start[rows], end[rows], text[rows], text_id[rows]))
    thread, start, end, text, text_id = (np.concatenate(each) for each in zip(*found, strict=True))
    first, shape = distinct(text, text_id)
    strings = source.strings(np.unique(text_id[text_id >= 0]).tolist())
    pairs = zip(text[first].tolist(), text_id[first].tolist(), strict=True)
    known = [shape_of_payload(words[code] if code >= 0 else strings.get(number, "")) for code, number in pairs]
    rows = np.array([bool(name) for name, *_ in known])[shape]  # other payloads are no operators
    return OperatorCalls(thread[rows], start[rows], end[rows], shape[rows], known) if rows.any() else NO_OPERATORS


class _Names:
    """Codes of (domain, name), where a name is a text, a string id, or both, mixed row by row."""

    def __init__(self) -> None:
        self.words = Words()
        self._ids, self._domain_ids, self._processes = Coder(), Coder(), Coder()
        self._texts, self._domains, self._names = Coder(), Coder(), Coder()
        self._plain = np.zeros(1, np.int32)  # code + 1 of each word in the default domain
        self._created: dict[tuple[int, int], tuple[int, int]] = {}  # (process, domain id) -> (text id, word)
        self._threads: list[tuple[int, int, int, int]] = []  # (start, thread, text id, word)

    def note_domains(self, block: Block, rows: Index) -> None:
        if not len(rows):
            return
        process = column(block, "globalTid")[rows] & PROCESS_OF_THREAD
        domain, text_id = column(block, "domainId")[rows], column(block, "textId", _MISSING)[rows]
        word = self._word(block)[rows]
        for p, d, t, w in zip(process.tolist(), domain.tolist(), text_id.tolist(), word.tolist(), strict=True):
            self._created.setdefault((p, d), (t, w))  # the create row may come twice

    def note_threads(self, block: Block, rows: Index) -> None:
        columns = (times(block)[0], column(block, "globalTid"), column(block, "textId", _MISSING), self._word(block))
        self._threads += zip(*(values[rows].tolist() for values in columns), strict=True)

    def encode(self, block: Block, rows: Index) -> Ints32:
        """The code of each row's name. Most rows have a text in the default domain, so one look-up is enough."""
        word = self._word(block)[rows]
        text_id, number = column(block, "textId", _MISSING)[rows], column(block, "domainId")[rows]
        plain = (text_id == _MISSING) & (number == 0) & (word >= 0)
        if len(self._plain) <= len(self.words):
            self._plain.resize(2 * len(self.words) + 1, refcheck=False)  # with zeros: not known yet
        codes = np.where(plain, self._plain[word], 0) - np.int32(1)
        todo = np.flatnonzero(codes < 0)
        if len(todo):
            process = column(block, "globalTid")[rows[todo]] & PROCESS_OF_THREAD
            codes[todo] = self._encode(text_id[todo], word[todo], number[todo], process)
            fresh = todo[plain[todo]]
            self._plain[word[fresh]] = codes[fresh] + 1
        return codes

    def _encode(self, text_id: Ints, word: Ints32, number: Ints, process: Ints) -> Ints32:
        text_code = self._ids.encode(text_id).astype(np.int64)
        text = self._texts.encode((text_code << 32) | (word.astype(np.int64) + 1))
        process[number == 0] = 0  # domains are numbered per process, save the default domain
        process_code = self._processes.encode(process).astype(np.int64)
        domain = self._domains.encode((process_code << 32) | self._domain_ids.encode(number))
        return self._names.encode((domain.astype(np.int64) << 32) | text)

    @staticmethod
    def _word(block: Block) -> Ints32:
        return block.values.get("text", np.full(block.rows, -1, np.int32))

    def resolve(
        self, source: Source
    ) -> tuple[list[tuple[str, _Domain]], list[tuple[_Domain, str]], list[tuple[int, str, int]]]:
        """Return text and domain of each name, the names of domains, and those of threads with time and globalTid."""
        ids = self._ids.values.tolist()
        others = [text_id for text_id, _ in self._created.values()] + [text_id for _, _, text_id, _ in self._threads]
        strings = source.strings(sorted({*ids, *others} - {_MISSING}))
        texts = [self._text(strings, ids[key >> 32], (key & 0xFFFFFFFF) - 1) for key in self._texts.values.tolist()]
        processes, numbers = self._processes.values.tolist(), self._domain_ids.values.tolist()
        domains = [(processes[key >> 32], numbers[key & 0xFFFFFFFF]) for key in self._domains.values.tolist()]
        values = [(texts[key & 0xFFFFFFFF], domains[key >> 32]) for key in self._names.values.tolist()]
        created = [(domain, self._text(strings, *name)) for domain, name in self._created.items()]
        named = [(at, known(self._text(strings, *name)), tid) for at, tid, *name in self._threads]
        return values, created, [(at, name, tid) for at, name, tid in named if name]

    def _text(self, strings: dict[int, str], text_id: int, word: int) -> str:
        if text_id in strings:
            return strings[text_id]
        return self.words[word] if word >= 0 else "[unnamed]"
