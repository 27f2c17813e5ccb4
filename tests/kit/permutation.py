"""Reports whose rows stand in another order: nsys promises none."""

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path


def permute(path: Path, to: Path, seed: int) -> Path:
    """Copy an SQLite report with the rows of each table shuffled; 0 leaves them, and writes them anew all the same."""
    rng = random.Random(seed)
    shutil.copy(path, to)
    with closing(sqlite3.connect(to)) as connection:
        connection.text_factory = bytes
        names = [row[0].decode() for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in names:
            rows = connection.execute(f'SELECT * FROM "{name}" ORDER BY rowid').fetchall()
            if seed:
                rng.shuffle(rows)
            connection.execute(f'DELETE FROM "{name}"')
            for row in rows:
                marks = ", ".join("CAST(? AS TEXT)" if isinstance(value, bytes) else "?" for value in row)
                connection.execute(f'INSERT INTO "{name}" VALUES ({marks})', row)
        connection.commit()
    return to
