"""Reads what the threads of a report are called."""

from __future__ import annotations

from nsysprof.trace.nsys.columns import Source
from nsysprof.trace.nsys.properties import known, named_rows, whole


def read_thread_names(source: Source) -> dict[int, str]:
    """The name of each globalTid that has one: of several the last."""
    rows = [
        (whole(tid), whole(name)) for tid, name in named_rows(source, "ThreadNames", "globalTid", "nameId")
    ]
    texts = source.strings(sorted({name for _, name in rows if name is not None}))
    found = {tid: known(texts.get(name)) for tid, name in rows if tid is not None and name is not None}
    return {tid: name for tid, name in found.items() if name}
