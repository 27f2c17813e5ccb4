"""The one direction of the house: a module imports only from floors below it, and only the top ones print."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "nsysprof"

# A room is a module, or a package with all its modules. Modules in one string share a room: each may import
# those to its left. Rooms of one floor do not import each other. A new module gets its floor here first.
FLOORS: list[list[str]] = [
    ["errors", "final_name", "units"],
    [
        "attention_cost",
        "codes",
        "intervals",
        "launchers",
        "nsight nsys nsys_stats",
        "path_text",
        "peaks",
        "scratch",
        "statistics",
    ],
    ["report"],
    ["tables table_reader"],
    [
        "projection attribution cover paths warm_up range_table kernel_table range_work pairing",
        "kernel_names kernel_rules kernels",
    ],
    [
        "op_groups family_table frames ledger parts slow_start unified_memory breakdown idleness highlights zoom"
        " stream_lanes timeline backend_verdict budget exports",
        "comparison roofline",
        "fleet",
        "bench",
        "verify",
    ],
    ["render"],
    ["capture", "catalog"],
    ["gate exporting __init__ commands cli __main__"],
]
FLOOR = {name: (floor, room) for floor, rooms in enumerate(FLOORS) for room in rooms for name in room.split()}
RENDER, LEAVES, TOP = 6, 7, 8
TERMINAL = {"print", "sys.stdout", "sys.stderr"}

# Libraries that live on some floors only, with the floors that may import them.
LIBRARIES = {
    "pandas": range(5, TOP + 1),
    "matplotlib": [RENDER],
    "rich": [RENDER, TOP],
    "typer": [TOP],
    "click": [TOP],
    "torch": [],
    "nvtx": [],
    "pyarrow": [2, RENDER],
    "perfetto": [RENDER],
    "jinja2": [RENDER],
    "dask": [5],
    "distributed": [5],
    "fsspec": [5],
}


def room(module: str) -> str:
    """The name that FLOORS knows a module of nsysprof by: `nsysprof.trace.nsys.pages` is in `report`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Each imported module, absolute, with its line: wherever the import stands, in functions too."""
    here = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            source = ".".join([*base, *(node.module.split(".") if node.module else [])])
            for alias in node.names:
                if source == "nsysprof" and alias.name != "__version__":
                    yield node.lineno, f"nsysprof.{alias.name}" if alias.name in FLOOR else source
                elif source != "nsysprof":
                    yield node.lineno, source


def prints(tree: ast.Module) -> Iterator[int]:
    """The lines that write to the terminal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in TERMINAL:
            yield node.lineno


def complaint(module: str, target: str) -> str | None:
    """What is wrong with one import, or None."""
    floor, mine = FLOOR[room(module)]
    library = target.split(".", maxsplit=1)[0]
    if library != "nsysprof":
        misplaced = floor not in LIBRARIES.get(library, [floor])
        return f"{library} has no place on floor {floor}" if misplaced else None
    if room(target) not in FLOOR:
        return f"{target} has no floor: add it to FLOORS"
    below, other = FLOOR[room(target)]
    if mine == other:
        order = mine.split()
        backward = order.index(room(target)) > order.index(room(module))
        return f"{room(module)} imports {target}, which builds on it" if backward else None
    if floor == LEAVES and below > 1:
        return f"{mine} is a leaf: it may use floors 0 and 1, not {target}"
    return f"floor {floor} imports {target} from floor {below}" if below >= floor else None


def violations(package: Path) -> list[str]:
    """Every breach of the rules in a package, as `file:line: what`."""
    found = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        where = path.relative_to(package.parent).as_posix()
        if room(module) not in FLOOR:
            found.append(f"{where}:1: {module} has no floor: add it to FLOORS")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for line, target in imports(tree, module, is_package):
            wrong = complaint(module, target)
            if wrong:
                found.append(f"{where}:{line}: {wrong}")
        if FLOOR[room(module)][0] not in (RENDER, TOP):
            found += [f"{where}:{line}: only render and the commands print" for line in prints(tree)]
    return found


def test_every_module_imports_only_from_floors_below() -> None:
    """The package keeps to its floors."""
    assert violations(PACKAGE) == []


MADE_UP = {
    "upward": (
        "tables.py",
        "from nsysprof.breakdown import rows",
        "floor 3 imports nsysprof.breakdown from floor 5",
    ),
    "sideways": (
        "intervals.py",
        "import nsysprof.statistics",
        "imports nsysprof.statistics from floor 1",
    ),
    "inside a function": ("units.py", "def f():\n    from nsysprof import tables", "imports nsysprof.tables"),
    "relative": ("report/pages.py", "from ..tables import Tables", "imports nsysprof.tables from floor 3"),
    "by the front door": ("kernels.py", "from nsysprof import open_report", "imports nsysprof from floor 8"),
    "within a room": (
        "projection.py",
        "from nsysprof.attribution import attribute",
        "projection imports nsysprof.attribution, which builds on it",
    ),
    "leaf": ("catalog.py", "from nsysprof.tables import Tables", "catalog is a leaf"),
    "unknown module": ("helpers.py", "", "nsysprof.helpers has no floor"),
    "unknown import": ("tables.py", "import nsysprof.helpers", "nsysprof.helpers has no floor"),
    "pandas too low": ("attribution.py", "import pandas as pd", "pandas has no place on floor 4"),
    "torch": ("catalog.py", "import torch", "torch has no place"),
    "print": ("tables.py", "print('hello')", "only render and the commands print"),
    "stderr": (
        "report/__init__.py",
        "import sys\nsys.stderr.write('x')",
        "only render and the commands print",
    ),
}


@pytest.mark.parametrize("case", MADE_UP)
def test_a_breach_is_found(tmp_path: Path, case: str) -> None:
    """Each kind of breach, made up in a package of its own, is named with its file."""
    name, text, expected = MADE_UP[case]
    path = tmp_path / "nsysprof" / name
    path.parent.mkdir(parents=True)
    path.write_text(text + "\n", encoding="utf-8")
    (found,) = violations(tmp_path / "nsysprof")
    assert expected in found
    assert found.startswith(f"nsysprof/{name}:")


def test_what_is_allowed_is_not_a_breach(tmp_path: Path) -> None:
    """Lower floors, the same room, the version, and printing on the top floors are all fine."""
    fine = {
        "tables.py": "from nsysprof.report.pages import Pages\nimport numpy",
        "attribution.py": "from nsysprof.projection import project",
        "report/pages.py": "from nsysprof.report.block import Block\nfrom . import block",
        "units.py": "from nsysprof import __version__",
        "commands/analyze.py": "from nsysprof import open_report\nimport pandas, typer\nprint('a')",
        "catalog.py": "from nsysprof.nsys import find",
    }
    for name, text in fine.items():
        path = tmp_path / "nsysprof" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert violations(tmp_path / "nsysprof") == []
