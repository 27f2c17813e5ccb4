"""Declare the tables of `nsysprof steps`; columns are an interface: add columns, but never rename one."""

from nsysprof.results.table import Column, table
from nsysprof.summaries.gpu_metrics import STEP_METRICS

_PLACE = {
    "path": Column("path", "merged path of the range", head="range"),
    "gpu": Column("gpu", "index of the GPU in the report; -1 without GPU work", cell=str, align="r"),
    "pid": Column("pid", "process id", cell=str, align="r"),
    "step": Column("step", "number of the step on its GPU and in its process, counted from 0", cell=str, align="l"),
}
_NAMED = {
    "cause": "largest cause of the excess (same values as in why.csv)",
    "activity": "CPU activity or kernel family (same values as in why.csv)",
    "culprit": "responsible code, copy, collective or kernel (same values as in why.csv)",
}

STEPS = table(
    "steps.csv",
    "a row per step",
    {
        **_PLACE,
        "name": "name of the range as recorded",
        "start_ns": Column(
            "start_ns",
            "start of the step time: end of the previous step, or start of this step on the CPU if the GPU ran other "
            "work in between",
            head="start",
        ),
        "span_ns": Column(
            "span_ns",
            "step time: from start_ns to the end of the step on the GPU or on the CPU, whichever is later",
            head="span",
        ),
        "before_ns": "GPU idle time before the range begins (between steps); part of the span",
        "busy_ns": "part of the span in which the GPU is busy",
        "expected_ns": (
            "expected step time, computed from the current level, the repeating pattern and the numbers in step names"
        ),
        "class": (
            "class of the step: typical, warm-up, slow, periodic, second kind, fast, clock, or lost (nsys lost GPU "
            "operations)"
        ),
        "typical_ns": "mean time of the typical steps to which an atypical step is compared",
        "excess_ns": Column(
            "excess_ns", ("time above typical_ns; the rows of the step's ledger add up to this time"), head="excess"
        ),
        **_NAMED,
        "culprit_ns": "part of excess_ns that the largest cause explains",
        "clock_hz": "mean GPU clock during the step; empty if not sampled",
        **dict.fromkeys(
            STEP_METRICS,
            "mean of this GPU metric during the step, in percent; empty if not sampled, or if the step is too short",
        ),
    },
    made_in="steps/steps.py",
)
LEDGER = table(
    "steps_ledger.csv",
    "a row per atypical step, cause and culprit (responsible code); the rows of a step add up to its excess_ns",
    {
        **_PLACE,
        "cause": "compute, or the cause of the wait (same values as in why.csv)",
        "activity": _NAMED["activity"],
        "culprit": _NAMED["culprit"],
        "slow_ns": Column("slow_ns", "time of this row in the atypical step", head="slow"),
        "typical_ns": Column(
            "typical_ns", "mean time of this row in the typical steps to which the step is compared", head="typical"
        ),
        "delta_ns": Column("delta_ns", "slow_ns − typical_ns", head="slow minus typical"),
    },
    made_in="steps/ledger.py",
)
