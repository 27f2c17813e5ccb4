"""An ncu that only plays its part: runs the program it is given and counts what a test asks for."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

VERSION = "2025.3.1.0"
DEFAULT_METRICS = (
    *("gpu__time_duration", "dram__bytes_read", "dram__bytes_write", "lts__t_bytes", "lts__t_sectors"),
    *("sm__inst_executed_pipe_tensor", "sm__inst_executed_pipe_tensor_op_hmma_type_hfma2", "sm__warps_active"),
    *(
        *("gpu__dram_throughput", "sm__throughput"),
        *("sm__ops_path_tensor_src_fp16", "sm__ops_path_tensor_src_bf16_dst_fp32"),
    ),
    *(f"sm__sass_thread_inst_executed_op_{kind}{what}_pred_on" for kind in "fhd" for what in ("add", "mul", "fma")),
)
PERMISSION = (
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the"
    " target device 0. For instructions on enabling permissions and to get more information see"
    " https://developer.nvidia.com/ERR_NVGPUCTRPERM"
)
BUSY = (
    "==ERROR== An error was reported by the driver\n==ERROR== Profiling failed because a driver resource was"
    " unavailable. Ensure that no other tool (like DCGM) is concurrently collecting profiling data.\n"
    '==ERROR== Failed to profile "k" in process 7\n==PROF== Trying to shutdown target application\n'
    "==ERROR== The application returned an error code (9)."
)

# What the rows are, and what goes wrong, is asked of the environment, so that one program plays all failures.
_PROGRAM = f"""\
#!{sys.executable}
import json, os, pathlib, signal, subprocess, sys
arguments = sys.argv[1:]
fault = os.environ.get("FAKE_NCU", "")
options = dict(one.partition("=")[::2] for one in arguments if one.startswith("--"))
rows = json.loads(pathlib.Path(os.environ["FAKE_NCU_ROWS"]).read_text())
if "--version" in options:
    print("NVIDIA (R) Nsight Compute Command Line Profiler", "Version {VERSION} (build 1)", sep="\\n")
elif "--help" in options:
    known = os.environ["FAKE_NCU_OPTIONS"].split()
    print("usage: ncu", *(f"  {{name}} arg" for name in known if name != os.environ.get("FAKE_NCU_LACKS")), sep="\\n")
elif "--query-metrics" in options:
    if fault == "no device":
        print("==ERROR== No CUDA devices found.")
        sys.exit(1)
    print("Device NVIDIA H200 (GH100)", "Metric Name   Metric Type", sep="\\n")
    print(*(f"{{name}}   Counter" for name in os.environ["FAKE_NCU_METRICS"].split()), sep="\\n")
elif "--import" in options:
    made = json.loads(pathlib.Path(options["--import"]).read_text())
    if fault == "unreadable":
        print("==ERROR== Failed to load report file.")
        sys.exit(1)
    metrics = made["metrics"]
    head = ["ID", "Process ID", "Process Name", "Host Name"]
    head += ["thread Domain:Push/Pop_Range:PL_Type", "Id:Domain:Start/Stop_Range:PL_Type", "Kernel Name"]
    head += ["Context", "Stream", "Block Size", "Grid Size", "Device", "CC", *metrics]
    units = ["ns" if "duration" in one else "byte" if "bytes" in one else "" for one in metrics]
    print(",".join(f'"{{one}}"' for one in head))
    print(",".join(f'"{{one}}"' for one in [""] * (len(head) - len(metrics)) + units))
    for number, row in enumerate(made["rows"]):
        cells = [number, row["pid"], "python3", "secret-host", row["pushed"], row["started"], row["kernel"]]
        cells += [1, 7, row["block"], row["grid"], 0, "9.0"]
        cells += [row["metrics"].get(one, "n/a") for one in metrics]
        line = ",".join(f'"{{one}}"' for one in cells)
        print(line[: len(line) // 2] if fault == "truncated" and number == len(made["rows"]) - 1 else line)
else:
    at = next(n for n, one in enumerate(arguments) if one.startswith("--export="))
    out, program = options["--export"], arguments[at + 1 :]
    with open(os.environ["FAKE_NCU_SEEN"], "a") as seen:
        seen.write(json.dumps(arguments[:at + 1]) + "\\n")
    name = pathlib.Path(out).name.rpartition(".")[2]
    if fault == "refuses":
        print("==ERROR== unrecognised option '--bogus'. Use --help for further details.")
        sys.exit(1)
    if fault == "permission":
        print({PERMISSION!r}, flush=True)
    if fault == "busy":
        print({BUSY!r})
        sys.exit(9)
    child = subprocess.Popen(program, start_new_session=True)
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        sys.exit(9)
    here = rows.get(name, rows["traffic"])
    passes = "1 pass" if name == "traffic" and fault != "passes" else "15 passes"
    for number, row in enumerate(here):
        print(f'==PROF== Profiling "{{row["kernel"]}}" - {{number}}: 0%....50%....100% - {{passes}}')
    if code:
        print(f"==ERROR== The application returned an error code ({{code}}).")
    if fault == "permission" or not here:
        print("==WARNING== No kernels were profiled.")
    elif fault != "full":
        kept = here[:-1] if fault == "lost" else here
        metrics = options["--metrics"].split(",")
        pathlib.Path(out + ".ncu-rep").write_text(json.dumps({{"metrics": metrics, "rows": kept}}))
    else:
        print("==ERROR== Failed to write the report: No space left on device")
    sys.exit(128 - code if code < 0 else code)
"""
OPTIONS = (
    "--config-file --nvtx --nvtx-include --target-processes --replay-mode --cache-control --clock-control --metrics"
    " --pipeline-boost-state --nvtx-push-pop-scope --import-sass --export --import --csv --page --print-units"
    " --rename-kernels --query-metrics"
)


def pushed(*names: str, thread: int = 100) -> str:
    """Ranges open on a thread, as ncu writes them; ``domain@name`` for one of another domain."""
    ranges = []
    for each in names:
        domain, _, name = each.rpartition("@")
        ranges.append(f'""{domain or "<default domain>"}:{name}:none:none:RGB:0xff:REGISTERED:{name}""')
    return f"{thread}  {'  '.join(ranges)} " if ranges else ""


def row(kernel: str, *ranges: str, **metrics: str) -> dict[str, Any]:
    """One kernel in ranges; metrics are named with `__` for the dot before the suffix: `dram__bytes_read__sum`."""
    named = {".".join(name.rsplit("__", 1)): value for name, value in metrics.items()}
    return {
        "pid": 100,
        "pushed": pushed(*ranges),
        "started": "",
        "kernel": kernel,
        "grid": "(8, 1, 1)",
        "block": "(128, 1, 1)",
        "metrics": named,
    }


def install(
    folder: Path,
    traffic: Sequence[Mapping[str, Any]],
    work: Sequence[Mapping[str, Any]] | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
) -> dict[str, str]:
    """Put a made-up ncu into a folder; returns the environment that makes it the one in use.

    ``traffic`` and ``work`` are the rows of its two runs. ``FAKE_NCU`` in the environment names the fault to play:
    "refuses", "permission", "busy", "no device", "full", "unreadable", "truncated", "lost", "passes"; none by default.
    """
    ncu = folder / "ncu"
    folder.mkdir(parents=True, exist_ok=True)
    ncu.write_text(_PROGRAM, encoding="utf-8")
    ncu.chmod(0o755)
    rows = {"traffic": list(traffic), "work": list(traffic if work is None else work)}
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    return {
        **{name: value for name, value in os.environ.items() if name != "NSYSPROF_NCU"},
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "FAKE_NCU": "",
        "FAKE_NCU_OPTIONS": OPTIONS,
        "FAKE_NCU_METRICS": " ".join(metrics),
        "FAKE_NCU_ROWS": str(folder / "rows.json"),
        "FAKE_NCU_SEEN": str(folder / "seen"),
    }
