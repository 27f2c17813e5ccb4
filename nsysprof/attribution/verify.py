"""Compare the strict attribution of a report with nsys's own projection, range by range."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nsysprof.attribution.attribute import attribute
from nsysprof.errors import NsysprofError
from nsysprof.tools.nsys import find_nsys, stats
from nsysprof.trace.trace import GRAPH, PUSH_POP, START_END, Trace, pid_of, tid_of
from nsysprof.trace.variants import only_ops

_STYLES = {"PushPop": "push/pop", "StartEnd": "start/end"}


class _Projected(NamedTuple):
    """One range as projected on the GPU; times in ns."""

    first_op: int
    span: int
    launches: int

    def __str__(self) -> str:
        return f"first op at {self.first_op:,} ns, span {self.span:,} ns, {self.launches:,} launches"


class _Where(NamedTuple):
    """The key of a range in both projections; ranges with equal keys are compared as a group."""

    pid: int
    tid: int
    start: int
    style: str

    def __str__(self) -> str:
        return f"{self.style} range in process {self.pid}, thread {self.tid}, at {self.start:,} ns"


@dataclass(frozen=True)
class Verification:
    """The number of compared ranges (``compared``) and of equal ranges (``equal``).

    ``explained`` counts differences by their known reason; ``differences`` has a sentence for each unexplained
    difference.
    """

    nsys: str
    compared: int
    equal: int
    explained: dict[str, int]
    differences: tuple[str, ...]


def verify(trace: Trace, nsys: Path | None = None) -> Verification:
    """Run ``nsys stats --report nvtx_gpu_proj_trace`` on the same file, and compare span, first GPU op and launch
    count of every NVTX range with GPU work.

    There are two known reasons for differences: nsys leaves out start/end ranges if the report names the thread that
    ended them, and ends unclosed ranges with the last NVTX event. CUDA graphs traced as a whole are left out on both
    sides, because nsys leaves them out. Raises `NsysprofError` if nsys is not installed or lacks that report, or if the
    report is not an SQLite file.
    """
    report = trace.report
    if report.format != "sqlite":
        raise NsysprofError(
            f"{report.path}: only SQLite reports can be verified with nsys", "nsys export --type sqlite REPORT.nsys-rep"
        )
    installed = find_nsys(nsys)
    theirs: dict[_Where, list[_Projected]] = defaultdict(list)
    for row in stats(installed, report.file, "nvtx_gpu_proj_trace"):
        if style := _STYLES.get(row["Style"]):  # some versions add a row for work outside every range
            where = _Where(int(row["PID"]), int(row["TID"]), int(row["Orig Start (ns)"]), style)
            projected = ("Projected Start (ns)", "Projected Duration (ns)", "NumGPUOps")
            theirs[where].append(_Projected(*(int(row[name]) for name in projected)))
    ours, names, reasons = _projected(trace)
    explained: Counter[str] = Counter()
    differences = []
    equal = 0
    for where in sorted({*ours, *theirs}):
        our, their = Counter(ours.get(where, ())), Counter(theirs.get(where, ()))
        equal += (our & their).total()
        count = max((our - their).total(), (their - our).total())
        if not count:
            continue
        if where in reasons:
            explained[reasons[where]] += count
        elif where not in names and trace.never_popped:
            explained[
                "the program never popped this range, so its time counts as part of the outer range of the same name"
            ] += count
        else:
            name = names.get(where, "unknown to nsysprof")
            differences.append(f"{name} ({where}): nsysprof {_listed(our - their)}; nsys {_listed(their - our)}")
    compared = equal + explained.total() + len(differences)
    return Verification(installed.version_text, compared, equal, dict(explained), tuple(differences))


def _listed(projected: Counter[_Projected]) -> str:
    return " and ".join(map(str, projected.elements())) or "nothing"


def _projected(trace: Trace) -> tuple[dict[_Where, list[_Projected]], dict[_Where, str], dict[_Where, str]]:
    """nsysprof's projection of every range with GPU work, the names of all ranges, and the ranges for which nsys is
    known to differ, with the reason.
    """
    strict = attribute(only_ops(trace, trace.ops.kind != GRAPH), "strict")
    ranges, inside = trace.ranges, strict.inclusive
    thread = trace.threads[ranges.thread]
    style = np.where(ranges.kind == START_END, _STYLES["StartEnd"], _STYLES["PushPop"])
    keys = (pid_of(thread), tid_of(thread), ranges.start, style)
    places = [_Where(*key) for key in zip(*(values.tolist() for values in keys), strict=True)]
    ours: dict[_Where, list[_Projected]] = defaultdict(list)
    columns = (inside.first_op_ns.tolist(), inside.span_ns.tolist(), inside.launches.tolist())
    nvtx = np.isin(ranges.kind, (PUSH_POP, START_END)).tolist()
    for where, of_nvtx, *projected in zip(places, nvtx, *columns, strict=True):
        if of_nvtx and projected[2]:
            ours[where].append(_Projected(*projected))
    reasons = {
        places[row]: reason
        for marked, reason in (
            (ranges.unclosed, "the program never closed this range, so nsys ends the range at the last NVTX event"),
            (ranges.moved, "nsys leaves out start/end ranges if the report names the thread that ended them"),
        )
        for row in np.flatnonzero(marked)
    }
    texts = [name.text for name in trace.range_names]
    return ours, {where: texts[name] for where, name in zip(places, ranges.name.tolist(), strict=True)}, reasons
