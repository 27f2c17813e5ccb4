"""The command line: registers the subcommands and turns known failures into one line and a hint."""

import atexit
import gc
import os
import sys
import warnings
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from nsysprof import __version__
from nsysprof.commands.front_door import OneScreenCommand, command_for
from nsysprof.core.text import visible
from nsysprof.errors import NsysprofError

_ABOUT = "Find out where a GPU program spends its time, why, and what to fix first."


class _Workflow(TyperGroup):
    """A group whose `--help` lists commands by the user's task, in the order of registration.

    A report without a command is analysed.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; a report alone means `analyze`."""
        return super().resolve_command(ctx, command_for(args, [*self.commands]))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = str(getattr(command, "rich_help_panel", "") or "Commands")
            panels.setdefault(panel, []).append((name, command.get_short_help_str(100)))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"nsysprof {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Find out where a GPU program spends its time, why, and what to fix first."""


@dataclass(frozen=True)
class _Command:
    """A command under a panel of `--help`, with the question that it answers, examples, and options of typer."""

    panel: str
    name: str
    question: str
    examples: tuple[str, ...]
    more: dict[str, Any]

    def register(self, app: typer.Typer) -> None:
        """Import the command and add it."""
        module = import_module(f"nsysprof.commands.{self.name}")
        run = getattr(module, "bench_app" if self.name == "bench" else self.name)
        lines = "\n".join(f"  nsysprof {line}" for line in self.examples)
        about: dict[str, Any] = {"rich_help_panel": self.panel, "short_help": self.question}
        about |= {"epilog": f"\b\nExamples:\n{lines}", **self.more}
        if isinstance(run, typer.Typer):
            app.add_typer(run, name=self.name, **about)
        else:
            app.command(cls=OneScreenCommand, **about)(run)


_COMMANDS: dict[str, _Command] = {}


def _command(panel: str, name: str, question: str, *examples: str, **more: Any) -> None:
    _COMMANDS[name] = _Command(panel, name, question, examples, more)


_ANY_PROGRAM = {"context_settings": {"allow_interspersed_args": False}}
RECORD, READ, COMPARE, GUARD, SHARE, LAB = "Record", "Read", "Compare", "Guard", "Share", "Attention lab"
_command(
    RECORD, "capture", "Run a program under nsys or PyTorch's profiler, and write a report.",
    "capture -o run -- python train.py", "capture --profiler torch --modules -o run -- python train.py",
    "capture --backend math --backend flash --seq 1024 --seq 4096",
    **_ANY_PROGRAM,
)  # fmt: skip
_command(
    RECORD, "counters", "How much memory traffic and how many FLOPs did the hardware count?",
    "counters --backend math --backend flash --seq 4096", "counters -o run --range 'step3' -- python train.py",
    **_ANY_PROGRAM,
)  # fmt: skip
_command(RECORD, "doctor", "Can this machine record, and what must be fixed?", "doctor", "doctor --json")
_command(
    READ, "analyze", "Where did the time go? What should I fix first?",
    "analyze run.sqlite", "analyze run.sqlite --range 'RUN::*' --html",
    "analyze run.sqlite --from step3 --to step5 --sort time --depth 2", "analyze run.sqlite --json",
)  # fmt: skip
_command(
    READ, "why", "Why does the GPU wait, and which code causes it?",
    "why run.sqlite", "why run.sqlite --range 'step*' --md", "why run.sqlite --json",
)  # fmt: skip
_command(
    READ, "steps", "Which steps were slow, and where did the extra time go?",
    "steps run.sqlite", "steps run.sqlite --per 'step*' --json",
)  # fmt: skip
_command(
    READ, "hotspots", "Which kernel should I optimize first, and what limits this kernel?",
    "hotspots run.sqlite", "hotspots run.sqlite --by family --json",
)  # fmt: skip
_command(
    READ, "forecast", "How much would a change save?",
    "forecast run.sqlite --graph 'step*'", "forecast run.sqlite --scale '*gemm*=0.5'",
)  # fmt: skip
_command(READ, "ranges", "Which ranges does a report have?", "ranges run.sqlite", "ranges run.sqlite '*backward*'")
_command(
    READ, "fleet", "Which of many ranks is slow, and which ranks wait for it?",
    "fleet traces/", "fleet 'job/*/rank_*.sqlite' --workers 8",
)  # fmt: skip
_command(
    COMPARE, "compare", "Why is one range slower than another, or one run slower than the last?",
    "compare run.sqlite --base 'RUN::math::*' --new 'RUN::flash::*'", "compare before.sqlite after.sqlite",
)  # fmt: skip
_command(
    COMPARE, "history", "Which change made the program slower, over many runs?",
    "history traces/", "history 'nightly/*.nsys-rep' --since 2026-11-01 --limit 3",
)  # fmt: skip
_command(
    GUARD, "check", "Does a report meet its budget? For CI.",
    "check --init run.sqlite", "check run.sqlite budget.toml --baseline earlier.sqlite --md",
)  # fmt: skip
_command(
    SHARE, "export", "Open the data in Perfetto, DuckDB or a spreadsheet.",
    "export run.sqlite --to perfetto", "export run.sqlite --to parquet -o tables/",
)  # fmt: skip
_command(
    SHARE,
    "scrub",
    "Copy a report without private data.",
    "scrub run.sqlite",
    "scrub run.sqlite --names -o shared.sqlite",
)
_command(
    LAB, "bench", "Which attention backend is faster (no profiler)?",
    "bench --preset math-vs-flash", "bench --backend flash --backend cudnn --seq 1024 --seq 4096",
    "bench diff BEFORE AFTER", "bench report DIR",
)  # fmt: skip


def make_app(asked: str = "") -> typer.Typer:
    """Build the command line with all commands, or with only the command ``asked``, because that imports faster."""
    app = typer.Typer(
        name="nsysprof",
        cls=_Workflow,
        help=_ABOUT,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for command in [_COMMANDS[asked]] if asked in _COMMANDS else _COMMANDS.values():
        command.register(app)
    return app


def __getattr__(name: str) -> Any:
    """Build ``app``, the command line with all commands, when it is first used."""
    if name != "app":
        raise AttributeError(name)
    return vars(sys.modules[__name__]).setdefault(name, make_app())


def main() -> None:
    """Run the command line and exit: 0, 1 for a known failure, 2 for usage, 3 for a negative answer."""
    # What is imported and read lives until the end: looking for garbage in it takes a tenth of a short run.
    gc.set_threshold(100_000, 20, 20)
    atexit.register(gc.freeze)
    if sys.stderr is None:  # closed, as by 2>&-: print would take stdout for it, and a file its number
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  for as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # range names may hold what the terminal cannot show
    warnings.formatwarning = lambda message, *_: f"nsysprof: {visible(str(message))}\n"
    try:
        (globals().get("app") or make_app(*sys.argv[1:2]))()
    except NsysprofError as error:
        _fail(error)
    except MemoryError:
        _fail(NsysprofError("not enough memory to read this recording", "free -h"))
    except OSError as error:
        # Reports and results have errors of their own, so this is stdout, or the folder for temporary files, on a
        # full disk. What stdout still holds would fail once more when Python flushes it on exit: into nothing.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(NsysprofError(f"cannot write {error.filename or 'the output'}: {error.strerror or error}", "df -h"))


def _fail(error: NsysprofError) -> NoReturn:
    print(f"nsysprof: {visible(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"  hint: {visible(error.hint)}", file=sys.stderr)
    sys.exit(error.exit_code)
