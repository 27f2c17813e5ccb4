"""The workloads' results: the table, and a file that is whole or not there."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

SIZES = ("before", "inputs", "outputs", "temporary", "peak")


def a_run(backend: str, status: str = "measured", **more: Any) -> dict[str, Any]:
    """A run as `_harness` makes it, without numbers unless they are given."""
    sizes = more.pop("memory", [None] * 5)
    return {
        "range": f"RUN::{backend}::S1024",
        "backend": backend,
        "status": status,
        "reason": None,
        "errors": {},
        "tolerances": {},
        "latency_ns": [],
        "latency_clock": "cuda events",
        "memory": {f"{name}_bytes": size for name, size in zip(SIZES, sizes, strict=True)},
        **more,
    }


TITLE = "sdpa: forward and backward, causal, fp16, batch 1, heads 8"


def document(*runs: dict[str, Any]) -> dict[str, Any]:
    """The results of these runs."""
    return {
        "workload": "sdpa",
        "options": {
            **{"batch": [1], "heads": [8], "seq": [1024], "head_dim": [64, 128], "dtype": "fp16"},
            **{"causal": True, "backward": True, "device": "cuda", "iterations": 4},
        },
        "environment": {"device": "NVIDIA H200", "torch": "2.11.0+cu130"},
        "runs": list(runs),
    }


def test_the_table_shows_each_run() -> None:
    """Median, half the interquartile range, the error nearest to its limit and memory; reasons once, below."""
    from _results import table

    megabytes = [8_519_680, 4 << 20, 4 << 20, 64 << 20, 84_017_152]
    errors = {"output": 1e-3, "dq": 1e-3, "dk": 3e-3}
    limits = {"output": 2e-3, "dq": 4e-3, "dk": 4e-3}
    runs = (
        a_run("math", latency_ns=[1000, 2000, 3000, 4000], errors=errors, tolerances=limits, memory=megabytes),
        a_run("flash", "wrong", reason="too far", errors={"output": 5e-3}, tolerances=limits),
        a_run("flex", "unsupported", reason="no compiler"),
        a_run("cudnn", "unsupported", reason="no compiler"),
        a_run("auto", "out of memory", reason="CUDA out of memory."),
    )
    assert table(document(*runs), TITLE).splitlines() == [
        "sdpa: forward and backward, causal, fp16, batch 1, heads 8; NVIDIA H200, torch 2.11.0+cu130",
        "",
        "range              status                           latency           error  allowed    before "
        "   inputs   outputs  temporary",
        "-----------------  -------------  -------------------------  --------------  -------  --------"
        "  --------  --------  ---------",
        "RUN::math::S1024   measured       2.50 µs (1.00 µs–4.00 µs)      dk 3.0e-03  4.0e-03  8.12 MiB"
        "  4.00 MiB  4.00 MiB   64.0 MiB",
        "RUN::flash::S1024  wrong                                     output 5.0e-03  2.0e-03",
        "RUN::flex::S1024   unsupported",
        "RUN::cudnn::S1024  unsupported",
        "RUN::auto::S1024   out of memory",
        "",
        "RUN::flash::S1024: wrong: too far",
        "RUN::flex::S1024, RUN::cudnn::S1024: unsupported: no compiler",
        "RUN::auto::S1024: out of memory: CUDA out of memory.",
        "latency: median of 4 calls (in brackets: minimum and maximum) (cuda events).",
        "error: relative norm of the difference from float64, for the result that is closest to its tolerance.",
        "before: memory in use after a first call (such as workspaces), without the inputs; temporary: peak memory",
        "of one call, without this memory, the inputs and the outputs.",
    ]


def test_columns_without_numbers_are_left_out() -> None:
    """When nothing ran, the table is the status alone, without a legend for numbers."""
    from _results import progress, table

    run = a_run("flex", "unsupported", reason="no compiler")
    assert table(document(run), TITLE).splitlines()[2:] == [
        "range             status",
        "----------------  -----------",
        "RUN::flex::S1024  unsupported",
        "",
        "RUN::flex::S1024: unsupported: no compiler",
    ]
    assert progress(run) == "RUN::flex::S1024: unsupported, no compiler"


def test_what_is_not_finite_is_the_worst_error() -> None:
    """A null stands for NaN and infinity, and is worse than any number."""
    from _results import progress

    errors = {"output": 9.0, "dq": None}
    run = a_run("mine", "wrong", reason="dq holds NaN", errors=errors, tolerances=dict.fromkeys(errors, 1e-3))
    assert progress(run).endswith("dq NaN or infinity")


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 ns"), (830, "830 ns"), (999.6, "1.00 µs"), (2420, "2.42 µs"), (99_960, "100 µs"), (1.2e9, "1.20 s")],
)
def test_durations_have_three_digits(ns: float, text: str) -> None:
    """In the largest unit of which there is one."""
    from _results import format_ns

    assert format_ns(ns) == text


def test_the_file_is_whole_or_not_there(tmp_path: Path) -> None:
    """Numbers that JSON does not have, or a folder that has gone, leave nothing behind."""
    from _results import WorkloadError, write

    target = tmp_path / "out.json"
    with pytest.raises(ValueError, match="nan"):
        write(target, {"latency": float("nan")})
    assert list(tmp_path.iterdir()) == []
    write(target, {"latency": 1})
    assert json.loads(target.read_text(encoding="utf-8")) == {"latency": 1}
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(WorkloadError, match="cannot write"):
        write(tmp_path / "gone" / "out.json", {})


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """What a symbolic link points to is written, not the link replaced."""
    from _results import write

    (tmp_path / "there").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "there" / "out.json")
    write(link, {})
    assert link.is_symlink()
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["out.json"]


def test_a_bad_target_is_found_before_anything_runs(tmp_path: Path) -> None:
    """A device, a folder, a missing folder, too long a name, and a file with something in it."""
    from _results import WorkloadError, check_target

    full, empty = tmp_path / "full", tmp_path / "empty"
    full.write_text("kept", encoding="utf-8")
    empty.touch()
    for path, said in (
        (Path(os.devnull), "not a regular file"),
        (tmp_path, "not a regular file"),
        (tmp_path / "no" / "out", "cannot write"),
        (full / "out", "cannot write"),
        (tmp_path / ("x" * 250), "cannot write"),
        (full, "exists"),
    ):
        with pytest.raises(WorkloadError, match=said):
            check_target(path, force=False)
    check_target(full, force=True)
    check_target(empty, force=False)
    check_target(tmp_path / "new", force=False)
    assert full.read_text(encoding="utf-8") == "kept"
    assert sorted(tmp_path.iterdir()) == [empty, full]


def test_ten_calls_show_half_the_range_of_the_middle_half() -> None:
    """From ten calls on their spread is a share of the median; nine show how far they reach."""
    from _results import table

    for calls, shown in ((9, "5.00 µs (1.00 µs–9.00 µs)"), (10, "5.50 µs ± 41 %")):
        text = table(document(a_run("math", latency_ns=[1000 * n for n in range(1, calls + 1)])), TITLE)
        assert shown in text
