"""Reads spoiled reports and compares the answer with plain SQL: no traceback, no hang, no silent difference.

    python -m tests.kit.fuzz --count 10000            # by hand; prints what failed and the seed of each
    python -m tests.kit.fuzz --seed 4711 --keep DIR   # one of them again, its files left in DIR
    python -m tests.kit.fuzz --kineto --count 10000   # traces of the PyTorch profiler, with which SQL has nothing to do
    python -m tests.kit.fuzz --every --count 10000    # every command, of reports of steps (with --kineto: of traces)
    python -m tests.kit.fuzz --cases 100000 --processes 16   # all four in turn, in processes; failures become files

An answer may be refused: exit code 1, one line and perhaps a hint. If there is one, its ops, their sum, the kernels by
name, the ops without a launch and the ranges are those of the file, but for rows that it counts as missing itself; of a
trace whose JSON is whole, the ops and their sum. None takes more than some seconds or 1 GB, and what is printed as JSON
is JSON.
"""

import argparse
import contextlib
import csv
import faulthandler
import io
import json
import math
import os
import random
import re
import resource
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from typer.main import get_command

from nsysprof import cli
from nsysprof.fleet import cluster
from nsysprof.fleet.examine import ReportFailure, ReportTask, examine_report
from nsysprof.formats.rank_answer import ReportAnswer
from tests.kit import plain_kineto
from tests.kit.command_line import written_rows
from tests.kit.mutations import SHIPPED, by_tokens, spoiled, spoiled_trace

PATIENCE_S, SLOW_S = 60, 20  # until it hangs; of the processor, for files that are small
MOST_MIB = 1000
_MOST_OF_PROCESS, _CHUNK = 3 << 30, 50  # bytes, and cases, of a process
GOOD = {"answered", "refused"}
CUPTI = "CUPTI_ACTIVITY_KIND_"
WORK = {
    f"{CUPTI}KERNEL": "kernels",
    f"{CUPTI}MEMCPY": "memops",
    f"{CUPTI}MEMSET": "memops",
    f"{CUPTI}GRAPH_TRACE": "graph_traces",
}
MEMCPY, CALLS, NVTX = f"{CUPTI}MEMCPY", f"{CUPTI}RUNTIME", "NVTX_EVENTS"
MIGRATES = (11, 12, 13)  # copyKind of pages of unified memory that the driver moved
NAMING = ("demangledName", "shortName", "mangledName")
# The columns without which a row says nothing, and others.
TABLES = {
    **dict.fromkeys(WORK, (("start", "end"), ("globalPid", "correlationId", *NAMING))),
    MEMCPY: (("start", "end"), ("globalPid", "correlationId", "copyKind", *NAMING)),
    CALLS: (("start", "end", "globalTid", "correlationId"), ()),
    NVTX: (("start", "end", "eventType", "globalTid"), ()),
}
PROCESS = -0x1000000
NAMELESS = "[not in StringIds]"
LONGEST_NS = 1 << 55  # a year: what a trace says lasts longer counts as 0, and the answer says so
Row = dict[str, Any]
Table = Callable[..., list[Row]]


class Truth(NamedTuple):
    """What the file says: numbers under the keys of `analysis.json`, kernels by name, and rows of no possible time."""

    totals: dict[str, int]
    kernels: dict[str, tuple[int, int]]
    unlaunched: int | None
    untimed: int
    missing: dict[str, int]


class Spelled(bytes):
    """A text of SQLite, which may spell a number; plain bytes are a blob, or a text of Parquet, and do not."""


class Hang(BaseException):
    """The time is over; nothing that catches errors may catch this."""


def truth(path: Path) -> Truth:
    """Ask sqlite3, or pyarrow, for all rows. Raises whatever they raise."""
    rows: dict[str, list[Row]] = {}
    missing = {}
    with (_parquet if path.is_dir() else _sqlite)(path) as table:
        for name, (needed, more) in TABLES.items():
            rows[name] = table(name, (*needed, *more), needed=needed)
            if rows[name] and not rows[name][0]:
                missing[name], rows[name] = len(rows[name]), []
        numbers = {_name_id(row) for row in rows[f"{CUPTI}KERNEL"]}
        strings = table("StringIds", ("id", "value"), numbers) if numbers else []
        texts = {_integer(row["id"]): _text(row["value"]) for row in strings}
    totals: Counter[str] = Counter(ops=0, sum_ns=0, kernels=0, memops=0, graph_traces=0, migrations=0)
    by_name: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    launched = {(_whole(row["globalTid"]) & PROCESS, _whole(row["correlationId"])) for row in rows[CALLS]}
    callers = {process for process, _ in launched}
    untimed = unlaunched = 0
    for name, kind in WORK.items():
        for row in rows[name]:
            start, end = _integer(row["start"]), _integer(row["end"])
            length = end - start if start is not None and end is not None else 0
            untimed += start is None or end is None
            moved = name == MEMCPY and _whole(row.get("copyKind")) in MIGRATES
            totals.update({"ops": 1, "sum_ns": length, "migrations" if moved else kind: 1})
            process = _whole(row.get("globalPid")) or (next(iter(callers)) if len(callers) == 1 else 0)
            key = process, _whole(row.get("correlationId"))
            unlaunched += not moved and (not key[1] or key not in launched)
            if kind == "kernels":
                text = texts.get(_name_id(row))
                one = by_name[NAMELESS if text is None else text]
                one[0] += 1
                one[1] += length
    totals["ranges"] = sum(_integer(row["eventType"]) in (59, 60, 70, 71) for row in rows[NVTX])
    shown = {name: (n, ns) for name, (n, ns) in by_name.items()}
    return Truth(dict(totals), shown, unlaunched, untimed, missing)


def truth_of_trace(path: Path) -> Truth | None:
    """The ops of a trace of PyTorch and their sum; None if its text is not whole, or its ops are odd."""
    try:
        ops = [each for each in plain_kineto.load(path) if str(each.get("cat", "")).lower() in plain_kineto.GPU]
        rows = [plain_kineto.times(each) for each in ops if each.get("ph") == "X"]
    except (ValueError, TypeError, LookupError, ArithmeticError, OSError, EOFError, RecursionError, zlib.error):
        return None
    lengths = [end - start for start, end in rows]
    possible = [length for length in lengths if length < LONGEST_NS]
    return Truth({"ops": len(rows), "sum_ns": sum(possible)}, {}, None, len(lengths) - len(possible), {})


def _name_id(row: Row) -> int:
    numbers = [_integer(row[column]) for column in NAMING if column in row]
    return next((n for n in numbers if n is not None), 0)


@contextlib.contextmanager
def _sqlite(path: Path) -> Iterator[Table]:
    """Rows of a copy, so that SQLite may recover it, under the names asked for; by their ids if some are wanted."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.sqlite"
        for end in ("", "-wal", "-journal"):
            if Path(f"{path}{end}").is_file():
                shutil.copyfile(f"{path}{end}", f"{copy}{end}")
        with closing(sqlite3.connect(copy)) as connection:
            connection.text_factory = Spelled
            names = {row[0].lower() for row in connection.execute("SELECT name FROM sqlite_master")}

            def table(
                name: str, columns: Sequence[str], ids: Collection[int] = (), needed: Collection[str] = ()
            ) -> list[Row]:
                if name.lower().encode() not in names:
                    return []
                listed = connection.execute("SELECT lower(name), pk FROM pragma_table_xinfo(?)", (name,))
                there = dict(listed.fetchall())
                asked = [column for column in columns if column.lower().encode() in there]
                if not set(needed) <= set(asked):
                    return [{}] * connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0]
                # as SQL spells a real, and a blob in the encoding of the database
                read = [f'CAST("{column}" AS TEXT)' if column == "value" else f'"{column}"' for column in asked]
                wanted = ", ".join(read) or "NULL"
                where = f" WHERE id IN ({', '.join(map(str, ids))})" if ids and there.get(b"id") else ""
                try:
                    rows = connection.execute(f'SELECT {wanted} FROM "{name}"{where}').fetchall()
                except sqlite3.DatabaseError:  # a damaged tree may have rows that a search for their ids cannot find
                    rows = connection.execute(f'SELECT {wanted} FROM "{name}"').fetchall()
                return [dict(zip(asked, row, strict=False)) for row in rows]

            yield table


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[Table]:
    import pyarrow.parquet

    files = {file.stem.lower(): file for file in path.glob("*.parquet") if file.is_file()}

    def table(name: str, columns: Sequence[str], ids: Collection[int] = (), needed: Collection[str] = ()) -> list[Row]:
        if name.lower() not in files:
            return []
        with pyarrow.parquet.ParquetFile(files[name.lower()]) as file:
            there = {head.lower(): head for head in reversed(file.schema_arrow.names)}
            asked = [column for column in columns if column.lower() in there]
            if not set(needed) <= set(asked):
                return [{}] * file.metadata.num_rows
            found = file.read(columns=[there[column.lower()] for column in asked])
        lists = [_bytes(found.column(there[column.lower()])).to_pylist() for column in asked]
        return [
            dict(zip(asked, row, strict=True)) for row in (zip(*lists, strict=True) if lists else [()] * len(found))
        ]

    yield table


def _bytes(column: Any) -> Any:
    """Texts as bytes: they need not be UTF-8."""
    import pyarrow

    return column.cast(pyarrow.binary()) if pyarrow.types.is_string(column.type) else column


def _integer(cell: Any) -> int | None:
    """The integer of a cell as the manual has it: reals are cut, spelled-out numbers count, nothing else does."""
    if isinstance(cell, Spelled) and any(c in b"0123456789" for c in cell) and not cell.strip(b"-.0123456789"):
        with closing(sqlite3.connect(":memory:")) as connection:
            cell = connection.execute("SELECT CAST(? AS INTEGER)", (cell.decode(),)).fetchone()[0]
    if isinstance(cell, float):
        return None if math.isnan(cell) else int(max(-(2.0**63), min(cell, 2.0**63 - 1024)))
    if isinstance(cell, int):
        return cell - (1 << 64) if cell >= 1 << 63 else cell  # of Parquet: it wraps
    return None


def _whole(cell: Any) -> int:
    return _integer(cell) or 0


def _text(cell: Any) -> str | None:
    return (
        None if cell is None else (cell if isinstance(cell, bytes) else str(cell).encode()).decode("utf-8", "replace")
    )


def commands(rng: random.Random, path: Path, out: Path, ranges: str = "nvtx") -> list[str]:
    """The arguments of one command that reads the report; most are analyses, by those ``ranges``."""
    way = rng.random()
    if way < 0.12:
        form = rng.choice(["csv", "csv", "parquet", "perfetto"])
        return ["export", str(path), "--to", form, "-o", str(out)]
    if way < 0.14:
        return ["compare", str(path), str(path), "-o", str(out), "--no-charts"]
    if way < 0.16:
        return ["check", str(path), "--init", "-o", str(out)]
    options = (
        []
        if way < 0.7
        else rng.choice(
            [
                ["--threads", "strict"],
                ["--by", "process"],
                ["--by", "device"],
                ["--by", "thread"],
                ["--by", "stream"],
                ["--skip", "1"],
                ["--range", "a*"],
                ["--no-merge"],
            ]
        )
    )
    charts = [] if way > 0.995 else ["--no-charts"]
    page = ["--html"] if rng.random() < 0.02 else []
    # the slow account knows the ranges of NVTX alone
    return ["analyze", str(path), "-o", str(out), "--ranges", ranges, *charts, *options, *page]


CHANGES = (
    *("--graph=PART", "--scale=KERNEL=0.5", "--scale=KERNEL=2", "--set=KERNEL=40us", "--set=KERNEL=1ns"),
    *("--drop-sync=PART", "--drop-sync=*", "--async-copies", "--remove=code in PART"),
    *("--delay=PART=5us", "--delay=*=1ms", "--gpu-delay=PART=3us", "--gpu-delay=*=1ns", "--as-profiled"),
)
BUDGET = """[[range]]
path = "*"
max_span = "1 us"
max_kernels = 3
[[range]]
path = "step*"
optional = true
max_busy = "1 ms"
"""
RULES = """[[rule]]
name = "mine"
match = ["k(?P<number>[12])", "gemm.*"]
family = "gemm"
cause = "k {number}"
"""
BESIDE = {name: (SHIPPED.parent / f"run.{name}").read_bytes() for name in ("json", "counters.csv", "counters.json")}


def every_command(rng: random.Random, path: Path, out: Path) -> list[str]:
    """The arguments of any command that reads reports, beside `commands` those that replay and look for steps."""
    folder, name, kineto = ["-o", str(out)], str(path), path.suffix == ".json"
    kernel = "gemm" if kineto else rng.choice(["k0", "k[12]", "k1", "gemm"])
    part = rng.choice(["*Linear*", "ProfilerStep*"] if kineto else ["part", "part", "step*", "forward"])
    changes = [each.replace("PART", part).replace("KERNEL", kernel) for each in CHANGES]
    ways = {
        "analyze": [name, *folder, "--no-charts"],
        "check": [name, str(path.parent / "budget.toml"), *rng.choice(([], [f"--baseline={name}"]))],
        "compare": [name, name, *folder, "--no-charts", *rng.choice(([], ["--range=step*"]))],
        "export": [name, *folder, "--to", rng.choice(["csv", "parquet", "perfetto"])],
        "fleet": [name, *rng.choice(([], [name], [str(SHIPPED)])), *folder, "--no-charts", "--workers=1"],
        "forecast": [name, *folder, "--no-charts", *rng.sample(changes, rng.choice([1, 1, 2]))],
        "history": [name, str(SHIPPED), *folder, "--no-charts", "--cache", f"{out}-cache"],
        "hotspots": [name, *folder, "--no-charts", *rng.choice(([], ["--by=family"]))],
        "ranges": [name],
        "scrub": [name, *folder, *rng.choice(([], ["--names"]))],
        "steps": [name, *folder, "--no-charts", *rng.choice(([], [], ["--per=step*"], ["--per=*"]))],
        "why": [name, *folder, "--no-charts", *rng.choice(([], ["--verify"], ["--slowest"], ["--per=part"]))],
    }
    command = rng.choice([*ways, "forecast", "forecast", "steps", "why"])
    more = []
    if command == "forecast":
        more += rng.choice(([], ["--as-profiled"])) + (rng.choice(([], ["--range=step"])) if not kineto else [])
    if command in ("analyze", "hotspots", "why", "compare", "fleet") and rng.random() < 0.3:
        more.append(f"--rules={path.parent / 'rules.toml'}")
    if command not in ("export", "scrub", "history", "ranges"):
        more += rng.choice(([], [], [], ["--threads=strict"], ["--graphs=captured"]))
        more += rng.choice(([], [], ["--ranges=ops,modules,found"], ["--ranges=nvtx"], ["--json"]))
        if command not in ("analyze", "fleet") and "--json" not in more:
            more += rng.choice(([], ["--md"], ["--no-merge"]))
    return [command, *ways[command], *dict.fromkeys(more)]


def examine_here(tasks: Sequence[ReportTask], choice: object, **_: object) -> list[ReportAnswer | ReportFailure]:
    """What `fleet.cluster.examine_all` returns, without workers: what a report takes is taken in this process."""
    return [examine_report(task) for task in tasks]


def run(arguments: Sequence[str]) -> tuple[int, str]:
    """Exit code and stderr of the command line, in this process. What it raises, warnings among it, is raised."""
    said, printed, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["nsysprof", *arguments]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            cli.main()
    except SystemExit as stop:
        if "--json" in arguments and printed.getvalue():
            json.loads(printed.getvalue(), parse_constant=_no_json)
        return int(stop.code or 0), said.getvalue()
    finally:
        sys.argv = before
    raise AssertionError("main() came back")


def _no_json(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def differences(arguments: Sequence[str], out: Path, file: Truth) -> Iterator[str]:
    """Where an answer is not what the file says."""
    if arguments[0] == "export" and "csv" in arguments and file.unlaunched is not None:
        with (out / "ops.csv").open(newline="", encoding="utf-8") as rows:
            lengths = [int(row["duration_ns"]) for row in csv.DictReader(rows)]
        told = {"ops": len(lengths), "sum_ns": sum(lengths)}
        yield from (f"ops.csv {name} {n} != {file.totals[name]}" for name, n in told.items() if n != file.totals[name])
    if arguments[0] != "analyze":
        return
    answer = json.loads((out / "analysis.json").read_text(encoding="utf-8"))
    if file.unlaunched is None and any("left out" in text for text in answer["warnings"]):
        return
    for name, number in file.totals.items():
        if answer["totals"][name] != number and (
            name != "ranges" or "--ranges=nvtx" in arguments or "nvtx" in arguments
        ):
            yield f"{name} {answer['totals'][name]} != {number}"
    yield from _untold(file, answer["warnings"])
    if file.unlaunched is None:
        return
    missing = {row["table"]: row["rows"] for row in answer["missing"]}
    if missing != file.missing:
        yield f"missing {missing} != {file.missing}"
    unlaunched = sum(row["ops"] for row in answer["ledger"] if row["fate"] == "no launch row")
    if unlaunched != file.unlaunched:
        yield f"ops without a launch {unlaunched} != {file.unlaunched}"
    if not {"--skip", "--range"} & set(arguments):
        kernels: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for row in written_rows(out, "kernels.csv"):
            name = NAMELESS if row["kernel"].startswith("[kernel name ") else row["kernel"]
            kernels[name][0] += int(row["count"])
            kernels[name][1] += int(row["sum_ns"])
        for name, (count, ns) in file.kernels.items():
            if kernels[name] != [count, ns]:
                yield f"kernel {name!r}: {kernels[name]} != {[count, ns]}"


def _untold(file: Truth, warnings: Sequence[str]) -> Iterator[str]:
    """Rows of no possible time about which the answer says nothing; or it speaks of some, and the file has none."""
    fault = "longer than a year" if file.unlaunched is None else "lack a start or an end"
    told = any(fault in text for text in warnings)
    if bool(file.untimed) != told and (file.untimed or file.unlaunched is not None):  # calls of a trace have times, too
        yield f"{file.untimed} rows of no possible time, and the warnings are {warnings}"


def prepared(seed: int, folder: Path, *, kineto: bool = False, every: bool = False) -> tuple[Path, list[str], str]:
    """A spoiled report in an empty folder, the arguments of a command that reads it, and what was done."""
    rng = random.Random(seed)
    path, done = (spoiled_trace if kineto else spoiled)(rng, folder, steps=every)
    if every:
        done += _beside(rng, path)
        arguments = every_command(rng, path, folder / "out")
    else:
        ranges = rng.choice(["auto", "nvtx", "ops", "ops,modules,found"]) if kineto else "nvtx"
        arguments = commands(rng, path, folder / "out", ranges)
    return path, arguments, f"{'; '.join(done)}; {arguments[0]} {' '.join(arguments[2:])}"


def attempt(seed: int, folder: Path, *, kineto: bool = False, every: bool = False) -> tuple[str, str]:
    """Read a report that is `prepared`: "answered", "refused" or what is wrong, and what was done."""
    path, arguments, story = prepared(seed, folder, kineto=kineto, every=every)
    before, begun, memory = _folder(folder), time.process_time(), _peak_mib(reset=True)
    try:
        code, said = run(arguments)
    except Hang:
        return "hang", story
    except BaseException:
        return f"traceback: {traceback.format_exc()}", story
    seconds, taken = time.process_time() - begun, _peak_mib() - memory
    if seconds > SLOW_S or taken > MOST_MIB:
        return f"too much: {seconds:.0f} s, {taken} MiB", story
    if {name: state for name, state in _folder(folder).items() if not name.startswith("out")} != before:
        return "the input was changed", story
    if code:
        return _refusal(arguments[0], code, said), story
    return _compared(arguments, folder / "out", path), story


def _beside(rng: random.Random, path: Path) -> list[str]:
    """Write a budget, rules, a record and counters beside a report, and spoil one of them, or none."""
    files = {path.with_name("budget.toml"): BUDGET.encode(), path.with_name("rules.toml"): RULES.encode()}
    if rng.random() < 0.5 and path.name.isprintable():
        files |= {path.with_name(f"{path.stem}.{name}"): content for name, content in BESIDE.items()}
        files.pop(path, None)
    chosen, done = rng.choice([*files, None, None]), list[str]()
    for file, content in files.items():
        text = bytearray(content)
        if file == chosen:
            done = [f"{file.name}: {', '.join(by_tokens(rng, text))}"]
        file.write_bytes(text)
    return done


def _refusal(command: str, code: int, said: str) -> str:
    """How a command ended that ended with a code."""
    if (command, code) in {("check", 3), ("compare", 3)}:
        return "answered"  # a limit is broken; the two cannot be compared
    known = (1, 3) if command == "forecast" else (1,)
    if command == "fleet":  # the others' answers come before
        said = said[max(said.rfind("\nnsysprof: "), -1) + 1 :].rstrip("\n")
    short = len(said.splitlines()) <= 2 and len(said) < 3000
    plain = code in known and said.startswith("nsysprof: ") and short
    return "refused" if plain else f"exit code {code}: {said[:3000]}"


def _compared(arguments: Sequence[str], out: Path, path: Path) -> str:
    """How a command ended that gave an answer: compared with what the file says, if the answer has what can be."""
    if arguments[0] != "analyze" and not (arguments[0] == "export" and "csv" in arguments):
        return "answered"
    try:
        file = truth_of_trace(path) if path.suffix == ".json" else truth(path)
    except Exception as error:
        return f"answered what SQL cannot read: {error!r}"
    wrong = "; ".join(differences(arguments, out, file)) if file else ""
    return f"silent difference: {wrong}" if wrong else "answered"


def _folder(folder: Path) -> dict[str, object]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else path.is_symlink()
        for path in sorted(folder.rglob("*"))
        if path.parts[len(folder.parts)] != "out"
    }


def _peak_mib(*, reset: bool = False) -> int:
    """The most memory that this process had since it was reset; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        if reset:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) >> 10
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise Hang


def fuzz(
    seeds: Iterable[int], keep: Path | None = None, *, kineto: bool = False, every: bool = False
) -> Iterator[tuple[int, str, str]]:
    """Of each seed how it ended and what was done; see `attempt`."""
    app: Any = cli.app
    vars(cli)["app"] = get_command(app)  # made once: it takes longer than reading a small report
    workers, vars(cluster)["examine_all"] = cluster.examine_all, examine_here  # started for each, they take seconds
    previous = signal.signal(signal.SIGALRM, _stop)
    try:
        for seed in seeds:
            with tempfile.TemporaryDirectory(prefix="nsysprof-fuzz-", ignore_cleanup_errors=True) as made:
                folder = keep or Path(made)
                folder.mkdir(parents=True, exist_ok=True)
                signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
                try:
                    end, story = attempt(seed, folder, kineto=kineto, every=every)
                except Hang:
                    end, story = "hang", "while the report was made, or compared"
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            yield seed, end, story
    finally:
        signal.signal(signal.SIGALRM, previous)
        cli.app, vars(cluster)["examine_all"] = app, workers


def in_processes(cases: int, first: int, processes: int, failures: Path) -> int:
    """Run cases of all four kinds in turn; print a line per 1,000, and write what failed, with its files; 1 if any did.

    Each process takes 50 cases of a kind, so that one that dies, or is ended by its own limits, loses little.
    """
    ends: Counter[str] = Counter()
    begin, told = time.monotonic(), 0
    kinds: tuple[list[str], ...] = ([], ["--kineto"], ["--every"], ["--every", "--kineto"])
    chunks = [(first + at, kinds[at // _CHUNK % 4], min(_CHUNK, cases - at)) for at in range(0, cases, _CHUNK)]

    def part(chunk: tuple[int, list[str], int]) -> Counter[str]:
        seed, kind, count = chunk
        command = [sys.executable, "-m", "tests.kit.fuzz", "--seed", str(seed), "--count", str(count), *kind]
        done = subprocess.run([*command, "--failures", str(failures)], capture_output=True, text=True, check=False)
        found = re.search(r"^seeds .*?: (\{.*\}) in ", done.stdout, re.MULTILINE)
        if found is None or done.returncode not in (0, 1):
            failures.mkdir(parents=True, exist_ok=True)
            text = f"{shlex.join(command)}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}"
            (failures / f"died-{'-'.join(kind).replace('--', '')}-{seed}.txt").write_text(text, encoding="utf-8")
            return Counter({"died": count})
        return Counter(json.loads(found[1].replace("'", '"')))

    with ThreadPoolExecutor(processes) as pool:
        for ended in as_completed([pool.submit(part, chunk) for chunk in chunks]):
            ends += ended.result()
            if ends.total() // 1000 > told or ends.total() == cases:
                told = ends.total() // 1000
                print(f"{ends.total():,} cases: {dict(ends)} in {time.monotonic() - begin:.0f} s", flush=True)
    return int(not ends.keys() <= GOOD)


def write_failure(failures: Path, seed: int, end: str, story: str, kind: dict[str, bool]) -> None:
    """Write what is wrong with a case, and its files."""
    name = "-".join([*(word for word, on in kind.items() if on), str(seed)])
    (failures / name).mkdir(parents=True, exist_ok=True)
    (failures / f"{name}.txt").write_text(f"{end}\n{story}\n", encoding="utf-8")
    prepared(seed, failures / name, **kind)


def main() -> int:
    """Run seeds, print failures as they come, and return 1 if there were any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin none after that time")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--keep", type=Path, help="an empty folder for the files of a single seed")
    parser.add_argument("--kineto", action="store_true", help="traces of the PyTorch profiler")
    parser.add_argument("--every", action="store_true", help="every command, of reports of steps")
    parser.add_argument("--cases", type=int, help="so many of all kinds in turn, in --processes")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--failures", type=Path, help="a folder for what failed [with --cases: fuzz-failures]")
    options = parser.parse_args()
    if options.cases:
        failures = options.failures or Path("fuzz-failures")
        return in_processes(options.cases, options.seed, options.processes, failures)
    warnings.simplefilter("error")
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_DATA, (_MOST_OF_PROCESS, _MOST_OF_PROCESS))
    seeds = range(options.seed, options.seed + options.count)
    kind = {"kineto": options.kineto, "every": options.every}
    ends: Counter[str] = Counter()
    begin = time.monotonic()
    faulthandler.dump_traceback_later(2 * PATIENCE_S, exit=True)  # where no signal helps
    for seed, end, story in fuzz(seeds, options.keep, **kind):
        faulthandler.dump_traceback_later(2 * PATIENCE_S, exit=True)
        ends[end.split(":")[0]] += 1
        if end not in GOOD:
            print(f"seed {seed}: {end}\n  {story}", flush=True)
            if options.failures:
                write_failure(options.failures, seed, end, story, kind)
        if time.monotonic() - begin > options.seconds:
            break
    print(f"seeds {seeds[0]} to {seed}: {dict(ends)} in {time.monotonic() - begin:.0f} s")
    return int(not ends.keys() <= GOOD)


if __name__ == "__main__":
    sys.exit(main())
