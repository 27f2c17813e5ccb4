"""Writes the tables of an SQLite report as `nsys export --type parquetdir` does: a file each in one folder."""

import sqlite3
from contextlib import closing
from pathlib import Path

# Types that exporters have used for columns that SQLite calls INTEGER.
_NARROW = {
    "deviceId": "uint32",
    "eventType": "int32",
    "color": "int64",
    "globalTid": "uint64",
    "correlationId": "uint32",
}
_KINDS = {"INTEGER": "int64", "TEXT": "string", "REAL": "float64"}


def parquet_export(report: Path, folder: Path, *, row_group: int = 3000) -> Path:
    """Make the folder and return it. Needs pyarrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    with closing(sqlite3.connect(f"{report.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            declared = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
            rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
            arrays = {}
            for k, (_, name, kind, *_) in enumerate(declared):
                values = [row[k] for row in rows]
                arrow = _NARROW.get(name, _KINDS.get(kind.upper(), "string"))
                if all(value is None for value in values) and name in ("endGlobalTid", "graphNodeId"):
                    arrow = "null"
                arrays[name] = pa.array(values, getattr(pa, arrow)())
            pq.write_table(pa.table(arrays), folder / f"{table}.parquet", row_group_size=row_group)
    return folder
