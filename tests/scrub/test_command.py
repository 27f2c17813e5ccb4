"""Scrubbed copies: no byte of what was planted is left anywhere, the answers stay, and the report is only read."""

import hashlib
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from nsysprof.core.units import format_bytes
from nsysprof.errors import NsysprofError
from nsysprof.scrub.scrub import scrub_report
from nsysprof.tools.interrupts import Interrupt, interrupts_raised
from nsysprof.tools.nsys import Nsys, export, find_importer, find_nsys, import_stream
from nsysprof.trace.report import open_report
from tests.conftest import MakeTrace
from tests.kit import fake_nsys
from tests.kit.command_line import runner
from tests.kit.reports import broken_down
from tests.kit.trace import (
    Diagnostic,
    DomainCreate,
    Items,
    Kernel,
    Mark,
    Process,
    Range,
    Row,
    ThreadName,
    global_pid,
    launch_graph,
    launch_kernel,
    launch_memcpy,
)

TRACES = Path(__file__).parents[2] / "traces"
SHIPPED = TRACES / "run.sqlite"
HOST, USER = "planted-host-7", "plantedal"
HOME, FOLDER = f"/home/{USER}", "/srv/plantedwork/project"
VARIABLES = {
    "PLANTED_API_KEY": b"hunter2-planted",
    "PLANTED_NOTE": b"an ordinary planted value",
    "PLANTED_BYTES": b"caf\xe9-planted\xff",
    "PLANTED_LIST": b"/usr/bin:/opt/planted/bin",
    "HOME": HOME.encode(),
    "PWD": FOLDER.encode(),
    "USER": USER.encode(),
    "HOSTNAME": HOST.encode(),
    "ONE": b"1",
}
# A part of every planted secret; "planted" stands in all that only the secrets have.
PLANTED = [b"planted", b"hunter2", b"caf\xe9"]
RAN = "kernel_of_work<root, gpu>(float*)"
Run = Callable[..., tuple[int, str, str]]

WHOLE = """\
removed from my run.sqlite:
  environment variables: 12
  host names and machine ids: 5
  user names: 2
  working folders: 1
  command-line arguments: 1
  paths of the export: 2
  captured files and streams: 2
  processes that recorded nothing: 1
  threads of such processes: 1
  unreferenced strings: 9
  paths cut down to the file name: 4
  tables unknown to nsysprof: 1 (GENERIC_EVENTS)
  properties unknown to nsysprof: 1 (SessionInfo)
  environment in other text: 1
  home in other text: 4
  host in other text: 2
  user in other text: 2
  working folder in other text: 1
"""


def text(value: bytes) -> str | bytes:
    """Text as text where it is some: a database in UTF-16 takes nothing else."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def block(variables: dict[str, bytes] | None = None) -> str | bytes:
    """An environment as the system keeps it."""
    chosen = VARIABLES if variables is None else variables
    return text(b"".join(name.encode() + b"=" + value + b"\0" for name, value in chosen.items()))


def property_rows() -> Iterator[Row]:
    """What nsys 2025 writes of the capture, the system and the export."""
    for name, value in VARIABLES.items():
        row = {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": text(name.encode() + b'="' + value + b'"')}
        yield Row("META_DATA_CAPTURE", row)
    for name, said in {
        "DEVICE_ID": "Local (CLI)",
        "DEVICE_DISPLAY_NAME": HOST,
        "PROCESS_0:COMMAND": f"{HOME}/bin/train",
        "PROCESS_0:ARGUMENT_0": "--password=planted-argument",
        "PROCESS_0:WORKING_DIR": FOLDER,
        "PROCESS_0:USER_NAME": USER,
        "NVTX_OPTIONS:NVTX_DOMAIN_FILTER_STRING": f"symbols of {HOME}/lib and {USER}@{HOST}",
    }.items():
        yield Row("META_DATA_CAPTURE", {"name": name, "value": said})
    environment = b";".join(name.encode() + b"=" + value for name, value in VARIABLES.items())
    for name, value in {
        "DeviceEnvironment": environment,
        "Hostname": HOST.encode(),
        "SystemUID": b"planted-uid",
        "TargetInstallDir": b"/opt/planted/nsys",
        "GpuInfo": b'{"Gpus":[{"Id":0,"Name":"NVIDIA H200","Path":"%b/x"}]}' % HOME.encode(),
        "SessionInfo": b'{"Environment":{"A":"planted a"},"hostname":"%b","deep":[{"cwd":"%b","n":1}]}'
        % (HOST.encode(), FOLDER.encode()),
        "NvDriverVersion": b"580.159.04",
        "OsDescription": b"Ubuntu 24.04",
    }.items():
        yield Row("TARGET_INFO_SYSTEM_ENV", {"name": name, "value": text(value), "devStateName": HOST})


def planted_items() -> list[Items]:
    """A report with a secret in every place known, and one process that recorded something."""
    return [
        *property_rows(),
        Range("step", 0, 400),
        Range(f"opened {FOLDER}/data", 10, 20),
        Range(f"read {HOME}", 30, 40, text_id=True),
        Range("root/gpu/efficient", 50, 60),
        Mark("key hunter2-planted", 70),
        DomainCreate(3, "root"),
        launch_kernel(RAN, (100, 110), (120, 200), id=1),
        launch_kernel(f"lambda at {HOME}/x.cu:3", (210, 220), (230, 300), id=2),
        launch_memcpy((310, 320), (330, 340), id=3),
        Diagnostic(f"Process was launched, see /tmp/planted/run.log of {USER}@{HOST}"),
        Process(1, f"{HOME}/bin/train"),
        Process(77, "planted-daemon"),
        ThreadName(1, "main"),
        ThreadName(5, "planted-thread", process=77),
        Row("ProcessStreams", {"globalPid": global_pid(1), "filenameId": 1, "contentId": 2}),
        Row("ANALYSIS_FILE", {"id": 0, "filename": "/proc/planted", "contentId": 3, "globalPid": 0}),
        Row("OSRT_CALLCHAINS", {"id": 1, "symbol": 5, "module": 4, "stackDepth": 0}),
        Row("GENERIC_EVENTS", {"typeId": 1, "data": '{"comm":"planted-daemon","user":"plantedal","n":5}'}),
    ]


def planted_strings() -> list[str | bytes]:
    """Strings of the same report; the ids that rows above refer to are their places here."""
    return [
        block(),
        "/tmp/planted/stdout.log",
        "what the planted program printed",
        "maps of planted",
        f"{HOME}/lib/libwork.so.1",
        "symbol_of_work",
        block({"OTHER_PROCESS": b"of another planted process"}),
        "SINGLE=planted single variable",
        "bash\0-c\0planted command",
        "an unused planted string",
    ]


def planted(trace: MakeTrace, **how: Any) -> Path:
    """The report with all of that in it."""
    exported = {"EXPORT_HOST": HOST, "EXPORT_USER": USER, "EXPORT_PARAM_INPUT_PATH_ABS": "/srv/planted/x.nsys-rep"}
    return trace(*planted_items(), strings=planted_strings(), metadata=exported, **how)


def left(path: Path) -> list[bytes]:
    """What is left of the secrets in the bytes of a file, in any encoding, with what stands around it."""
    raw = path.read_bytes().lower()
    found = []
    for word in PLANTED:
        text = word.decode("latin-1")
        for form in {word, *(text.encode(code) for code in ("utf-8", "utf-16-le", "utf-16-be"))}:
            at = raw.find(form)
            if at >= 0:
                found.append(raw[max(0, at - 40) : at + 60])
    return found


def ask(path: Path, sql: str) -> list[Any]:
    """Rows of the report; text that is not UTF-8 shows as U+FFFD."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        return connection.execute(sql).fetchall()


def answers(path: Path) -> dict[str, Any]:
    """All that an analysis says of the work in a report."""
    found = broken_down(path)
    frames = {name: getattr(found, name).to_dict("list") for name in ("ranges", "kernels", "ledger")}
    return {**frames, "totals": found.totals}


def state(folder: Path) -> dict[str, str]:
    """A hash of each file in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.is_file()}


def scrubbed(source: Path, out: Path, **how: Any) -> Path:
    """Scrub, and hold that the report and its folder are as they were."""
    before = {name: digest for name, digest in state(source.parent).items() if name != out.name}
    scrub_report(source, out, **how)
    assert {name: digest for name, digest in state(source.parent).items() if name != out.name} == before
    assert sorted(entry.name for entry in out.parent.iterdir() if entry.name.startswith(".")) == []
    return out


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"style": "2022.4"},
        {"style": "2019"},
        {"pragmas": ["encoding='UTF-16le'"]},
        {"pragmas": ["encoding='UTF-16be'"]},
        {"pragmas": ["page_size=512"]},
        {"pragmas": ["auto_vacuum=FULL"]},
        {"empty_tables": ["*"]},
    ],
    ids=str,
)
def test_no_byte_of_a_secret_is_left(trace: MakeTrace, tmp_path: Path, how: dict[str, Any]) -> None:
    """In rows, JSON, environment blocks and names, whatever the generation, the encoding and the page size."""
    source = planted(trace, **how)
    assert left(source), "the secrets are not even in the report"
    out = scrubbed(source, tmp_path / "out.sqlite")
    assert left(out) == []
    names = "SELECT coalesce(text, value) FROM NVTX_EVENTS AS n LEFT JOIN StringIds ON id = textId ORDER BY n.rowid"
    assert [name for (name,) in ask(out, names)] == [
        *("step", "opened [working folder]/data", "read [home]", "root/gpu/efficient", "key [environment]", "root")
    ]
    kernels = "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName ORDER BY start"
    assert [name for (name,) in ask(out, kernels)] == [RAN, "lambda at [home]/x.cu:3"]


def test_what_says_something_of_the_work_stays(trace: MakeTrace, tmp_path: Path) -> None:
    """Modules keep their file name, symbols all, the process its program, properties of the machine their value."""
    out = scrubbed(planted(trace), tmp_path / "out.sqlite")
    assert ask(out, "SELECT 1 FROM sqlite_master WHERE name = 'GENERIC_EVENTS'") == []
    chains = (
        "SELECT s.value, m.value FROM OSRT_CALLCHAINS"
        " JOIN StringIds AS s ON s.id = symbol JOIN StringIds AS m ON m.id = module"
    )
    assert ask(out, chains) == [("symbol_of_work", "[path]/libwork.so.1")]
    assert ask(out, "SELECT name FROM PROCESSES") == [("train",)]
    assert ask(out, "SELECT value FROM ThreadNames JOIN StringIds ON id = nameId") == [("main",)]
    assert ask(out, "SELECT text FROM DIAGNOSTIC_EVENT") == [
        ("Process was launched, see [path]/run.log of [user]@[host]",)
    ]
    assert dict(ask(out, "SELECT name, value FROM TARGET_INFO_SYSTEM_ENV")) == {
        "GpuInfo": '{"Gpus":[{"Id":0,"Name":"NVIDIA H200","Path":"[home]/x"}]}',
        "NvDriverVersion": "580.159.04",
        "OsDescription": "Ubuntu 24.04",
    }
    assert dict(ask(out, "SELECT name, value FROM META_DATA_CAPTURE")) == {
        "DEVICE_ID": "Local (CLI)",
        "PROCESS_0:COMMAND": "train",
        "NVTX_OPTIONS:NVTX_DOMAIN_FILTER_STRING": "symbols of [path]/lib and [user]@[host]",
    }


def test_what_was_removed_is_told(trace: MakeTrace, tmp_path: Path) -> None:
    """Every kind of thing is counted; a second time there is nothing to remove."""
    done = scrub_report(planted(trace), tmp_path / "out.sqlite")
    assert done.path == tmp_path / "out.sqlite"
    assert done.removed["environment variables"] == len(VARIABLES) + 3
    assert done.removed["processes that recorded nothing"] == 1
    assert done.removed["captured files and streams"] == 2
    assert {"environment", "home", "host", "user", "working folder", "path", "process"} <= set(done.kinds)
    again = scrub_report(done.path, tmp_path / "again.sqlite")
    assert again.removed == {}
    assert answers(again.path) == answers(done.path)


def test_what_a_program_printed_is_not_read(trace: MakeTrace, tmp_path: Path) -> None:
    """It may be a gigabyte, goes anyway, and is counted; environments are learned from all the same."""
    printed = "what the program printed\n" * (1 << 20)
    source = trace(
        Range("step hunter2-planted", 0, 9),
        Row("ProcessStreams", {"globalPid": global_pid(1), "filenameId": 1, "contentId": 2}),
        strings=["/tmp/stdout.log", printed, block()],
    )
    tracemalloc.start()
    try:
        done = scrub_report(source, tmp_path / "out.sqlite")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < len(printed) / 4
    assert done.removed["unreferenced strings"] == 3
    assert done.path.stat().st_size < 1 << 20
    assert ask(done.path, "SELECT text FROM NVTX_EVENTS") == [("step [environment]",)]


UUID, OTHER_UUID = "14d5ca01-a82c-498c-87a0-c242cfef17f9", "2f1c9a44-0000-4a4e-9c1d-9f3b1f0a77aa"
MAC, ADDRESS, LONG_ADDRESS, GUID = (
    *("0c:42:a1:5d:9e:77", "10.20.30.44", "fe80::1ff:fe23:4567:890a", "506b:4b03:00cb:f00d"),
)
STRANGER = "/home/stranger/secretproject"
UNKNOWN = [
    *(UUID, OTHER_UUID, MAC, ADDRESS, LONG_ADDRESS, GUID, "node0815", "mlx5_of_node", "0x506b4b0300cbf00d"),
    *("SN1322923000111", "4f3c2b1a99887766554433221100ffee", "ssh-gateway", "strange note", "telling name"),
]


@pytest.fixture
def strange(trace: MakeTrace) -> Path:
    """A report with addresses, ids and hosts where no list of private properties would look for them."""
    source = trace(
        Range("step", 0, 400),
        Range(f"load {STRANGER}/data.bin", 10, 20),
        Range(f"from {ADDRESS}", 30, 40, text_id=True),
        launch_kernel(f"lambda at {STRANGER}/x.cu:3", (100, 110), (120, 200), id=1),
        Diagnostic(f"Connected to {ADDRESS}:4711, {LONG_ADDRESS} of {MAC}; CUDA 12.4, 127.0.0.1, at 12:46:35"),
        Diagnostic(f"GPU-{UUID} at 0000:01:00.0, adapter {GUID}, nsys 2023.4.4.54"),
        Row("TARGET_INFO_NIC_INFO", {"nicId": 1, "name": "mlx5_of_node", "GUID": 123, "stateName": "node0815"}),
        Row("NET_IB_DEVICE_INFO", {"nicId": 1, "name": "node0815 mlx5_0", "guid": "0x506b4b0300cbf00d"}),
        Row("NET_NIC_METRIC", {"start": 1, "nicId": 1, "value": 5, "ipAddress": 169090600}),
        *(
            Row("TARGET_INFO_SYSTEM_ENV", {"name": name, "value": value, "devStateName": "ssh-gateway"})
            for name, value in {
                "MachineId": "4f3c2b1a99887766554433221100ffee",
                "REMOTE_ADDRESS": f"{ADDRESS}:22",
                "BoardSerialNumber": "SN1322923000111",
                "Novelty": "node0815",
                "NvDriverVersion": "580.159.04",
                "OfedDriverVersion": "MLNX_OFED_LINUX-5.8-2.0.3.0",
                "GpuInfo": f'{{"Gpus":[{{"Name":"NVIDIA H200","Uuid":"{UUID}"}}],"Other":"{OTHER_UUID}"}}',
                "TargetInstallDir": "/data/node0815/nsight-systems-2023.1.2/target-linux-x64",
            }.items()
        ),
        capture={"DEVICE_ID": "ssh-gateway", "NVTX_OPTIONS:NVTX_DOMAIN_FILTER_STRING": "mine"},
    )
    change(
        source,
        f"UPDATE TARGET_INFO_GPU SET uuid = '{UUID}', luid = 77",
        "ALTER TABLE TARGET_INFO_GPU ADD COLUMN serialNumber INTEGER",
        "UPDATE TARGET_INFO_GPU SET serialNumber = 1322923000111",
        "ALTER TABLE NVTX_EVENTS ADD COLUMN note TEXT",
        "UPDATE NVTX_EVENTS SET note = 'strange note'",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET graphNodeId = 'telling name'",
        "CREATE TABLE mine (a TEXT)",
        f"INSERT INTO mine VALUES ('node0815 of {STRANGER}')",
    )
    return source


def test_what_is_not_known_goes(strange: Path, tmp_path: Path) -> None:
    """Tables, columns and properties, whatever they are called; addresses and ids out of what stays; and it is told."""
    raw = strange.read_bytes().decode("utf-8", "replace")
    assert [text for text in UNKNOWN if text not in raw] == []
    done = scrub_report(strange, tmp_path / "out.sqlite")
    raw = done.path.read_bytes().decode("utf-8", "replace")
    assert [text for text in UNKNOWN if text in raw and text != ADDRESS] == []  # that is in the name of a range
    assert {what.split()[0]: sorted(names) for what, names in done.unknown.items()} == {
        "tables": ["NET_IB_DEVICE_INFO", "TARGET_INFO_NIC_INFO", "mine"],
        "columns": ["NET_NIC_METRIC.ipAddress", "NVTX_EVENTS.note", "TARGET_INFO_GPU.serialNumber"],
        "properties": ["Novelty"],
    }
    assert done.removed["texts in columns of numbers"] == 1
    assert dict(ask(done.path, "SELECT name, value FROM TARGET_INFO_SYSTEM_ENV")) == {
        "NvDriverVersion": "580.159.04",
        "OfedDriverVersion": "MLNX_OFED_LINUX-5.8-2.0.3.0",
        "GpuInfo": '{"Gpus":[{"Name":"NVIDIA H200"}],"Other":"[address]"}',
        "TargetInstallDir": "[path]/nsight-systems-2023.1.2/target-linux-x64",
    }
    assert [text for (text,) in ask(done.path, "SELECT text FROM DIAGNOSTIC_EVENT")] == [
        "Connected to [address]:4711, [address] of [address]; CUDA 12.4, 127.0.0.1, at 12:46:35",
        "GPU-[id] at 0000:01:00.0, adapter [address], nsys 2023.4.4.54",
    ]
    assert ask(done.path, "SELECT name, uuid, luid FROM TARGET_INFO_GPU") == [("NVIDIA H200", None, None)]
    assert ask(done.path, "SELECT value FROM NET_NIC_METRIC") == [(5,)]
    assert ask(done.path, "SELECT value FROM META_DATA_CAPTURE") == [("mine",)]
    assert answers(done.path) == answers(strange)


def test_names_of_ranges_lose_paths_when_asked(strange: Path, tmp_path: Path) -> None:
    """`--names`: folders of anybody, and addresses, in ranges and kernels; their times stay."""
    names = "SELECT coalesce(text, value) FROM NVTX_EVENTS AS n LEFT JOIN StringIds ON id = textId ORDER BY start"
    kernel = "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName"
    kept = scrub_report(strange, tmp_path / "kept.sqlite").path
    assert [name for (name,) in ask(kept, names)] == ["step", f"load {STRANGER}/data.bin", f"from {ADDRESS}"]
    cut = scrub_report(strange, tmp_path / "cut.sqlite", names=True).path
    assert [name for (name,) in ask(cut, names)] == ["step", "load [path]/data.bin", "from [address]"]
    assert ask(cut, kernel) == [("lambda at [path]/x.cu:3",)]
    assert b"stranger" not in cut.read_bytes()
    assert answers(cut)["totals"] == answers(strange)["totals"]


def test_what_is_not_known_can_be_kept(strange: Path, run: Run, tmp_path: Path) -> None:
    """By its name or a pattern; what is known to be private is cut out of it, and a name of nothing is an error."""
    keep = ["--keep", "mine", "--keep", "NVTX_EVENTS.note", "--keep", "Nov*"]
    code, out, _ = run("scrub", strange, "-o", "out.sqlite", *keep)
    assert code == 0
    assert "TARGET_INFO_NIC_INFO" in out
    assert "Novelty" not in out
    assert ask(tmp_path / "out.sqlite", "SELECT a FROM mine") == [("node0815 of [path]/secretproject",)]
    assert ask(tmp_path / "out.sqlite", "SELECT DISTINCT note FROM NVTX_EVENTS") == [("strange note",)]
    assert ask(tmp_path / "out.sqlite", "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Novelty'")
    code, _, err = run("scrub", strange, "-o", "other.sqlite", "--keep", "MINE")
    assert code == 1
    assert err.startswith(
        "nsysprof: --keep MINE has no effect: scrub removes no table, column or property of this name\n  hint: "
    )
    assert not (tmp_path / "other.sqlite").exists()


def test_the_help_lists_what_stays(run: Run) -> None:
    """Who passes a copy on knows what is still in it."""
    code, out, _ = run("scrub", "--help")
    said = " ".join(out.split())
    assert code == 0
    assert "Kept by design: names of ranges, kernels" in said
    assert "all times" in said


def change(path: Path, *statements: str, parameters: Sequence[Any] = ()) -> None:
    """Do to a report what a user may do with sqlite3."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement, parameters if "?" in statement else ())
        connection.commit()


def test_free_pages_are_not_copied(trace: MakeTrace, tmp_path: Path) -> None:
    """Rows that were deleted before are still in the report's file, and not in the copy's."""
    source = trace(Range("step", 0, 100), *launch_kernel("gemm", (10, 15), (20, 30), id=1))
    change(
        source, "PRAGMA secure_delete = OFF", "CREATE TABLE gone AS SELECT ? AS text", parameters=["planted " * 2000]
    )
    change(source, "PRAGMA secure_delete = OFF", "DROP TABLE gone")
    assert left(source)
    assert left(scrubbed(source, tmp_path / "out.sqlite")) == []


def test_a_write_ahead_log_belongs_to_the_report(trace: MakeTrace, tmp_path: Path) -> None:
    """Rows that stand in the log alone are in the copy, its secrets are not, and file and log stay as they are."""
    written = planted(trace, name="written.sqlite")
    with closing(sqlite3.connect(written)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("INSERT INTO NVTX_EVENTS (start, eventType, text) VALUES (5, 34, 'from the log')")
        connection.execute("INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:USER_NAME', 'planted in the log')")
        connection.commit()
        folder = tmp_path / "report"
        folder.mkdir()
        for ending in ("", "-wal"):
            shutil.copy(f"{written}{ending}", folder / f"run.sqlite{ending}")
    out = scrubbed(folder / "run.sqlite", tmp_path / "out.sqlite")
    assert left(out) == []
    assert ask(out, "SELECT count(*) FROM NVTX_EVENTS WHERE text = 'from the log'") == [(1,)]
    assert out.read_bytes()[18:20] == b"\1\1", "the copy needs no log"


def test_an_interrupted_change_is_undone_in_the_copy(trace: MakeTrace, tmp_path: Path) -> None:
    """A journal of a program that died says what the report was; the copy is that, the report stays as it is."""
    written = planted(trace, name="written.sqlite", pragmas=["page_size=512"])
    folder = tmp_path / "report"
    folder.mkdir()
    with closing(sqlite3.connect(written, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN")
        connection.execute("UPDATE NVTX_EVENTS SET start = start + 7")
        connection.execute("UPDATE StringIds SET value = value || 'changed'")
        for ending in ("", "-journal"):
            shutil.copy(f"{written}{ending}", folder / f"run.sqlite{ending}")
        connection.execute("ROLLBACK")
    out = scrubbed(folder / "run.sqlite", tmp_path / "out.sqlite")
    assert left(out) == []
    assert ask(out, "SELECT min(start) FROM NVTX_EVENTS") == [(0,)]


def test_what_somebody_added_gives_nothing_away(trace: MakeTrace, tmp_path: Path) -> None:
    """Indexes, views, triggers that log, search tables, samples of ANALYZE, declarations, blobs, odd types."""
    source = planted(trace)
    secret = "hunter2-planted"
    change(
        source,
        "CREATE INDEX by_value ON StringIds (value)",
        "CREATE UNIQUE INDEX once ON StringIds (value, id)",
        f"CREATE INDEX partial ON StringIds (id) WHERE value <> '{HOME}/x'",
        "CREATE VIEW plain AS SELECT value FROM StringIds",
        f"CREATE VIEW telling AS SELECT * FROM StringIds WHERE value = '{HOME}'",
        "CREATE TABLE log (was)",
        "CREATE TRIGGER keep AFTER UPDATE ON StringIds BEGIN INSERT INTO log VALUES (old.value); END",
        "CREATE TRIGGER keep2 AFTER DELETE ON PROCESSES BEGIN INSERT INTO log VALUES (old.name); END",
        "CREATE VIRTUAL TABLE found USING fts5(text)",
        f"INSERT INTO found VALUES ('{HOME} planted text')",
        f"CREATE TABLE declared (a INTEGER, b TEXT DEFAULT '{HOME}/b' /* {secret} */, c AS (a || ' of {HOME}'))",
        "INSERT INTO declared (a) VALUES (1)",
        "CREATE TABLE keyed (k TEXT PRIMARY KEY, v BLOB) WITHOUT ROWID",
        f"INSERT INTO keyed VALUES ('{HOME}', CAST('\x01{secret}' AS BLOB))",
        f"INSERT INTO keyed VALUES ('wide', x'{secret.encode('utf-16-le').hex()}')",
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET graphNodeId = 'at {FOLDER}' WHERE start = 120",
        "ALTER TABLE NVTX_EVENTS ADD COLUMN note TEXT",
        f"UPDATE NVTX_EVENTS SET note = 'of {secret}'",
        f'CREATE TABLE "{secret}" (x)',
        "ANALYZE",
    )
    change(source, "INSERT INTO log VALUES (?)", parameters=[f"{HOME}/logged"])
    assert left(source)
    assert left(scrubbed(source, tmp_path / "bare.sqlite")) == []
    bare = {name for (name,) in ask(tmp_path / "bare.sqlite", "SELECT name FROM sqlite_master")}
    assert {"by_value", "once"} <= bare
    added = {"log", "declared", "keyed"}
    assert not {"partial", "plain", "telling", "keep", "keep2", "found", "sqlite_stat1"} & bare
    assert not added & bare
    out = scrubbed(source, tmp_path / "out.sqlite", keep=[*added, "NVTX_EVENTS.no*", secret])
    assert left(out) == []
    names = {name for (name,) in ask(out, "SELECT name FROM sqlite_master")}
    assert names >= bare | added
    assert not {"partial", "plain", "telling", "keep", "keep2", "found", "found_content", "sqlite_stat1"} & names
    assert ask(out, "SELECT DISTINCT note FROM NVTX_EVENTS") == [("of [environment]",)]
    assert ask(out, "SELECT a, b, c FROM declared") == [(1, "[path]/b", "1 of [home]")]
    assert ask(out, "SELECT k, v FROM keyed ORDER BY k") == [
        ("[path]/", b"\x01" + b"x" * len(secret)),
        ("wide", b"x" * 2 * len(secret)),
    ]
    assert ask(out, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("style", ["2019", "2022.4", "2025.3"])
def test_a_report_without_secrets_in_names_says_the_same(trace: MakeTrace, tmp_path: Path, style: str) -> None:
    """Ranges, kernels, ledger and totals are equal; users and hosts that are words change no name."""
    items: list[Items] = [
        Row("META_DATA_CAPTURE", {"name": "DEVICE_DISPLAY_NAME", "value": "gpu"}),
        Row("META_DATA_CAPTURE", {"name": "PROCESS_0:USER_NAME", "value": "root"}),
        Row("META_DATA_CAPTURE", {"name": "PROCESS_0:WORKING_DIR", "value": "/"}),
        *(
            Row("META_DATA_CAPTURE", {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": value})
            for value in ('BACKEND="efficient"', 'HOME="/root"', 'KIND="float"', 'WHAT="softmax_forward_kernel"')
        ),
        Range("root", 0, 900),
        Range("RUN::efficient::S1024", 5, 600),
        Range("/root/gpu", 10, 500, text_id=True),
        launch_kernel("void root::softmax_forward_kernel<float>(gpu*)", (20, 30), (40, 90), id=1),
        launch_kernel("efficient", (100, 110), (120, 190), id=2),
        launch_graph((200, 210), (220, 290), id=3),
        launch_memcpy((700, 710), (720, 790), id=4),
        Kernel("orphan", 800, 850, 99),
        Process(9, "float"),
    ]
    source = trace(*items, style=style)
    out = scrubbed(source, tmp_path / "out.sqlite")
    assert answers(out) == answers(source)
    with open_report(source) as before, open_report(out) as after:
        assert after.about.gpus == before.about.gpus
        assert after.about.nsys_version == before.about.nsys_version


@pytest.mark.parametrize("name", ["run", "block", "two-processes"])
def test_a_shipped_report_is_scrubbed_already_and_says_the_same(name: str, tmp_path: Path) -> None:
    """But for ids of GPUs nothing private is found in what this project ships; scrubbing it changes no frame."""
    shipped = TRACES / f"{name}.sqlite"
    assert set(scrub_report(shipped, tmp_path / "first.sqlite").removed) == {"ids of GPUs and of the session"}
    assert answers(scrubbed(shipped, tmp_path / "out.sqlite")) == answers(shipped)


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode elsewhere")
def test_a_folder_need_not_have_a_name_in_utf8(trace: MakeTrace, tmp_path: Path) -> None:
    """Old disks have such folders."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    assert left(scrubbed(planted(trace), folder / "out.sqlite")) == []


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
def test_what_was_unique_need_not_stay_so(trace: MakeTrace, tmp_path: Path, encoding: str) -> None:
    """Two texts may become one; the index is whole, whether or not it was made, and the rows are all there."""
    work = launch_kernel("gemm", (10, 15), (20, 30), id=1)
    source = trace(Range("step", 0, 100), *work, pragmas=[f"encoding='{encoding}'"])
    paths = [f"{HOME}/{name}/x.py" for name in "ab"]
    change(
        source,
        "CREATE TABLE one (a TEXT UNIQUE, b INTEGER, c AS (a || b))",
        "CREATE TABLE two (a TEXT PRIMARY KEY) WITHOUT ROWID",
        "CREATE TABLE three (a TEXT)",
        "CREATE VIEW broken AS SELECT * FROM nowhere",
        *(f"INSERT INTO {table} (a) VALUES ('{path}')" for table in ("one", "two", "three") for path in paths),
        "CREATE UNIQUE INDEX once ON three (a)",
        "CREATE INDEX of_json ON three (iif(a LIKE '[path]%', json(a), a))",
    )
    out = scrubbed(source, tmp_path / "out.sqlite", keep=["one", "two", "three"])
    for table in ("one", "two", "three"):
        assert ask(out, f"SELECT a FROM {table}") == [("[path]/x.py",)] * 2, table
        assert ask(out, f"SELECT count(*) FROM {table} WHERE a = '[path]/x.py'") == [(2,)]
    assert ask(out, "SELECT name FROM sqlite_master WHERE type = 'index'") == [("once",)]
    assert ask(out, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_interrupt_leaves_nothing_that_is_not_scrubbed(
    trace: MakeTrace, tmp_path: Path, number: signal.Signals
) -> None:
    """Whatever stops it, also a terminal that closes, the copy beside OUT goes; one line says what happened."""
    made = fake_nsys.install(tmp_path / "nsys", planted(trace))
    (tmp_path / "a.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 2025.3.2.474-v0")
    command = [sys.executable, "-m", "nsysprof", "scrub", "a.nsys-rep", "-o", "out/copy.sqlite"]
    (tmp_path / "out").mkdir()
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**made, "FAKE_NSYS": "slow export"},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as child:
        while not (tmp_path / "ready").exists() and child.poll() is None:
            time.sleep(0.05)
        child.send_signal(number)
        _, said = child.communicate(timeout=30)
    assert (child.returncode, said) == (128 + number, "nsysprof: interrupted\n")
    assert list((tmp_path / "out").iterdir()) == []


def test_an_interrupt_while_sqlite_calls_back_is_one(tmp_path: Path) -> None:
    """SQLite says only that its function failed, which would be an error of the report."""

    def changed(text: str) -> str:
        signal.raise_signal(signal.SIGTERM)
        return text

    with closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function("changed", 1, changed)
        with pytest.raises(Interrupt) as caught, interrupts_raised():
            connection.execute("SELECT changed('x')")
    assert caught.value.number == signal.SIGTERM


def test_an_existing_file_is_not_overwritten(trace: MakeTrace, tmp_path: Path) -> None:
    """Not even by a copy that was finished in the meantime."""
    source = planted(trace)
    out = tmp_path / "out.sqlite"
    out.write_text("mine")
    with pytest.raises(NsysprofError, match="exists already, not overwritten"):
        scrub_report(source, out)
    assert out.read_text() == "mine"


@pytest.mark.parametrize("damage", ["truncated", "scribbled", "empty", "text", "missing"])
def test_what_cannot_be_read_leaves_nothing(trace: MakeTrace, tmp_path: Path, damage: str) -> None:
    """One clean error, no copy, no folder."""
    source = planted(trace, name="damaged.sqlite")
    raw = source.read_bytes()
    content = {
        "truncated": raw[: len(raw) // 2],
        "scribbled": raw[:5000] + b"\x99" * 20000 + raw[25000:],
        "empty": b"",
        "text": b"no database at all" * 100,
    }
    if damage == "missing":
        source.unlink()
    else:
        source.write_bytes(content[damage])
    with pytest.raises(NsysprofError) as caught:
        scrub_report(source, tmp_path / "out.sqlite")
    assert str(source) in caught.value.message
    assert [path.name for path in tmp_path.iterdir()] == ([] if damage == "missing" else [source.name])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
@pytest.mark.parametrize("ending", ["-wal", "-journal"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_log_without_end_is_not_copied(trace: MakeTrace, tmp_path: Path, kind: str, ending: str) -> None:
    """A pipe, or a link to a device: neither waited for nor copied until the disk is full."""
    source = planted(trace)
    log = Path(f"{source}{ending}")
    if kind == "pipe":
        os.mkfifo(log)
    else:
        log.symlink_to("/dev/zero")
    with pytest.raises(NsysprofError) as caught:
        scrub_report(source, tmp_path / "out.sqlite")
    assert caught.value.message == f"{log}: cannot be read: not a regular file"
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name, log.name]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `nsysprof …` in this process, in the test's own folder: exit code, stdout, stderr."""
    call = runner(tmp_path, capsys, monkeypatch)
    return lambda *arguments: astuple(call(*arguments))


def test_the_whole_output(trace: MakeTrace, run: Run, tmp_path: Path) -> None:
    """What was removed and the next command on stdout, the file on stderr; by default in the current folder.

    A symbolic link names the copy, and not its target.
    """
    (tmp_path / "in").mkdir()
    shutil.move(planted(trace), tmp_path / "in" / "048.sqlite")
    (tmp_path / "in" / "my run.sqlite").symlink_to("048.sqlite")
    code, out, err = run("scrub", "in/my run.sqlite")
    assert code == 0
    assert out == f"{WHOLE}   $ nsysprof analyze 'my run.scrubbed.sqlite'\n"
    size = format_bytes((tmp_path / "my run.scrubbed.sqlite").stat().st_size)
    assert err == (f"to keep something unknown to nsysprof: --keep NAME\nWritten to my run.scrubbed.sqlite ({size})\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "my run.scrubbed.sqlite"]
    assert left(tmp_path / "my run.scrubbed.sqlite") == []
    code, out, err = run("scrub", "my run.scrubbed.sqlite", "-o", "again.sqlite")
    assert (code, out) == (0, "my run.scrubbed.sqlite: nothing private found\n   $ nsysprof analyze again.sqlite\n")


@pytest.mark.parametrize("kind", ["itself", "symbolic link", "hard link"])
def test_the_report_itself_is_never_replaced(trace: MakeTrace, run: Run, tmp_path: Path, kind: str) -> None:
    """Under no name, and not by force."""
    source = planted(trace)
    before = source.read_bytes()
    name = tmp_path / "other.sqlite"
    if kind == "symbolic link":
        name.symlink_to(source)
    elif kind == "hard link":
        os.link(source, name)
    code, _, err = run("scrub", source, "-o", source if kind == "itself" else name, "--force")
    assert code == 1
    assert "the report itself, which is never overwritten" in err
    assert source.read_bytes() == before


def test_what_is_no_sqlite_report_is_refused_by_name(trace: MakeTrace, run: Run, tmp_path: Path) -> None:
    """Other databases, pointers, texts, parquet folders, folders and files that are not there."""
    other = tmp_path / "other.sqlite"
    change(other, "CREATE TABLE mine (a)")
    pointer = tmp_path / "pointer.sqlite"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    parquet = tmp_path / "run_pqtdir"
    parquet.mkdir()
    (parquet / "StringIds.parquet").write_bytes(b"PAR1")
    (empty := tmp_path / "empty").mkdir()
    (tmp_path / "loop.sqlite").symlink_to("loop.sqlite")
    for path, said in {
        other: "an SQLite database, but not a report",
        pointer: "a Git LFS pointer",
        parquet: "a Parquet export, but scrub handles only SQLite reports",
        empty: "a folder, but not a Parquet export",
        tmp_path / "nothing.sqlite": "no such file",
        tmp_path / "loop.sqlite": "Too many levels of symbolic links",
    }.items():
        for output in (["-o", "out.sqlite"], []):
            code, out, err = run("scrub", path, *output)
            assert (code, out) == (1, ""), path
            assert said in err.splitlines()[0]
        assert path.name == "loop.sqlite" or err.splitlines()[1].startswith("  hint: ")
    source = planted(trace)
    for name, said in {"no/where.sqlite": "there is no folder no", "run_pqtdir": "exists already"}.items():
        code, _, err = run("scrub", source, "-o", name)
        assert code == 1
        assert said in err
    (tmp_path / "out.sqlite-wal").write_bytes(b"of another file")
    code, _, err = run("scrub", source, "-o", "out.sqlite")
    assert code == 1
    assert "the log of another file with the same name" in err
    assert not (tmp_path / "out.sqlite").exists()


PROGRAM = """
import os, sys, nvtx
print("planted output")
for step in range(50):
    with nvtx.annotate(f"step {step}"):
        pass
with nvtx.annotate("in " + os.getcwd()):
    pass
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What nsys exports of a program run in a planted folder with planted variables, beside a planted process."""
    try:
        nsys = find_nsys()
    except NsysprofError as error:
        pytest.skip(f"no nsys: {error.message}")
    folder = tmp_path_factory.mktemp("scrub") / "planted-home" / "planted-folder"
    folder.mkdir(parents=True)
    (folder / "planted_script.py").write_text(PROGRAM)
    sleeper = folder / "planted-proc"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", sleeper)
    environment = {
        **os.environb,
        b"HOME": os.fsencode(folder.parent),
        b"PWD": os.fsencode(folder),  # as shells set it; nsys before 2023.3 has the folder nowhere else
        b"USER": b"planted-user",
        b"PLANTED_TOKEN": b"planted-hunter2",
        b"PLANTED_BYTES": b"caf\xe9-planted\xff",
        b"PLANTED_QUOTES": b'planted "a";B=planted\\',
    }
    quiet = ["--sample=none", "--cpuctxsw=none", "--trace=nvtx,osrt", "-o", str(folder / "run")]
    program = [sys.executable, "planted_script.py", "--password=planted-argument"]
    with subprocess.Popen([sleeper, "60"], env={"ONLY": "planted-only"}) as other:
        try:
            done = subprocess.run(
                [str(nsys.path), "profile", *quiet, *program],
                capture_output=True,
                check=False,
                timeout=120,
                cwd=folder,
                env=environment,
            )
        finally:
            other.kill()
    said = (done.stdout + done.stderr).decode("utf-8", "replace")[-200:]
    return _exported(nsys, folder, said)


def _exported(nsys: Nsys, folder: Path, said: str) -> Path:
    """The export of what `nsys profile` left; imported first where nsys did not find its importer."""
    report, stream = folder / "run.nsys-rep", folder / "run.qdstrm"
    if stream.is_file() and not report.is_file():
        if find_importer(nsys) is None:
            pytest.skip("this nsys has no importer: it cannot make a .nsys-rep")
        import_stream(stream, report, nsys)
    if not report.is_file():
        pytest.skip(f"nsys made no report here: {said}")
    export(nsys, report, folder / "run.sqlite")
    return folder / "run.sqlite"


@pytest.mark.nsys
def test_a_real_export_holds_what_was_planted(real: Path) -> None:
    """Or the next tests would show nothing: variables, also of other processes, folder, output, process."""
    raw = real.read_bytes()
    for secret in (b"planted-hunter2", b"caf\xe9-planted\xff", b"planted-folder", b"planted-user", b"planted output"):
        assert secret in raw, secret
    if ask(real, "SELECT 1 FROM sqlite_master WHERE name = 'META_DATA_CAPTURE'"):  # before 2023.3 no arguments
        assert b"planted-argument" in raw
    assert b"planted-proc" in raw
    assert b"planted-only" in raw


@pytest.mark.nsys
def test_a_real_export_gives_nothing_away(real: Path, tmp_path: Path) -> None:
    """No planted byte, no name of another process, no host, no folder of the machine's user; the answer stays."""
    out = scrubbed(real, tmp_path / "out.sqlite")
    raw = out.read_bytes()
    assert left(out) == []
    for folder in {str(Path.home()), str(Path(sys.executable).parent), str(Path(sys.prefix).resolve())}:
        if not folder.startswith(("/usr", "/bin")):
            assert os.fsencode(f"{folder}/") not in raw, folder
    # before it becomes Python the profiled program is nsys's launcher: it or its thread may be recorded so
    program = "SELECT globalTid / 0x1000000 * 0x1000000 FROM NVTX_EVENTS"
    others = ask(real, f"SELECT name FROM PROCESSES WHERE globalPid NOT IN ({program})")
    threads = "SELECT value FROM ThreadNames JOIN StringIds ON id = nameId WHERE globalTid / 0x1000000 * 0x1000000"
    own = {name for (name,) in ask(real, f"{threads} IN ({program})")}
    names = {name for (name,) in others if len(name) > 9} - own
    assert names
    assert [name for name in names if name.encode() in raw] == []
    tables = "'META_DATA_CAPTURE', 'META_DATA_EXPORT', 'EXPORT_META_DATA', 'TARGET_INFO_SYSTEM_ENV'"
    texts = [text for (table,) in ask(out, f"SELECT name FROM sqlite_master WHERE name IN ({tables})")
             for (text,) in ask(out, f"SELECT value FROM {table}")]  # fmt: skip
    assert socket.gethostname() not in texts
    before, found = answers(real), answers(out)
    assert (found["ledger"], found["totals"]) == (before["ledger"], before["totals"])
    ranges = ask(real, "SELECT count(*) FROM NVTX_EVENTS WHERE eventType = 59")
    if ranges == [(51,)]:  # this nsys records the ranges of this nvtx package
        paths = found["ranges"]["path"]
        assert [path for path in paths if path not in before["ranges"]["path"]] == ["in [working folder]"]
        assert len(paths) == len(before["ranges"]["path"])


@pytest.mark.nsys
def test_the_command_exports_a_report_first(real: Path, tmp_path: Path, run: Run) -> None:
    """A .nsys-rep becomes a scrubbed .sqlite; the export in between is gone, and the report stays as it is."""
    report = real.with_suffix(".nsys-rep")
    before = report.read_bytes()
    code, out, _ = run("scrub", report, "-o", "out.sqlite")
    assert code == 0
    assert out.startswith("removed from run.nsys-rep:\n  environment variables: ")
    assert left(tmp_path / "out.sqlite") == []
    assert [path.name for path in tmp_path.iterdir()] == ["out.sqlite"]
    assert report.read_bytes() == before
