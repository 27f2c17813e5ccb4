"""Budgets: what must hold in every report of a program, read from TOML.

    # All limits are per call: per instance of the range. Counts and times include inner ranges.
    stat = "median"              # of calls that a limit is on: median (default), p95 or max
    skip = 1                     # leave out the first calls of what repeats, as `analyze --skip` does (default 0)
    merge = ["iter*", "step*"]   # names that make one range, as `analyze --merge` does (this is the default)

    [[range]]
    path = "RUN::flash::*/iter*"      # a glob on merged paths and names, as of `analyze --range`; must match something
    max_kernels = 2                   # also max_launches, max_memops, max_graph_launches
    max_span = "300 us"               # or max_span_ns = 300_000; also max_busy and max_cpu; ns, us, ms, s
    max_idle = "20 %"                 # of the span in which the GPUs run none of the range's ops; or 0.2
    forbid = ["memcpy", "softmax"]    # families of ops, as `analyze` names them
    forbid_causes = ["cast*"]         # causes, finer than families; globs
    forbid_kernels = ['^void cunn_']  # regular expressions, searched in full kernel names
    backend = "flash"                 # the attention backend that must be seen by its kernels
    max_growth = { span = "5 %" }     # against --baseline: of the median of span, busy or cpu

    [[range]]
    path = "RUN::math::*"
    stat = "p95"                      # for this range
    optional = true                   # no failure where nothing matches or nothing ran
    min_instances = 10                # at least so many calls
    math_unit = { family = "gemm", unit = "tensor core", min_share = "95 %" }  # of the time of that family; or a list

Of ranges inside one another that a glob matches, the outermost count. All tables that match a range apply to it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.attribution.warm_up import Instances
from nsysprof.check.values import (
    CheckedTable,
    Parsers,
    as_count,
    as_expressions,
    as_families,
    as_flag,
    as_part,
    as_positive,
    as_share,
    as_table,
    as_tables,
    as_text,
    as_texts,
    as_time,
    one_of,
    shown_value,
)
from nsysprof.core.side_file import read_small
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import FAMILIES, MATH_UNITS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STATS = ("median", "p95", "max")
TIMES = ("span", "busy", "cpu")
_COUNTS = ("kernels", "launches", "memops", "graph_launches")


@dataclass(frozen=True)
class Forbidden:
    """Ops that a range must not hold: ``by`` family, cause (``text`` is a glob) or kernel (a regular expression)."""

    by: str
    text: str


@dataclass(frozen=True)
class UnitShare:
    """``unit`` must do at least the share ``least`` of the time of ``family``."""

    family: str
    unit: str
    least: float


@dataclass(frozen=True)
class RangeBudget:
    """One ``[[range]]`` table.

    ``label`` names it in messages. ``caps``: the most per call of ``kernels, launches, memops, graph_launches``, of
    ``span, busy, cpu`` in ns, and of ``idle`` as a part of 1. ``growth``: by what part of the baseline's median a time
    may grow. None and nothing: no such limit.
    """

    glob: str
    label: str
    stat: str
    optional: bool
    min_instances: int | None
    caps: Mapping[str, float]
    forbidden: tuple[Forbidden, ...]
    backend: str | None
    units: tuple[UnitShare, ...]
    growth: Mapping[str, float]

    @property
    def is_limited(self) -> bool:
        """Whether more is asked than that the range is there."""
        return bool(
            self.caps or self.forbidden or self.backend or self.units or self.growth or self.min_instances
        )


@dataclass(frozen=True)
class Budget:
    """What `read_budget` gives: the ranges in the order of the file, and how instances are chosen and merged.

    ``merge``: None merges nothing. ``instances``: only these of each range, None for all.
    """

    path: Path
    ranges: tuple[RangeBudget, ...]
    skip: int
    merge: tuple[str, ...] | None
    instances: Instances | None = None


def read_budget(path: Path) -> Budget:
    """The budget in a TOML file; the docstring of this module shows all that it can say.

    Raises `NsysprofError` with file, table and reason where it cannot be read or does not say what it can mean.
    """
    path = Path(path)
    top = CheckedTable(f"{path}: top level", _parsed(path), _TOP)
    stat, tables = top.get("stat", "median"), top.get("range", [])
    if not tables:
        raise NsysprofError(
            f"{path}: no [[range]] table, so there is nothing to check",
            "a budget to begin with: nsysprof check --init REPORT",
        )
    ranges = tuple(_range(path, number, table, stat) for number, table in enumerate(tables, 1))
    first: dict[str, str] = {}
    for each in ranges:
        if first.setdefault(each.glob, each.label) != each.label:
            raise NsysprofError(
                f"{path}: {first[each.glob]} and {each.label} have the same path",
                "put their limits into one table",
            )
    return Budget(path, ranges, top.get("skip", 0), tuple(top.get("merge", DEFAULT_MERGE)))


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_small(path).decode("utf-8-sig"))
    except OSError as error:
        hint = (
            "nsysprof check --init REPORT"
            if isinstance(error, FileNotFoundError)
            else f"ls -ld {quote(str(path))}"
        )
        raise NsysprofError(f"{path}: cannot read the budget: {error.strerror}", hint) from None
    except UnicodeDecodeError as error:
        raise NsysprofError(
            f"{path}: not a budget: byte {error.start} is no UTF-8 text", "nsysprof check REPORT budget.toml"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of a million digits, and very deep nesting
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise NsysprofError(f"{path}: not TOML: {reason}", "nsysprof check REPORT budget.toml") from None


_TOP: Parsers = {
    "stat": one_of(*STATS),
    "skip": as_count,
    "merge": as_texts,
    "range": as_tables,
}
_RANGE: Parsers = {
    "path": as_text,
    "optional": as_flag,
    "stat": one_of(*STATS),
    "min_instances": as_positive,
    **{f"max_{name}": as_count for name in _COUNTS},
    **{f"max_{name}": as_time for name in TIMES},
    **{f"max_{name}_ns": as_count for name in TIMES},
    "max_idle": as_share,
    "forbid": as_families,
    "forbid_causes": as_texts,
    "forbid_kernels": as_expressions,
    "backend": as_text,
    "math_unit": as_tables,
    "max_growth": as_table,
}
_UNIT: Parsers = {
    "family": one_of(*FAMILIES),
    "unit": one_of(*[unit for unit in MATH_UNITS if unit != "unknown"]),
    "min_share": as_share,
}
_GROWTH: Parsers = dict.fromkeys(TIMES, as_part)


def _range(path: Path, number: int, values: dict[str, Any], stat: str) -> RangeBudget:
    glob = values.get("path")
    label = f"range {number}" + (f" ({shown_value(glob)})" if isinstance(glob, str) else "")
    table = CheckedTable(f"{path}: {label}", values, _RANGE)
    glob = table.need("path")
    found = RangeBudget(
        glob=glob,
        label=label,
        stat=table.get("stat", stat),
        optional=table.get("optional", False),
        min_instances=table.get("min_instances"),
        caps=dict(_caps(table)),
        forbidden=tuple(
            Forbidden(by, text)
            for key, by in (("forbid", "family"), ("forbid_causes", "cause"), ("forbid_kernels", "kernel"))
            for text in dict.fromkeys(table.get(key, []))
        ),
        backend=table.get("backend"),
        units=tuple(_unit(table, each) for each in table.get("math_unit", [])),
        growth=CheckedTable(f"{table.where}: max_growth", table.get("max_growth", {}), _GROWTH).values,
    )
    if found.optional and not found.is_limited:
        raise table.error("optional, and without a limit: nothing is asked of it")
    return found


def _caps(table: CheckedTable) -> Iterator[tuple[str, float]]:
    for key, value in table.values.items():
        name = key.removeprefix("max_").removesuffix("_ns")
        if key.endswith("_ns") and f"max_{name}" in table.values:
            raise table.error(f"both max_{name} and {key}: give one of them")
        if key.startswith("max_") and key != "max_growth":
            yield name, value


def _unit(table: CheckedTable, values: dict[str, Any]) -> UnitShare:
    unit = CheckedTable(f"{table.where}: math_unit", values, _UNIT)
    return UnitShare(unit.need("family"), unit.need("unit"), unit.get("min_share", 1.0))
