"""Define budgets: limits for every report of a program, read from TOML. docs/check.md lists the keys."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from nsysprof.attribution.paths import DEFAULT_MERGE, Instances
from nsysprof.core.document import Text, Texts, format_value, parse_as, read_toml, texts
from nsysprof.core.expressions import compiled
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import Family

OF_KERNELS = ("registers", "local_memory")  # what a thread of a kernel needs
TIMES = ("span", "busy", "cpu")  # of each call, whether it is a step or not
_BEGIN = "draft a budget: nsysprof check --init REPORT"
_NUMBER = r"\s*(\d+(?:\.\d*)?|\.\d+)\s*"
_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9}
_MAX_INT = 2**63 - 1
_Stat = Literal["median", "p95", "max"]
_Whole = Annotated[int, msgspec.Meta(ge=0, le=_MAX_INT)]


class Nanoseconds(int):
    """A time in ns, written as a number with a unit, and rounded down."""

    @classmethod
    def read(cls, value: Any) -> Nanoseconds:
        """Parse a value from a file; raises `ValueError` if it is invalid."""
        match = re.fullmatch(rf"{_NUMBER}({'|'.join(_NS)})\s*", value) if isinstance(value, str) else None
        if match is None:
            raise ValueError('must be a number with a unit (ns, us, ms or s): "2.5 ms"')
        ns = Decimal(match[1]) * _NS[match[2]]
        if ns > _MAX_INT:
            raise ValueError("is longer than any recording")
        return cls(ns)


class Part(float):
    """A fraction of 1, written as a number or a percentage."""

    most = math.inf

    @classmethod
    def read(cls, value: Any) -> Part:
        """Parse a value from a file; raises `ValueError` if it is invalid."""
        part = math.nan
        if isinstance(value, str):
            match = re.fullmatch(rf"{_NUMBER}%\s*", value)
            part = float(Decimal(match[1]) / 100) if match else math.nan
        elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            part = float(value)
        if not math.isfinite(part):
            raise ValueError('must be a percentage ("20 %") or a number from 0 to 1')
        if part > cls.most:
            raise ValueError("cannot be more than 100 %")
        return cls(part)


class Share(Part):
    """A fraction of at most 1."""

    most = 1.0


class Expression(str):
    """A regular expression that does not match everything."""

    __slots__ = ()

    @classmethod
    def read(cls, value: Any) -> Expression:
        """Parse a value from a file; raises `ValueError` if it is invalid."""
        text = msgspec.convert(value, Text)
        try:
            matches_all = compiled(text).search("") is not None
        except ValueError as error:
            raise ValueError(f"does not compile: {error}") from None
        if matches_all:
            raise ValueError("matches every name")
        return cls(text)


@dataclass(frozen=True)
class Forbidden:
    """GPU ops that a range must not contain. ``by`` is family or cause (``text`` is then a glob) or kernel (``text`` is
    then an expression).
    """

    by: str
    text: str


class UnitShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A minimum share (``least``) of the time of ``family`` that must run on ``unit``."""

    family: Family
    unit: Literal["tensor core", "FP32 FMA"]
    least: Share = msgspec.field(name="min_share", default=Share(1.0))


@dataclass(frozen=True)
class RangeBudget:
    """One ``[[range]]`` table.

    ``label`` is the name of the table in messages. ``caps`` has limits per call: counts (``kernels, launches, memops,
    graph_launches, syncs``), times in ns (``step, span, busy, cpu, exposed_communication``) and fractions (``idle,
    launch_bound_share``). ``caps`` also has a limit over all calls (``slow_step_share``) and limits per thread of any
    kernel (``registers``, ``local_memory`` in bytes). ``growth`` is the allowed growth of a time or of a kernel's
    resources, relative to the baseline. None or empty means no limit.
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
    def of_kernels(self) -> bool:
        """Return whether there is a limit on the kernels' resources per thread."""
        return not {*self.caps, *self.growth}.isdisjoint(OF_KERNELS)

    @property
    def is_limited(self) -> bool:
        """Return whether the table requires more than the existence of the range."""
        return bool(self.caps or self.forbidden or self.backend or self.units or self.growth or self.min_instances)


@dataclass(frozen=True)
class Budget:
    """The result of `read_budget`: the ranges in file order, and how instances are chosen and merged.

    ``merge`` is None if nothing is merged. ``instances`` are the instances to check in each range; None means all.
    """

    path: Path
    ranges: tuple[RangeBudget, ...]
    skip: int
    merge: tuple[str, ...] | None
    instances: Instances | None = None


class _Growth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    step: Part = Part()
    span: Part = Part()
    busy: Part = Part()
    cpu: Part = Part()
    registers: Part = Part()
    local_memory: Part = Part()


class _Range(msgspec.Struct, forbid_unknown_fields=True):
    """A table as read from the file; the values of absent limits have no meaning."""

    path: Text
    optional: bool = False
    stat: _Stat = "median"
    min_instances: Annotated[int, msgspec.Meta(ge=1, le=_MAX_INT)] = 0
    max_kernels: _Whole = 0
    max_launches: _Whole = 0
    max_memops: _Whole = 0
    max_graph_launches: _Whole = 0
    max_step: Nanoseconds = Nanoseconds()
    max_span: Nanoseconds = Nanoseconds()
    max_busy: Nanoseconds = Nanoseconds()
    max_cpu: Nanoseconds = Nanoseconds()
    max_step_ns: _Whole = 0
    max_span_ns: _Whole = 0
    max_busy_ns: _Whole = 0
    max_cpu_ns: _Whole = 0
    max_idle: Share = Share()
    max_launch_bound_share: Share = Share()
    max_exposed_communication: Nanoseconds = Nanoseconds()
    max_exposed_communication_ns: _Whole = 0
    max_syncs: _Whole = 0
    max_registers: _Whole = 0
    max_local_memory: _Whole = 0
    max_slow_step_share: Share = Share()
    forbid: Annotated[list[Family], msgspec.Meta(min_length=1)] = []
    forbid_causes: Annotated[list[Text], msgspec.Meta(min_length=1)] = []
    forbid_kernels: Annotated[list[Expression], msgspec.Meta(min_length=1)] = []
    backend: Text = ""
    math_unit: list[UnitShare] = []
    max_growth: _Growth = _Growth()


class _Top(msgspec.Struct, forbid_unknown_fields=True):
    stat: _Stat = "median"
    skip: _Whole = 0
    merge: Texts = []
    range: list[dict[str, Any]] = []


def read_budget(path: Path) -> Budget:
    """Read a budget from a TOML file; docs/check.md lists its keys.

    Raises `NsysprofError` with file, table and reason if the file cannot be read or a value is invalid.
    """
    path = Path(path)
    content = read_toml(path, "budget", "nsysprof check REPORT budget.toml", "nsysprof check --init REPORT")
    top = parse_as(_listed(content, "range"), _Top, str(path), _BEGIN)
    if not top.range:
        raise NsysprofError(f"{path}: no [[range]] table, so there is nothing to check", _BEGIN)
    ranges = tuple(_range(path, number, table, top.stat) for number, table in enumerate(top.range, 1))
    first: dict[str, str] = {}
    for each in ranges:
        if first.setdefault(each.glob, each.label) != each.label:
            raise NsysprofError(
                f"{path}: {first[each.glob]} and {each.label} have the same path",
                "put the limits of both tables into one table",
            )
    return Budget(path, ranges, top.skip, tuple(texts(top.merge) or DEFAULT_MERGE))


def _listed(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The values, with single values of ``keys`` turned into lists."""
    return {key: [value] if key in keys and not isinstance(value, list) else value for key, value in values.items()}


def _range(path: Path, number: int, values: dict[str, Any], stat: str) -> RangeBudget:
    glob = values.get("path")
    label = f"range {number}" + (f" ({format_value(glob)})" if isinstance(glob, str) else "")
    where = f"{path}: {label}"
    several = ("forbid", "forbid_causes", "forbid_kernels", "math_unit")
    table = parse_as({"stat": stat, **_listed(values, *several)}, _Range, where, _BEGIN)
    limits = RangeBudget(
        glob=table.path,
        label=label,
        stat=table.stat,
        optional=table.optional,
        min_instances=table.min_instances or None,
        caps=dict(_caps(table, values, where)),
        forbidden=tuple(
            Forbidden(by, text)
            for by, named in (
                ("family", table.forbid),
                ("cause", table.forbid_causes),
                ("kernel", table.forbid_kernels),
            )
            for text in dict.fromkeys(named)
        ),
        backend=table.backend or None,
        units=tuple(table.math_unit),
        growth={time: getattr(table.max_growth, time) for time in values.get("max_growth", ())},
    )
    if "max_growth" in values and not limits.growth:
        raise NsysprofError(f"{where}: max_growth must be a table with at least one entry", _BEGIN)
    if limits.optional and not limits.is_limited:
        raise NsysprofError(f"{where}: the range is optional and has no limit, so this table has no effect", _BEGIN)
    return limits


def _caps(table: _Range, values: Mapping[str, Any], where: str) -> Iterator[tuple[str, float]]:
    for key in values:
        name = key.removeprefix("max_").removesuffix("_ns")
        if key.endswith("_ns") and f"max_{name}" in values:
            raise NsysprofError(f"{where}: both max_{name} and {key} are set: keep only one of them", _BEGIN)
        if key.startswith("max_") and key != "max_growth":
            yield name, getattr(table, key)
