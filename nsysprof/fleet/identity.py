"""Number the processes as ranks, from the best source that covers all processes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nsysprof.core.expressions import compiled
from nsysprof.errors import NsysprofError
from nsysprof.fleet.examine import ReportFailure
from nsysprof.formats.rank_answer import RankPart, ReportAnswer
from nsysprof.formats.run_record import MAX_RANK_DIGITS

RECORD, ENVIRONMENT = "the run record beside each report", "the environment in the reports"
FILE_NAME, ORDER = "the file names", "the order of reports, then of GPUs and pids within a report"


@dataclass(frozen=True)
class Ranked:
    """A rank with its report and process."""

    rank: int
    answer: ReportAnswer
    part: RankPart


@dataclass(frozen=True)
class Identity:
    """All ranks in order, the ``source`` of the rank numbers in words, and notes."""

    ranks: tuple[Ranked, ...]
    source: str
    warnings: tuple[str, ...]


def rank_pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression; its first group is the rank number in a file name.

    Raises `NsysprofError` if it is invalid.
    """
    try:
        pattern = compiled(text)
    except ValueError as error:
        raise NsysprofError(
            f"--rank-from {text!r} is not a regular expression: {error}", r"--rank-from 'rank_(\d+)'"
        ) from None
    if pattern.groups < 1:
        raise NsysprofError(f"--rank-from {text!r} has no group (…) for the rank number", r"--rank-from 'rank_(\d+)'")
    return pattern


def identify_ranks(
    outcomes: Sequence[ReportAnswer | ReportFailure], pattern: re.Pattern[str] | None = None
) -> Identity:
    """Number all processes of all readable reports.

    Uses ``pattern`` if given. Otherwise uses the first source that numbers every rank: run records, environments, or
    the order of reports. Several processes in one report are separate ranks, numbered in the order of their GPUs. If
    each report is one rank, unreadable reports keep their place in the order. Raises `NsysprofError` if ``pattern``
    does not match a name, or if two reports are the same rank.
    """
    placed = [(at, answer) for at, answer in enumerate(outcomes) if isinstance(answer, ReportAnswer)]
    answers = [answer for _, answer in placed]
    everyone = [(answer, part) for answer in answers for part in answer.parts]
    single = all(len(answer.parts) == 1 for answer in answers)
    warnings = []
    numbers: list[int] | None = None
    source = ORDER
    if pattern is not None:
        if not single:
            shared = next(answer.report for answer in answers if len(answer.parts) > 1)
            raise NsysprofError(
                f"{shared} has several processes, so the name of the report cannot identify a rank",
                "leave out --rank-from",
            )
        numbers, source = [_in_name(answer.report, pattern) for answer in answers], FILE_NAME
    else:
        sources = {
            RECORD: [answer.record_rank for answer in answers],
            ENVIRONMENT: [answer.environment_rank for answer in answers],
        }
        for name, values in sources.items():
            known = [value for value in values if value is not None]
            if not known or numbers is not None:
                continue
            if not single:
                warnings.append(
                    f"{name} gives one rank per report, but some reports have several processes: ranks"
                    " are numbered in report order"
                )
            elif len(known) == len(values):
                numbers, source = known, name
            else:
                without = answers[values.index(None)].report
                warnings.append(f"{name} gives ranks for only {len(known)} of {len(values)} reports, not for {without}")
    if numbers is None:
        numbers = [at for at, _ in placed] if single else list(range(len(everyone)))
    _refuse_duplicates(numbers, everyone, source)
    warnings += _same_process(everyone)
    ranks = [Ranked(number, answer, part) for number, (answer, part) in zip(numbers, everyone, strict=True)]
    return Identity(tuple(sorted(ranks, key=lambda each: each.rank)), source, tuple(warnings))


def _in_name(report: str, pattern: re.Pattern[str]) -> int:
    match = pattern.search(report.rstrip("/").rpartition("/")[2]) or pattern.search(report)
    text = (match[1] or "") if match else ""
    if not text.isdecimal() or len(text) > MAX_RANK_DIGITS:
        what = f"{text}, which is not a rank," if text.isdecimal() else "no number"
        raise NsysprofError(
            f"{report}: --rank-from {pattern.pattern!r} finds {what} in this name", r"--rank-from 'rank_(\d+)'"
        )
    return int(text)


def _refuse_duplicates(numbers: Sequence[int], everyone: Sequence[tuple[ReportAnswer, RankPart]], source: str) -> None:
    seen: dict[int, str] = {}
    for number, (answer, _) in zip(numbers, everyone, strict=True):
        if number in seen:
            raise NsysprofError(
                f"{seen[number]} and {answer.report} are both rank {number} according to {source}",
                r"give only reports of one run, or number the ranks differently: --rank-from 'rank_(\d+)'",
            )
        seen[number] = answer.report


def _same_process(everyone: Sequence[tuple[ReportAnswer, RankPart]]) -> Iterator[str]:
    """Warn about a process that is in two files: with the same host, pid and start."""
    seen: dict[tuple[str, int, int], str] = {}
    for answer, part in everyone:
        if answer.host is None or answer.start_utc_ns is None:
            continue
        key = (answer.host, part.pid, answer.start_utc_ns)
        if key in seen and seen[key] != answer.report:
            yield f"{seen[key]} and {answer.report} contain the same process: pid {part.pid} of {answer.host}"
        seen.setdefault(key, answer.report)
