"""Format slow steps as text: findings, paths, extra time of the largest slow class, and the slowest steps."""

from typing import Any

import numpy as np

from nsysprof.core.columns import ColumnTable
from nsysprof.core.text import command_line, next_line, one_line, path_option, plural, visible
from nsysprof.core.units import format_ns, format_share
from nsysprof.diagnosis.text import same_ranges
from nsysprof.results.one_screen import Rows, answer_lines, grave
from nsysprof.results.table import TextTable, spread_text, wrap
from nsysprof.statistics.judge import CLASSES, SLOW_ONES
from nsysprof.steps.findings import Finding, classes_of, findings_one_by_one, headline, join_words_of
from nsysprof.steps.steps import Chain, Steps
from nsysprof.steps.tables import STEPS

_FINDINGS = 3  # of one screen
_NAME = 64
_SHOWN = ("step", "name", "start_ns", "span_ns", "excess_ns", "class", "cause", "culprit")


def steps_text(answer: Steps, top: int = 8, *, full: bool = False, markdown: bool = False) -> str:
    """Format one terminal screen, Markdown, or the ``full`` result, with ``top`` rows per table.

    Ends with a newline.
    """
    found = findings_one_by_one(answer)
    most = len(found) if full else _FINDINGS
    left = [plural(more, "more finding")] if (more := len(found) - most) > 0 else []
    slow, paths = slow_table(answer, top), paths_table(answer, len(answer.chains) if full else top)
    tables = [
        Rows(paths, "path", len(answer.chains)) if answer.chains else None,
        Rows(ledger) if (ledger := ledger_table(answer, top)) else None,
        Rows(slow, "slow step", len(_slow_rows(answer))) if slow else None,
    ]
    said = [wrap(f"warning: {each}", "", "  ") for each in grave(answer.warnings)]
    parts = ["\n".join([wrap(visible(_head(answer)), "", "  "), *said]), _sentences(answer, found[:most])]
    return answer_lines(
        [*parts, *(each for each in tables if each)], answer.warnings, more=left, full=full, markdown=markdown
    )


def _head(answer: Steps) -> str:
    chosen = f"; {answer.chosen}" if answer.chosen else ""
    left_out = f"; {plural(answer.left_out, 'instance')} without GPU work left out" if answer.left_out else ""
    return f"{answer.attribution.trace.report.path}: {headline(answer)}{chosen}{left_out}"


def _sentences(answer: Steps, found: list[Finding]) -> str:
    file, level, lines = answer.attribution.trace.report.path, answer.level, []
    options = level.options if level else ()
    for number, each in enumerate(found, 1):
        where = f"{place_of(answer, each.path, each.gpu, each.pid)}: " if len(answer.chains) > 1 else ""
        lines.append(wrap(f"{number}. {where}{each.text}.", "", "   "))
        if number == 1:
            steps = f"--instance {each.steps[0]}" if each.steps else ""
            lines.append(next_line(command_line("why", file, path_option(each.path), steps, *options)))
    if not found:
        if any(not chain.judgement.doubt for chain in answer.chains):
            lines.append("No slow steps, patterns or level changes found.")
        other = "why" if answer.chains else "ranges"
        lines.append(next_line(same_ranges(other, level, file) if level else command_line(other, file)))
    return "\n".join(lines)


def place_of(answer: Steps, path: str, gpu: int, pid: int) -> str:
    """Name a path, with its GPU or process if the path has several."""
    mine = [chain for chain in answer.chains if chain.path == path]
    where = [f"GPU {gpu}"] * (len({chain.gpu for chain in mine}) > 1)
    where += [f"pid {pid}"] * (len({chain.pid for chain in mine}) > 1)
    name = one_line(path, _NAME)
    return f"{name} ({', '.join(where)})" if where else name


def paths_table(answer: Steps, most: int = 12) -> TextTable:
    """Make a row per path, GPU and process: step times, the number of slow steps, and the slow threshold."""
    rows = [_path_cells(answer, chain) for chain in answer.ranked[:most]]
    return TextTable(["steps of", "steps", "warm-up", "median", "longest", "slow", "slow from"], rows, "lrrrrrr")


def _path_cells(answer: Steps, chain: Chain) -> list[str]:
    low, median, high = np.quantile(chain.whole, [0.25, 0.5, 0.75]).tolist()
    slow, limit = len(chain.of(*SLOW_ONES)), chain.judgement.limit
    spread = int(high - low), int(chain.whole.min()), int(chain.whole.max())
    return [
        place_of(answer, chain.path, chain.gpu, chain.pid),
        f"{len(chain.whole):,}",
        f"{chain.judgement.warm_up:,}",
        spread_text(int(median), *spread, len(chain.whole)),
        format_ns(spread[2]),
        f"{slow:,} ({format_share(chain.slow_share)})" if slow else "0",
        chain.judgement.doubt or f"{limit:.2f}x",
    ]


def ledger_table(answer: Steps, top: int) -> TextTable | None:
    """Show how much longer the parts of slow steps take than in typical steps, for the slow class with the most excess;
    returns None if no step is slow.
    """
    every = [(chain, rows) for chain in answer.chains for _, rows in classes_of(answer, chain)]
    if not every:
        return None
    chain, slow = max(every, key=lambda each: int(each[1]["excess_ns"].sum()))
    rows = answer.columns("ledger")
    place = rows.texts("path").equal(chain.path) & (rows["gpu"] == chain.gpu) & (rows["pid"] == chain.pid)
    names = ["slow_ns", "typical_ns", "delta_ns"]
    added = rows.take(place & np.isin(rows["step"], slow["step"])).summed(["cause", "culprit"], names)
    every_row = sorted(added.records(), key=lambda row: (-abs(row["delta_ns"]), row["cause"], row["culprit"]))
    cells = [
        _ledger_cells(join_words_of(row["cause"], one_line(row["culprit"], _NAME)), row, len(slow))
        for row in every_row[:top]
    ]
    total, rest = ({name: sum(row[name] for row in some) for name in names} for some in (every_row, every_row[top:]))
    if len(every_row) > top:
        cells.append(_ledger_cells(f"{len(every_row) - top:,} more", rest, len(slow)))
    cells.append(_ledger_cells("step", total, len(slow)))
    of = "step" if len(slow) == 1 else f"of {len(slow):,} steps, mean"
    return TextTable([f"slow minus typical ({of})", "slow", "typical", "difference"], cells, "lrrr", last_apart=True)


def _ledger_cells(name: str, row: Any, count: int) -> list[str]:
    slow, typical, delta = (float(row[each]) / count for each in ("slow_ns", "typical_ns", "delta_ns"))
    sign = "+" if delta > 0 else "-" if delta < 0 else ""
    return [name, format_ns(slow), format_ns(typical), f"{sign}{format_ns(abs(delta))}"]


def _slow_rows(answer: Steps) -> ColumnTable:
    rows = answer.columns("steps")
    slow = [rows.texts("class").equal(CLASSES[code]) for code in SLOW_ONES]
    return rows.take(np.any(slow, axis=0))


def slow_table(answer: Steps, top: int) -> TextTable | None:
    """List the steps with the most excess; returns None if no step is slow."""
    rows = _slow_rows(answer)
    if not len(rows):
        return None
    rows = rows.take(np.argsort(-rows["excess_ns"], kind="stable")[:top])
    return STEPS.show(rows, ("path", *_SHOWN) if len(answer.chains) > 1 else _SHOWN)
