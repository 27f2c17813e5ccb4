"""What is loaded when: the library's front door and `--help` must be instant."""

import ast
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import ModuleType

import pytest

import nsysprof

ROOT = Path(__file__).parents[2]
HEAVY = {"numpy", "pandas", "scipy", "matplotlib", "pyarrow", "torch"}

AFTER_IMPORT = "import nsysprof"
AFTER_HELP = """
import io, contextlib
from nsysprof.cli import main
for command in ([], ["analyze"], ["compare"], ["why"]):
    sys.argv = ["nsysprof", *command, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            main()
        except SystemExit as stop:
            assert not stop.code, stop.code
    assert "Usage" in out.getvalue(), out.getvalue()
"""


def loaded(code: str) -> set[str]:
    """The top-level packages that a fresh interpreter holds after running `code`."""
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_the_probe_sees_what_is_loaded() -> None:
    """A module that is loaded is reported, so an empty answer below means something."""
    assert "numpy" in loaded("import numpy") & HEAVY


def test_import_nsysprof_is_light() -> None:
    """`import nsysprof` loads none of the heavy libraries before something is asked of it."""
    assert loaded(AFTER_IMPORT) & HEAVY == set()


def test_help_is_light() -> None:
    """`nsysprof --help`, also that of a subcommand, loads none of the heavy libraries."""
    assert loaded(AFTER_HELP) & HEAVY == set()


def test_opening_a_report_loads_no_pandas() -> None:
    """Up to the attribution the library is numpy only: pandas is for answers, matplotlib for charts."""
    report = str(ROOT / "traces" / "run.sqlite")
    code = f"import nsysprof\nwith nsysprof.open_report({report!r}) as report:\n    nsysprof.attribute(report)"
    heavy = loaded(code) & HEAVY
    assert "numpy" in heavy
    assert heavy <= {"numpy"}


@pytest.mark.parametrize("charts", [False, True])
def test_analyze_loads_no_pandas(tmp_path: Path, charts: bool) -> None:
    """The answer is numpy columns: text, CSV, JSON and charts (drawn in another process) need no frame."""
    option = "--charts" if charts else "--no-charts"
    arguments = ["analyze", str(ROOT / "traces" / "run.sqlite"), option, "-o", str(tmp_path / "out")]
    code = f"""
import io, contextlib
from nsysprof.cli import main
sys.argv = ["nsysprof", *{arguments}]
with contextlib.redirect_stdout(io.StringIO()):
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, stop.code
"""
    assert loaded(code) & HEAVY == {"numpy"}


def test_no_module_hides_a_public_name() -> None:
    """`nsysprof.compare` is the function, not the room of that name, also once something has imported the room."""
    for module in pkgutil.iter_modules(nsysprof.__path__):
        if module.name != "__main__":
            importlib.import_module(f"nsysprof.{module.name}")
    assert not [name for name in nsysprof.__all__ if isinstance(getattr(nsysprof, name), ModuleType)]


def imports_of(module: Path, known: Collection[str]) -> set[str]:
    """The modules of rooms that a module imports anywhere: at once, inside of functions, and for types alone."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return {name for name in found if name in known and name.count(".") > 1}


def circle_in(imports: Mapping[str, Collection[str]]) -> list[str]:
    """Modules of which each imports the next, and the last one the first; empty where there is no circle."""
    whole: set[str] = set()

    def follow(way: list[str]) -> list[str]:
        for name in sorted(imports[way[-1]]):
            if name in way:
                return [*way[way.index(name) :], name]
            if name not in whole and (found := follow([*way, name])):
                return found
        whole.add(way[-1])
        return []

    return next(filter(None, (follow([name]) for name in sorted(imports) if name not in whole)), [])


@pytest.mark.parametrize(
    ("imports", "circle"), [({"a": "bc", "b": "c", "c": ""}, ""), ({"a": "b", "b": "c", "c": "db", "d": ""}, "bcb")]
)
def test_a_circle_is_found(imports: dict[str, str], circle: str) -> None:
    """Two ways to one module are none; the way back is, and what only leads to it is left out."""
    assert "".join(circle_in(imports)) == circle


def test_no_files_import_one_another() -> None:
    """Data, then findings, then views: no file imports one that imports it, in functions or for types either."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (ROOT / "nsysprof").rglob("*.py")
    }
    circle = circle_in({name: imports_of(path, files) for name, path in files.items()})
    assert not circle, f"a circle of imports, also those in functions and for types: {' -> '.join(circle)}"


def test_table_names_of_nsys_stay_with_its_reader() -> None:
    """Above `trace/` nothing knows how nsys names its tables, but for what copies them and what calls nsys."""
    above = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "nsysprof").rglob("*.py")
        if path.relative_to(ROOT).parts[1] not in {"trace", "scrub", "tools", "capture"}
        and re.search(r"CUPTI_ACTIVITY|NVTX_EVENTS|TARGET_INFO", path.read_text(encoding="utf-8"))
    ]
    assert above == []


# What Python has on Linux and not on Windows, taken away before anything is imported.
ELSEWHERE = """
import os, signal, sys
import asyncio, multiprocessing, platform, psutil, selectors, shutil, socket, subprocess, tempfile  # as Linux has them
for name in ("fcntl", "termios", "resource", "pwd", "grp", "pty", "tty", "syslog"):
    sys.modules[name] = None
for name in ("fork", "killpg", "geteuid", "getuid", "getpgid", "sched_getaffinity", "posix_fallocate", "statvfs"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGALRM", "pthread_sigmask", "sigwait"):
    if hasattr(signal, name):
        delattr(signal, name)
"""


def test_everything_imports_without_what_only_linux_has() -> None:
    """No module of the package needs `fcntl`, `os.fork` or `SIGHUP` to be imported, as on Windows there is none."""
    pytest.importorskip("distributed")  # one of the modules runs on it
    modules = [
        module.name
        for module in pkgutil.walk_packages(nsysprof.__path__, "nsysprof.")
        if not module.name.startswith("nsysprof.workloads") and not module.name.endswith("__main__")
    ]
    assert len(modules) > 100
    code = f"import importlib\nfor name in {modules!r}:\n    importlib.import_module(name)"
    assert "nsysprof" in loaded(ELSEWHERE + code)


def test_a_report_is_answered_without_what_only_linux_has(tmp_path: Path) -> None:
    """Reading, within a limit of memory too, and drawing do without; results go where they should."""
    report, out = str(ROOT / "traces" / "two-processes.sqlite"), str(tmp_path / "out")
    code = f"""
import io, contextlib
from nsysprof.cli import main
for arguments in (
    ["analyze", {report!r}, "--html", "-o", {out!r}, "--memory-limit", "1MB"],
    ["why", {report!r}, "--no-charts", "-o", {out + "-why"!r}],
    ["check", {report!r}, "--init", "-o", {out + ".toml"!r}],
):
    sys.argv = ["nsysprof", *arguments]
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as stop:
            assert not stop.code, stop.code
"""
    loaded(ELSEWHERE + code)
    assert {"timeline.png", "ranges.csv", "report.html"} <= {path.name for path in Path(out).iterdir()}
    assert (tmp_path / "out.toml").exists()
