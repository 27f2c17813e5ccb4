"""`nsysprof compare`: the shipped report, and the command as a user meets it, output compared whole."""

from __future__ import annotations

import csv
import hashlib
import json
import sqlite3
from collections import Counter
from contextlib import closing
from functools import lru_cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from nsysprof.compare.comparison import Comparison, compare
from nsysprof.compare.op_causes import CAST_DOWN, CAST_UP, GUARD, MASK_ADD, MASK_BUILD, PV, QK, SCALING, SOFTMAX
from tests.conftest import MakeTrace
from tests.kit.calls import math_and_flash
from tests.kit.command_line import Run
from tests.kit.reports import BLOCK, RUN, attributed
from tests.kit.trace import Range, launch_kernel

ROOT = Path(__file__).parents[2]
BACKENDS = ("math", "math_reduced", "flash", "efficient", "cudnn", "auto")
SIZES, CALLS = (1024, 2048, 4096), 40
# The twenty kernels of a call of math in their order, as PyTorch's source launches them (_scaled_dot_product_attention_
# math in attention.cpp): casts to float32, scaling, the causal mask, Q·Kᵀ, its mask, the safe softmax, P·V.
ORDER = (
    *[CAST_UP] * 3, SCALING, *[MASK_BUILD] * 5, SCALING, QK, MASK_ADD, SOFTMAX, *[GUARD] * 4, CAST_DOWN, PV, CAST_DOWN,
)  # fmt: skip
shipped = pytest.mark.skipif(not RUN.exists(), reason="traces/run.sqlite is not there")

SMALL = """\
math is as fast as flash at S=8 by span, with too few samples for a verdict: 1.00 µs against 1.00 µs, median
  call (n = 1)
  no verdict: n = 1; at least 10 samples per side are needed
  the causes mostly cancel: softmax -300 ns, waiting for CPU code +225 ns and Q·Kᵀ GEMM -200 ns
  per call math runs 3 kernels, flash runs 1; matrix products run on FP32 units (CUDA cores) in math and on
    tensor cores in flash
  math at S=8 keeps the GPU busy for only 75 % of its span; flash is launch-bound: the GPU is busy for 26 % of
    span, so the ratio is 1.00x by span, but 4.00x by busy time
  expected memory traffic per call at B=1 H=2 S=8 D=4, fp16, causal: math 1.50 KiB (6.0 times its score matrix
    of 256 B), flash 512 B

cause                       kernels    math, ns    flash, ns    change, ns    share
------------------------  ---------  ----------  -----------  ------------  -------
softmax                       1 → 0         300                       -300
idle: host: code                            155          380          +225
Q·Kᵀ GEMM                     1 → 0         200                       -200
fused attention               0 → 1                      150          +150
P·V GEMM                      1 → 0         100                       -100
idle: latency                                44           44            +0
idle: host: launch calls                      1            1            +0
------------------------  ---------  ----------  -----------  ------------  -------
total                         3 → 1         800          575          -225
mean ns per call (n = 2 of iter*), adding up to the span of the whole range; means and medians change in
opposite directions, so causes are shown without shares

clock                math         flash    ratio    95 % interval  flash is
-----------  ------------  ------------  -------  ---------------  ---------------
CPU          998 ns (all)  998 ns (all)    1.00x                   too few samples
CUDA events
span              1.00 µs       1.00 µs    1.00x                   too few samples
busy         600 ns (all)  150 ns (all)    4.00x                   too few samples
median call ± half the IQR; span: time between the first GPU ops of consecutive calls

work                            launches  math         work is
----------------------------  ----------  -----------  ---------
ampere_sgemm_128x64_tn             2 → 0  FP32 FMA     other
softmax_warp_forward float 9       1 → 0  FP32         other
flash_fwd 64                       0 → 1  tensor core  other
per call; ratio: work of new ÷ work of base (kernel threads or copied bytes)

expected traffic      math    of bandwidth    flash    of bandwidth
------------------  ------  --------------  -------  --------------
softmax              512 B          <0.1 %
Q·Kᵀ GEMM            512 B          <0.1 %
fused attention                               512 B          <0.1 %
P·V GEMM             512 B           0.1 %
expected bytes per call for B=1 H=2 S=8 D=4, fp16, causal; % of the GPU's memory bandwidth

Evidence, per call
softmax                   math: softmax_warp_forward float 9 x 1 (grid 1)
idle: host: code          math: gaps per call: 0.50 between calls, median 310 ns; flash: gaps per call: 0.50
                          between calls, median 760 ns
Q·Kᵀ GEMM                 math: ampere_sgemm_128x64_tn x 1 (FP32 FMA, grid 1)
fused attention           flash: flash_fwd 64 x 1 (tensor core, grid 1)
P·V GEMM                  math: ampere_sgemm_128x64_tn x 1 (FP32 FMA, grid 1)
idle: latency             math: gaps per call: 0.50 between calls, median 89 ns; flash: gaps per call: 0.50
                          between calls, median 89 ns
idle: host: launch calls  math: gaps per call: 0.50 between calls, median 1 ns; flash: gaps per call: 0.50
                          between calls, median 1 ns

report.sqlite: NVIDIA H200, nsys 2025.3.2.0
"""

MARKDOWN = """\
**math is as fast as flash at S=8 by span, with too few samples for a verdict: 1.00 µs against 1.00 µs, median call (n = 1)**

- no verdict: n = 1; at least 10 samples per side are needed
- the causes mostly cancel: softmax -300 ns, waiting for CPU code +225 ns and Q·Kᵀ GEMM -200 ns
- per call math runs 3 kernels, flash runs 1; matrix products run on FP32 units (CUDA cores) in math and on tensor cores in flash
- math at S=8 keeps the GPU busy for only 75 % of its span; flash is launch-bound: the GPU is busy for 26 % of span, so the ratio is 1.00x by span, but 4.00x by busy time
- expected memory traffic per call at B=1 H=2 S=8 D=4, fp16, causal: math 1.50 KiB (6.0 times its score matrix of 256 B), flash 512 B

| cause                    |   kernels |   math, ns |   flash, ns |   change, ns |   share |
|:-------------------------|----------:|-----------:|------------:|-------------:|--------:|
| softmax                  |     1 → 0 |        300 |             |         -300 |         |
| idle: host: code         |           |        155 |         380 |         +225 |         |
| Q·Kᵀ GEMM                |     1 → 0 |        200 |             |         -200 |         |
| fused attention          |     0 → 1 |            |         150 |         +150 |         |
| P·V GEMM                 |     1 → 0 |        100 |             |         -100 |         |
| idle: latency            |           |         44 |          44 |           +0 |         |
| idle: host: launch calls |           |          1 |           1 |           +0 |         |
| total                    |     3 → 1 |        800 |         575 |         -225 |         |

mean ns per call (n = 2 of iter\\*), adding up to the span of the whole range; means and medians change in opposite directions, so causes are shown without shares

| clock       |         math |        flash |   ratio |   95 % interval | flash is        |
|:------------|-------------:|-------------:|--------:|----------------:|:----------------|
| CPU         | 998 ns (all) | 998 ns (all) |   1.00x |                 | too few samples |
| CUDA events |              |              |         |                 |                 |
| span        |      1.00 µs |      1.00 µs |   1.00x |                 | too few samples |
| busy        | 600 ns (all) | 150 ns (all) |   4.00x |                 | too few samples |

median call ± half the IQR; span: time between the first GPU ops of consecutive calls

| work                           |   launches | math        | work is   |
|:-------------------------------|-----------:|:------------|:----------|
| ampere\\_sgemm\\_128x64\\_tn      |      2 → 0 | FP32 FMA    | other     |
| softmax\\_warp\\_forward float 9 |      1 → 0 | FP32        | other     |
| flash\\_fwd 64                  |      0 → 1 | tensor core | other     |

per call; ratio: work of new ÷ work of base (kernel threads or copied bytes)

| expected traffic   |   math |   of bandwidth |   flash |   of bandwidth |
|:-------------------|-------:|---------------:|--------:|---------------:|
| softmax            |  512 B |        \\<0.1 % |         |                |
| Q·Kᵀ GEMM          |  512 B |        \\<0.1 % |         |                |
| fused attention    |        |                |   512 B |        \\<0.1 % |
| P·V GEMM           |  512 B |          0.1 % |         |                |

expected bytes per call for B=1 H=2 S=8 D=4, fp16, causal; % of the GPU's memory bandwidth

<details><summary>Evidence, per call</summary>

```text
softmax                   math: softmax_warp_forward float 9 x 1 (grid 1)
idle: host: code          math: gaps per call: 0.50 between calls, median 310 ns; flash: gaps per call: 0.50
                          between calls, median 760 ns
Q·Kᵀ GEMM                 math: ampere_sgemm_128x64_tn x 1 (FP32 FMA, grid 1)
fused attention           flash: flash_fwd 64 x 1 (tensor core, grid 1)
P·V GEMM                  math: ampere_sgemm_128x64_tn x 1 (FP32 FMA, grid 1)
idle: latency             math: gaps per call: 0.50 between calls, median 89 ns; flash: gaps per call: 0.50
                          between calls, median 89 ns
idle: host: launch calls  math: gaps per call: 0.50 between calls, median 1 ns; flash: gaps per call: 0.50
                          between calls, median 1 ns
```

</details>

report.sqlite: NVIDIA H200, nsys 2025.3.2.0
"""  # noqa: E501

GAPS = """\
pair,cause,base_launches,base_kernels,base_ns,new_launches,new_kernels,new_ns,delta_ns,share,evidence,cause_before
RUN::math::S8 → RUN::flash::S8,softmax,1,1,300,0,0,0,-300,1.3333333333333333,math: softmax_warp_forward float 9 x 1 (grid 1),softmax
RUN::math::S8 → RUN::flash::S8,idle: host: code,0,0,155,0,0,380,225,-1,"math: gaps per call: 0.50 between calls, median 310 ns; flash: gaps per call: 0.50 between calls, median 760 ns",idle: waiting for the host
RUN::math::S8 → RUN::flash::S8,Q·Kᵀ GEMM,1,1,200,0,0,0,-200,0.8888888888888888,"math: ampere_sgemm_128x64_tn x 1 (FP32 FMA, grid 1)",Q·Kᵀ GEMM
RUN::math::S8 → RUN::flash::S8,fused attention,0,0,0,1,1,150,150,-0.6666666666666666,"flash: flash_fwd 64 x 1 (tensor core, grid 1)",fused attention
RUN::math::S8 → RUN::flash::S8,P·V GEMM,1,1,100,0,0,0,-100,0.4444444444444444,"math: ampere_sgemm_128x64_tn x 1 (FP32 FMA, grid 1)",P·V GEMM
RUN::math::S8 → RUN::flash::S8,idle: latency,0,0,44,0,0,44,0,0,"math: gaps per call: 0.50 between calls, median 89 ns; flash: gaps per call: 0.50 between calls, median 89 ns",idle: between queued ops
RUN::math::S8 → RUN::flash::S8,idle: host: launch calls,0,0,1,0,0,1,0,0,"math: gaps per call: 0.50 between calls, median 1 ns; flash: gaps per call: 0.50 between calls, median 1 ns",idle: waiting for the host
"""  # noqa: E501


@lru_cache
def compared(base: str, new: str) -> Comparison:
    return compare(attributed(), base=f"RUN::{base}::*", new=f"RUN::{new}::*", shape="B=1,H=8,D=64,fp16,causal")


def measured(path: str) -> tuple[int, int]:
    """Span and busy time of a range as the attribution has them."""
    trace = attributed().trace
    [row] = [at for at, name in enumerate(trace.ranges.name.tolist()) if trace.range_names[name].text == path]
    inside = attributed().inclusive
    return int(inside.span_ns[row]), int(inside.busy_ns[row])


def kernels_by_place(name: str, kernels: int) -> list[tuple[int, int]]:
    """By SQL: the time of all kernels launched in a range that stand at the same place within their call."""
    placed = f"""WITH run AS (SELECT * FROM NVTX_EVENTS JOIN StringIds ON id = textId WHERE value = '{name}'),
        ran AS (SELECT k.end - k.start AS ns, (row_number() OVER (ORDER BY k.start) - 1) % {kernels} AS place
                FROM run JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r
                ON r.globalTid = run.globalTid AND r.start >= run.start AND r.end <= run.end
                JOIN CUPTI_ACTIVITY_KIND_KERNEL AS k USING (correlationId))
        SELECT place, sum(ns) FROM ran GROUP BY place ORDER BY place"""
    with closing(sqlite3.connect(f"{RUN.as_uri()}?mode=ro", uri=True)) as connection:
        return connection.execute(placed).fetchall()


def rows_of(found: Comparison, **where: str) -> list[dict[str, Any]]:
    """The rows of the pairs, all or those with these values."""
    rows = [{str(name): value for name, value in row.items()} for row in found.pairs.to_dict("records")]
    return [row for row in rows if all(row[name] == value for name, value in where.items())]


@shipped
@pytest.mark.parametrize(("base", "new"), [*combinations(BACKENDS, 2), ("flash", "math")])
def test_every_pair_adds_up_to_what_was_measured(base: str, new: str) -> None:
    """All backends against all, at all sizes: rows, sides and differences are exact, and everything has a cause."""
    found = compared(base, new)
    assert found.pairs["place"].tolist() == [f"S={size}" for size in SIZES]
    assert found.gaps.groupby("pair")["cause"].apply(lambda causes: causes.is_unique).all()
    for row in rows_of(found):
        gaps = found.gaps[found.gaps["pair"] == row["pair"]]
        for side in ("base", "new"):
            span, busy = measured(row[side])
            assert int(gaps[f"{side}_ns"].sum()) == row[f"{side}_mean_ns"]
            assert row[f"{side}_span_ns"] == round(span / CALLS)
            assert row[f"{side}_busy_ns"] == round(busy / CALLS)
        assert int(gaps["delta_ns"].sum()) == row["delta_ns"] == row["new_mean_ns"] - row["base_mean_ns"]
        assert gaps["share"].sum() == pytest.approx(1)
        assert "other" not in gaps["cause"].tolist()
    for one in (side for pair in found.sides for side in (pair.base, pair.new)):
        _, busy = measured(one.text)
        assert one.steps is not None
        assert sum(entry.ns for entry in one.ledger.entries.values()) == int(one.steps.length.sum())
        assert int((one.pieces.end - one.pieces.start).sum()) == one.work.span_ns
        assert int(one.samples["busy"].sum()) == busy


@shipped
@pytest.mark.parametrize("size", SIZES)
def test_all_twenty_kernels_of_math_have_their_cause(size: int) -> None:
    """What each of them is there for, at every size: the same causes, whatever cuBLAS and softmax kernel was chosen."""
    pair = next(pair for pair in compared("math", "flash").sides if pair.place == f"S={size}")
    kernels = {
        cause: entry.kernels / pair.base.ledger.calls
        for cause, entry in pair.base.ledger.entries.items()
        if entry.kernels
    }
    assert kernels == Counter(ORDER)
    units = pair.base.evidence.set_index("cause")["math_unit"]
    assert (units[QK], units[PV]) == ("FP32 FMA", "FP32 FMA")


@shipped
def test_known_answers_at_4096() -> None:
    """Spans as nsys projects them (test_real_report.py), and times of kernels as SQL adds them up by their place."""
    found = compared("math", "flash")
    [row] = rows_of(found, place="S=4096")
    assert (row["base_span_ns"], row["new_span_ns"]) == (round(113_699_099 / 40), round(4_724_966 / 40))
    gaps = found.gaps[found.gaps["pair"] == row["pair"]].set_index("cause")
    by_place = dict(kernels_by_place("RUN::math::S4096", len(ORDER)))
    known = {cause: sum(by_place[at] for at, other in enumerate(ORDER) if other == cause) for cause in ORDER}
    assert gaps.loc[list(known), "base_ns"].to_dict() == pytest.approx(
        {cause: ns / CALLS for cause, ns in known.items()}, abs=1
    )
    [(_, flash)] = kernels_by_place("RUN::flash::S4096", 1)
    assert gaps.loc["fused attention", "new_ns"] == pytest.approx(flash / CALLS, rel=0.001)  # of 39 steady steps
    assert row["verdict"] == "faster"
    assert found.findings[row["pair"]][0] == (
        "math is 24.0x slower than flash at S=4096 per step: 2.84 ms against 118 µs, median step (n = 40 and 39)"
    )


def waiting_for_the_host(gaps: pd.DataFrame) -> pd.Series[int]:
    """Base and new ns of all causes that are the host's."""
    return gaps.loc[gaps.index.str.startswith("idle: host"), ["base_ns", "new_ns"]].sum()


@shipped
def test_short_sequences_are_launch_bound() -> None:
    """At 1024 flash waits for the host for most of its span, so busy time tells more than twice the ratio."""
    found = compared("math", "flash")
    [pair] = rows_of(found, place="S=1024")
    gaps = found.gaps[found.gaps["pair"] == pair["pair"]].set_index("cause")
    assert waiting_for_the_host(gaps)["new_ns"] > 0.5 * pair["new_mean_ns"]
    assert pair["base_busy_ns"] / pair["new_busy_ns"] > 2 * pair["base_mean_ns"] / pair["new_mean_ns"]
    assert "split-KV combine" in gaps.index
    assert any("flash keeps the GPU busy for only 34 % of its steps" in line for line in found.findings[pair["pair"]])


@shipped
def test_a_training_step_is_explained_to_the_last_kernel() -> None:
    """Of a block's forward and backward, the work of two threads, everything has a cause and the waiting is seen."""
    found = compare(attributed(BLOCK), base="RUN::math::*", new="RUN::flash::*")
    [row] = rows_of(found)
    gaps = found.gaps.set_index("cause")
    assert (row["base_span_ns"], row["new_span_ns"]) == (round(33_926_317 / 20), round(19_938_811 / 20))
    assert (gaps["base_ns"].sum(), gaps["new_ns"].sum()) == (row["base_mean_ns"], row["new_mean_ns"])
    assert (gaps["base_kernels"].sum(), gaps["new_kernels"].sum()) == (940 / 20, 380 / 20)
    waiting = waiting_for_the_host(gaps)
    assert waiting["base_ns"] > 0.6 * row["base_mean_ns"]
    assert waiting["new_ns"] > 0.8 * row["new_mean_ns"]
    assert "other" not in gaps.index
    assert {SOFTMAX, "softmax backward", GUARD, MASK_BUILD, "fused attention", "optimizer"} <= set(gaps.index)


@shipped
def test_the_model_stays_within_what_the_memory_gives() -> None:
    """Where nothing fits into the cache, no cause moves more than the GPU's bandwidth by the model of its traffic."""
    found = compared("math", "flash")
    large = found.traffic[found.traffic["pair"].str.contains("S2048|S4096")]
    rates = large[["base_bytes_per_s", "new_bytes_per_s"]].to_numpy().ravel()
    rates = rates[~np.isnan(rates)]
    assert len(rates) == 20
    assert rates.max() < 4.8143e12
    assert rates.max() > 0.85 * 4.8143e12  # the casts are all but limited by it


@pytest.fixture
def run(run: Run) -> Run:
    """Runs `nsysprof compare --no-charts …` in this process, through `main()`, in the test's own folder."""
    return partial(run, "compare", "--no-charts")


@pytest.fixture
def small(trace: MakeTrace) -> str:
    """Two calls of math and two of flash, in the folder that `run` works in."""
    return math_and_flash(trace).name


PAIR = ("--base", "RUN::math::*", "--new", "RUN::flash::*")
SHAPE = ("--shape", "B=1,H=2,D=4,fp16,causal")


def test_whole_output(run: Run, small: str, tmp_path: Path) -> None:
    """What an engineer pastes into a pull request, to the letter, and the files; the report stays as it is."""
    before = hashlib.sha256((tmp_path / small).read_bytes()).hexdigest()
    done = run(small, *PAIR, *SHAPE, "--all")
    assert (done.code, done.out) == (0, SMALL)
    assert done.err == "\nWritten to report.compare/: gap.csv, gap.json\n"
    assert (tmp_path / "report.compare" / "gap.csv").read_text(encoding="utf-8") == GAPS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.compare", "report.sqlite"]
    assert hashlib.sha256((tmp_path / small).read_bytes()).hexdigest() == before


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--skip", "1"), 0, "left out: the first 1 instances of each repeating range (--skip 1)"),
        (("--skip", "30"), 0, "--skip 30 has no effect, because no range repeats more than 30 times"),
        (("--no-merge",), 0, "(n = 2 of iter0, iter1)"),
        (("--instance", "0"), 0, "only these instances of each range: instance 0 (--instance)"),
        (("--instance", "9"), 1, "has no instance 9, counted from 0: not compared"),
        (("--instance", "x"), 1, "'x' is not an instance number or a span of instance numbers"),
        (("--instance", "0", "--instance", "0", "--instance", "0"), 2, "use --instance once"),
        (("--instance", "0", "--skip", "1"), 2, "without --skip"),
    ],
)
def test_which_instances_are_compared(run: Run, small: str, options: tuple[str, ...], code: int, message: str) -> None:
    """All but warm-up, some only, or every name by itself; what means nothing is refused."""
    done = run(small, *PAIR, *options, "--all")
    assert done.code == code
    assert message in " ".join((done.out + done.err).split())


def test_whole_markdown(run: Run, small: str) -> None:
    """The same with tables that GitHub shows as such."""
    assert run(small, *PAIR, *SHAPE, "--md", "--all").out == MARKDOWN


def test_json_holds_everything(run: Run, small: str, tmp_path: Path) -> None:
    """Sentences, clocks, rows, evidence and the model of every pair; nothing that is no JSON."""
    run(small, *PAIR, *SHAPE, "-o", "out")
    text = (tmp_path / "out" / "gap.json").read_text(encoding="utf-8")
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert document["schema"] == "nsysprof-gap/1"
    assert (document["report"]["file"], document["other"]) == ("report.sqlite", None)
    [pair] = document["pairs"]
    assert (pair["base_span_ns"], pair["new_span_ns"], pair["delta_ns"]) == (800, 575, -225)
    assert sum(row["delta_ns"] for row in pair["gaps"]) == -225
    assert [row["clock"] for row in pair["clocks"]] == ["CPU", "CUDA events", "span", "busy"]
    assert pair["clocks"][1]["ratio"] is None
    assert {row["kernel"] for row in pair["evidence"] if row["side"] == "new"} == {
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)64>>(T1)"
    }
    assert (pair["base_model"]["score_matrix_bytes"], pair["new_model"]["bytes"]) == (256, 512)
    with (tmp_path / "out" / "gap.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(int(row["delta_ns"]) for row in rows) == -225


def test_two_reports(run: Run, trace: MakeTrace) -> None:
    """Before and after: both are named, and so is the folder."""
    math_and_flash(lambda *items, **how: trace(*items, **how, name="before.sqlite"))
    math_and_flash(lambda *items, **how: trace(*items, **how, name="after.sqlite"))
    done = run("before.sqlite", "after.sqlite", "--top", "1")
    assert done.code == 0
    assert done.out.endswith(
        "\nbase: before.sqlite: NVIDIA H200, nsys 2025.3.2.0\nnew:  after.sqlite: NVIDIA H200, nsys 2025.3.2.0\n"
    )
    assert "no clear change in after by span at RUN::math::S8 (1.00 against 1.00 µs, n = 1)" in done.out
    assert "4 more causes" not in done.out
    assert "5 more causes" in done.out
    assert done.err.endswith("Written to before-after.compare/: gap.csv, gap.json\n")


def test_all_ledgers_or_the_largest_only(run: Run, trace: MakeTrace) -> None:
    """One ledger, or with --all each; at most 40 lines, with a table of all pairs behind it."""
    math_and_flash(trace)
    one = run("report.sqlite", "report.sqlite", "-o", "x")
    assert one.out.count("total ") == 1
    assert "by span; ratios: base ÷ new" in one.out
    assert len(one.out.splitlines()) <= 40
    every = run("report.sqlite", "report.sqlite", "--all", "-o", "x")
    assert every.out.count("total ") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --base and --new, or a second report, or --range with either --instance or --slowest"),
        (("--base", "a"), "give both --base and --new"),
        (("--base", "a", "--new", "b", "--range", "c"), "give either --range, or both --base and --new"),
        ((*PAIR, "--record", "a", "--record", "b"), "--record applies to one report: give it at most once per report"),
    ],
)
def test_usage(arguments: tuple[str, ...], message: str, run: Run, small: str, tmp_path: Path) -> None:
    """What was not requested rightly is usage, exit code 2, and nothing is written."""
    done = run(small, *arguments)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "report.compare").exists()


def test_a_known_failure_is_one_line_and_a_hint(run: Run, small: str, tmp_path: Path) -> None:
    """A glob that matches nothing: near names, exit code 1, no traceback, no folder."""
    done = run(small, "--base", "RUN::maths::S8", "--new", "RUN::flash::S8")
    assert (done.code, done.out) == (1, "")
    first, hint = done.err.splitlines()
    assert first.startswith("nsysprof: no range of report.sqlite matches 'RUN::maths::S8'; near it: 'RUN::math::S8',")
    assert hint == "  hint: nsysprof ranges report.sqlite"
    assert not (tmp_path / "report.compare").exists()


def test_names_cannot_command_the_terminal(run: Run, trace: MakeTrace) -> None:
    """Escape sequences in names of ranges are written out, in text and in errors."""
    path = trace(
        Range("a\x1b[2J", 0, 9), Range("b", 20, 29), launch_kernel("k", (21, 22), (23, 25), id=1), name="evil.sqlite"
    )
    done = run(path.name, "--base", "a*", "--new", "b")
    assert done.code == 1
    assert "\x1b" not in done.out + done.err
    assert r"a\x1b[2J of evil.sqlite launched no GPU work" in done.err
