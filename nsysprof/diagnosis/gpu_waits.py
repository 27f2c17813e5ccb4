"""The GPU waits for other GPU work, for its own queue, or for what the recording does not say."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from nsysprof.diagnosis.case import Case
from nsysprof.diagnosis.finding import BOUND
from nsysprof.diagnosis.kinds import OFTEN_SO, Group, Kind, Mask, Remedy, Rows, by_text, text_of
from nsysprof.waits.changes import Changes
from nsysprof.waits.culprits import LATE_PEER
from nsysprof.waits.facts import COMMUNICATION, NOBODY, OTHER_KERNEL, OVERHEAD, QUEUED
from nsysprof.waits.whole import Cause


def _late(case: Case) -> Mask:
    named = np.array([text == LATE_PEER for text in case.facts.texts.words], bool)
    mask: Mask = named[case.pieces["activity"]]
    return mask


def _caused(case: Case, cause: int) -> Mask:
    mask: Mask = case.pieces["cause"] == cause
    return mask


def _one(_: Case, rows: Rows) -> NDArray[np.int64]:
    return np.zeros(len(rows), np.int64)


def _nobody_late(_: Case, __: Group) -> Cause:
    return Cause(late=True)


def _balance(_: Case, __: Group) -> Iterable[Remedy]:
    yield Remedy("give that rank less work, or find what delays it there", Changes(no_late_peer=True))


def _hide(_: Case, group: Group) -> Iterable[Remedy]:
    text = "start the collective earlier, so that compute hides it: smaller buckets, or an asynchronous call"
    yield Remedy(text, Changes(remove=[group.cause]), basis=BOUND)


def _peer(case: Case, row: int) -> str:
    return text_of("culprit")(case, row).split(", ")[0]


def _peers(case: Case, rows: Rows) -> NDArray[np.int64]:
    texts = [case.facts.texts.words[code].split(", ")[0] for code in case.pieces["culprit"][rows].tolist()]
    known = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return np.array([known[text] for text in texts], np.int64)


LATE_RANK = Kind(
    "communication-late-rank",
    lambda case: _caused(case, COMMUNICATION) & _late(case),
    _peers,
    _peer,
    "the GPU waits in collectives for {cause}: {amount}",
    _balance,
    _nobody_late,
)
EXPOSED_COMMUNICATION = Kind(
    "communication-exposed",
    lambda case: _caused(case, COMMUNICATION) & ~_late(case),
    by_text("culprit"),
    text_of("culprit"),
    "no compute hides {cause}: {amount}",
    _hide,
)
STREAMS = Kind(
    "stream-dependency",
    lambda case: _caused(case, OTHER_KERNEL),
    by_text("culprit"),
    text_of("culprit"),
    "the GPU waits for {cause}, which runs elsewhere: {amount}",
)
LATENCY = Kind(
    "launch-latency",
    lambda case: _caused(case, QUEUED),
    _one,
    lambda case, row: "launch latency between kernels that were ready to run",
    "{cause}: {amount}",
    least_share=OFTEN_SO,
)
NOT_RECORDED = Kind(
    "unknown",
    lambda case: _caused(case, NOBODY),
    _one,
    text_of("culprit"),
    "the GPU idles, and the recording does not say why ({cause}): {amount}",
    tried=False,
)
PROFILER = Kind(
    "profiler-overhead",
    lambda case: _caused(case, OVERHEAD),
    _one,
    lambda case, row: "work of the profiler",
    "the GPU waits for {cause}: {amount}",
    least_share=OFTEN_SO,
)
