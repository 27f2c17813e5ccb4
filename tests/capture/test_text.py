"""What is printed of a capture."""

from typing import Any

from nsysprof.capture.text import captured_summary


def record(**parts: Any) -> dict[str, Any]:
    """A record as a capture leaves it."""
    report = {
        "nsys_rep": {"size_bytes": 2048},
        "sqlite": {"size_bytes": 4096, "scrubbed": True},
        "kernels": 1,
        "ranges": 1200,
    }
    return {"report": report, "overhead": None, "workload": None, "backends": [], **parts}


def test_a_capture_is_summed_up_in_a_line() -> None:
    """One of a thing is not several; nothing is said of what was not measured."""
    assert captured_summary(record()) == (
        "captured 1 kernel and 1,200 ranges: .nsys-rep 2.00 KiB, .sqlite 4.00 KiB, scrubbed\n"
    )


def test_without_kernels_no_backend_is_known() -> None:
    """That is said only where a range asks for one."""
    report = {**record()["report"], "kernels": 0}
    said = "no kernels were recorded, so the backend that ran is unknown"
    assert said in captured_summary(record(report=report, backends=[{"range": "RUN::math::S1"}]))
    assert said not in captured_summary(record(report=report))


def test_the_overhead_names_the_range_that_suffers_most() -> None:
    """Ratios of medians, with how many calls they are of; whole runs where no calls were timed."""
    walls = {"plain_wall_ns": 2_000_000_000, "profiled_wall_ns": 3_000_000_000}
    ranges = [{"range": "a", "samples": 5, "ratio": 1.0}, {"range": "b", "samples": 4, "ratio": 1.5}]
    lines = captured_summary(record(overhead={**walls, "median_ratio": 1.25, "ranges": ranges})).splitlines()
    assert lines[1] == (
        "calls take 1.25x as long under nsys (median over 2 ranges with at least 4 calls each);"
        " largest slowdown: b (1.50x)"
    )
    assert lines[2] == "whole run: 2.00 s without nsys, 3.00 s with it"
    lines = captured_summary(record(overhead={**walls, "median_ratio": None, "ranges": []})).splitlines()
    assert lines[1:] == ["whole run: 2.00 s without nsys, 3.00 s with it"]


def test_what_did_not_run_is_told_with_its_reason() -> None:
    """Each on a line of its own, twenty at most."""
    runs = [{"range": f"RUN::cudnn::S{n}", "status": "unsupported", "reason": "no\nGPU"} for n in range(25)]
    lines = captured_summary(record(workload={"runs": [*runs, {"range": "x", "status": "measured"}]})).splitlines()
    assert lines[1] == "RUN::cudnn::S0: unsupported: no GPU"
    assert len(lines) == 1 + 20 + 1
    assert lines[-1] == "and 5 more that did not run"
