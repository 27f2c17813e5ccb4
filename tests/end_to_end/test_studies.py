"""The studies keep their word: tables and reports follow from the samples, the READMEs quote what is in them."""

import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from nsysprof.attribution.attribute import attribute
from nsysprof.bench.files import write_bench_tables
from nsysprof.bench.report import bench_report
from nsysprof.bench.results import read_bench_results
from nsysprof.bench.text import bench_summary
from nsysprof.bench.words import ratio_cell
from nsysprof.compare.comparison import compare
from nsysprof.compare.files import write_gaps
from nsysprof.core.units import format_bytes, format_ns, format_ratio, format_share
from nsysprof.errors import NsysprofError
from nsysprof.formats.samples import samples_content, samples_file
from nsysprof.hardware.peaks import peak_flops, share_of_peak
from nsysprof.statistics.contrast import TOO_FEW_SAMPLES
from nsysprof.trace.report import open_report
from tests.kit.ledger_claims import STEPS, claims_of_why_math_is_slow
from tests.kit.study_figures import ANALYSIS, kept_gap, kept_table, study_figures
from tests.kit.study_pictures import all_drawings, kept_charts, looks_alike
from tests.kit.tiled_claims import TILED_STEPS, claims_of_tiled_attention

BENCHES = ("math-vs-flash", "baseline", "scaling", "long")
OTHER_BENCHES = (
    *("best-kernels", "best-kernels/flash-attn", "selection/cost", "short-block"),
    *("training/block", "training/gpt", "training/backward", "training/deterministic"),
    *("decoding/prefill", "decoding/decode-graph"),
    *(f"tiled-attention/o5-o6/wide/{name}" for name in ("sigma-3", "sigma-30", "sigma-30-128")),
    *(f"tiled-attention/o5-o6/backward/{name}" for name in ("fp16", "bf16")),
)
TILED_BENCHES = tuple(
    f"tiled-attention/{name}" for name in ("bench", "head-dim-128", "many-heads", "not-causal", "single-head")
)
LARGE = tuple(
    f"{study}/comparisons.csv" for study in ("baseline", "tiled-attention/bench", "tiled-attention/single-head")
)
INTERVALS = ["speedup_low", "speedup_high"]
LEDGERS = {"why-math-is-slow": STEPS, "tiled-attention": TILED_STEPS}

# Published: RTX 4060 Ti, math and flash, ms and MiB by S; L4, flash, ms by S.
PUBLISHED_4060 = {
    1024: (1.67, 0.058, 127.13, 12.13),
    2048: (7.14, 0.153, 462.14, 16.13),
    4096: (28.97, 0.523, 1780.16, 24.13),
}
PUBLISHED_L4 = {128: 0.0604, 256: 0.0993, 512: 0.3210, 1024: 1.3814, 2048: 4.9756}


def readme_of(study: str) -> str:
    """The text of a README, with single blanks."""
    return " ".join((ANALYSIS / study / "README.md").read_text(encoding="utf-8").split())


@pytest.mark.studies
@pytest.mark.parametrize("study", BENCHES + TILED_BENCHES + OTHER_BENCHES)
def test_tables_and_report_are_made_of_the_samples(study: str, tmp_path: Path) -> None:
    """To the byte; only the version of nsysprof in the report may be another, and tables have more columns now.

    `LARGE` tables are not written again for a column more, nor where intervals and verdicts are no longer given: of
    these all is compared but the intervals, and verdicts as far as there are any.
    """
    results = read_bench_results(ANALYSIS / study)
    for path in write_bench_tables(results, tmp_path):
        made, kept = (pd.read_csv(file, dtype=str) for file in (path, kept_table(ANALYSIS / study / path.name)))
        assert [name for name in made if name in kept] == list(kept), path
        if f"{study}/{path.name}" in LARGE:
            unsure = made["verdict"] == TOO_FEW_SAMPLES
            assert unsure.sum() <= 1
            made, kept = (table.drop(columns=INTERVALS) for table in (made, kept))
            made.loc[unsure, ["verdict", "reason"]] = kept.loc[unsure, ["verdict", "reason"]]
        pd.testing.assert_frame_equal(made[list(kept)], kept)
    text_made, text_kept = (
        re.sub(r"\| nsysprof \| .* \|", "", text)
        for text in (
            bench_report(results, kept_charts(ANALYSIS / study)),
            (ANALYSIS / study / "report.md").read_text(encoding="utf-8"),
        )
    )
    assert text_made == text_kept


@pytest.mark.studies
@pytest.mark.parametrize("name", all_drawings())
def test_pictures_show_what_is_drawn_today(name: str) -> None:
    """Pixel by pixel, up to what a palette changes: `python -m tests.kit.study_pictures` draws those that differ."""
    for path, picture in all_drawings()[name]().items():
        assert looks_alike(picture, path.read_bytes()), path


def test_every_picture_is_shown_and_every_sample_packed() -> None:
    """What no page shows can be drawn by a command, and need not be kept."""
    pages = [path for path in ANALYSIS.rglob("*.md") if path.name != "report.md"]
    pages += [ANALYSIS.parent / "README.md", *(ANALYSIS.parent / "docs").glob("*.md")]
    shown = {
        (page.parent / place).resolve()
        for page in pages
        for place in re.findall(r"!\[[^]]*\]\(([^)]*)\)", page.read_text(encoding="utf-8"))
    }
    assert {path.resolve() for path in ANALYSIS.rglob("*.png")} <= shown
    assert list(ANALYSIS.rglob("samples.json")) == []


@pytest.mark.studies
def test_the_order_of_calls_follows_from_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script writes the table that is there, to the byte."""
    monkeypatch.setattr(sys, "argv", ["order.py", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ANALYSIS / "call-order" / "order.py"), run_name="__main__")
    assert stop.value.code == 0
    made, kept = ((folder / "order.csv").read_bytes() for folder in (tmp_path, ANALYSIS / "call-order"))
    assert made == kept


@pytest.mark.studies
@pytest.mark.parametrize("name", LEDGERS)
def test_the_ledgers_follow_from_the_report_and_its_counters(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command of the study makes what is in its folder: the table to the byte, the document to twelve digits."""
    study = ANALYSIS / name
    text = re.sub(r"\s*\\\n\s*", " ", (study / "README.md").read_text(encoding="utf-8"))
    asked = re.findall(
        rf"^nsysprof compare (\S+) --base '(\S+)' --new '(\S+)' -o analysis/{name}/(\S+) --force$", text, re.M
    )
    assert sorted(step for _, _, _, step in asked) == sorted(LEDGERS[name])
    [report] = {report for report, _, _, _ in asked}
    monkeypatch.chdir(ANALYSIS.parent)  # warnings name files as they were asked for
    with open_report(Path(report)) as opened:
        attribution = attribute(opened)
    for _, base, new, step in asked:
        write_gaps(compare(attribution, base=base, new=new), tmp_path)
        folders = (tmp_path, study / step)
        table, kept_table = ((folder / "gap.csv").read_bytes() for folder in folders)
        assert table == kept_table, step
        document, kept_document = (
            {**json.loads(content, parse_float=_digits), "nsysprof": "", "report": "", "warnings": []}
            for content in ((tmp_path / "gap.json").read_bytes(), kept_gap(name, step))
        )
        for pair, kept_pair in zip(document["pairs"], kept_document["pairs"], strict=True):
            for each in (pair, kept_pair):
                each.pop("findings")  # sentences, whose words may be better by now
            for clock, kept_clock in zip(pair["clocks"], kept_pair["clocks"], strict=True):
                kept_clock["reason"] = clock["reason"]
                if clock["reason"].endswith("too few to show a difference"):  # a verdict when these were written
                    kept_clock["verdict"] = clock["verdict"]
        assert _only(document, kept_document) == kept_document, step  # keys may be added


def _only(made: Any, kept: Any) -> Any:
    """What was made, with the keys of what is kept."""
    if isinstance(made, dict) and isinstance(kept, dict):
        return {name: _only(made[name], kept[name]) for name in kept if name in made}
    if isinstance(made, list) and isinstance(kept, list) and len(made) == len(kept):
        return [_only(*both) for both in zip(made, kept, strict=True)]
    return made


def _digits(number: str) -> float:
    """A number of a document without the last digits, in which libraries of mathematics differ."""
    return float(f"{float(number):.12g}")


def test_every_study_is_in_the_index() -> None:
    """And what the index names is there."""
    index = (ANALYSIS / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\]\(([\w-]+)/README\.md\)", index))
    assert named == {path.parent.name for path in ANALYSIS.glob("*/README.md")}


def claims_of_math_vs_flash() -> Iterator[str]:
    """Rows and phrases of the README."""
    at = study_figures("math-vs-flash")
    for seq, (math, flash, math_mib, flash_mib) in PUBLISHED_4060.items():
        cells = [str(seq), at.time("math", seq), at.time("flash", seq), at.times("math", "flash", seq)]
        cells += [at.time(name, seq, graph=True) for name in ("math", "flash")]
        cells += [at.times("math", "flash", seq, graph=True), f"{math:g} / {flash:g} ms", format_ratio(math / flash)]
        yield f"| {' | '.join(cells)} |"
        cells = [str(seq), at.times("cudnn", "auto", seq), at.times("cudnn", "auto", seq, graph=True)]
        cells += [at.times("flash", "cudnn", seq, graph=True)]
        cells += [at.times("math", name, seq, graph=True) for name in ("flash", "auto")]
        yield f"| {' | '.join(cells)} |"
        row, other = at.row("math", seq), at.row("flash", seq)
        own = row["peak_bytes"] - row["before_bytes"]
        cells = [str(seq), *(at.size(name, seq) for name in ("math", "flash", "efficient", "cudnn"))]
        cells += [format_ratio(row["peak_bytes"] / other["peak_bytes"]), format_ratio(own / other["peak_bytes"])]
        cells += [f"{math_mib} / {flash_mib} MB", format_ratio(math_mib / flash_mib)]
        cells += [format_ratio((math_mib - 8.125) / (flash_mib - 8.125))]
        yield f"| {' | '.join(cells)} |"
    for name in ("math", "flash"):
        yield (f"{at.launching(name, 1024)} of a call of {name}")
    yield f"launch overhead is only {at.launching('math', 4096)} of a call of math and {at.launching('flash', 4096)}"
    flops = at.row("flash", 4096)["flops"]
    reached = flops / 0.523e-3
    peak = peak_flops("8.9", 34, 2535e6, "fp16", name="NVIDIA GeForce RTX 4060 Ti")
    yield f"{reached / 1e12:.1f} TFLOP/s, {format_share(reached / peak)} of the {peak / 1e12:.1f} TFLOP/s"
    yield (
        f"{at.rate('flash', 4096, 'graph_tflops')} TFLOP/s as a CUDA graph,"
        f" {at.share('flash', 4096, 'graph_share_of_peak')} of the {at.rate('flash', 4096, 'peak_tflops')}"
    )
    traffic = at.row("math", 4096)["traffic_bytes"]
    yield (
        f"{traffic / 28.97e-3 / 1e9:.0f} GB/s, {format_share(traffic / 28.97e-3 / 288e9)} of the RTX 4060 Ti's "
        f"288 GB/s. On the H200, the same traffic divided by our time is {at.row('math', 4096)['gb_per_s']:,.0f} GB/s, "
        f"{at.share('math', 4096, 'share_of_bandwidth')}"
    )
    yield f"{at.exponent('math')} for `math`"
    yield f"{at.exponent('math_reduced')} for `math_reduced`"
    yield f"`efficient` grows as {at.exponent('efficient', 'peak memory')}, and so does the peak memory of `cudnn`"
    assert at.exponent("efficient", "peak memory") == at.exponent("cudnn", "peak memory")
    for seq in (1024, 2048):
        yield f"{at.size('flash', seq, 'temporary')} at S={seq}"
    worst = at.results.groupby("backend")["error_of_tolerance"].max()
    fused = at.results[at.results["backend"].isin(["flash", "efficient", "cudnn", "auto", "math"])]
    yield f"at most {fused['error'].max():.1e} against an allowed {fused['tolerance'].max():.0e}"
    assert worst.max() < 1
    yield f"`math_reduced` is {at.times('math', 'math_reduced', 4096)} as fast"
    yield f"± {at.width('cudnn', 1024)} and ± {at.width('auto', 1024)} at S=1024"
    assert (at.results["aa_verdict"] == "no clear change").all()
    yield f"0 of {len(at.results)}"
    own = {int(row["before_bytes"]) >> 20 for row in at.results.to_dict("records")}
    yield f"a workspace of another {own.pop()} MiB"
    with_it = [f"{8.125 + 4 * s + s / 32:.2f}" for s in (1, 2, 4)]
    yield f"flash would need {with_it[0]}, {with_it[1]} and {with_it[2]} MB)"


def claims_of_baseline() -> Iterator[str]:
    """Rows and phrases of the README."""
    at = study_figures("baseline")
    for seq, published in PUBLISHED_L4.items():
        flash = at.row("flash", seq)
        cells = [str(seq), at.time("flash", seq), at.time("flash", seq, graph=True), f"{published:.4f} ms"]
        cells += [format_ratio(published * 1e6 / flash[name]) for name in ("median_ns", "graph_median_ns")]
        cells += [f"{flash['flops'] / published / 1e9:.1f}", at.rate("flash", seq), at.share("flash", seq)]
        yield f"| {' | '.join(cells)} |"
        cells = [str(seq), at.times("math", "flash", seq), at.times("math", "flash", seq, graph=True)]
        cells += [at.times("flash", "cudnn", seq), at.times("flash", "cudnn", seq, graph=True)]
        cells += [at.times("cudnn", "auto", seq), at.times("cudnn", "auto", seq, graph=True)]
        yield f"| {' | '.join(cells)} |"
    best = study_figures("baseline").row("flash", 2048)["flops"] / 4.9756e-3
    cores, tensor = (peak_flops("8.9", 58, 2040e6, dtype, name="NVIDIA L4") for dtype in ("fp32", "fp16"))
    yield (
        f"{best / 1e12:.1f} TFLOP/s, which is {format_share(best / cores)} of its FP32 peak ({cores / 1e12:.1f} "
        f"TFLOP/s), but {format_share(best / tensor)} of its tensor-core peak ({tensor / 1e12:.0f} TFLOP/s)"
    )
    for batch, heads in ((16, 8), (32, 4)):
        flash, cudnn = (at.row(name, 512, batch=batch, heads=heads) for name in ("flash", "cudnn"))
        flash_takes, cudnn_takes = (format_ns(each["graph_median_ns"]) for each in (flash, cudnn))
        yield f"t B{batch} H{heads}, flash takes {flash_takes} and cudnn {cudnn_takes}"
    small, large = (at.row("flash", 512, batch=batch) for batch in (8, 64))
    grown = large["graph_median_ns"] / small["graph_median_ns"]
    yield f"takes only {format_ratio(grown)} the time"
    shares = [format_share(each["graph_share_of_peak"]) for each in (small, large)]
    yield f"fills the GPU better ({shares[0]} → {shares[1]} of peak)"
    yield f"`cudnn` takes {at.time('cudnn', 128, graph=True)} and `auto` {at.time('auto', 128, graph=True)}"
    ratio = at.row("flash", 512, batch=16)["aa_ratio"]
    yield f"`flash` at B16 H8 S512, by {format_share(ratio - 1)}"
    assert int((at.results["aa_verdict"] == "slower").sum() + (at.results["aa_verdict"] == "faster").sum()) == 1
    yield f"1 of {len(at.results)}"
    yield f"{at.exponent('flash')} for `flash`"
    yield f"{at.exponent('math')} for `math`"
    yield f"at most {at.results['error'].max():.1e}, and {at.results['tolerance'].max():.0e} is allowed"
    yield f"{at.rate('cudnn', 2048)} TFLOP/s, {at.share('cudnn', 2048)}"
    yield f"{at.launching('cudnn', 128)} of a call of `cudnn`"
    yield f"the {at.rate('flash', 2048, 'measured_peak_tflops')} TFLOP/s that a large matrix product"


def claims_of_scaling() -> Iterator[str]:
    """Rows and phrases of the README."""
    at = study_figures("scaling")
    for seq in (512, 1024, 2048, 4096, 8192, 16384, 32768):
        naive = seq < 32768
        cells = [str(seq)]
        cells += [at.time("naive", seq) if naive else "out of memory", at.time("auto", seq), at.time("flash", seq)]
        cells += [at.times("naive", name, seq) if naive else "" for name in ("flash", "auto")]
        cells += [at.times("naive", name, seq, graph=True) if naive else "" for name in ("flash", "auto")]
        cells += [at.times("flash", "auto", seq, graph=True)]
        yield f"| {' | '.join(cells)} |"
        for base in ("naive", "auto"):
            if naive or base == "auto":
                cells = [str(seq), at.mixed(base, "fp32", "flash", "fp16", seq)]
                cells += [at.mixed(base, "fp32", base, "fp16", seq), at.times(base, "flash", seq)]
                yield f"| {' | '.join(cells)} |"
    matrix = 8 * 8 * 32768**2
    yield (
        f"one score matrix for all 64 heads (8 x 8) would take {format_bytes(4 * matrix)} in fp32. "
        f"In fp16, a score matrix takes {format_bytes(2 * matrix)}"
    )
    yield f"fits into the {format_bytes(150109880320)} of the GPU"
    for dtype in ("fp32", "fp16"):
        yield f"{at.exponent('naive', dtype=dtype)} in {dtype}"
    yield f"{at.exponent('auto')} for `auto` and `flash`"
    rows = at.results[(at.results["backend"] == "naive") & (at.results["seq"] >= 2048) & (at.results["n"] > 0)]
    over = rows["graph_median_ns"] / rows["median_ns"] - 1
    assert set(at.results["backend"][at.results["graph_median_ns"] > 1.02 * at.results["median_ns"]]) == {"naive"}
    assert (over > 0.02).all()
    for other in set(BENCHES) - {"scaling"}:
        frame = study_figures(other).results
        assert (frame["graph_median_ns"] < 1.02 * frame["median_ns"]).all()
    watched = [
        (point["configuration"]["seq"], [state["throttle"] & 4 for state in point["gpu"]], point["gpu"])
        for point in json.loads(samples_content(samples_file(ANALYSIS / "scaling")))["points"]
        if point["latency_ns"]
    ]
    capped = [any(caps) for seq, caps, _ in watched if seq >= 4096]
    yield f"at {sum(capped)} of {len(capped)} points from S=4096 on"
    drawn = max(state["power_w"] for seq, _, states in watched if seq == 2048 for state in states)
    yield f"at most {drawn:.0f} W of its 700 W"
    yield f"all {len(rows)} points from S=2048 on, by {format_share(over.min())} to {format_share(over.max())}"
    yield f"{at.time('naive', 16384, 'fp32')} against {at.time('naive', 16384, 'fp32', graph=True)}"
    yield f"{at.size('naive', 16384, dtype='fp32')} in fp32"
    yield f"{at.size('naive', 16384)} in fp16"
    yield f"`auto` in fp16 needs {at.size('auto', 32768)}"
    for seq, backend in ((4096, "naive"), (8192, "auto")):
        row = at.row(backend, seq)
        yield f"effective n of {row['n_effective']:.0f} (of {row['n']})"
    yield f"{at.row('auto', 32768)['sm_clock_mhz']:,.0f} MHz (median of auto)"
    yield f"{at.rate('auto', 16384)} TFLOP/s, {at.share('auto', 16384)}"
    yield f"{at.share('auto', 8192, dtype='fp32')} of {at.rate('auto', 8192, 'peak_tflops', 'fp32')} TFLOP/s"
    worst = at.results.groupby(["backend", "dtype"])["error"].max()
    yield f"at most {worst['auto', 'fp16']:.1e} in fp16 and {worst['auto', 'fp32']:.1e} in fp32"
    assert (at.results["error_of_tolerance"].dropna() < 1).all()
    yield (
        "exception at S=512 is due to launches: called from Python, `flash` is "
        f"{at.times('auto', 'flash', 512)} as fast"
    )
    yield f"0 of {at.results['aa_verdict'].notna().sum()}"
    order = order_table()
    order = order[(order["study"] == "scaling") & (order["configuration"] == "B8.H8.S32768.D64.fp16.causal")]
    for kind in ("eager", "graph"):
        auto = order[(order["kind"] == kind) & (order["backend"] == "auto")].set_index("after")
        yield f"{format_ns(auto['median_ns']['flash'])} after `flash` and {format_ns(auto['median_ns']['auto'])} after"


def claims_of_long() -> Iterator[str]:
    """Rows and phrases of the README."""
    at = study_figures("long")
    for seq in (1024, 2048, 4096, 8192, 16384, 32768):
        cells = [str(seq), at.time("math", seq), at.time("flash", seq), at.time("cudnn", seq)]
        cells += [at.times("math", "flash", seq), at.times("math", "flash", seq, graph=True)]
        cells += [at.times("flash", "cudnn", seq, graph=True), at.times("cudnn", "auto", seq, graph=True)]
        cells += [at.launching("flash", seq), at.launching("cudnn", seq)]
        yield f"| {' | '.join(cells)} |"
        cells = [str(seq), *(at.size(name, seq) for name in ("math", "flash", "efficient", "cudnn"))]
        cells += [at.size(name, seq, "temporary") for name in ("math", "flash")]
        yield f"| {' | '.join(cells)} |"
    yield f"{at.exponent('math')} for `math`"
    yield f"includes a constant workspace, the fit is {at.exponent('math', 'peak memory')}"
    rows = [at.row("flash", seq) for seq in (2048, 32768)]
    assert rows[1]["temporary_bytes"] - rows[0]["temporary_bytes"] == 4 * 8 * (32768 - 2048)
    row, other = at.row("math", 32768), at.row("efficient", 32768)
    yield f"{format_ratio(row['peak_bytes'] / other['peak_bytes'])} the peak memory of `efficient`"
    yield f"`cudnn` reaches {at.share('cudnn', 32768)} of peak throughput ({at.rate('cudnn', 32768)} TFLOP/s)"
    yield from (f"`{name}` {at.share(name, 32768)}" for name in ("flash", "efficient", "math"))
    ratio = at.row("cudnn", 2048)["aa_ratio"]
    yield f"`cudnn` at S=2048, by {format_share(ratio - 1)}"
    yield f"1 of {len(at.results)}"
    assert at.pair("flash", "cudnn", 2048)["speedup"] > ratio
    yield f"is {at.times('flash', 'cudnn', 2048)}, which is more than the difference in the A/A test"
    yield f"{at.times('math', 'cudnn', 32768)} for `cudnn`"
    yield f"at most {at.results['error'].max():.1e}, and {at.results['tolerance'].max():.0e} is allowed"


def order_table() -> pd.DataFrame:
    """The table of `call-order`."""
    return pd.read_csv(ANALYSIS / "call-order" / "order.csv")


def claims_of_call_order() -> Iterator[str]:
    """Rows and phrases of the README."""
    table = order_table()
    eager, graph = (table[table["kind"] == kind] for kind in ("eager", "graph"))
    wanted = [
        ("math-vs-flash", "B1.H8.S1024.D64.fp16.causal"),
        ("math-vs-flash", "B1.H8.S4096.D64.fp16.causal"),
        ("baseline", "B32.H8.S128.D64.fp16.full"),
        ("baseline", "B32.H8.S512.D64.fp16.full"),
        ("baseline", "B32.H8.S2048.D64.fp16.full"),
    ]
    for study, name in wanted:
        for backend in ("cudnn", "flash", "efficient"):
            cells = []
            for part in (eager, graph):
                rows = part[(part["study"] == study) & (part["configuration"] == name) & (part["backend"] == backend)]
                rows = rows.set_index("after")
                if part is eager:
                    cells += [f"{format_ns(rows['median_ns'][each])} ({rows['n'][each]})" for each in (backend, "math")]
                    cells.append(ratio_cell(rows.loc["math"].to_dict(), "over_self"))
                else:
                    known = rows[rows["n"] >= 10]["median_ns"]
                    cells.append(f"{format_share(known.max() / known.min() - 1)}")
            batch, heads, seq = name.split(".")[:3]
            yield f"| {batch} {heads} {seq} | {backend} | {' | '.join(cells)} |"
    math = eager[eager["after"] == "math"].dropna(subset=["over_self"])
    for backend in ("cudnn", "flash", "efficient"):
        own = math[math["backend"] == backend]["over_self"]
        yield f"{format_ratio(own.min())} to {format_ratio(own.max())} for `{backend}` ({len(own)} shapes)"
    often = graph[(graph["n"] >= 10) & (graph["study"] != "scaling")]
    medians = often.groupby(["study", "configuration", "backend"])["median_ns"]
    spread = medians.max() / medians.min() - 1
    median, most = format_share(spread.median()), format_share(spread.max())
    yield f"by {median} (median of {len(spread)} cases) and by at most {most}"
    assert spread.max() < 0.05
    studies = study_figures("math-vs-flash"), study_figures("long")
    first, second = (at.time("cudnn", 2048) for at in studies)
    [replay] = {at.time("cudnn", 2048, graph=True) for at in studies}
    yield f"{first} in `math-vs-flash` and {second} in `long`, although a CUDA graph replay takes {replay} in both"


CLAIMS = {
    "math-vs-flash": claims_of_math_vs_flash,
    "baseline": claims_of_baseline,
    "scaling": claims_of_scaling,
    "long": claims_of_long,
    "call-order": claims_of_call_order,
    "why-math-is-slow": claims_of_why_math_is_slow,
    "tiled-attention": claims_of_tiled_attention,
}


@pytest.mark.parametrize(
    ("study", "samples"),
    [("math-vs-flash", 100), ("baseline", 100), ("scaling", 30), ("long", 50)]
    + [(study, 50) for study in TILED_BENCHES],
)
def test_the_number_of_samples_is_that_of_the_readme(study: str, samples: int) -> None:
    """For every point that was measured."""
    counts = study_figures(study).results["n"]
    assert set(counts[counts > 0]) == {samples}
    assert f"n = {samples} samples per side" in readme_of(study.partition("/")[0])


@pytest.mark.studies
def test_the_benchmark_in_the_manual_is_what_is_printed() -> None:
    """Its lines stand in the summary of the study, in that order."""
    page = (ANALYSIS.parent / "docs" / "bench.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```text\n(.*?)^```", page, re.M | re.S)
    printed = iter(bench_summary(read_bench_results(ANALYSIS / "math-vs-flash")).splitlines())
    for line in block.splitlines():
        assert line == "..." or line in printed, line


@pytest.mark.parametrize("study", ["math-vs-flash", "baseline", "long"])
def test_the_memory_of_math_is_these_matrices(study: str) -> None:
    """To the byte: scores twice in float32 and once in bytes, the mask, tensors, a byte per row, and 4 more."""
    rows = study_figures(study).results
    rows = rows[rows["backend"] == "math"].astype({"temporary_bytes": int})
    for row in rows.to_dict("records"):
        heads, seq = row["batch"] * row["heads"], row["seq"]
        scores, tensor = heads * seq**2, 2 * heads * seq * row["head_dim"]
        mask = 4 * seq**2 if row["causal"] else 0
        assert row["temporary_bytes"] == (2 * 4 + 1) * scores + mask + 7 * tensor + heads * seq + 4
        assert row["before_bytes"] == 32 << 20
    assert len(rows) >= 3


def test_the_memory_of_flash_is_its_log_sum_exp() -> None:
    """4 bytes per row and 24 more, and at S=1024 of one sequence two partial outputs with theirs."""
    for study in ("math-vs-flash", "baseline", "long"):
        rows = study_figures(study).results
        for row in rows[rows["backend"] == "flash"].to_dict("records"):
            of_rows = 4 * row["batch"] * row["heads"] * row["seq"]
            split = 2 * of_rows * (row["head_dim"] + 1) if row["batch"] == 1 and row["seq"] == 1024 else 0
            assert row["temporary_bytes"] == of_rows + split + 24


def test_the_published_memory_adds_up() -> None:
    """Workspace, tensors and one score matrix more than here; without the log-sum-exp of flash."""
    for seq, (_, _, math, flash) in PUBLISHED_4060.items():
        s = seq / 1024
        assert math == pytest.approx(8.125 + 11 * s + 108 * s**2 + s / 128, abs=0.0051)
        assert flash == pytest.approx(8.125 + 4 * s, abs=0.0051)
        assert flash + 0.02 < 8.125 + 4 * s + s / 32
    own = (2 * 4 + 1) * 8 + 4
    assert (own, own + 4 * 8) == (76, 108)  # MiB of S² for eight heads at S=1024


def test_a_share_of_the_wrong_peak_is_refused() -> None:
    """55.2 TFLOP/s of an L4, held against its FP32 units."""
    reached = study_figures("baseline").row("flash", 2048)["flops"] / 4.9756e-3
    peak = peak_flops("8.9", 58, 2040e6, "fp32", name="NVIDIA L4")
    with pytest.raises(NsysprofError, match="182 % of the peak is impossible; the likely error is in the peak"):
        share_of_peak(reached, peak, what="FLOP/s", suspects=["the peak"])


def test_figures_beside_published_ones_are_those_of_the_studies() -> None:
    """TFLOP/s of graphs, as the tables of the studies have them."""
    text = (ANALYSIS.parent / "docs" / "kernels.md").read_text(encoding="utf-8")
    for study, backend, seq, said in (
        ("long", "flash", 32768, "B1 H8 S32768 D64 fp16 causal: {} TFLOP/s"),
        ("long", "cudnn", 32768, "`cudnn` at the shape of the first row: {} TFLOP/s"),
        ("tiled-attention/head-dim-128", "tiled_o5", 4096, "S4096 D128 fp16 causal: {} TFLOP/s"),
    ):
        frame = pd.read_csv(ANALYSIS / study / "results.csv")
        [rate] = frame.loc[(frame["backend"] == backend) & (frame["seq"] == seq), "graph_tflops"]
        assert said.format(round(rate)) in text
