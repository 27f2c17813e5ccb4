"""Read replacement times of kernels from a table or another report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nsysprof.core.files import read_table
from nsysprof.core.text import join_first, one_line, plural
from nsysprof.core.units import format_ns
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import short_name
from nsysprof.trace.report import open_report, read_tables
from nsysprof.trace.trace import KERNEL, Trace
from nsysprof.waits.changes import MAX_NS, AbstainError

if TYPE_CHECKING:
    import pandas as pd

_MAX_SPREAD = 2  # of the times of a kernel: of more, the same name stands for different work
_TABLE = "name a kernels.csv or results.csv"


def _table(path: Path) -> pd.DataFrame:
    import pandas as pd  # a change of another kind needs none

    try:
        table = pd.read_csv(read_table(path))
    except OSError as error:
        raise NsysprofError(f"{path}: cannot read it: {error.strerror or error}", _TABLE) from None
    except (ValueError, UnicodeDecodeError):
        raise NsysprofError(f"{path}: not a table with a header and rows", _TABLE) from None
    for name in {"median_ns", "graph_median_ns"} & set(table):  # what is no time counts as missing
        ns = pd.to_numeric(table[name], errors="coerce")
        table[name] = ns.where(ns.between(0, MAX_NS))
    return table


def times_by_name(trace: Trace, path: Path) -> dict[int, int]:
    """Return the median duration of each kernel of the trace that a table or another report contains."""
    if path.name.endswith((".csv", ".csv.gz")):
        table = _table(path)
        if not {"kernel", "median_ns"} <= set(table.columns):
            raise NsysprofError(
                f"{path} has no columns kernel and median_ns",
                "nsysprof analyze REPORT writes a kernels.csv; with results of nsysprof bench: "
                "--swap 'RANGE=results.csv:BACKEND'",
            )
        frame = table[["kernel", "median_ns"]].rename(columns={"kernel": "name", "median_ns": "ns"})
    else:
        frame = _kernels_of_report(trace, path)
    known = frame.dropna().groupby("name")["ns"].agg(["median", "min", "max"])
    found = {at: name for at, name in enumerate(trace.op_names) if name in known.index}
    for name in found.values():
        low, high = float(known["min"][name]), float(known["max"][name])
        if high > _MAX_SPREAD * low:
            raise AbstainError(
                f"{one_line(short_name(name), 60)} takes {format_ns(low)} to {format_ns(high)} in {path}: "
                "it is unknown which of these times to use",
                "set the time with --set 'KERNEL=TIME'",
            )
    if not found:
        raise NsysprofError(
            f"no kernel of {trace.report.path} is in {path}", "--swap 'RANGE=TABLE:ROW' replaces the kernels of a range"
        )
    return {at: round(known["median"][name]) for at, name in found.items()}


def _kernels_of_report(trace: Trace, path: Path) -> pd.DataFrame:
    """The ``name`` and ``ns`` of each kernel of another report, without the longest and shortest tenth of a name."""
    import pandas as pd

    with open_report(path) as other:
        gpus = [{gpu.name for gpu in report.about.cuda_gpus} for report in (trace.report, other)]
        if all(gpus) and gpus[0] != gpus[1]:
            raise AbstainError(f"{path} was recorded on {join_first(sorted(gpus[1]), 2)}: another GPU is not modelled")
        recorded = read_tables(other)
    kernels = recorded.ops.kind == KERNEL
    frame = pd.DataFrame(
        {
            "name": pd.Categorical.from_codes(recorded.ops.name[kernels], pd.Index(recorded.op_names)),
            "ns": (recorded.ops.end - recorded.ops.start)[kernels],
        }
    )
    rank = frame.groupby("name", observed=True)["ns"].rank(pct=True)
    return frame[(rank > 0.1) & (rank <= 0.9)].astype({"name": str})


def time_of_row(path: Path, row: str) -> int:
    """Return the median time of a kernel, or of a row of bench results (backend or ``CONFIGURATION/BACKEND``).

    If the benchmark also timed CUDA graph replays, the replay times are used, because eager calls include launches.
    """
    import pandas as pd

    table = _table(path)
    if "median_ns" not in table.columns:
        raise NsysprofError(f"{path} has no column median_ns", _TABLE)
    text = table.astype(str)
    name = pd.Series("", index=table.index)
    for column in ("kernel", "backend"):
        if column in table:
            name = text[column]
    both = text["configuration"] + "/" + name if "configuration" in table else name
    rows = table[((name == row) | (both == row)) & table["median_ns"].notna()]
    if len(rows) != 1:
        known = join_first(both[table["median_ns"].notna()].unique().tolist(), 4, repr)
        raise NsysprofError(
            f"{path} has {plural(len(rows), 'row')} named {row!r}, but needs exactly one; names in the file: {known}",
            "name one of them",
        )
    times = [rows[name].iloc[0] for name in ("graph_median_ns", "median_ns") if name in rows]
    return round(float(next(ns for ns in times if pd.notna(ns))))
