"""Read a report that is a folder of TABLE.parquet files, as `nsys export --type parquetdir` writes it.

Columns have the exporter's types (uint64, int32, dictionaries, all-null columns); results are as from SQLite: codes of
texts, and int64 (a uint64 beyond 2^63 wraps). The package pyarrow is imported when a table is opened. The package
pandas is never imported, because that takes longer than reading most tables.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nsysprof.core.columns import Words
from nsysprof.errors import NsysprofError
from nsysprof.trace.nsys.blocks import Block
from nsysprof.trace.nsys.identify import Stamp, changed, fold, stamp

_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class ParquetSource:
    """The tables of one folder; see `Source`. Raises NsysprofError for a damaged file, or if pyarrow is missing."""

    path: Path

    def tables(self, *, views: bool = True) -> tuple[str, ...]:
        """Names of the tables, sorted."""
        return tuple(sorted(file.stem for file, _ in self._files.values()))

    def columns(self, table: str) -> tuple[str, ...]:
        """Return the names of the columns, () if there is no such table."""
        if fold(table) not in self._files:
            return ()
        with self._opened(table) as (file, _):
            return tuple(file.schema_arrow.names)

    def rows(self, table: str) -> int:
        """Return the number of rows, 0 if there is no such table."""
        if fold(table) not in self._files:
            return 0
        with self._opened(table) as (file, _):
            return int(file.metadata.num_rows)

    def blocks(
        self, table: str, ints: Sequence[str], texts: Sequence[str] = (), words: Words | None = None
    ) -> Iterator[Block]:
        """Yield the columns in file order, up to 65,536 rows at a time; nothing for an absent table.

        `ints` become int64: reals are truncated, text and blobs are NULL. `texts` become codes into `words`: numbers
        become decimal text, blobs count as text.
        """
        if fold(table) not in self._files:
            return
        words = Words() if words is None else words
        with self._opened(table, (*ints, *texts), texts) as (file, stored):
            for batch, at in _batches(file, stored):
                values: dict[str, np.ndarray] = {}
                nulls: dict[str, np.ndarray] = {}
                for name in ints:
                    values[name], null = _integers(at[name])
                    if null is not None:
                        nulls[name] = null
                for name in texts:
                    values[name] = _codes(at[name], words)
                yield Block(batch.num_rows, values, nulls)

    def fetch(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return all rows of a small table as Python values; invalid UTF-8 becomes U+FFFD."""
        if fold(table) not in self._files:
            return []
        with self._opened(table, columns) as (file, stored):
            rows: list[tuple[Any, ...]] = []
            for _, at in _batches(file, stored):
                rows += zip(*(_python(at[name]) for name in columns), strict=True)
            return rows

    def strings(self, ids: Iterable[int]) -> dict[int, str]:
        """Return the texts of these ids in StringIds; unknown ids are left out."""
        wanted = np.array(sorted({int(at) for at in ids}), np.int64)
        texts: dict[int, str] = {}
        if not len(wanted):
            return texts
        words = Words()
        for block in self.blocks("StringIds", ["id"], ["value"], words):
            keep = np.isin(block.values["id"], wanted) & (block.values["value"] >= 0)
            if "id" in block.nulls:  # NULL is 0 in the values
                keep &= ~block.nulls["id"]
            codes = block.values["value"][keep].tolist()
            texts.update(zip(block.values["id"][keep].tolist(), map(words.__getitem__, codes), strict=True))
        return texts

    @cached_property
    def _files(self) -> dict[str, tuple[Path, Stamp]]:
        """The file of each table, and its state when the folder was first looked at."""
        files = sorted((file for file in Path(self.path).glob("*.parquet") if file.is_file()), reverse=True)
        return {fold(file.stem): (file, stamp(file)) for file in files}

    @contextmanager
    def _opened(
        self, table: str, columns: Sequence[str] = (), texts: Sequence[str] = ()
    ) -> Iterator[tuple[Any, dict[str, str]]]:
        """The table's file, and its names of the columns, in any letter case; texts come as dictionaries."""
        try:
            import pyarrow  # noqa: PLC0415 (an extra, and slow to import)
            import pyarrow.parquet  # noqa: PLC0415
        except ImportError as error:
            raise NsysprofError(
                f"{self.path} is a Parquet export, but the required package pyarrow cannot be imported ({error})",
                "pip install 'nsysprof[parquet]'",
            ) from error
        path, seen = self._files[fold(table)]
        try:
            stored = _spelled(path, pyarrow.parquet.read_schema(path).names, columns) if columns else {}
            dictionaries = [stored[name] for name in texts]
            with pyarrow.parquet.ParquetFile(path, read_dictionary=dictionaries) as file:
                yield file, stored
            _check_unchanged(path, seen)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # the last one: a damaged name
            _check_unchanged(path, seen)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise NsysprofError(
                f"{path} is damaged: it cannot be read ({reason})", "nsys export --type parquetdir REPORT.nsys-rep"
            ) from error


def _check_unchanged(path: Path, seen: Stamp) -> None:
    if not path.is_file() or stamp(path) != seen:
        raise changed(path)


def _spelled(path: Path, stored: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    spelled = {fold(name): name for name in reversed(stored)}
    lacking = [name for name in names if fold(name) not in spelled]
    if lacking:
        raise NsysprofError(f"{path} is damaged: it has no column {lacking[0]}")
    return {name: name if name in stored else spelled[fold(name)] for name in names}


def _batches(file: Any, stored: dict[str, str]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The file batch by batch, with each batch's columns under the requested names."""
    columns = list(dict.fromkeys(stored.values()))
    for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
        place = {name: at for at, name in enumerate(batch.schema.names)}
        yield batch, {ours: batch.column(place[name]) for ours, name in stored.items()}


def _integers(array: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """The values as int64, 0 where NULL, and a mask of the NULLs when there are any."""
    from pyarrow import types  # noqa: PLC0415

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    number = types.is_integer(array.type) or types.is_floating(array.type)
    if types.is_temporal(array.type) or types.is_boolean(array.type):
        array, number = _as_integers(array), True
    if not number or array.null_count == len(array):
        return np.zeros(len(array), np.int64), np.ones(len(array), bool)
    rows = slice(array.offset, array.offset + len(array))
    valid, stored = array.buffers()
    # what pyarrow has for this asks pandas in some versions
    letter = "f" if types.is_floating(array.type) else "i" if types.is_signed_integer(array.type) else "u"
    values = np.frombuffer(stored, f"{letter}{array.type.bit_width // 8}")[rows]
    null = np.zeros(len(array), bool)
    if array.null_count:
        null = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[rows] == 0
    if values.dtype.kind == "f":
        null |= np.isnan(values)
        values = np.clip(np.where(null, 0, values).astype(np.float64), -(2.0**63), np.nextafter(2.0**63, 0))
    whole = values.astype(np.int64)
    whole[null] = 0
    return whole, null if null.any() else None


def _as_integers(array: Any) -> Any:
    import pyarrow  # noqa: PLC0415

    if pyarrow.types.is_boolean(array.type):
        return array.cast(pyarrow.uint8())
    return array.view(pyarrow.int32() if array.type.bit_width == 32 else pyarrow.int64())


def _codes(array: Any, words: Words) -> np.ndarray:
    """The codes of the texts, -1 where NULL."""
    if not hasattr(array, "dictionary"):
        if array.null_count == len(array):
            return np.full(len(array), -1, np.int32)
        array = array.dictionary_encode()
    places, null = _integers(array.indices)
    known = [-1 if raw is None else words.add(raw) for raw in _raw(array.dictionary)]
    if not known:
        return np.full(len(array), -1, np.int32)
    codes = np.array(known, np.int32).take(places)
    if null is not None:
        codes[null] = -1
    return codes


def _raw(array: Any) -> list[bytes | None]:
    """Texts as their bytes: they need not be UTF-8."""
    import pyarrow  # noqa: PLC0415

    types = pyarrow.types
    if not (types.is_string(array.type) or types.is_large_string(array.type) or types.is_binary(array.type)):
        array = array.cast(pyarrow.string())
    return list(array.cast(pyarrow.large_binary()).to_pylist())


def _python(array: Any) -> list[Any]:
    """A column as Python values, integers signed and texts tolerantly decoded."""
    from pyarrow import types  # noqa: PLC0415

    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_string(array.type) or types.is_large_string(array.type):
        return [None if raw is None else raw.decode("utf-8", "replace") for raw in _raw(array)]
    if types.is_integer(array.type):
        values, null = _integers(array)
        gaps = [False] * len(values) if null is None else null.tolist()
        return [None if gap else value for value, gap in zip(values.tolist(), gaps, strict=True)]
    return list(array.to_pylist())
