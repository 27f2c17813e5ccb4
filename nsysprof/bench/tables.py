"""The tables of a benchmark: their columns are an interface, to be added to and never renamed.

Shares are parts of 1. Shares of bandwidth are empty with a warm cache, and where unfused backends would exceed 100 %
because their score matrices stay in the L2 cache. Cells are those of the tables that are shown. Sizes (batch
to head_dim, and seq in the names of others) and flags (causal) are declared as those of attention; another workload has
its own in their place: `columns_of`.
"""

from __future__ import annotations

import re

from nsysprof.core.units import format_ratio, format_share
from nsysprof.formats.workload import Described
from nsysprof.results.table import Column, Table, table

_SHAPE = "what was run"
_RATES = "10^12 FLOP/s, 10^9 B/s of traffic, batch × seq, at the median"
_OF_BANDWIDTH = "the same of memory"
_COUNTED = "samples that count; taken while throttled and left out; far outside, kept"
_BOUND = "compute or memory: which needs longer at its peak, and how many times as long"
_ERROR = "relative error against float64, of what is nearest to its limit"
_MATRICES = "of the batch, in the dtype; memory in these"
RESULTS = table(
    "results.csv",
    "a row per configuration and backend",
    {
        "run workload device": "name of the run; of the workload; cuda or cpu",
        "configuration backend batch heads seq head_dim dtype causal backward": _SHAPE,
        "status reason": "measured, unsupported, out of memory, wrong, or left out (every sample was), and why",
        "n left_out outliers": Column("", _COUNTED, cell=str),
        "n_effective": "how many independent samples they are worth",
        "median_ns low_ns high_ns interval": "latency of a call; 95 % interval of the median, and how it was made",
        "mean_ns sd_ns p99_ns": "mean, standard deviation, and the 99 % quantile of 100 samples or more",
        "cv q05_ns q25_ns q75_ns q95_ns min_ns max_ns": "standard deviation over mean; quantiles",
        "calls_per_sample clock cache": "calls inside one sample; cuda events or perf_counter; cold or warm",
        "graph_n graph_median_ns graph_low_ns graph_high_ns graph_reason": "replayed as a CUDA graph",
        "aa_ratio aa_verdict": "the second set of samples of this backend over the first, and whether they differ",
        "flops": "as the workload counts: of the matrix products, masked scores and recomputation not counted",
        "compulsory_bytes traffic_bytes": "every input and output once; with the score matrices of unfused backends",
        "intensity": "FLOP per byte of traffic_bytes",
        "tflops": _RATES,
        "gb_per_s tokens_per_s": Column("", _RATES, cell="{:,.0f}".format),
        "graph_tflops": "10^12 FLOP/s at graph_median_ns",
        "sm_clock_mhz": "median of the samples that count",
        "peak_tflops share_of_peak graph_share_of_peak": "SMs × clock × FLOPs per clock and SM; shares",
        "measured_peak_tflops share_of_measured_peak": "what a large product reached on this machine; share of it",
        "peak_gb_per_s": _OF_BANDWIDTH,
        "share_of_bandwidth": Column("", _OF_BANDWIDTH, cell=format_share),
        "measured_gb_per_s share_of_measured_bandwidth": _OF_BANDWIDTH,
        "bound": _BOUND,
        "bound_by": Column("", _BOUND, cell=format_ratio),
        "least_ns": "how long that is: no call can be faster",
        "refused": "why a share that would be above 100 % is empty",
        "before_bytes inputs_bytes outputs_bytes temporary_bytes peak_bytes": "memory of one call, in parts",
        "score_matrix_bytes": _MATRICES,
        "temporary_matrices peak_matrices": Column("", _MATRICES, cell="{:.2f}".format),
        "error": Column("", _ERROR, cell="{:.1e}".format),
        "tolerance": Column("", _ERROR, cell="{:.0e}".format),
        "error_of_tolerance": _ERROR,
        "runs": "processes that took the samples",
        "scope": "what intervals speak of: within this run, or over so many",
        "run_cv": "how much medians of runs vary: standard deviation, as a part of the median",
    },
)
COMPARISONS = table(
    "comparisons.csv",
    "a row per pair of backends, configuration and kind",
    {
        "configuration batch heads seq head_dim causal": _SHAPE,
        "base base_dtype": "the backend compared with, and its dtype",
        "new new_dtype": "the backend that the verdict is about, and its dtype",
        "mixed": "whether the dtypes differ, so that the speed-up is not of the algorithm alone",
        "kind": "eager or graph",
        "base_n new_n base_ns new_ns": "samples and medians of either",
        "speedup speedup_low speedup_high": "median of base over that of new, with its 95 % interval",
        "shift_ns shift_low_ns shift_high_ns": "Hodges-Lehmann shift, with its 95 % interval",
        "delta delta_low delta_high delta_word": "Cliff's delta, with its 95 % interval, and in a word",
        "p adjusted_p family": "of the test; by Holm over as many pairs as the family has",
        "test": "the test",
        "verdict reason": "faster, slower, no clear change or too few samples, and why",
        "base_aa new_aa": "verdict of each on itself",
        "memory_ratio": "peak memory of base over that of new",
        "least_effect": "the least difference that counts",
        "scope": "what interval and verdict speak of: within this run, or over so many",
        "detectable": "the smallest difference that these samples would have shown in 80 of 100 cases",
    },
)
DECISIONS = table(
    "decisions.csv",
    "a row per configuration and kind",
    {
        "configuration batch heads seq head_dim dtype causal": _SHAPE,
        "kind": "eager or graph",
        "best": "the backend with the smallest median",
        "as_good": "those without a clear difference from it",
        "unsure": "those with too few samples for a verdict",
        "decision": "best and as_good",
        "runner_up": "the fastest that is surely behind",
        "margin margin_low margin_high": "by how much, with the 95 % interval",
        "least_memory": "the backend with the smallest peak",
    },
)
EXPONENTS = table(
    "exponents.csv",
    "a row per sweep, backend and metric",
    {
        "sweep": "what all its configurations share",
        "backend dtype metric": "what grows",
        "points": "configurations",
        "exponent low high": "of S, fitted, with its 95 % interval",
        "last_exponent": Column("", "of the last step alone", cell="{:.2f}".format),
        "r_squared": Column("", "of the fit", cell="{:.3f}".format),
        "growth": "in words",
    },
)
CROSSOVERS = table(
    "crossovers.csv",
    "a row per sweep and two backends",
    {
        "sweep": "what all its configurations share",
        "kind dtype": "eager or graph; data type",
        "winner loser": "which overtakes which",
        "status": "everywhere, from there on, no clear difference, or too few samples to tell",
        "from_seq": "the first S from which it surely wins",
        "crossing_seq": "where both are equally fast, interpolated",
        "first_seq last_seq first_speedup last_speedup": "the ends of the sweep, and the speed-up there",
    },
)
TABLES = (RESULTS, COMPARISONS, DECISIONS, EXPONENTS, CROSSOVERS)


def columns_of(declared: Table, about: Described) -> list[str]:
    """The columns of a table for a workload."""
    shape = {"batch": about.sizes, "heads": [], "seq": [], "head_dim": [], "causal": about.flag_names}
    named = (re.sub("_seq$", f"_{about.size}", name) for name in declared.names)
    return [name for each in named for name in shape.get(each, [each])]
