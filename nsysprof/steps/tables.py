"""The tables of `nsysprof steps`: their columns are an interface, to be added to and never renamed."""

from __future__ import annotations

from nsysprof.results.table import Column, table

_PLACE = {
    "path": Column("path", "merged path of the range", head="range"),
    "gpu": Column("gpu", "number of the GPU in the report, -1 without GPU work", cell=str, align="r"),
    "pid": Column("pid", "process", cell=str, align="r"),
    "step": Column("step", "number of the step, from 0, on that GPU in that process", cell=str, align="l"),
}
_NAMED = {
    "cause": "what most of the excess is, as in why.csv",
    "activity": "what the host did, or the family of the kernel, as in why.csv",
    "culprit": "the cause, as in why.csv",
}

STEPS = table(
    "steps.csv",
    "a row per step",
    {
        **_PLACE,
        "name": "name of the range as recorded",
        "start_ns": Column(
            "start_ns",
            "when the step before ended, or if the GPU computed in between, when this one began on the host",
            head="start",
        ),
        "span_ns": Column(
            "span_ns",
            "from there to the end of its GPU work, or its end on the host if that is later",
            head="span",
        ),
        "before_ns": "the part of the span between the step before and the range, in which the GPU idled",
        "busy_ns": "the part of the span in which the GPU ran anything",
        "expected_ns": "how long it would have taken as a typical step: level, pattern, numbers in its name",
        "class": "typical, warm-up, slow, periodic, second kind, fast, clock",
        "typical_ns": "of a step that is not typical: the mean of the typical steps that it is compared with",
        "excess_ns": Column(
            "excess_ns",
            "how much longer it took than that; the rows of its ledger add up to this",
            head="excess",
        ),
        **_NAMED,
        "culprit_ns": "how much of the excess that is",
    },
    made_in="steps/steps.py",
)
LEDGER = table(
    "steps_ledger.csv",
    "a row per step that is not typical, cause and culprit; the rows of a step add up to its excess",
    {
        **_PLACE,
        "cause": "compute, or what the GPU waited for, as in why.csv",
        "activity": _NAMED["activity"],
        "culprit": _NAMED["culprit"],
        "slow_ns": Column("slow_ns", "what the step spends on it", head="slow"),
        "typical_ns": Column(
            "typical_ns", "the mean of the typical steps that it is compared with", head="typical"
        ),
        "delta_ns": Column("delta_ns", "the difference", head="slow minus typical"),
    },
    made_in="steps/ledger.py",
)
