"""The tables of a benchmark; columns are an interface: add columns, but never rename one.

Shares are fractions of 1. A share of bandwidth is empty if the cache is warm, or if an unfused backend would exceed 100
% because its score matrices stay in the L2 cache. The columns of sizes (batch to head_dim) and flags (causal), and
"seq" in other column names, are those of attention. For other workloads, `columns_of` replaces these columns.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from nsysprof.core.units import format_ratio, format_share
from nsysprof.formats.workload import Described
from nsysprof.results.table import Column, Table, table

_SHAPE = "configuration that was measured"
_RATES = "throughput at the median latency: 10^12 FLOP/s; 10^9 B/s of traffic; tokens (batch × seq) per second"
_OF_BANDWIDTH = "memory bandwidth (data-sheet peak or measured), and the share that the call reaches"
_COUNTED = "number of samples used, samples left out (because the GPU was throttled), and outliers (which are kept)"
_BOUND = "bound: compute or memory, whichever takes longer at its peak speed; bound_by: longer time ÷ shorter time"
_ERROR = (
    "relative error of an output vs. float64, its tolerance, and error ÷ tolerance; "
    "of all outputs, the one with the largest error ÷ tolerance"
)
_MATRICES = "total size of the score matrices in this dtype; temporary and peak memory as multiples of this size"
RESULTS = table(
    "results.csv",
    "a row per configuration and backend",
    {
        "run workload device": "name of the run; workload; device (cuda or cpu)",
        "configuration backend batch heads seq head_dim dtype causal backward": _SHAPE,
        "status reason": (
            "status: measured, unsupported, out of memory, wrong, or left out (no sample was kept); "
            "reason: why the configuration was not measured"
        ),
        "n left_out outliers": Column("", _COUNTED, cell=str),
        "n_effective": "effective number of independent samples",
        "median_ns low_ns high_ns interval": (
            "median call latency, its 95 % confidence interval, and the method that computed the interval"
        ),
        "mean_ns sd_ns p99_ns": "mean, standard deviation and p99 of the call latency (p99 only if n ≥ 100)",
        "cv q05_ns q25_ns q75_ns q95_ns min_ns max_ns": (
            "coefficient of variation (standard deviation ÷ mean) and quantiles of the call latency"
        ),
        "calls_per_sample clock cache": (
            "number of calls per sample; timer (CUDA events or perf_counter); state of the L2 cache (cold or warm)"
        ),
        "graph_n graph_median_ns graph_low_ns graph_high_ns graph_reason": (
            "CUDA graph replay: number of samples, median and interval; graph_reason: why no replay was measured"
        ),
        "aa_ratio aa_verdict": (
            "A/A comparison: ratio of the medians of two sample sets of this backend, and the verdict"
        ),
        "flops": "FLOPs of the matrix products as the workload counts them, without masked scores and recomputation",
        "compulsory_bytes traffic_bytes": (
            "bytes of all inputs and outputs, each counted once; traffic_bytes includes the score "
            "matrices of unfused backends"
        ),
        "intensity": "arithmetic intensity: FLOPs per byte of traffic_bytes",
        "tflops": _RATES,
        "gb_per_s tokens_per_s": Column("", _RATES, cell="{:,.0f}".format),
        "graph_tflops": "throughput at graph_median_ns, in 10^12 FLOP/s",
        "sm_clock_mhz": "median SM clock over the samples used",
        "peak_tflops share_of_peak graph_share_of_peak": (
            "peak throughput (SMs × clock × FLOPs per clock per SM), and the share that the call reaches"
        ),
        "measured_peak_tflops share_of_measured_peak": (
            "throughput of a large matrix product on this machine, and the share that the call reaches"
        ),
        "peak_gb_per_s": _OF_BANDWIDTH,
        "share_of_bandwidth": Column("", _OF_BANDWIDTH, cell=format_share),
        "measured_gb_per_s share_of_measured_bandwidth": _OF_BANDWIDTH,
        "bound": _BOUND,
        "bound_by": Column("", _BOUND, cell=format_ratio),
        "least_ns": "lower bound on call time: time that the limiting resource needs at its peak",
        "refused": "reason for an empty share: the value, which would exceed 100 %, and the likely error",
        "before_bytes inputs_bytes outputs_bytes temporary_bytes peak_bytes": "parts of the memory of one call",
        "score_matrix_bytes": _MATRICES,
        "temporary_matrices peak_matrices": Column("", _MATRICES, cell="{:.2f}".format),
        "error": Column("", _ERROR, cell="{:.1e}".format),
        "tolerance": Column("", _ERROR, cell="{:.0e}".format),
        "error_of_tolerance": _ERROR,
        "runs": "number of runs (processes)",
        "scope": "scope of the intervals: within this run or over several runs",
        "run_cv": "variation between runs: standard deviation of the run medians ÷ median",
    },
    made_in="bench/rows.py",
)
COMPARISONS = table(
    "comparisons.csv",
    "a row per kind (eager or graph), configuration and pair of backends",
    {
        "configuration batch heads seq head_dim causal": _SHAPE,
        "base base_dtype": "reference backend and its dtype",
        "new new_dtype": "compared backend and its dtype",
        "mixed": "whether base and new have different dtypes; if so, the speed-up includes the effect of precision",
        "kind": "eager (eager calls) or graph (CUDA graph replays)",
        "base_n new_n base_ns new_ns": "number of samples and median latency of both backends",
        "speedup speedup_low speedup_high": (
            "median of base divided by median of new, with its 95 % confidence interval"
        ),
        "shift_ns shift_low_ns shift_high_ns": "Hodges-Lehmann shift with its 95 % confidence interval",
        "delta delta_low delta_high delta_word": "Cliff's delta, its 95 % confidence interval, and size in words",
        "p adjusted_p family": "p-value; Holm-corrected p-value; number of comparisons that the correction covers",
        "test": "name of the statistical test",
        "verdict reason": "verdict (faster, slower, no clear change, too few samples) and its reason",
        "base_aa new_aa": "A/A verdict of the backend, from a comparison with itself",
        "memory_ratio": "peak memory of base ÷ peak memory of new",
        "least_effect": "smallest meaningful effect: smaller differences never count as faster or slower",
        "scope": "scope of interval and verdict: within this run or over several runs",
        "detectable": "smallest difference that the samples would detect with 80 % power",
    },
    made_in="bench/pairs.py",
)
DECISIONS = table(
    "decisions.csv",
    "a row per configuration and kind (eager or graph)",
    {
        "configuration batch heads seq head_dim dtype causal": _SHAPE,
        "kind": "eager (eager calls) or graph (CUDA graph replays)",
        "best": "the backend with the smallest median latency",
        "as_good": "backends that do not differ significantly from the best backend",
        "unsure": "backends with too few samples for a verdict",
        "decision": "the best backend and the backends in as_good",
        "runner_up": "the fastest backend that is significantly slower",
        "margin margin_low margin_high": "speed-up of best over runner_up, with its 95 % confidence interval",
        "least_memory": "the backend with the smallest peak memory",
    },
    made_in="bench/pairs.py",
)
EXPONENTS = table(
    "exponents.csv",
    "a row per sweep, backend and metric",
    {
        "sweep": "settings that all configurations of the sweep share",
        "backend dtype metric": "backend, dtype and metric that were fitted",
        "points": "number of configurations in the fit",
        "exponent low high": "fitted exponent of S with its 95 % confidence interval",
        "last_exponent": Column("", "exponent computed from the last two sizes", cell="{:.2f}".format),
        "r_squared": Column("", "coefficient of determination of the fit", cell="{:.3f}".format),
        "growth": "description of the growth",
    },
    made_in="bench/scaling.py",
)
CROSSOVERS = table(
    "crossovers.csv",
    "a row per sweep and pair of backends",
    {
        "sweep": "settings that all configurations of the sweep share",
        "kind dtype": "eager (eager calls) or graph (CUDA graph replays); data type",
        "winner loser": "the backend that overtakes, and the backend that is overtaken",
        "status": (
            "where the winner is faster: everywhere, at S ≥ from_seq, nowhere clearly, or unknown (too few samples)"
        ),
        "from_seq": "the first S from which the winner is significantly faster",
        "crossing_seq": "interpolated S at which both backends are equally fast",
        "first_seq last_seq first_speedup last_speedup": (
            "first and last S of the sweep, and the speed-up at each of the two"
        ),
    },
    made_in="bench/scaling.py",
)
TABLES = (RESULTS, COMPARISONS, DECISIONS, EXPONENTS, CROSSOVERS)


def frame_of(
    declared: Table, rows: Sequence[Mapping[str, Any]], about: Described, also: Iterable[str] = ()
) -> pd.DataFrame:
    """Make a data frame of the rows with a workload's columns of a table; ``also`` adds columns to fill later."""
    return pd.DataFrame(rows, columns=declared.header(rows, columns_of(declared, about), also))


def columns_of(declared: Table, about: Described) -> list[str]:
    """Return the columns of a table for a workload."""
    shape = {"batch": about.sizes, "heads": [], "seq": [], "head_dim": [], "causal": about.flag_names}
    named = (re.sub("_seq$", f"_{about.size}", name) for name in declared.names)
    return [name for each in named for name in shape.get(each, [each])]
