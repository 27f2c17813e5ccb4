"""Reports whose rows stand in another order, under other ids: nsys promises neither."""

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

_TEXTS = {"CpuInstruction", "nameId", "textId", "demangledName", "shortName", "mangledName", "jsonTextId", "filenameId"}
_TIMES = {"start", "end", "timestamp"}
_NUMBERS = {"globalPid": 1 << 24, "globalTid": (1 << 24) + 1, "pid": 1, "streamId": 1}


def _renumbered(rng: random.Random, connection: sqlite3.Connection, names: list[str]) -> dict[str, dict[object, int]]:
    """Other correlation ids, in another order, and ids of texts, by the columns that hold them."""
    texts = [row[0] for row in connection.execute("SELECT id FROM StringIds")]
    told = dict(zip(texts, rng.sample(texts, len(texts)), strict=True))
    calls: set[int] = set()
    for name in names:
        if any(row[1] == b"correlationId" for row in connection.execute(f'PRAGMA table_info("{name}")')):
            found = connection.execute(f'SELECT correlationId FROM "{name}" WHERE correlationId > 0').fetchall()
            calls |= {row[0] for row in found if isinstance(row[0], int)}
    others = rng.sample(range(1, 1 << 31), len(calls))
    return {**dict.fromkeys(_TEXTS, told), "correlationId": dict(zip(sorted(calls), others, strict=True))}


def permute(
    path: Path, to: Path, seed: int, shift: int = 0, renamed: tuple[str, str] = ("", ""), more: int = 0
) -> Path:
    """Copy an SQLite report with the rows of each table shuffled, and ids renumbered.

    0 leaves them, and writes them anew all the same. All times are ``shift`` later, a name is ``renamed``, and the
    numbers of processes, threads and streams are ``more``.
    """
    rng = random.Random(seed)
    shutil.copy(path, to)
    with closing(sqlite3.connect(to)) as connection:
        connection.text_factory = bytes
        connection.execute("PRAGMA synchronous = OFF")
        names = [row[0].decode() for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        ids = _renumbered(rng, connection, names) if seed else {}
        for name in names:
            columns = [row[1].decode() for row in connection.execute(f'PRAGMA table_info("{name}")')]
            places = {at: ids[column] for at, column in enumerate(columns) if column in ids}
            if name == "StringIds" and seed:
                places[columns.index("id")] = ids["textId"]
            rows = connection.execute(f'SELECT * FROM "{name}" ORDER BY rowid').fetchall()
            if seed:
                rng.shuffle(rows)
            connection.execute(f'DELETE FROM "{name}"')
            for row in rows:
                marks = ", ".join("CAST(? AS TEXT)" if isinstance(value, bytes) else "?" for value in row)
                renumbered = [places[at].get(value, value) if at in places else value for at, value in enumerate(row)]
                connection.execute(f'INSERT INTO "{name}" VALUES ({marks})', renumbered)
            for column in _TIMES & set(columns) if shift else ():
                connection.execute(f'UPDATE "{name}" SET "{column}" = "{column}" + ?', (shift,))
            for column, by in _NUMBERS.items() if more else ():
                if column in columns:
                    numbers = f"{column} > 0 AND {column} <> 4294967295"  # the latter stands for no stream
                    changed = f'UPDATE "{name}" SET {column} = {column} + ? WHERE {numbers}'
                    connection.execute(changed, (by * more,))
            for column in {"text", "value"} & set(columns) if all(renamed) else ():
                connection.execute(f'UPDATE "{name}" SET "{column}" = ? WHERE "{column}" = ?', renamed[::-1])
        connection.commit()
    return to
