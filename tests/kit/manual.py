"""The generated pages of the manual: commands from the program, columns from the tables, Python from the docstrings.

`python -m tests.kit.manual` writes docs/reference/ again; a test compares it with what is committed.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import typer

import nsysprof
from nsysprof import cli
from nsysprof.core import arrays
from nsysprof.results.table import Table, markdown_table

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
SHARED_BY = 3  # an option that so many commands have in the same words is explained once
SHARED = "shared options"
ARRAYS = dict(re.findall(r"(\w+): TypeAlias = (\S+)", inspect.getsource(arrays)))


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return markdown_table(head, rows, "l" * len(head), escape=lambda cell: cell.replace("|", "\\|"), even=False)


def commands() -> dict[str, Any]:
    """The commands of the program by what is typed for them, `bench` and `bench diff` alike."""
    found: dict[str, Any] = {}

    def add(command: Any, name: str) -> None:
        if name:
            found[name] = command
        for word, inner in sorted(getattr(command, "commands", {}).items()):
            if not inner.hidden:
                add(inner, f"{name} {word}".strip())

    add(typer.main.get_command(cli.app), "")
    return found


def _parameters(name: str, command: Any) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The arguments and the options of a command, each as its name and its help."""
    context = typer.Context(command, info_name=f"nsysprof {name}")
    arguments: list[tuple[str, str]] = []
    options: list[tuple[str, str]] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record and "--help" not in parameter.opts:
            which = arguments if parameter.param_type_name == "argument" else options
            which.append((record[0], " ".join(record[1].split())))
    return arguments, options


def _prose(text: str) -> Iterator[str]:
    """Paragraphs of a command's help, where those that are commands become blocks."""
    examples: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text.replace("\b", ""))):
        lines = [line.strip() for line in paragraph.splitlines() if line.strip() not in ("", "Examples:")]
        if lines and lines[0].startswith("nsysprof "):
            separate = all(line.startswith("nsysprof ") for line in lines)
            examples += lines if separate else [" ".join(lines)]
        elif lines:
            yield from (" ".join(lines), "")
    if examples:
        yield from ("```sh", *examples, "```", "")


def commands_page() -> str:
    """Every command with its arguments and options, as `--help` prints them."""
    each = {name: (command, *_parameters(name, command)) for name, command in commands().items()}
    uses = Counter(option for _, _, options in each.values() for option in options)
    shared = {option for option, count in uses.items() if count >= SHARED_BY}
    lines = [
        "# Commands",
        "",
        "Made from the program itself: this is what `nsysprof COMMAND --help` prints. Options that several commands"
        f" have are explained [at the end](#{SHARED.replace(' ', '-')}); exit codes, and other conventions,"
        " in [the manual](../README.md#common-to-all-commands).",
    ]
    for name, (command, arguments, options) in each.items():
        lines += ["", f"## {name}", "", *_prose(command.help or ""), *_prose(command.epilog or "")]
        own = [option for option in options if option not in shared]
        rows = [[f"`{names}`", about] for names, about in [*arguments, *own]]
        lines += _table(["argument or option", "does"], rows) if rows else []
        also = [re.sub(r" .*", "", names.replace("-o, ", "")) for names, _ in options if (names, _) in shared]
        if also:
            words = ", ".join(f"`{word}`" for word in also)
            lines += ["", f"[{SHARED.capitalize()}](#{SHARED.replace(' ', '-')}): {words}"]
    rows = [[f"`{names}`", about] for names, about in sorted(shared, key=lambda option: (option[0].strip("-"), option))]
    lines += ["", f"## {SHARED.capitalize()}", "", *_table(["option", "does"], rows)]
    return "\n".join(lines) + "\n"


def declared_tables() -> dict[str, list[Table]]:
    """The tables that the rooms of the package declare, by room; one that several modules hold counts once."""
    found: dict[str, list[Table]] = {}
    seen: set[int] = set()
    for module in sorted(each.name for each in pkgutil.walk_packages(nsysprof.__path__, "nsysprof.")):
        if module.startswith("nsysprof.workloads") or module.endswith("__main__"):
            continue
        for value in vars(importlib.import_module(module)).values():
            if isinstance(value, Table) and id(value) not in seen:
                seen.add(id(value))
                # what an export writes are the records of an analysis
                room = "export" if module == "nsysprof.analyze.records" else module.split(".")[1]
                found.setdefault(room, []).append(value)
    return found


def columns_page() -> str:
    """Every table that is written, with what its columns hold."""
    rooms = declared_tables()
    rooms["analyze"] += rooms.pop("summaries")
    lines = [
        "# Columns",
        "",
        "Every CSV file, with its columns in their order; made from the declarations that write them. Parquet files and"
        " the rows in JSON documents have the same names. Times are integer nanoseconds (`_ns`), sizes bytes, shares"
        " between 0 and 1. Columns are added, never renamed.",
    ]
    for room in sorted(rooms):
        lines += ["", f"## {room}"]
        for table in rooms[room]:
            lines += ["", f"### {table.file}", "", f"{table.row[:1].upper()}{table.row[1:]}.", "", *table.dictionary()]
    return "\n".join(lines) + "\n"


def _documented(of: Any) -> str:
    """A docstring as Markdown."""
    text = re.sub(r"``(.+?)``", r"`\1`", inspect.getdoc(of) or "", flags=re.S)
    return text.replace("<", "\\<") if "`" not in text else text


def _types(of: Any) -> dict[str, str]:
    """The types of a function's parameters and result (`return`), or of a class's fields, as the source has them."""
    [node] = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(of)))).body
    if isinstance(node, ast.ClassDef):
        named = [(ast.unparse(each.target), each.annotation) for each in node.body if isinstance(each, ast.AnnAssign)]
    else:
        assert isinstance(node, ast.FunctionDef)
        every = [*node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        named = [(each.arg, each.annotation) for each in every if each and each.annotation]
        named += [("return", node.returns)] if node.returns else []
    texts = {name: ast.unparse(annotation) for name, annotation in named}
    return {name: re.sub(r"\w+", lambda word: ARRAYS.get(word[0], word[0]), text) for name, text in texts.items()}


def _plain(annotation: Any) -> str:
    """A type that an ancestor declares."""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _parameter(each: inspect.Parameter, types: dict[str, str]) -> str:
    """A parameter with its type and default; of an object that the package keeps not a word."""
    shown = repr(each.default)
    default = "" if each.default is each.empty else f" = {'...' if ' object at ' in shown else shown}"
    return f"{each.name}: {types[each.name]}{default}".replace("'", '"')


def _signature(name: str, of: Any) -> str:
    """A function as its source declares it."""
    signature, types = inspect.signature(of), _types(of)
    parameters: list[str] = []
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        parameters.append(_parameter(each, types))
    back = f" -> {types['return']}"
    text = f"{name}({', '.join(parameters)}){back}"
    return text if len(text) <= 100 else "\n".join([f"{name}(", *(f"    {each}," for each in parameters), f"){back}"])


def _members(of: type) -> Iterator[str]:
    """What an object of a public class offers: fields, then properties and methods, each with its first sentence."""
    declared = fields(of) if is_dataclass(of) else ()
    types = _types(of)
    shown = [(each.name, types.get(each.name, _plain(each.type))) for each in declared if not each.name.startswith("_")]
    rows = [[f"`.{name}`", f"`{kind}`"] for name, kind in shown]
    names = {each.name for each in declared}
    for name, member in inspect.getmembers(of):
        if name.startswith("_") or name in names or isinstance(member, type):
            continue
        function = getattr(member, "func", getattr(member, "fget", member))
        about = (_documented(function) or "").split("\n\n")[0].replace("\n", " ")
        called = "" if isinstance(member, property) or hasattr(member, "func") else "()"
        rows.append([f"`.{name}{called}`", about])
    if rows:
        yield from ("", *_table(["has", "is"], rows))


def python_page() -> str:
    """Every public name of the package with its signature and its docstring."""
    lines = [
        "# Python",
        "",
        "Every name of `import nsysprof`, made from the docstrings. [As a library](../python.md) shows how they are"
        " used.",
    ]
    public = {name: getattr(nsysprof, name) for name in nsysprof.__all__ if not name.startswith("__")}
    for kind, wanted in (("Functions", False), ("Classes", True)):
        lines += ["", f"## {kind}"]
        for name, of in sorted(public.items()):
            if isinstance(of, type) == wanted:
                call = [] if wanted else ["```py", _signature(name, of), "```", ""]
                lines += ["", f"### {name}", "", *call, _documented(of)]
                lines += _members(of) if wanted else []
    return "\n".join(lines) + "\n"


PAGES = {"commands.md": commands_page, "columns.md": columns_page, "python.md": python_page}


def main() -> int:
    """Write the pages and print their names."""
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
        sys.stdout.write(f"{REFERENCE / name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
