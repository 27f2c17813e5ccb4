"""Make the page of `nsysprof why`: findings, critical path and timeline of a median window, trees, and waits."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from nsysprof.attribution.split import device_labels, stream_labels
from nsysprof.charts.palette import TINTS, WAITS
from nsysprof.core.text import one_line, shorten, visible
from nsysprof.core.units import format_ns
from nsysprof.diagnosis.finding import Finding
from nsysprof.diagnosis.text import gain_text, not_tried
from nsysprof.kernels.classify import FAMILIES
from nsysprof.page.packing import PageRow, longest, op_leads, op_names, pack
from nsysprof.page.template import answer_page, figures
from nsysprof.why.charts import CHARTS, RUNS, WORDS, kinds_of_names, title_of
from nsysprof.why.files import WHY
from nsysprof.why.instance import Instance, median_instance
from nsysprof.why.text import places, ranked_paths, tree
from nsysprof.why.why import Why

MAX_PATHS, MAX_ROWS, TOP = 24, 200, 12
MAX_OPS = 50_000  # of a window: of more, all but the longest are columns only
MAX_LEVELS = 6
_NAME, _LABEL = 160, 44
_SHOWN = (
    *("path", "cause", "activity", "culprit", "exposed_by", "claim"),
    *("waits", "waited_ns", "per_instance_ns", "share_of_span"),
)


def why_page(answer: Why, pictures: Sequence[bytes] = ()) -> str:
    """The page as text; ``pictures`` are the PNG files of `CHARTS`, empty if no charts are wanted."""
    paths = ranked_paths(answer)
    instance = median_instance(answer, paths[0] if paths else None)
    rows = answer.columns("rows")
    rows = rows.take(~rows.texts("cause").equal("compute"))
    rows = rows.take(np.argsort(-rows["waited_ns"], kind="stable"))
    more = f"{len(rows) - MAX_ROWS:,} rows more: see why.csv" if len(rows) > MAX_ROWS else ""
    return answer_page(
        answer.attribution,
        "why",
        "Why the GPU waits",
        title_of(answer, instance.path) if instance else "Nothing ran on a GPU.",
        [*(_sentences(instance.findings) if instance else []), *not_tried(answer.diagnosis)],
        answer.chosen,
        figures(CHARTS, pictures),
        [("rows", "Waits", WHY.show(rows.take(slice(MAX_ROWS)), _SHOWN, note=more) if len(rows) else None)],
        "why.html",
        with_timeline=instance is not None,
        timeline=_timeline(instance) if instance else None,
        paths=[_path(answer, path) for path in paths[:MAX_PATHS]],
        left_out=max(len(paths) - MAX_PATHS, 0),
    )


def _sentences(found: Sequence[Finding]) -> list[str]:
    return [visible(f"{each.text}{f' → {each.remedy} ({gain_text(each)})' if each.remedy else ''}") for each in found]


def _path(answer: Why, path: str) -> dict[str, Any]:
    trees = []
    for gpu, pid in places(answer, path):
        table = tree(answer, path, gpu, pid, TOP).html()
        for row in table["rows"]:  # blanks that HTML keeps
            name = row[0]["text"]
            row[0]["text"] = "\u2003" * ((len(name) - len(name.lstrip(" "))) // 2) + visible(name.lstrip(" "))
        trees.append(table)
    headline, findings = visible(title_of(answer, path)), _sentences(answer.findings[path])
    name = visible(one_line(path, _NAME))
    return {"name": name, "headline": headline, "findings": findings, "trees": trees}


def _timeline(instance: Instance) -> dict[str, Any]:
    answer, length = instance.answer, max(instance.end_ns - instance.start_ns, 1)
    trace, pieces = answer.attribution.trace, instance.pieces
    ranges = [*_range_rows(instance)]
    codes = list(dict.fromkeys(code for _, names in ranges for code in names))
    place = {code: at for at, code in enumerate(codes)}
    place_of_waits = instance.inside(pieces.start, pieces.end)
    columns = pieces.group, pieces.text
    rows = [PageRow("critical path", "what the GPU waits for", "waits", *place_of_waits, columns)]
    for row, names in ranges:
        own = np.array([place[code] for code in names], np.int64)
        rows.append(PageRow(row.group, row.label, "ranges", row.start, row.end, (own, *row.columns)))
    rows += [*_stream_rows(instance)]
    head = {
        "origin": instance.start_ns,
        "views": [],
        "gpus": [],
        "families": FAMILIES,
        "groups": [(WORDS.get(name, name), WAITS[name]) for name in RUNS],
        "tints": TINTS,
        "names": op_names(trace.op_names, answer.kinds, kinds_of_names(instance)),
        "pathNames": [shorten(trace.range_names[code].text, _NAME) for code in codes],
        "paths": [[-1] * len(codes), [*range(len(codes))], [at % len(TINTS) for at in range(len(codes))]],
        "waits": [[name, WAITS[name]] for name in pieces.groups],
        "waitTexts": [text and shorten(text, _NAME) for text in pieces.texts],
    }
    which = f"one of {instance.count:,} steps of" if instance.count > 1 else "the only step of"
    which = f"a median {which}" if instance.median and instance.count > 1 else which
    gpu = device_labels(trace)[instance.gpu]
    caption = f"{format_ns(length)}, {which} {one_line(instance.path, 90)} on {gpu}"
    return {"data": pack(rows, length, head), "caption": visible(caption), "notes": []}


def _range_rows(instance: Instance) -> Iterator[tuple[PageRow, list[int]]]:
    """A row per level of the ranges inside the instance, on its thread, with the codes of their names."""
    ranges, inside = instance.answer.attribution.trace.ranges, instance.answer.attribution.inclusive
    for rows in islice(instance.ranges(), MAX_LEVELS):
        columns = [values[rows] for values in (inside.launches, inside.kernels, inside.busy_ns)]
        place = instance.inside(ranges.start[rows], ranges.end[rows])
        yield PageRow("host", "ranges", "ranges", *place, columns), ranges.name[rows].tolist()


def _stream_rows(instance: Instance) -> Iterator[PageRow]:
    """A row per stream of the GPU that runs anything meanwhile, and one for the launches of these GPU ops."""
    trace = instance.answer.attribution.trace
    ops, launches, labels = trace.ops, trace.launches, stream_labels(trace)
    rows = instance.ops[np.argsort(ops.start[instance.ops], kind="stable")]
    kind = kinds_of_names(instance)
    launch = np.unique(ops.launch[rows][ops.launch[rows] >= 0])
    seen = (launches.end[launch] > instance.start_ns) & (launches.start[launch] < instance.end_ns)
    launch = launch[seen]
    launch = launch[np.argsort(launches.start[launch], kind="stable")]
    if len(launch):
        place = instance.inside(launches.start[launch], launches.end[launch])
        yield PageRow("host", "launches", "calls", *place, columns=(np.ones(len(launch), np.int64),))
    for code in np.unique(ops.stream[rows]).tolist():
        mine = rows[ops.stream[rows] == code]
        yield PageRow(
            "GPU",
            shorten(labels[code], _LABEL),
            "ops",
            *instance.inside(ops.start[mine], ops.end[mine]),
            columns=(ops.name[mine], np.zeros(len(mine), np.int64), op_leads(trace, mine)),
            family=kind[ops.name[mine]],
            kept=longest(ops.start[mine], ops.end[mine], MAX_OPS),
        )
