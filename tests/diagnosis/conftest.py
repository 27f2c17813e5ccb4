"""All numbers of every diagnosis that the tests of this room make are kept: ``NSYSPROF_KEEP=1 pytest tests/diagnosis``.

See tests/kit/kept.py; in one process.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import pytest

from nsysprof.diagnosis import diagnose, text, tried
from nsysprof.diagnosis.busy import busy_kernels
from nsysprof.diagnosis.case import Case
from nsysprof.diagnosis.diagnose import Diagnosis
from nsysprof.diagnosis.finding import Finding
from tests.kit.kept import hold

UNKEPT = ("chosen", "several", "lost")  # `several` is about words of `busiest`


@pytest.fixture(autouse=True)
def numbers_are_as_they_were(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Findings, the waits and remedies from which they were chosen, and the numbers in all texts."""
    if "faulty" in request.node.name:  # kinds that fail by intention
        yield
        return
    made: list[dict[str, Any]] = []
    answer_of = diagnose._answer

    def kept(case: Case, found: list[Finding], parts: Sequence[Diagnosis] | None, around: Any) -> Diagnosis:
        answer = answer_of(case, found, parts, around)  # first, as it tells what was tried
        groups = [
            (kind.name, group.cause.replace(" ", "_"), group.waited, [*kind.remedies(case, group)])
            for kind, group in tried.groups(case)
        ]
        busy = [busy_kernels(case, place) for place in case.places]
        calls, trace = case.facts.activity.calls, case.facts.attribution.trace
        names = {*case.facts.names, *trace.op_names, *calls.names, *(each.text for each in trace.range_names)}
        said = [[word for word in re.findall(r"[^ ,;()]+", each.text) if word in names] for each in found]
        ids = [(each.id.replace(" ", "_"), each.likely_ns, each.listed()) for each in answer.findings]
        texts = [text.findings_text(answer, "report", asked_by) for asked_by in ("why", "analyze")]
        texts += [make(answer) for make in (text.nothing_text, text.once_text, text.steps_text)]
        texts += [text.headline(answer, "report"), *(text.gain_text(each) for each in answer.findings)]
        values = {each.name: getattr(answer, each.name) for each in fields(answer) if each.name not in UNKEPT}
        once = [case.purpose, case.once, case.prepares, case.pieces["ns"]]
        made.append(
            {
                "groups": groups,
                "busy": [[each.op, each.alone] for each in busy],
                "findings": [ids, found, said],
                "texts": texts,
                "answer": [*values.items()],
                "once": once,
            }
        )
        return answer

    monkeypatch.setattr(diagnose, "_answer", kept)
    yield
    if made:
        hold(__file__, request.node.name, {name: [each[name] for each in made] for name in made[0]})
