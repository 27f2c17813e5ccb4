"""Lays hardware counters beside the pairs of a comparison: which file goes with which report, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote

from nsysprof.attribution.globs import listed
from nsysprof.compare.attention_model import Expected
from nsysprof.compare.counter_match import match_counters
from nsysprof.compare.measured import Measured, measure
from nsysprof.compare.side_pairs import Pair
from nsysprof.compare.sides import Examined, Side
from nsysprof.errors import NsysprofError
from nsysprof.formats.counters import CounterFile, counters_beside, read_counters

Models = tuple[Expected | None, Expected | None]
BothMeasured = tuple[Measured | None, Measured | None]


def load_counters(
    examined: Sequence[Examined], files: Sequence[Path | None], versions: Sequence[Mapping[str, str]]
) -> tuple[list[CounterFile | None], list[str]]:
    """The counters of each report, None for none, and what must be known of them.

    A file that is named must be right: `NsysprofError` says what is wrong with it. One that only lies beside a report
    is left out with a warning then. ``versions`` are those of the libraries by the run record of each report.
    """
    found: list[CounterFile | None] = []
    warnings: list[str] = []
    for one, file, known in zip(examined, (*files, None, None), versions, strict=False):
        beside = counters_beside(one.path) if file is None else None
        path = file or beside
        try:
            counters = read_counters(path) if path else None
            if counters:
                _check_gpu(one, counters)
        except NsysprofError as error:
            if not beside:
                raise
            warnings.append(f"the counters beside the report are left out: {error.message}")
            counters = None
        if counters:
            warnings += [*counters.doubts, *_versions_differ(one, counters, known)]
        found.append(counters)
    return found, warnings


def _check_gpu(examined: Examined, counters: CounterFile) -> None:
    """Raise `NsysprofError` where the counters are of another GPU than all of the report's."""
    names = [str(gpu.name) for gpu in examined.attribution.tables.report.about.cuda_gpus]
    if counters.gpus and names and not set(names) & set(counters.gpus):
        raise NsysprofError(
            f"{counters.path} was measured on {' and '.join(counters.gpus)}, {examined.path} on"
            f" {' and '.join(dict.fromkeys(names))}",
            "nsysprof counters, on the GPU that the report is of",
        )


def _versions_differ(examined: Examined, counters: CounterFile, known: Mapping[str, str]) -> Iterator[str]:
    """Where other libraries ran, kernels of the same name may be others."""
    both = [name for name in known if name in counters.libraries]
    changed = [
        f"{name} {counters.libraries[name]} there, {known[name]} in the report"
        for name in both
        if counters.libraries[name] != known[name]
    ]
    if changed:
        yield f"{counters.path}: measured with other versions than {examined.path}: {'; '.join(changed)}"


def measured_pairs(
    pairs: Sequence[Pair],
    counters: Sequence[CounterFile | None],
    models: Mapping[str, Models],
    merge: Sequence[str] | None,
    *,
    named: bool,
) -> tuple[dict[str, BothMeasured], list[str]]:
    """For each pair what was measured of either side, and what has no counters.

    Where the files have nothing of any side, that is an error if they were ``named``, otherwise a warning.
    """
    of_report = {id(pair.base.examined): counters[0] for pair in pairs}
    of_report |= {id(pair.new.examined): counters[-1] for pair in pairs}
    done: dict[int, Measured | None] = {}
    warnings: list[str] = []
    missing: dict[Path, list[str]] = {}
    out: dict[str, BothMeasured] = {}
    for pair in pairs:
        for side, title, model in zip((pair.base, pair.new), pair.titles, models[pair.name], strict=True):
            file = of_report[id(side.examined)]
            if file is None or id(side) in done:
                done.setdefault(id(side), None)
                continue
            found = _measured(side, file, model, merge)
            done[id(side)] = found
            if found is None:
                missing.setdefault(file.path, []).append(side.text)
            else:
                warnings += [f"{title}: {text}" for text in found.warnings]
        out[pair.name] = (done[id(pair.base)], done[id(pair.new)])
    files = {file.path: file for file in counters if file}
    lacking = [_lacking(files[path], texts) for path, texts in missing.items()]
    if named and lacking and not any(done.values()):
        raise NsysprofError(lacking[0], f"cut -d, -f1 {quote(str(next(iter(missing))))} | uniq -c")
    return out, [*lacking, *warnings]


def _measured(
    side: Side, file: CounterFile, model: Expected | None, merge: Sequence[str] | None
) -> Measured | None:
    match = match_counters(side, file, merge)
    return measure(side, match, model.bytes_of if model else {}) if match else None


def _lacking(file: CounterFile, texts: Sequence[str]) -> str:
    tops = [path.rpartition("/")[0] or path for path in file.ranges if path]
    known = f"those of {listed(list(dict.fromkeys(tops)))}" if tops else "none inside of any range"
    return f"{file.path} has no kernels of {listed(texts)}; it has {known}"
