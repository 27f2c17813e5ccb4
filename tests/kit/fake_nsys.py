"""An nsys that only plays its part: runs the program it is given and leaves what a test asks for."""

import os
import sys
from pathlib import Path

VERSION = "2025.3.2.474-253236389321v0"

# What `profile` and `export` do is asked of the environment, so that one program plays all failures.
_PROGRAM = f"""\
#!{sys.executable}
import os, pathlib, shutil, signal, subprocess, sys, time
word, arguments = sys.argv[1], sys.argv[2:]
fault = os.environ.get("FAKE_NSYS", "")
if word == "--version":
    print("NVIDIA Nsight Systems version {VERSION}")
elif word == "profile":
    options = [one for one in arguments if one.startswith("--")]
    at = next(n for n, one in enumerate(arguments) if one.startswith("--output="))
    out = arguments[at].partition("=")[2]
    program = arguments[at + 1:]
    pathlib.Path(os.environ["FAKE_NSYS_SEEN"]).write_text("\\n".join(options), errors="surrogateescape")
    if fault == "refuses":
        print("Illegal --trace argument 'bogus'", "usage: nsys profile", sep="\\n")
        sys.exit(1)
    if fault == "no permission":
        print("Illegal --gpu-metrics-devices argument: all.", "Insufficient privilege, see ERR_NVGPUCTRPERM", sep="\\n")
        print("usage: nsys profile")
        sys.exit(1)
    if fault == "full":
        pathlib.Path(out + ".nsys-rep").touch()
        print("Failed to write the report: No space left on device")
        sys.exit(1)
    if fault == "deaf":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(program, start_new_session=True)
    pathlib.Path(os.environ["FAKE_NSYS_SEEN"] + ".pid").write_text(str(child.pid))
    try:
        code = child.wait()
    except KeyboardInterrupt:
        if fault == "leaves":
            pathlib.Path(out + ".nsys-rep").write_text("what was recorded until then")
            sys.exit(130)
        child.terminate()
        child.wait()
        pathlib.Path(out + ".nsys-rep").write_text("what was recorded until then")
        sys.exit(130)
    ending = ".qdstrm" if fault in ("stream", "no importer") else ".nsys-rep"
    if fault == "elsewhere":
        out, ending = os.environ["FAKE_NSYS_SEEN"] + "-elsewhere", ".qdstrm"
        print("Failed to create 'report.qdstrm': No space left on device.", "Generated:", sep="\\n")
        print("    " + out + ending)
    if fault != "nothing":
        head = "NVIDIA Nsight Systems Stream {VERSION}!\\n" if ending == ".qdstrm" else "made-up report"
        pathlib.Path(out + ending).write_text(head)
    sys.exit(128 - code if code < 0 else code)
elif word == "export":
    out = arguments[arguments.index("--output") + 1]
    if fault == "slow export":
        pathlib.Path("ready").touch()
        time.sleep(60)
    whole = pathlib.Path(os.environ["FAKE_NSYS_SQLITE"]).read_bytes()
    pathlib.Path(out).write_bytes(whole[: len(whole) // 2] if fault == "truncated" else whole)
    if fault == "too big":
        print("Exportation error: string or blob too big")
        sys.exit(1)
    if fault == "export":
        print("FATAL ERROR: Exporting failed: database or disk is full", file=sys.stderr)
        sys.exit(1)
"""
# The importer beside it: works, or lacks a library as the loader says it.
_IMPORTER = """\
#!/bin/sh
if [ "$FAKE_NSYS" = "no importer" ]; then
    echo "$0: error while loading shared libraries: libdw.so.1: cannot open shared object file" >&2
    exit 127
fi
cp "$2" "$4"
"""


def install(folder: Path, sqlite: Path) -> dict[str, str]:
    """Put a made-up nsys with its importer into a folder; returns the environment that makes it the one in use.

    ``sqlite`` is what its exports hold. ``FAKE_NSYS`` in the environment names the fault to play:
    "refuses", "full", "deaf" (to interrupts), "leaves" (its program running), "stream", "no importer", "elsewhere" (a
    stream, since its own place is full), "nothing", "truncated", "export", "too big", "slow export"; none by default.
    """
    nsys = folder / "target-linux-x64" / "nsys"
    importer = folder / "host-linux-x64" / "QdstrmImporter"
    for path, text in ((nsys, _PROGRAM), (importer, _IMPORTER)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
    return {
        **{name: value for name, value in os.environ.items() if name != "NSYSPROF_NSYS"},
        "PATH": f"{nsys.parent}{os.pathsep}{os.environ['PATH']}",
        "FAKE_NSYS": "",
        "FAKE_NSYS_SEEN": str(folder / "seen"),
        "FAKE_NSYS_SQLITE": str(sqlite),
    }
