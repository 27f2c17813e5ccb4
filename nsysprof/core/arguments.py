"""Takes the arguments of a program out of what is written of it: they hold passwords, paths and names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["program_alone", "without_arguments"]

_COMMANDS = ("command", "program", "nsys_command")
# Options with which nsys sets variables, as they are and behind --nsys-arg; and a variable in any other word.
_SETS = re.compile(r"(?:--nsys-arg=)?(?:--env-var|-e)(?:=|(?<=-e)|\Z)")
_SET = re.compile(r"(\A|,)(\w+)=[^,]*")
_VARIABLE = re.compile(r"(?<![^=,])([A-Z_][A-Z0-9_]*)=[^,]*")


def program_alone(words: Sequence[str]) -> list[str]:
    """A program without its folder and arguments; how many there were says ``[3 arguments]``."""
    name, *rest = words or [""]
    bare = re.split(r"[\\/]", name.rstrip("\\/"))[-1]
    return [bare, *([f"[{len(rest)} argument{'s' if len(rest) > 1 else ''}]"] if rest else [])]


def without_arguments(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a run without the arguments of its program, and values of variables that a profiler was to set.

    Those of a workload are options of ours, and stay; what is no command of the program loses all but its first word.
    """
    program = None if isinstance(record.get("workload"), dict) else _words(record.get("program"))
    changed: dict[str, Any] = {
        name: _shown(record[name], program) for name in _COMMANDS if isinstance(record.get(name), str)
    }
    if isinstance(record.get("runs"), list):  # of ncu
        changed["runs"] = [
            {**run, "ncu_command": _shown(run["ncu_command"], program)}
            if isinstance(run, dict) and isinstance(run.get("ncu_command"), str)
            else run
            for run in record["runs"]
        ]
    return {**record, **changed}


def _shown(command: str, program: Sequence[str] | None) -> str:
    words = _words(command)
    before, last = words, []
    if program is not None:
        count = len(program) if program and words[-len(program) :] == program else len(words)
        before, last = words[: len(words) - count], program_alone(words[len(words) - count :])
    return " ".join([*map(shlex.quote, _without_values(before)), *last])


def _without_values(words: Sequence[str]) -> Iterator[str]:
    for place, word in enumerate(words):
        option = _SETS.match(word)
        earlier = words[max(0, place - 2) : place]  # `--nsys-arg -e --nsys-arg A=b`
        if any((found := _SETS.fullmatch(one)) and not found[0].endswith("=") for one in earlier):
            yield _SET.sub(r"\1\2=...", word)
        elif option:
            yield option[0] + _SET.sub(r"\1\2=...", word[option.end() :])
        else:
            yield _VARIABLE.sub(r"\1=...", word)


def _words(command: object) -> list[str]:
    try:
        return shlex.split(command) if isinstance(command, str) else []
    except ValueError:  # no command of a shell
        return [command.split(maxsplit=1)[0]] if isinstance(command, str) and command.split() else []
