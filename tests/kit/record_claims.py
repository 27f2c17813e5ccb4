"""What READMEs of studies say, each figure from the file that has it: recordings, forecasts and advice."""

import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from nsysprof.attribution.attribute import attribute
from nsysprof.statistics.confidence import LEVEL
from nsysprof.statistics.distributions import t_quantile
from nsysprof.statistics.runs import over_runs
from nsysprof.steps.steps import steps as steps_of
from nsysprof.trace.report import open_report
from tests.kit.prose_claims import percent, row, span
from tests.kit.study_figures import ANALYSIS


@cache
def table(name: str) -> Any:
    """A CSV file of a study, as a frame."""
    return pd.read_csv(ANALYSIS / f"{name}.csv")


def written(name: str, pattern: str) -> list[str]:
    """Constants, as a script of a study has them."""
    found = re.search(pattern, (ANALYSIS / name).read_text(encoding="utf-8"))
    assert found
    return [*found.groups()]


def claims_of_between_runs() -> Iterator[str]:
    """Counts of intervals that are disjoint, and how many would be by chance."""
    counts = table("between-runs/counts").set_index(["runs", "machine", "of", "kind"])
    ratios = counts.xs("ratio", level="of")
    three, all_pairs = int(ratios.loc["three", "disjoint"].sum()), int(ratios.loc["three", "intervals"].sum())
    sides = [over_runs(logs.tolist()) for logs in np.random.default_rng(0).normal(0, 1, (2, 20_000, 3))]
    reach = t_quantile(LEVEL, sides[0][0].freedom)  # of errors, on each side
    far = [abs(one.mean - other.mean) > reach * (one.error + other.error) for one, other in zip(*sides, strict=True)]
    chance = math.erfc(1.96), float(np.mean(far))
    yield f"disjoint in {100 * chance[0]:.1f} of 100 cases ({100 * chance[1]:.1f} over three runs"
    yield f"{three} of {all_pairs} pairs are disjoint ({all_pairs * round(chance[1], 3):.1f} expected by chance)"
    one = counts.loc["one"]
    for key, each in counts.iterrows():
        names = ("median_moved", "most_moved", "median_half_width")
        shares = [f"{100 * each[name]:.1f} %" for name in names]
        yield row(*key, int(each["intervals"]), int(each["disjoint"]), *shares)
    apart = {key: f"{each['disjoint']:.0f} of {each['intervals']:.0f}" for key, each in counts.iterrows()}
    yield f"{apart['one', 'another', 'ratio', 'graph']} graph ratios and"
    yield f"and {apart['one', 'another', 'median', 'eager']} eager medians are"
    yield f"On one machine, {apart['one', 'same', 'ratio', 'graph']} graph ratios is"
    moved = counts["most_moved"]
    graph, eager = (("three", "another", "median", kind) for kind in ("graph", "eager"))
    yield f"disjoint in {apart[graph]} cases between machines"
    yield f"at most {percent(moved[graph], 1)} apart)"
    yield f"none of {counts['intervals']['three', 'same', 'median', 'graph']} cases on one machine"
    yield f"can differ by {percent(moved[graph], 1)}"
    yield f"up to {percent(moved[eager])} between machines"
    yield f"(median half width {percent(counts['median_half_width'][eager])})"
    lost = {kind: one.xs("ratio", level="of").xs(kind, level="kind") for kind in ("eager", "graph")}
    words = [f"{(each['pairs'] - each['intervals']).sum()} of the {each['pairs'].sum()}" for each in lost.values()]
    yield f"for {words[0]} eager ratios and {words[1]} graph ratios of one run"


def claims_of_cuda_graphs() -> Iterator[str]:
    """Operations by the way in which their graph was made; 30 of each layer in the warm-up are not in the table."""
    layers = table("cuda-graphs/layers")
    ops = layers.groupby("way", sort=False)["gpu_ops"].sum().drop("EAGER")
    warm_up = 4 * 30
    yield f"All {ops.drop('CHILD').sum() + warm_up:,} replayed GPU ops"
    yield from (f"| {count} |" for count in ops)
    each = layers[layers["captured_in"].str.contains("layer", na=False)]
    assert set(each["gpu_ops"][each["way"] != "COMPILED"]) == {55}
    yield "exactly the same GPU ops as the eager layer**: both have 55 GPU ops in five iterations"
    fused = int(each["gpu_ops"][each["way"] == "COMPILED"].iloc[0])
    yield f"has {fused // 5} GPU ops per iteration instead of {55 // 5}"


def claims_of_operator_cost() -> Iterator[str]:
    """FLOPs and bytes beside counters."""
    ops = table("operator-cost/results").set_index("range").rename(index=lambda name: name.removeprefix("OP::"))
    flops, moved = ops["flops_ratio"], ops["bytes_ratio"]
    products = [name for name in ops.index if re.match(r"(add|b)?mm|conv|sdpa", name)]
    yield f"within {percent(np.ceil(100 - 100 * flops[products].min()) / 100)} of the counters"
    yield f"({flops[products].min():.3f} to {flops[products].max():.3f} of the counted FLOPs)"
    more = 1 / flops[products] - 1
    causal = more.index.str.endswith("causal")
    yield f"higher by {span(100 * more[causal])} % for causal attention"
    yield f"by up to {percent(more[~causal].max())} for the other kernels"
    reread = ["mm", "addmm", "mm_f32", "conv_f32", "batch_norm", "embedding"]
    once = moved.drop(reread).dropna()
    yield f"within {percent(np.ceil(100 - 100 * once.min()) / 100)} of the counters"
    yield f"({once.min():.2f} to {once.max():.2f} of the counted bytes, {len(once)} operators)"
    yield f"was still in the cache, and then by at most {percent(moved.max() - 1, 1)}"
    yield f"({span(moved[reread[:3]], 2)} of the counted bytes)"
    shares = [f"{moved[name]:.2f}" for name in ("conv_f32", "batch_norm", "embedding")]
    yield f"({shares[0]}, {shares[1]} and {shares[2]} of the counted bytes)"
    yield f"({flops['gelu']:.2f} of the counted FLOPs for GELU)"
    script = "operator-cost/operators.py"
    batch, seq = map(int, written(script, r"big, other, gain = draw\((\d+), (\d+), 4096\)"))
    words, count, each = map(int, written(script, r"draw\((\d+), 1024\), torch.randint\(50304, \((\d+), (\d+)\)"))
    names = {f"`softmax`, {batch * seq:,} x 4096": "softmax", f"`layer_norm`, {batch * seq:,} x 4096": "layer_norm",
             f"`embedding`, {count * each:,} of {words:,} rows": "embedding", "channels-last": "conv_cl",
             "FP32": "conv_f32",
             "6144, bf16": "mm", "x 1024, bf16": "bmm", "D64": "sdpa_flash", "the same, causal": "sdpa_flash_causal",
             "cuDNN, causal": "sdpa_cudnn_causal"}  # fmt: skip
    for shown, name in names.items():
        of_flops = f"{flops[name]:.{3 if flops[name] > 0.9 else 2}f}" if ops["flops"][name] else ""
        cells = [f"{ops['flops'][name] / 1e9:.3g} G" if of_flops else "0", of_flops]
        cells += [f"{ops['least_bytes'][name] / 1e6:,.0f} MB", f"{moved[name]:.2f}"]
        yield f"{shown} | {' | '.join(cells)} |".replace("|  |", "| |")


def claims_of_pairs() -> Iterator[str]:
    """Ratios beside their truth, and what was flagged."""
    pairs = table("pairs/results")
    pairs["apart"] = pairs["off"].str.rstrip("%").astype(float).abs()
    pairs["cheat"], pairs["flagged"] = pairs["new"].str.endswith(".cheat"), pairs["check"].eq("yes")
    for name, each in pairs.groupby("set", sort=False):
        known, cheats, others = each["apart"].dropna(), each[each["cheat"]], each[~each["cheat"]]
        verdicts = each["verdict"].replace({"slower": "faster"}).value_counts()
        counts = [verdicts.get(verdict, 0) for verdict in ("faster", "no clear change", "too few samples")]
        flagged = f"{cheats['flagged'].sum()} of {len(cheats)}" if len(cheats) else ""
        cells = [name, len(each), len(known), f"{known.max():.1f} %" if len(known) else "", *counts, flagged]
        cells += [f"{others['flagged'].sum()} of {len(others)}", (each["comparable"] == "no").sum()]
        yield row(*cells)
    known, cheats = pairs["apart"].dropna(), pairs[pairs["cheat"]]
    others = pairs[~pairs["cheat"] & (pairs["set"] != "unchanged")]
    assert cheats["flagged"].all()
    yield f"All {len(known)} ratios with a known truth are within {np.ceil(known.max()):.0f} % of the truth"
    yield f"({(known <= 1).sum()} of them within 1 %; largest error {known.max()} %)"
    yield f"`compare` flags all {len(cheats)} cheats"
    yield f"flags {others['flagged'].sum()} of the {len(others)} other comparisons"
    of = {(each["base"], each["new"]): each for each in pairs.to_dict("records") if each["clock"] != "unchanged"}
    yield f"differ by up to {percent(of['busy', 'gc']['ratio'] - 1)} per step (`busy` and `gc`)"
    sam = pairs[pairs["base"].str.startswith("sam") & (pairs["n"] == "1 1")]
    unclear = sam[sam["verdict"] == "no clear change"]
    yield f"without a change differ by up to {percent((unclear['ratio'] - 1).abs().max(), 1)}"
    recorded = table("history/sam").set_index("commit")["step_ms"]
    yield f"the recording takes {recorded['775afb0'] - recorded['57c71fe']:.0f} ms longer"
    states = pairs["base"].str.contains("True_(?:7055eae|6bc0db0|130d91c|a763b06)")
    apart = (pairs["ratio"][states] - 1).abs().max()
    yield f"from `7055eae` to `57c71fe` (their times differ by up to {percent(apart, 1)})"
    alike = pairs[(pairs["n"].isin(["20 20", "19 20", "18 20", "18 19"])) & (pairs["verdict"] == "too few samples")]
    yield f"although they are {span(100 * (alike['ratio'] - 1))} % faster"


def claims_of_history() -> Iterator[str]:
    """Recorded runs, and synthetic series."""
    runs = table("history/sam").set_index(["series", "commit"])
    steps, levels = runs["step_ms"], runs["level_ms"]
    last, before = (1, "775afb0"), (1, "57c71fe")
    slower = steps[last] - steps[before]
    yield f"a regression of {slower:.0f} ms"
    yield f"+{levels[last] - levels[before]:.0f} ms between the levels (+{slower:.0f} ms between the two runs)"
    yield f"CPU time outside every range (+{runs['part_ms'][last]:.0f} ms)"
    assert runs["part"][last] == "CPU time outside every range"
    moved = (steps / steps.shift() - 1).abs()[runs["truth"] == "no change"]
    assert len(moved) == 6
    yield f"whose times still differ from the previous run by up to {percent(moved.max(), 1)}"
    yield f"This commit is {percent(1 - runs['ratio'][3, 'e3ca3cb'])} faster"
    series = table("history/series").set_index(["spread", "noise", "planted"]).sort_index()
    per_100 = 100 * series[["within_a_run", "false_alarms"]].div(series["series"], axis=0)
    for spread, noise in {(spread, noise) for spread, noise, _ in series.index}:
        each = per_100.loc[spread, noise]
        found = [f"{each['within_a_run'][planted]:g}" for planted in ("2%", "5%", "10%", "two clocks")]
        yield row(noise, spread, *found, f"{each['false_alarms']['0%']:g}")
    usual = per_100.loc["as measured"].unstack()
    planted = sorted({int(at.removesuffix("%")) for *_, at in series.index if at.endswith("%")})
    yield f"spread between runs | {' | '.join(f'{percent(at / 100)}' for at in planted[1:])} | two clocks"
    yield f"finds a change of 10 % in at least {int(usual['within_a_run', '10%'].min())} of 100"
    yield f"and a change of 5 % in at least {int(usual['within_a_run', '5%'].min())} of 100"
    yield f"At most {usual['false_alarms', '0%'].max():.0f} of 100 series"
    half, most = (100 * float(each) for each in written("history/simulate.py", r"USUAL, MOST = (\S+), (\S+)"))
    yield f"below {half:.2f} % for half of the series"
    yield f"and up to {most:.1f} % for the others"
    yield f"GPU clock changes twice by {percent(float(*written('history/simulate.py', r'log1p.(0.08)')))}"
    yield f"If runs vary by {most:.1f} %, `history` finds half of the changes of 5 %"
    assert round(series["found"][f"{most:.1f} %", "normal", "5%"] / 200, 1) == 0.5
    assert per_100["false_alarms"].xs("0%", level="planted").idxmax() == (f"{most:.1f} %", "dependent (0.3)")
    yield f"Autocorrelated runs (0.3) that vary by {most:.1f} % cause the most"


def claims_of_slow_steps() -> Iterator[str]:
    """Planted steps that were found, of recorded programs and of synthetic reports."""
    real, made = table("slow-steps/recorded"), table("slow-steps/planted")
    real["program"] = real["run"].str.partition("-")[0]
    yield from _rows_of_slow_steps(real, made)
    small = [f"{100 * dose:.0f} %: found" for dose in sorted(set(made["dose"]))]
    yield f"| noise of steps | {' | '.join(small)} |"
    yield f"| kind | {' | '.join(small)} |"
    [vary] = {noise.rpartition(", ")[2] for noise in made["noise"]}
    yield f"If steps vary by {vary}"
    missed = real[(real["run"] == "steady-planted-0") & (real["found"] == 0)]["dose"]
    yield f"misses all doses of {percent(missed.max())} and less"
    full = real[real["dose"] == 1].set_index("program")
    yield f"finds all {full['found'].sum()} injected steps that take twice as long as usual"
    assert full["found"].all()
    usual = full["planted_ns"].groupby(level=0).first() / 1e6
    yield f"`steady` ({usual['steady']:.1f} ms per step) is GPU-bound, and"
    yield f"`launches` ({usual['launches']:.1f} ms per step) is CPU-bound"
    doses = [f"{100 * dose:.0f}" for dose in sorted(set(real["dose"]))]
    yield f"doses ({doses[0]}, {doses[1]} and {doses[2]} % of a step)"
    third = real[real["dose"] == 0.3].groupby("program")["found"].mean()
    assert third.to_dict() == {"launches": 0, "steady": 0.5}
    yield "`steps` finds half of the steps that take 30 % longer than usual"
    some = made[made["kind"] != "none"]
    assert len(made) == len(some)  # no false alarm
    assert some["found"][some["dose"] >= 0.3].all()
    yield "every step that takes at least 30 % longer than expected, with no false alarms"
    limits = some.groupby(some["noise"].str.startswith("heavy"))["slow_from"]
    least, most = (100 * (each - 1) for each in (limits.min(), limits.max()))
    yield f"slow steps is {least[False]:.0f} to {most[False]:.0f} % above"
    yield f"({least[True]:.0f} to {most[True]:.0f} % with heavy tails)"
    yield f"median error of the extra time is {percent(some['off_by'].median(), 1)} of a step"
    step = int(written("slow-steps/planted.py", r"STEP_NS = ([\d_]+) \* US")[0])
    steps = int(written("slow-steps/planted.py", r"STEPS, REPORTS, SEED = (\d+)")[0])
    yield f"run {steps} steps of {step / 1000:.2f} ms"
    alarms = table("slow-steps/false_alarms").set_index("source")["per_100"].drop("two kinds, 15 %")
    yield f"at most {alarms.max():.1f} of 100 simulated steady steps"
    with open_report(ANALYSIS.parent / "traces" / "run.sqlite") as report:
        found = steps_of(attribute(report), "RUN::auto::S2048/iter*").steps
    [late] = found[found["class"] == "slow"].to_dict("records")
    yield f"is `{late['name']}` of `RUN::auto::S2048`, which the host launched {late['excess_ns'] / 1e3:.0f} µs late"


def _rows_of_slow_steps(real: Any, made: Any) -> Iterator[str]:
    for program in ("steady", "launches"):
        runs = real[real["program"] == program].groupby("run")["found"]
        yield f"| {runs.size().sum()} | {', '.join(map(str, runs.sum()))} |"
    for key in ("kind", "dose"):
        for value, each in real.groupby(key):
            found, size = (each.groupby("program")["found"].agg(how)[["steady", "launches"]] for how in ("sum", "size"))
            cells = [f"{one} / {of}" for one, of in zip(found, size, strict=True)]
            named = [f"{each['named'].sum():.0f} of {each['found'].sum()}"] if key == "kind" else []
            yield row(value if key == "kind" else percent(value), *cells, *named)
    found = real.groupby("program")["found"].sum()
    yield f"reports {found['steady']} slow steps in `steady` (all of them injected)"
    yield f"slow steps in `launches` ({found['launches']} of them injected)"
    for key in ("noise", "kind"):
        for value, each in made.groupby(key):
            doses = each.groupby("dose")["found"]
            cells = [f"{one} / {of}" for one, of in zip(doses.sum(), doses.size(), strict=True)]
            others = [f"0 of {4 * 300 - len(each)}", "1.00"] if key == "noise" else []
            yield row(value, *cells, f"{each['named'].sum()} of {each['found'].sum()}", *others)
    for report, each in table("slow-steps/shipped").groupby("report"):
        judged = each["steps"].sum() - each["warm_up"].sum()
        yield row(f"`{report}`", len(each), judged, each["warm_up"].sum(), each["slow"].sum())


def claims_of_planted_faults() -> Iterator[str]:
    """A row per dose, and counts of verdicts."""
    rows = table("planted-faults/verdicts").fillna({"named": "–"})
    for each in rows[rows["dose"] != 0].to_dict("records"):
        times = [f"{each[name]:.2f}" for name in ("step_ms", "window_ms", "added_ms", "named_ms")]
        yield row(each["fault"], f"{each['dose']:g}", *times, each["named"], each["verdict"])
    assert set(rows["verdict"][rows["dose"] == 0]) == {"correctly silent"}
    assert (rows["verdict"] == "missed").sum() == 1
    assert "blames something else" not in set(rows["verdict"])
    counts = [rows["verdict"].str.startswith(words).sum() for words in ("named, within", "named")]
    yield f"In {counts[0]} of the {counts[1]} cases that `why` named"
    yield f"We injected {rows['fault'].nunique()} faults"
    near, near_ns = written("planted-faults/judge.py", r"NEAR, NEAR_NS = (\S+), (\S+) ")
    yield f"agrees with the added time within {percent(float(near))} or {int(near_ns) / 1e6:.1f} ms"
    clean = rows["step_ms"][rows["dose"] == 0].median()
    yield f"In a clean step, the GPU works for {clean:.1f} ms, about twice as long as the host"
    at = rows.set_index(["fault", "dose"])
    fewer = [at[column]["tiny_kernels"] for column in ("added_compute_ms", "added_ms", "named_ms")]
    compute = [f"{fewer[0][dose]:.1f}" for dose in (100, 300)]
    missing = [f"{fewer[1][dose] - fewer[2][dose]:.1f}" for dose in (100, 300)]
    yield f"does not name {missing[0]} ms (dose 100) and {missing[1]} ms (dose 300) of the added time"
    yield f"kernels takes {' and '.join(compute)} ms of this unnamed time"
    less = -rows["added_compute_ms"][rows["fault"].isin(["sync_then_python", "pinned_out"]) & (rows["named_ms"] > 0)]
    yield f"compute takes {less.min():.1f}–{less.max():.1f} ms less"
    least = (rows["added_ms"] / (rows["window_ms"] - rows["added_ms"]))[rows["verdict"].str.startswith("named")].min()
    yield f"that adds {percent(least)} or more to the step"


def claims_of_advice() -> Iterator[str]:
    """The summary, and the limits of its script."""
    summary = table("advice/summary").fillna("–")
    for each in summary.itertuples(index=False):
        yield row(*each)
    [limits] = written("advice/score.py", r"SLACK, LEAST = (.+)")
    shows, hidden, noise, slack, least = map(float, limits.split(", "))
    yield f"If the true cost is at least {shows} ms"
    yield f"below {percent(hidden)} of the step, no finding may claim a gain above {percent(noise)} of the step"
    yield f"by at most {slack} from the measured saving"
    yield f"a gain above {percent(least)} for the paced program (`timer`), or above {percent(noise)} for a program"
    yield f"idle for more than {percent(float(*written('advice/score.py', r'if waits > (0.1)')))} of the time"
    before = (
        summary[summary["measure"].str.startswith("findings labelled")].set_index("measure")["before"].str.split(" of ")
    )
    path, advice = ([each for name, each in before.items() if words in name] for words in ("and cause", "advice"))
    kept, of, same = sum(int(a) for a, _ in path), sum(int(b) for _, b in path), sum(int(a) for a, _ in advice)
    yield f"{kept} of {of} match by path and cause, and {same} by advice"
    yield f"Scoring {len(table('advice/recordings'))} recordings"
