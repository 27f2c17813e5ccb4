"""Entry points: one-screen help, `nsysprof REPORT`, and the command for several reports."""

from collections.abc import Sequence
from dataclasses import fields
from glob import glob
from itertools import takewhile
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from nsysprof.commands.report_options import ReadingOptions, ResultOptions
from nsysprof.commands.workload_options import ProgramOptions
from nsysprof.core.text import quote_path
from nsysprof.errors import NsysprofError

LINES = 40  # of a help
_ALL, _FIRST = "--help-all", ("output", "full", "html", "as_json")
_GROUPS = {  # of options that several commands share
    "Results": {each.name for each in fields(ResultOptions)},
    "Reading": {each.name for each in fields(ReadingOptions)},
    "Attention workloads": {each.name for each in fields(ProgramOptions)} - {"nsys", "output", "force"},
}
_OF_ONE_REPORT = ("analyze", "why", "steps", "forecast", "ranges", "export", "scrub")


class _OneScreen:
    """Help with the options that fit on one screen, in groups; `--help-all` shows all options."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Print the complete help if `--help-all` is given."""
        own = takewhile(lambda each: each != "--", args)
        if _ALL in (own if ctx.allow_interspersed_args else [*takewhile(lambda each: each[:1] == "-", own)]):
            ctx.meta[_ALL] = True
            print(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)  # type: ignore[misc]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the command's own options, and the options for results, reading and workloads."""
        known = [(each, each.get_help_record(ctx)) for each in self.get_params(ctx)]  # type: ignore[attr-defined]
        rows = [(each, record) for each, record in known if record]
        arguments = [record for each, record in rows if each.param_type_name == "argument"]
        options: dict[str, list[Any]] = {"Options": [], **{group: [] for group in _GROUPS}}
        for each, record in rows:
            if each.param_type_name != "argument":
                group = next((name for name, names in _GROUPS.items() if each.name in names), "Options")
                options["Options" if each.name in _FIRST else group].append((each.name not in _FIRST, record))
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        after = len(str(self.epilog or "").split("\n")) + 2  # type: ignore[attr-defined]
        after += len(getattr(self, "commands", ())) and len(self.commands) + 3  # type: ignore[attr-defined]
        room = LINES - formatter.getvalue().count("\n") - after
        left = 0
        for group, each in options.items():
            chosen = [record for _, record in sorted(each, key=lambda one: one[0])]
            if not ctx.meta.get(_ALL):
                fitting = _fitting(formatter, chosen, room - 2)
                left += len(chosen) - len(fitting)
                chosen = fitting
            if chosen:
                before = formatter.getvalue().count("\n")
                with formatter.section(group):
                    formatter.write_dl(chosen)
                room -= formatter.getvalue().count("\n") - before
        if left:
            formatter.write_paragraph()
            formatter.write_text(f"{left} more options: {ctx.command_path} {_ALL}")
        if isinstance(self, TyperGroup):
            self.format_commands(ctx, formatter)


def _fitting(formatter: Any, rows: list[Any], room: int) -> list[Any]:
    """The rows that fit into ``room`` lines."""
    count = len(rows)
    while count:
        trial = type(formatter)(width=formatter.width)
        with trial.section("Options"):
            trial.write_dl(rows[:count])
        if trial.getvalue().count("\n") <= room:
            break
        count -= 1
    return rows[:count]


class OneScreenCommand(_OneScreen, TyperCommand):
    """A command with one-screen help."""


class OneScreenGroup(_OneScreen, TyperGroup):
    """A group of commands with one-screen help."""


def command_for(args: Sequence[str], commands: Sequence[str]) -> list[str]:
    """Return the arguments, preceded by `analyze` if they start with a report.

    Raises `NsysprofError` (exit code 2) with the right command if another command takes these arguments.
    """
    if not args:
        return [*args]
    if args[0] not in commands and (Path(args[0]).exists() or _matches(args[0])):
        args = ["analyze", *args]
    name, named = args[0], [*takewhile(lambda each: not each.startswith("-"), args[1:])]
    reports = [each for each in named if Path(each).exists()]
    if name in _OF_ONE_REPORT:
        if len(reports) == 2 == len(named):
            raise _other(f"{name} reads one report", f"nsysprof compare {_quoted(reports)}")
        if len(reports) > 2 and len(reports) == len(named):
            raise _other(f"{name} reads one report", f"nsysprof fleet {_quoted(reports)}")
        if named and not reports and (found := _matches(named[0])):
            again = f"nsysprof {name if len(found) == 1 else 'fleet'} "
            raise _other(
                f"{name} reads one report, but {named[0]!r} matches {len(found):,} reports",
                again + (_quoted(found) if len(found) == 1 else _quoted(named[:1])),
            )
        if reports and (inside := _reports_in(Path(reports[0]))):
            one = len(inside) == 1
            raise _other(
                f"{reports[0]} is a folder of {'one report' if one else f'{len(inside):,} reports'}",
                f"nsysprof {name} {_quoted(inside)}" if one else f"nsysprof fleet {_quoted(reports)}",
            )
    if name == "compare" and len(reports) > 2 and len(reports) == len(named):
        hint = f"nsysprof compare {_quoted(reports[:2])} --also-new {_quoted(reports[2:3])}"
        raise _other("compare takes two reports", f"{hint}, or nsysprof fleet {_quoted(reports)} for ranks of one run")
    return [*args]


def _matches(pattern: str) -> list[str]:
    return sorted(glob(pattern)) if set(pattern) & set("*?[") else []  # noqa: PTH207  absolute ones too


def _reports_in(folder: Path) -> list[str]:
    if not folder.is_dir() or any(folder.glob("*.parquet")):
        return []
    from nsysprof.trace.report import report_endings

    endings = tuple(each for each in report_endings() if each.startswith("."))
    return sorted(str(each) for each in folder.iterdir() if each.name.endswith(endings))


def _quoted(names: Sequence[str]) -> str:
    return " ".join(quote_path(Path(each)) for each in names)


def _other(message: str, hint: str) -> NsysprofError:
    return NsysprofError(message, hint, exit_code=2)
