"""The last parts of a benchmark's report: how it was measured, on what, and how to repeat it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pandas as pd

from nsysprof import __version__
from nsysprof.bench.results import BenchResults
from nsysprof.bench.words import device_name
from nsysprof.core.units import format_bandwidth, format_bytes, format_share
from nsysprof.results.markdown import markdown_section, markdown_table


def method_part(results: BenchResults) -> Iterator[str]:
    """What the figures mean, and the rules that they were taken by."""
    samples, rules = results.samples, results.rules
    lines = [
        f"- ±: half the 95 % interval of the median ({', '.join(_methods(results.results))})",
        f"- a difference is called one from {format_share(rules.least_effect)} on, with {rules.least_samples} or more"
        f" samples a side, when its interval leaves 1 out and p stays below {rules.alpha:g}",
        "- a difference between eager calls also has to exceed what either backend differs from itself by (A/A)",
        "- speed-up in brackets: no clear change; with “?”: too few samples",
        f"- TFLOP/s: {results.about.flops}; of peak: of SMs × sampled clock × FLOPs per"
        " clock and SM, on tensor cores for fp16 and bf16",
        "- peak memory: what PyTorch asked for at the peak of one call: inputs, outputs, temporaries, and what the"
        " backend's libraries keep from call to call (cuBLAS: a workspace)",
        f"- GB/s: {results.about.traffic_words}",
        *(f"- {name}: {' '.join(str(rule).split())}" for name, rule in samples.rules.items()),
    ]
    yield from markdown_section("How it was measured", lines)


def _methods(frame: pd.DataFrame) -> list[str]:
    return [str(name) for name in frame["interval"].dropna().unique()] or ["none"]


def environment_part(results: BenchResults) -> Iterator[str]:
    """Machine and software, and what the machine can do at most."""
    environment, limits = results.samples.environment, results.samples.limits
    software = environment.get("workload") or {}
    clocks = results.results["sm_clock_mhz"].dropna()
    facts = {
        "device": device_name(results),
        "SM clock, sampled": f"{_range(clocks)} MHz" if len(clocks) else "",
        "SM clock, highest": _known(limits.max_sm_clock_mhz, "{:,.0f} MHz".format),
        "SMs": str(limits.sm_count or ""),
        "power limit": _known(software.get("power_limit_w"), "{:,.0f} W".format),
        "memory": _known(software.get("memory_bytes"), format_bytes),
        "L2 cache": _known(software.get("l2_cache_bytes"), format_bytes),
        "bandwidth": _known(limits.bytes_per_s, format_bandwidth),
        "bandwidth, measured": _known(limits.measured_bytes_per_s, format_bandwidth),
        **{
            f"{dtype} product, measured": f"{flops / 1e12:,.3g} TFLOP/s"
            for dtype, flops in (limits.measured_flops or {}).items()
        },
        **{name: str(software[name]) for name in ("torch", "cuda", "cudnn", "triton") if software.get(name)},
        **{
            name: str(environment[name])
            for name in ("driver", "os", "python", "cpu")
            if environment.get(name)
        },
        "environment": results.samples.environment_hash,
        "nsysprof": __version__,
    }
    rows = [[name, value] for name, value in facts.items() if value]
    yield from markdown_section("Environment", markdown_table(["", ""], rows, texts=2))


def _range(clocks: pd.Series[float]) -> str:
    """`1,980`, or `1,845 to 1,980`: the medians of the points."""
    ends = dict.fromkeys(f"{value:,.0f}" for value in (clocks.min(), clocks.max()))
    return " to ".join(ends)


def _known(value: object, text: Callable[[float], str]) -> str:
    return text(value) if isinstance(value, int | float) else ""


def repeat_part(results: BenchResults) -> Iterator[str]:
    """The command."""
    command = results.samples.command
    if command:
        yield from markdown_section("How to repeat it", ["```sh", command, "```"])
