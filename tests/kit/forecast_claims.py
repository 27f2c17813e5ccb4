"""What the READMEs of both track records of forecasts say, each figure from the file that has it."""

import re
import runpy
from collections.abc import Iterator
from typing import Any

import numpy as np

from nsysprof.forecast.profiler import _GPU_COST_NS, _GRAPH_LAG_NS
from nsysprof.waits.joins import QUEUE
from tests.kit.prose_claims import percent, row, span
from tests.kit.record_claims import table
from tests.kit.study_figures import ANALYSIS


def claims_of_forecasts() -> Iterator[str]:
    """Errors and intervals of the first record, its misses, and the parts that were left out."""
    every = table("forecasts/results")
    every["old_ns"] = table("forecasts/forecasts")["base_ns"]
    every["half"] = (every["high_ns"] - every["low_ns"]) / 2 / every["forecast_ns"]
    rows = every[every["outcome_ns"].notna()]
    errors, graph = rows["error"].abs(), rows["kind"] == "graph"
    for kind in (*dict.fromkeys(every["kind"]), "all"):
        mine, of = errors[rows["kind"].eq(kind) | (kind == "all")], rows[rows["kind"].eq(kind) | (kind == "all")]
        refused = every["verdict"].str.startswith("refused") & (every["kind"].eq(kind) | (kind == "all"))
        shown = [mine.median(), mine.max(), of["ratio_error"].abs().median()]
        cells = [f"{each:.1%}" for each in shown] + [f"{of['held'].sum():.0f}"] if len(of) else ["–"] * 4
        yield row(kind, len(of), *cells, refused.sum())
    held, count = int(rows["held"].sum()), len(rows)
    yield f"We committed {count} forecasts"
    near = [(errors <= most).sum() for most in (0.05, 0.1)]
    yield f"Half of the forecasts are within {percent(errors.median(), 1)} of the measured step time"
    yield f"{near[0]} forecasts are within 5 %, and {near[1]} are within 10 %"
    yield f"in {held} of {count} cases ({percent(held / count)})"
    bound = errors[graph | rows["kind"].eq("gpu-delay")].median()
    yield f"become GPU-bound, the median forecast error is {percent(bound)}.**"
    times = [rows[column][graph] / 1e6 for column in ("measured_base_ns", "outcome_ns")]
    ranges = [f"{each.min():.1f} to {each.max():.0f} ms" for each in times]
    yield f"({ranges[0]} become {ranges[1]})"
    at = every.set_index("case")
    flash = at.loc["gpt-forward-8-backend=math:backend=flash"]  # math to flash
    shown = [f"{flash[name] / 1e6:.1f}" for name in ("measured_base_ns", "outcome_ns", "forecast_ns")]
    yield f"({shown[0]} → {shown[1]} ms, forecast {shown[2]} ms)"
    moved = (rows["measured_base_ns"] / rows["plain_ns"] - 1).abs() >= 0.1
    yield f"In {moved.sum()} of {count} cases, the step time of the unchanged program (base) differed by at least 10 %"
    others = rows[~graph]
    yield f"their median interval is ±{percent(others['half'].median())}"
    yield f"contain {others['held'].sum():.0f} of {len(others)} outcomes"
    yield f"for CUDA graphs (±{percent(rows['half'][graph].median(), 1)})"
    yield f"only {rows['held'][graph].sum():.0f} of {graph.sum()} outcomes"
    scaled = rows["ratio_error"].abs().groupby(rows["kind"]).median().drop(["graph", "gpu-delay"])
    yield f"the median error relative to the base is {span(100 * scaled, 1)} %"
    yield from _misses_of_forecasts(at)
    yield from _parts()
    yield f"between GPU ops ({_GPU_COST_NS / 1e3:.1f} µs)"
    yield f"gap between ops of a CUDA graph ({_GRAPH_LAG_NS / 1e3:.1f} µs)"
    yield f"slightly below {QUEUE:,} launches"


def _misses_of_forecasts(at: Any) -> Iterator[str]:
    ms = {name: at[f"{name}_ns"] / 1e6 for name in ("forecast", "outcome")}

    def shown(cases: list[str], apart: str = ", ") -> list[str]:
        return [f"{apart.join(f'{each[case]:.2f}' for case in cases)} ms" for each in ms.values()]

    forward = [f"block-forward-{batch}:graph" for batch in (1, 8)]
    yield row("block-forward-1, -8 as a graph", *shown(forward))[:-1]
    exact = [each["block-forward-32:graph"] for each in ms.values()]
    low = (ms["outcome"] - ms["forecast"])[forward].mean() * 1e3
    yield f"the forecasts are {round(low, -1):.0f} µs per step too low"
    yield f"but the forecast for batch 32 is exact ({exact[0]:.2f} ms, outcome {exact[1]:.2f} ms)"
    train = [f"{model}-train-8:graph" for model in ("block", "mlp")]
    yield row("block-train-8, mlp-train-8 as a graph", *shown(train))[:-1]
    off, [half] = at["error"][train].abs(), {percent(each, 1) for each in at["half"][train]}
    yield f"{percent(off.mean())} off; the interval was ±{half}"
    decode = [f"gpt-decode-{batch}:graph" for batch in (1, 8, 32)]
    yield row("gpt-decode-1, -8, -32 as a graph", *shown(decode))[:-1]
    yield f"each forecast is {span(1e3 * (ms['forecast'] - ms['outcome'])[decode])} µs too high"
    loader = "block-forward-8-load_us=2000.0:threaded"
    yield row("block-forward-8, a loader ahead", *shown([loader]))[:-1]
    wait = int(re.findall("us=([0-9]+)", loader)[0]) // 1000
    yield f"spends {wait} ms of its {at['plain_ns'][loader] / 1e6:.1f} ms waiting for the loader"
    late = [f"late={us}-pieces=8:late=0-pieces=8:no_late_peer" for us in (1000, 4000)]
    yield row("two GPUs, one rank late by 1 or 4 ms", *shown(late))[:-1]
    base = (at["measured_base_ns"] / at["plain_ns"] - 1)[late]
    ratio = [f"{100 * each:.0f} %" for each in at["ratio_error"][late]]
    yield f"took {percent(base.iloc[0])} more and {percent(-base.iloc[1])} less time than in its recording"
    yield f"({' and '.join(ratio)} error relative to the base)"
    fused = [f"{100 * at['error'][f'{name}:fused']:.0f}" for name in ("gpt-train-1", "mlp-train-8")]
    yield f"fused optimizer are off by {fused[0]} and {fused[1]} %"
    one = at.loc["late=0-pieces=8:late=0-pieces=1:swap"]
    yield f"off by {percent(one['error'])} ({percent(one['ratio_error'])} relative to the base)"


def _parts() -> Iterator[str]:
    parts = table("forecasts/ranking")
    host = parts["program"].str.contains("length=128")
    yield f"run a kernel of {int(parts['program'][0].partition('spin_us=')[2][:4]) / 1000:.0f} ms, `side`"
    criteria = ["share_of_time", "share_of_path", "forecast_gain"]
    for name, mine in (("CPU-bound", parts[host]), ("GPU-bound", parts[~host]), ("all", parts)):
        if name != "all":
            for each in mine.to_dict("records"):
                shares = [f"{each[column]:.1%}" for column in (*criteria, "measured_gain")]
                yield row(name, each["part"], *shares)
        worth = [mine[column].rank().corr(mine["measured_gain"].rank()) for column in criteria]
        said = [f"{0 if np.isnan(each) else each:.2f}" for each in worth]
        yield row(name, len(mine), *said)
        if name == "GPU-bound":
            yield f"about as well as the forecast (rank correlations of {said[1]} and {said[2]};"
        if name == "CPU-bound":
            yield f"cannot rank the parts; the forecast gain can (rank correlation {said[2]})"


def claims_of_forecasts_2() -> Iterator[str]:
    """Errors of the second record, and its misses."""
    judge = runpy.run_path(str(ANALYSIS / "forecasts-2" / "judge.py"))
    for made in (judge["table"], judge["first_findings"], judge["under_nsys"]):
        yield from made(judge["judged"]()).splitlines()
    rows, asked = table("forecasts-2/results"), table("forecasts-2/forecasts")
    rows["forecast_ms"], rows["base_ms"] = asked["forecast_ns"] / 1e6, asked["base_ns"] / 1e6
    judged = rows[rows["verdict"].isin(["held", "missed"])]
    half = int(100 * judged["error"].abs().median())
    yield f"**Half of {len(judged)} forecast gains are off by more than {half} percentage points"
    yield f"only {judged['verdict'].eq('held').sum()} of the {len(judged)} intervals contain"
    findings = rows[(rows["kind"] == "diagnosis") & (rows["same"] != "nothing")]
    yield f"names the known fix in {findings['same'].eq('yes').sum()} of {len(findings)} recordings"
    yield f"{len(rows)} rows)"
    yield f"We recorded {rows['program'].nunique()} small programs"
    worst = rows[rows["program"].isin(["fp32", "fewblocks", "histogram", "pointwise"]) & (rows["kind"] == "remedy")]
    yield f"of at most {100 * worst['error'].abs().max():.1f} points"
    at = rows.set_index(["kind", "recorder", "program"]).sort_index()
    yield from _gains(at)
    yield from _misses_of_forecasts_2(at, asked)


def _gains(at: Any) -> Iterator[str]:
    gains, fixed = at.loc["remedy"]["gain"], at.loc["remedy", "nsys"]["measured"]

    def both(*names: str) -> str:
        """`95, 96; 40, 57`: forecasts from nsys and torch."""
        of = "; ".join(", ".join(f"{100 * gains[by, name]:.0f}" for by in ("nsys", "torch")) for name in names)
        return of.replace("-", "−")

    def reach(names: str) -> list[str]:
        each = names.split(", ")
        pairs = [fixed[each], gains.loc[:, each]]
        return [f"{100 * of.min():.0f}–{100 * of.max():.0f} %" for of in pairs]

    for names in ("gcchurn, logging, printing, rebuild, polling, layeritem", "occupancy, columns, cupychain, layernorm",
                  "fp32, fewblocks, histogram, pointwise"):  # fmt: skip
        yield row(names, *reach(names))[:-1]
    for names in ("smallnet, cupymalloc, preprocess", "smallcopies", "boolmask", "crossattention", "results",
                  "emptycache", "channels"):  # fmt: skip
        each = names.split(", ")
        yield row(names, f"{', '.join(f'{100 * fixed[name]:.0f}' for name in each)} %", f"{both(*each)} %")[:-1]
    for name, by, words in (("syncstep", "nsys", ""), ("serialcopy", "torch", "at most "),
                            ("fewblocks", "nsys", "at most ")):  # fmt: skip
        found = at.loc["diagnosis", by, name]
        yield f"| {100 * found['measured']:.0f} % | {words}{100 * found['gain']:.0f} % |"


def _misses_of_forecasts_2(at: Any, asked: Any) -> Iterator[str]:
    ms = table("forecasts-2/outcomes").groupby(["program", "variant"])["ms"].median()
    nsys = at.loc["remedy", "nsys"]
    recorded = table("forecasts-2/recorded").set_index("program")["good_ms"]
    yield (
f"a step of rebuild takes {ms['rebuild', 'good']:.1f} ms, but {recorded['rebuild']:.1f} ms under "
f"nsys and {nsys['forecast_ms']['rebuild']:.1f} ms in the forecast"
)  # fmt: skip
    small, freed, batch = (nsys["forecast_ms"][name] for name in ("smallnet", "cupymalloc", "preprocess"))
    yield f"smallnet {small:.2f} ms (measured {ms['smallnet', 'good']:.2f} ms)"
    yield f"cupymalloc {8 * freed:.2f} ms (measured {ms['cupymalloc', 'good']:.2f} ms)"
    other = at["forecast_ms"]["remedy", "torch", "preprocess"]
    batch_ms = ms["preprocess", "good"]
    yield f"preprocess {batch:.1f} ms from nsys and {other:.1f} ms from torch (measured {batch_ms:.1f} ms)"
    yield f"takes {nsys['base_ms']['preprocess']:.1f} ms under nsys, but {ms['preprocess', 'bad']:.1f} ms without"
    yield f"with the remedy, a step takes {ms['syncstep', 'good']:.2f} ms"
    yield f"(forecast: {at['forecast_ms']['diagnosis', 'nsys', 'syncstep']:.2f} ms)"
    plain = table("forecasts-2/outcomes").query("program == 'syncstep' and variant == 'bad'")["ms"]
    yield f"varied from {span(plain, 1)} ms"
    found = asked[(asked["program"] == "serialcopy") & (asked["recorder"] == "torch")]["question"].iloc[1]
    copied = at["base_ms"]["remedy", "torch", "serialcopy"] - at["forecast_ms"]["remedy", "torch", "serialcopy"]
    yield f"time ({re.findall('[0-9]+ µs', found)[0]}), but a side stream can hide the whole copy ({copied:.1f} ms)"
    of_nsys = asked[(asked["recorder"] == "nsys") & asked["because"].str.contains("4.3 TB/s", na=False)]
    moved = of_nsys.set_index("program")
    assumed = moved["because"].str.extract(r"at ([0-9.]+) TB/s: ([0-9]+) µs").astype(float).drop("pointwise")
    reached = [speed * us / 1e3 / ms[name, "good"] for name, speed, us in assumed.itertuples()]
    yield (f"our computation: we assumed {assumed[0].iloc[0]} TB/s, but the kernels reached {span(reached, 1)} TB/s")
    both = ("nsys", "torch")
    gains = {name: [100 * at["gain"]["diagnosis", by, name] for by in both] for name in ("camera", "coldstart")}
    yield f"forecast gains of {gains['camera'][0]:.0f} % (nsys) and {gains['camera'][1]:.0f} % (torch)"
    yield f"forecast gains of {gains['coldstart'][0]:.0f} % and {gains['coldstart'][1]:.0f} %"
    size = re.findall(r"of (\d+)[.]0 MiB", asked["question"][asked["program"] == "results"].iloc[1])[0]
    yield f"allocating {size} MiB of host memory"
