"""Copies a trace of torch's profiler, compressed, mended where Kineto spells names wrongly, without what is private.

What Kineto writes about a machine: ``host_name``, and the path of the file in ``traceName``. Without stacks and shapes,
as `nsysprof capture` records, nothing else stands in it but names of ops, ranges and kernels, and threads.
"""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from nsysprof.scrub.secrets import machine_secrets

_PIECE = 8 << 20
_COUNTED = {"ops": b"cpu_op", "ranges": b"user_annotation", "kernels": b"kernel"}
_QUOTED = re.compile(rb'^([ \t]*"name": ")([^"\n]*"[^\n]*)("[ \t]*,?[ \t]*)$', re.M)
_ESCAPED = re.compile(rb"%u([0-9a-f]{4})")
_HOST = re.compile(rb'^[ \t]*"host_name": "[^\n]*",?[ \t]*\n', re.M)
_NAME = re.compile(rb'"traceName": "[^\n]*"')


def copy_trace(source: Path, out: Path, name: str, *, scrubbed: bool) -> dict[str, int]:
    """Write a copy of a trace to ``out``, whose end is .gz; count its CPU ``ops``, ``ranges`` and ``kernels``.

    ``source`` is as Kineto wrote it, a value a line, and ``name`` becomes its ``traceName``. Raises `OSError`.
    """
    counts: Counter[str] = Counter(dict.fromkeys((*_COUNTED, "whole"), 0))
    secrets = machine_secrets()
    cut = secrets.redactor(list(secrets.known), sure=True) if scrubbed else bytes
    with out.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        for piece in _pieces(source):
            for what, category in _COUNTED.items():
                counts[what] += piece.count(b'"cat": "%s"' % category)
            mended = _ESCAPED.sub(rb"\\u\1", _QUOTED.sub(_mended, piece))
            if scrubbed:
                mended = cut(_HOST.sub(b"", mended))
            mended, ends = _NAME.subn(b'"traceName": "%s"' % name.encode("ascii", "replace"), mended)
            counts["whole"] |= ends
            packed.write(mended)
    return dict(counts)


def _mended(match: re.Match[bytes]) -> bytes:
    return match[1] + match[2].replace(b'\\"', b'"').replace(b'"', b'\\"') + match[3]


def _pieces(source: Path) -> Iterator[bytes]:
    """Read a file in pieces that end with a line."""
    with source.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece + file.readline()
