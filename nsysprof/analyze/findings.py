"""The most important sentences of `nsysprof why`, from its walk over a sample of instances: at bounded cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nsysprof.analyze.highlights import preparing
from nsysprof.core.text import one_line

if TYPE_CHECKING:
    from nsysprof.analyze.breakdown import Breakdown
    from nsysprof.waits.windows import Windows
    from nsysprof.why.findings import Finding

MOST = 2
# What a walk has to read whole, whatever it samples: GPU ops, and bytes of the file. More is left to `nsysprof why`.
MAX_OPS, MAX_BYTES = 250_000, 1 << 27
MAX_WALKED = 30_000  # GPU ops in the sampled windows


@dataclass(frozen=True)
class Waits:
    """What the GPU waits for, at most `MOST` findings of all paths, those with the most time first.

    ``walked`` of the ``windows`` of the repeated ranges were looked at, evenly spread; ``paths``: their merged paths.
    """

    findings: tuple[Finding, ...]
    walked: int
    windows: int
    paths: tuple[str, ...]

    @property
    def head(self) -> str:
        """The sentence above the findings: of which ranges they are, and of how many instances."""
        where = one_line(self.paths[0], 60) if len(self.paths) == 1 else "ranges that repeat"
        some = (
            f", seen in {self.walked:,} of {self.windows:,} instances" if self.walked < self.windows else ""
        )
        return f"What the GPU waits for in {where}{some}:"

    def sentence(self, finding: Finding) -> str:
        """A finding, with its path where there are several."""
        where = f"{one_line(finding.path, 60)}: " if len(self.paths) > 1 else ""
        return f"{where}{finding.text}"

    def records(self) -> list[dict[str, Any]]:
        """The findings for JSON; ``instances`` were looked at of ``of_instances``."""
        seen = {"instances": self.walked, "of_instances": self.windows}
        names = ("path", "cause", "culprit", "text", "ns", "share", "claim", "hint")
        return [{**{name: getattr(each, name) for name in names}, **seen} for each in self.findings]


def main_waits(breakdown: Breakdown) -> Waits | None:
    """The `Waits` of the ranges that `nsysprof why` would account for, without warm-up.

    None where nothing is left of them, and where the report is too large to be asked in passing.
    """
    attribution = breakdown.attribution
    trace, merge = attribution.trace, breakdown.options["merge"]
    file = trace.report.file
    if not 0 < len(trace.ops) <= MAX_OPS or (file.is_file() and file.stat().st_size > MAX_BYTES):
        return None
    from nsysprof.why.account import account_of  # noqa: PLC0415 (slow to import)
    from nsysprof.why.findings import findings  # noqa: PLC0415
    from nsysprof.why.ranges import choose_windows  # noqa: PLC0415

    windows, texts, _ = choose_windows(attribution.launched, None, merge)
    windows = windows.take(np.flatnonzero(_wanted(breakdown, windows, texts)))
    ops = _ops_of(breakdown, windows)
    step = max(1, -(-int(ops.sum()) // MAX_WALKED))
    chosen = np.arange(len(windows))[(step - 1) // 2 :: step] if len(windows) > 1 else np.arange(len(windows))
    if not len(chosen) or ops[chosen].sum() > 2 * MAX_WALKED:
        return None
    account = account_of(attribution, windows, texts, breakdown.kinds, merge, chosen)
    count = dict(zip(*np.unique(windows.path[chosen], return_counts=True), strict=True))
    total = {texts[path]: int(number) for path, number in count.items()}
    # what lies between sampled windows are others
    found = findings(account.rows.records(), account.held_up.records(), ())
    each = [one for path in total for one in found.get(path, [])]
    each.sort(key=lambda one: (-one.ns * total[one.path], one.path, one.text))
    return Waits(tuple(each[:MOST]), len(chosen), len(windows), tuple(total))


def _wanted(breakdown: Breakdown, windows: Windows, texts: list[str]) -> NDArray[np.bool_]:
    """Which windows are of ranges that the analysis holds, and neither of warm-up nor of checks."""
    merged = breakdown.columns("merged")
    paths = merged.texts("merged_path").tolist()
    before = {path for path, early in zip(paths, preparing(merged).tolist(), strict=True) if early}
    wanted = np.array([text not in before and not text.lower().startswith("warm") for text in texts], bool)
    kept: NDArray[np.bool_] = np.append(breakdown.kept, breakdown.options["select"] is None)[windows.range]
    kept &= wanted[windows.path]
    return kept


def _ops_of(breakdown: Breakdown, windows: Windows) -> NDArray[np.int64]:
    """How many GPU ops start in each window."""
    trace = breakdown.attribution.trace
    out = np.zeros(len(windows), np.int64)
    for gpu in np.unique(windows.gpu).tolist():
        start, mine = np.sort(trace.ops.start[trace.op_gpu == gpu]), windows.gpu == gpu
        first, last = (np.searchsorted(start, edge[mine]) for edge in (windows.start, windows.end))
        out[mine] = last - first
    return out
