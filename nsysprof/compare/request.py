"""The request of a comparison: the ranges of each report, and the calls in these ranges."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nsysprof.attribution.paths import DEFAULT_MERGE, SLOWEST, TYPICAL, Instances, instances_text, read_instances
from nsysprof.compare.loaded import LoadedReport
from nsysprof.core.text import plural
from nsysprof.errors import NsysprofError

Wanted = tuple[Instances | None, Instances | None]


@dataclass(frozen=True)
class Request:
    """The comparison that the arguments of `compare` request; raises `NsysprofError` if they are ambiguous.

    ``instances`` are the chosen instances for each range, or for each side; ``slowest`` chooses the longest instance of
    each range.
    """

    base: str | None
    new: str | None
    select: str | None
    per: str | None
    skip: int
    instances: tuple[str, ...]
    slowest: bool
    one_report: bool

    def __post_init__(self) -> None:
        if (self.base is None) != (self.new is None):
            given, missing = ("--base", "--new") if self.new is None else ("--new", "--base")
            raise NsysprofError(f"{given} names only one side", f"select the other side with {missing} GLOB")
        if self.select is not None and self.base is not None:
            raise NsysprofError(
                "--range compares equal paths, and --base and --new compare different paths: give either --range, "
                "or both --base and --new"
            )
        if self.one_report and self.base is None and not (self.select and (self.instances or self.slowest)):
            raise NsysprofError(
                "nothing to compare: there is only one report, and no second range or instance was given",
                "give a second report, two ranges (--base GLOB --new GLOB), or one instance (--range GLOB --slowest)",
            )

    @property
    def chooses_calls(self) -> bool:
        """Return whether the request restricts the calls."""
        return bool(self.per or self.skip or self.slowest or self.instances)

    @property
    def is_open(self) -> bool:
        """Return whether the request names no ranges."""
        return (self.base, self.new, self.select) == (None,) * 3 and not self.chooses_calls

    @property
    def globs(self) -> tuple[str | None, str | None]:
        """Return the globs of each side, None for equal paths."""
        same = self.select if self.one_report and self.base is None else None
        return self.base or same, self.new or same

    @property
    def wanted(self) -> Wanted:
        """The instances of each side. With one report and one glob, the base is a typical instance."""
        chosen: list[Instances | None] = [*map(read_instances, self.instances)] or [None]
        if self.slowest:
            chosen = [SLOWEST]
        typical = self.one_report and self.base is None and len(chosen) == 1
        return (TYPICAL if typical else chosen[0]), chosen[-1]

    def left_out(self, reports: Sequence[LoadedReport]) -> Iterator[str]:
        """The calls that are left out, as sentences."""
        if self.skip and any(each.left_out is not None and each.left_out.any() for each in reports):
            yield f"left out: the first {self.skip:,} instances of each repeating range (--skip {self.skip})"
        elif self.skip:
            often = plural(self.skip, "time")
            yield f"--skip {self.skip} has no effect, because no range repeats more than {often}"
        base, new = self.wanted
        if base and base == new:
            option = "slowest" if self.slowest else "instance"
            yield f"only these instances of each range: {instances_text(base)} (--{option})"

    def options(self, merge: Sequence[str] | None) -> dict[str, Any]:
        """The request by argument name."""
        base, new = self.globs
        options: dict[str, Any] = {"base": base, "new": new, "select": self.select, "per": self.per}
        asked = {"skip": self.skip, "instances": list(self.instances), "slowest": self.slowest}
        options |= {name: value for name, value in asked.items() if value}
        return options | ({"merge": None if merge is None else list(merge)} if merge != DEFAULT_MERGE else {})
