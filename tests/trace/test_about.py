"""What a report says of itself, over all generations of metadata, and which GPU a device is."""

import dataclasses
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsysprof.trace.about import About, Diagnostic
from nsysprof.trace.nsys.about import gpus_of_devices
from nsysprof.trace.report import open_report
from nsysprof.trace.trace import Report
from tests.kit.reports import source_of

Rows = Sequence[Sequence[Any]]
Make = Callable[..., Report]
VM = 1 << 48


@pytest.fixture
def report(tmp_path: Path) -> Make:
    """Opens a tiny report made of tables: each the names of its columns and its rows."""

    def make(tables: Mapping[str, tuple[str, Rows]] | None = None) -> Report:
        path = tmp_path / f"r{len(list(tmp_path.iterdir()))}.sqlite"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
            for table, (columns, rows) in (tables or {}).items():
                connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
                marks = ", ".join("?" * len(columns.split(",")))
                connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            connection.commit()
        return open_report(path)

    return make


def gpus_of(report: Report, *devices: tuple[int, int]) -> list[int | None]:
    """Which of the report's GPUs each (process, CUDA device id) is."""
    return gpus_of_devices(source_of(report), report.about.gpus, devices)


def meta(product: str, schema: str) -> Rows:
    """The rows of an export's metadata."""
    return [("EXPORT_PRODUCT_VERSION", product), ("EXPORT_SCHEMA_VERSION", schema), ("EXPORT_HOST", "secret")]


SIZES = "smCount, totalMemory, memoryBandwidth, clockRate, l2CacheSize"
GPU = f"vmId, id, name, {SIZES}, computeMajor, computeMinor"
H200 = (0, "NVIDIA H200", 132, 150_109_880_320, 4_814_304_000_000, 1_980_000_000, 62_914_560, 9, 0)


def test_quirk_01_three_generations_of_metadata(report: Make) -> None:
    """None (2019-2021), EXPORT_META_DATA (2022), META_DATA_EXPORT (2023.3 on): each is read where it is."""
    oldest = report().about
    assert (oldest.generation, oldest.nsys_version, oldest.schema_version) == ("none", None, None)
    assert "nsys 2021 or older" in oldest.warnings[0]

    middle = report({"EXPORT_META_DATA": ("name TEXT, value TEXT", meta("2022.4.2.1", "3.0.0"))}).about
    assert (middle.generation, middle.export_version, middle.schema_version) == (
        "EXPORT_META_DATA",
        "2022.4.2.1",
        "3.0.0",
    )
    newest = report({"META_DATA_EXPORT": ("name TEXT, value TEXT", meta("2025.3.2.0", "3.20.3"))}).about
    assert (newest.generation, newest.nsys_version, newest.schema_version) == (
        "META_DATA_EXPORT",
        "2025.3.2.0",
        "3.20.3",
    )
    assert (middle.warnings, newest.warnings) == ((), ())


def test_quirk_01_the_capture_version_is_not_the_export_version(report: Make) -> None:
    """Where the version that captured is recorded it is the report's; the export's stays beside it."""
    about = report(
        {
            "META_DATA_EXPORT": ("name TEXT, value TEXT", meta("2025.3.2.0", "3.20.3")),
            "META_DATA_CAPTURE": ("name TEXT, value TEXT", [("PRODUCT_VERSION", "2024.2.3.38")]),
        }
    ).about
    assert (about.nsys_version, about.export_version) == ("2024.2.3.38", "2025.3.2.0")


@pytest.mark.parametrize(
    ("folder", "recorder"),
    [
        ("/opt/nvidia/nsight-systems/2023.3.3/target-linux-x64", "2023.3.3"),
        ("/usr/local/cuda-12.1/nsight-systems-2023.1.2/target-linux-x64", "2023.1.2"),
        ("/global/easybuild/software/Nsight-Systems/2022.2.1/target-linux-x64", "2022.2.1"),
        (r"C:\Program Files\NVIDIA Corporation\Nsight Systems 2024.5.1\target-windows-x64", "2024.5.1"),
        ("/opt/nvidia/nsight-systems/2025.3.2/target-linux-x64", "2025.3.2.0"),
        ("/opt/nvidia/nsight-compute/2023.2.0/host/target-linux-x64", None),
        ("/opt/nvidia/hpc_sdk/Linux_x86_64/23.11/profilers/Nsight_Systems/target-linux-x64", None),
        ("/usr/lib/x86_64-linux-gnu/nsight-systems/target-linux-x64", None),
    ],
)
def test_the_nsys_that_recorded_is_told_by_its_folder(report: Make, folder: str, recorder: str | None) -> None:
    """Where no metadata has it; the folders of other tools have versions of their own, which are not it."""
    about = report(
        {
            "META_DATA_EXPORT": ("name TEXT, value TEXT", meta("2025.3.2.0", "3.20.3")),
            "TARGET_INFO_SYSTEM_ENV": ("name TEXT, value TEXT", [("TargetInstallDir", folder)]),
        }
    ).about
    assert about.recorder_version == recorder
    assert (about.nsys_version, about.export_version) == (recorder or "2025.3.2.0", "2025.3.2.0")


def test_half_known_metadata_is_a_warning(report: Make) -> None:
    """What is lacking is named; an empty table is as good as none."""
    rows = [("EXPORT_PRODUCT_NAME", "x"), ("EXPORT_SCHEMA_VERSION", None)]
    about = report({"META_DATA_EXPORT": ("name TEXT, value TEXT", rows)}).about
    assert about.warnings == (
        "the report's metadata (META_DATA_EXPORT) lacks EXPORT_PRODUCT_VERSION and EXPORT_SCHEMA_VERSION",
    )
    both = {"META_DATA_EXPORT": ("name TEXT, value TEXT", []), "EXPORT_META_DATA": ("name, value", meta("1", "2"))}
    assert report(both).about.generation == "EXPORT_META_DATA"


def test_quirk_02_a_report_needs_nothing_but_string_ids(report: Make) -> None:
    """StringIds alone is a report: everything else is unknown, not an error."""
    about = report().about
    known = {field.name: getattr(about, field.name) for field in dataclasses.fields(About)}
    assert {name for name, value in known.items() if value} == {"generation", "warnings"}


def test_quirk_03_absent_and_empty_tables_are_the_same(report: Make) -> None:
    """Tables are lazy in most exports, and all there but empty in some."""
    empty = report(
        {
            "META_DATA_CAPTURE": ("name TEXT, value TEXT", []),
            "ANALYSIS_DETAILS": ("globalVid, duration, startTime, stopTime", []),
            "TARGET_INFO_GPU": (GPU, []),
            "TARGET_INFO_CUDA_DEVICE": ("gpuId, cudaId, pid", []),
            "TARGET_INFO_SYSTEM_ENV": ("globalVid, devStateName, name, nameEnum, value", []),
            "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs, utcTime, localTime", []),
            "PROCESSES": ("globalPid, pid, name", []),
            "DIAGNOSTIC_EVENT": ("timestamp, timestampType, source, severity, text, globalPid", []),
        }
    )
    assert empty.about == report().about
    assert gpus_of(empty, (VM | 1 << 24, 0)) == [None]


def test_quirk_04_columns_are_read_by_name(report: Make) -> None:
    """Columns of the user's own, in any order, and tables that lack most of nsys's, are no obstacle."""
    about = report(
        {
            "TARGET_INFO_GPU": ("note TEXT, computeMajor, name TEXT, mine REAL, id", [("x", 8, "A100", 0.5, 3)]),
            "ANALYSIS_DETAILS": ("stopTime, duration", [(1, 55)]),
            "PROCESSES": ("name, globalPid", [("python3", VM | 7 << 24)]),
        }
    ).about
    assert [(gpu.id, gpu.name, gpu.compute_capability, gpu.sm_count) for gpu in about.gpus] == [
        (3, "A100", (8, 0), None)
    ]
    assert about.duration_ns == 55
    assert about.processes == {VM | 7 << 24: "python3"}


def test_quirk_05_text_that_is_not_utf8_is_read_tolerantly(report: Make, tmp_path: Path) -> None:
    """A Korean Windows writes EUC-KR into the metadata, and texts may hold NULs; neither stops a reader."""
    opened = report(
        {
            "META_DATA_EXPORT": ("name TEXT, value TEXT", meta("2023.4.4.54", "3.7.2")),
            "TARGET_INFO_SYSTEM_ENV": ("name TEXT, value TEXT", [("CpuDescription", "Ryzen\0")]),
        }
    )
    with closing(sqlite3.connect(opened.path)) as connection:
        connection.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_USER', CAST(x'B1E8C3B6' AS TEXT))")
        connection.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('OsDescription', CAST(x'57C0B1' AS TEXT))")
        connection.commit()
    about = open_report(opened.path).about
    assert (about.nsys_version, about.cpu) == ("2023.4.4.54", "Ryzen")
    assert str(about.os).startswith("W")


def test_quirk_19_devices_join_through_the_device_table(report: Make) -> None:
    """TARGET_INFO_CUDA_DEVICE says which GPU a device is, per process: 0 may be another GPU in each."""
    opened = report(
        {
            "TARGET_INFO_GPU": (GPU, [(1, *H200), (1, 1, *H200[1:])]),
            "TARGET_INFO_CUDA_DEVICE": ("gpuId, cudaId, pid", [(0, 0, 10), (1, 0, 11), (1, 1, 12)]),
        }
    )
    assert gpus_of(opened, (10, 0), (11, 0), (12, 1), (VM | 11 << 24, 0)) == [0, 1, 1, 1]
    unlisted = VM | 99 << 24  # gets what the listed processes agree on: device 0 is not the same GPU everywhere
    assert gpus_of(opened, (unlisted, 0), (unlisted, 1)) == [None, 1]


def test_quirk_19_without_the_device_table_the_id_is_the_device(report: Make) -> None:
    """Before 2025 a device is the GPU with its id; cuDevice, often wrong, is not looked at."""
    rows = [(0, *H200, 1), (0, 1, "other", *H200[2:], 0)]
    opened = report({"TARGET_INFO_GPU": (f"{GPU}, cuDevice", rows)})
    assert gpus_of(opened, *((VM | 5 << 24, device) for device in (0, 1, 2))) == [0, 1, None]


def test_quirk_19_the_oldest_table_of_gpus(report: Make) -> None:
    """Until early 2021 it was TARGET_INFO_CUDA_GPU with deviceId, kHz and kB/s."""
    columns = (
        "name, deviceId, numMultiprocessors, coreClockRate, globalMemoryBandwidth, globalMemorySize,"
        " computeCapabilityMajor, computeCapabilityMinor"
    )
    opened = report(
        {"TARGET_INFO_CUDA_GPU": (columns, [("V100", 2, 80, 1_530_000, 898_048_000, 16_945_512_448, 7, 0)])}
    )
    (gpu,) = opened.about.gpus
    assert (gpu.id, gpu.sm_count, gpu.compute_capability) == (2, 80, (7, 0))
    assert (gpu.clock_hz, gpu.bandwidth_bytes_per_s) == (1_530_000_000, 898_048_000_000)
    assert gpus_of(opened, (VM | 1 << 24, 2)) == [0]


def test_quirk_19_windows_lists_gpus_that_cuda_cannot_use(report: Make) -> None:
    """The integrated GPU and the basic render driver are listed but are no CUDA devices."""
    nothing = (0, 0, 0, 0, 0, 0, 0)
    rows = [
        (0, 0, "Intel(R) UHD Graphics 630", *nothing),
        (0, 1, "NVIDIA GeForce GTX 1650", 14, 4 << 30, 128_064_000_000, 1_560_000_000, 1 << 20, 7, 5),
        (0, 2, "Microsoft Basic Render Driver", *nothing),
    ]
    opened = report({"TARGET_INFO_GPU": (GPU, rows)})
    assert [gpu.name for gpu in opened.about.cuda_gpus] == ["NVIDIA GeForce GTX 1650"]
    assert len(opened.about.gpus) == 3
    assert gpus_of(opened, *((VM | 5 << 24, device) for device in (0, 1, 2))) == [1, 1, None]
    names = report({"TARGET_INFO_GPU": ("id, name", [row[1:3] for row in rows])})
    assert [gpu.id for gpu in names.about.cuda_gpus] == [1], "the same where the table says only names"


def test_quirk_19_the_table_of_gpus_may_be_missing(report: Make) -> None:
    """The GpuInfo property, JSON since 2023, still has them; unreadable, it says nothing."""
    info = '{"Gpus":[{"Id":0,"Name":"NVIDIA H200","TotalMemory":"150109880320","SmCount":132,"ComputeMajor":9}]}'
    env = "name TEXT, value TEXT"
    opened = report({"TARGET_INFO_SYSTEM_ENV": (env, [("GpuInfo", info)])})
    (gpu,) = opened.about.gpus
    assert (gpu.name, gpu.memory_bytes, gpu.compute_capability) == ("NVIDIA H200", 150_109_880_320, (9, 0))
    assert gpus_of(opened, (VM | 5 << 24, 0)) == [0]
    for broken in ("\n\x14/sys", "[]", '{"Gpus": [1]}', "{}"):
        assert report({"TARGET_INFO_SYSTEM_ENV": (env, [("GpuInfo", broken)])}).about.gpus == ()


def test_quirk_22_nothing_of_the_environment_is_shown(report: Make) -> None:
    """Environment, host, user and folder names stay in the file; the command loses assigned values."""
    about = report(
        {
            "META_DATA_CAPTURE": (
                "name TEXT, value TEXT",
                [
                    ("PROCESS_0:COMMAND", "/usr/bin/env"),
                    ("PROCESS_0:ARGUMENT_10", "--name=a b"),
                    ("PROCESS_0:ARGUMENT_11", "lr=3"),
                    ("PROCESS_0:ARGUMENT_12", "PASSWORD=my secret"),
                    ("PROCESS_0:ARGUMENT_1", "HF_TOKEN=secret"),
                    ("PROCESS_0:ARGUMENT_2", "http_proxy=http://secret"),
                    ("PROCESS_0:ARGUMENT_3", "bash"),
                    ("PROCESS_0:ARGUMENT_4", "-c"),
                    ("PROCESS_0:ARGUMENT_5", "KEY='secret two' python train.py"),
                    ("PROCESS_0:ENVIRONMENT_VARIABLE", "API_KEY=secret"),
                    ("PROCESS_0:WORKING_DIR", "/home/secret"),
                    ("PROCESS_0:USER_NAME", "secret"),
                    ("DEVICE_DISPLAY_NAME", "secret"),
                ],
            ),
            "META_DATA_EXPORT": ("name TEXT, value TEXT", meta("2025.3.2.0", "3.20.3")),
            "TARGET_INFO_SYSTEM_ENV": (
                "name TEXT, value TEXT",
                [("DeviceEnvironment", "A=secret\0"), ("Hostname", "secret"), ("OsDescription", "Ubuntu 24.04")],
            ),
        }
    ).about
    assert "secret" not in repr(about)
    assert about.os == "Ubuntu 24.04"
    script = "bash -c 'KEY=... python train.py' '--name=a b' lr=3 PASSWORD=..."
    assert about.command == f"/usr/bin/env HF_TOKEN=... http_proxy=... {script}"


def test_warnings_and_errors_of_nsys_are_counted(report: Make) -> None:
    """Errors first, each text once with how often; information is left out."""
    rows = [
        (1, 1, 1, "Profiling has started."),
        (2, 3, 2, "Not all \tevents were collected."),
        (3, 3, 2, "Not all events  were collected."),
        (4, 1, 3, "CUPTI failed."),
        (5, 2, 4, "verbose"),
        (6, 0, 2, "?"),
    ]
    about = report({"DIAGNOSTIC_EVENT": ("timestamp, source, severity, text", rows)}).about
    assert about.diagnostics == (
        Diagnostic("error", "injection", "CUPTI failed.", 1),
        Diagnostic("warning", "analysis", "Not all events were collected.", 2),
        Diagnostic("warning", "unknown", "?", 1),
    )


def test_diagnostics_of_other_shapes_are_read_too(report: Make) -> None:
    """Severities spelled out, texts through StringIds, and no source at all."""
    about = report(
        {
            "StringIds": ("id, value", [(4, "Lost events.")]),
            "DIAGNOSTIC_EVENT": ("severity TEXT, textId INTEGER", [("Warning", 4), ("Info", 4), ("Error", 5)]),
        }
    ).about
    assert about.diagnostics == (Diagnostic("warning", "unknown", "Lost events.", 1),)


def test_versions_of_driver_and_cuda_are_read_as_people_write_them(report: Make) -> None:
    """CUDA's 13000 is 13.0, 12040 is 12.4; a driver of 0 is none."""
    for raw, shown in (("13000", "13.0"), ("12040", "12.4"), ("12.4", "12.4"), ("0", None)):
        rows = [("CudaDriverVersion", raw), ("NvDriverVersion", "0"), ("NvDriverVersion", "580.159.04")]
        about = report({"TARGET_INFO_SYSTEM_ENV": ("name TEXT, value TEXT", rows)}).about
        assert about.cuda_version == shown
        assert about.driver_version == "580.159.04"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        *[("52510517", "525.105.17"), ("5509007", "550.90.07"), ("51694", "516.94"), ("0", None)],
        *[("530.30.02", "530.30.02"), ("560.94", "560.94"), ("123456", "123456"), ("r580", "r580")],
    ],
)
def test_a_driver_without_dots_gets_them_back(report: Make, raw: str, shown: str | None) -> None:
    """525.105.17 was written as 52510517 for years; what is no such number stays."""
    about = report({"TARGET_INFO_SYSTEM_ENV": ("name TEXT, value TEXT", [("NvDriverVersion", raw)])}).about
    assert about.driver_version == shown


def test_the_start_is_taken_from_whichever_column_there_is(report: Make) -> None:
    """The text where there is one, else the nanoseconds since 1970, without going through a float."""
    both = ("utcEpochNs, utcTime", [(1, "2026-11-20T04:19:43")])
    assert report({"TARGET_INFO_SESSION_START_TIME": both}).about.start_utc == "2026-11-20T04:19:43"
    number = ("utcEpochNs", [(1_795_148_383_449_965_987,)])
    assert report({"TARGET_INFO_SESSION_START_TIME": number}).about.start_utc == "2026-11-20T04:19:43"


def test_opening_brings_in_no_heavy_library(report: Make) -> None:
    """Neither pandas nor matplotlib nor pyarrow is loaded to say what a report is."""
    heavy = "{'pandas', 'matplotlib', 'pyarrow', 'scipy'}"
    code = (
        "import sys; from nsysprof.trace.report import open_report; open_report(sys.argv[1]);"
        f" sys.exit(', '.join(sorted({heavy} & set(sys.modules))) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(report().path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_report_may_be_closed_again(report: Make) -> None:
    """A report is a context manager, and closing twice is no error."""
    with report() as opened:
        assert opened.format == "sqlite"
        assert opened.file == opened.path
    opened.close()
