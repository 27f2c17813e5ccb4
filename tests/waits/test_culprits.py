"""What a piece of a wait is about, as rows of calls and GPU ops that need no reading of texts."""

from pathlib import Path

import numpy as np
import pytest

from nsysprof.waits.awaited import bucket
from nsysprof.waits.culprits import _missing
from nsysprof.waits.facts import Texts
from nsysprof.waits.walk import HOLE, UNKNOWN
from nsysprof.why.why import why
from tests.conftest import MakeTrace
from tests.kit.reports import attributed
from tests.kit.trace import Kernel, Launch, Memcpy, Range, launch_kernel, launch_memcpy

US = 1000


def rows(path: Path) -> list[tuple[int, int, str, str, str, str]]:
    """Start and end in µs of host time behind 10 µs, the call, what exposed it, and the ops copied and waited for."""
    answer = why(attributed(path), "run")
    trace, calls = answer.attribution.trace, answer.facts.activity.calls
    waits = answer.waits[(answer.waits["cause"] == "host") & (answer.waits["start_ns"] >= 10 * US)]

    def call(row: int) -> str:
        return calls.names[calls.name[row]] if row >= 0 else ""

    def op(row: int) -> str:
        return trace.op_names[trace.ops.name[row]] if row >= 0 else ""

    columns = (waits[name].tolist() for name in ("start_ns", "end_ns", "call", "exposing", "copied", "on"))
    return [
        (start // US, end // US, call(of), call(by), op(copied), op(on))
        for start, end, of, by, copied, on in zip(*columns, strict=True)
    ]


def us(start: int, end: int) -> tuple[int, int]:
    """Times in ns."""
    return start * US, end * US


@pytest.mark.parametrize("begins", [64, 66])
def test_a_wait_on_an_empty_stream_that_returns_before_the_kernel_begins_exposes_nothing(
    trace: MakeTrace, begins: int
) -> None:
    """The call returns after 65 µs; the kernel launched before it begins just before or behind that."""
    path = trace(
        Range("run", 0, 300 * US),
        launch_kernel("a", us(0, 5), us(10, 40), id=1),
        launch_kernel("b", us(50, 60), us(begins, begins + 4), id=2),
        Launch(*us(61, 65), 8, api="cudaStreamSynchronize_v3020"),
        launch_kernel("c", us(100, 105), us(105, 300), id=3),
    )
    exposed = {by for start, _, _, by, _, _ in rows(path) if start >= begins + 4}
    assert exposed == ({""} if begins > 65 else {"cudaStreamSynchronize"})


def test_a_piece_names_its_call_and_what_that_waited_for(trace: MakeTrace) -> None:
    """`.item()`: a copy of 4 bytes and a wait for it; code and a launch that it exposes."""
    copy = launch_memcpy((0, 0), us(100, 102), id=2, kind=2, bytes=4)[1]
    path = trace(
        Range("run", 0, 300 * US),
        launch_kernel("a", us(0, 5), us(10, 90), id=1),
        (Launch(*us(6, 10), 2, api="cudaMemcpyAsync_v3020"), copy),
        Launch(*us(11, 110), 8, api="cudaStreamSynchronize_v3020"),
        launch_kernel("b", us(150, 155), us(155, 290), id=3),
    )
    sync = "cudaStreamSynchronize"
    assert rows(path) == [
        (90, 110, sync, sync, "memcpy DtoH", "memcpy DtoH"),
        (110, 150, "", sync, "", ""),
        (150, 155, "cudaLaunchKernel", sync, "", ""),
        (290, 300, "", sync, "", ""),
    ]


def test_what_a_call_waited_for_took_half_of_it_or_ended_with_it(trace: MakeTrace) -> None:
    """cudaFree waits for a kernel and returns, or for 10 µs and then works for 50; a kernel of others is no reason."""

    def freed(end: int, *more: Kernel) -> list[tuple[int, int, str, str, str, str]]:
        return rows(
            trace(
                Range("run", 0, 200 * US),
                launch_kernel("a", us(0, 5), us(10, 90), id=1),
                Launch(*us(80, end), 8, api="cudaFree_v3020"),
                launch_kernel("b", us(150, 155), us(155, 200), id=3),
                *more,
            )
        )

    assert freed(95)[0] == (90, 95, "cudaFree", "cudaFree", "", "a")
    assert freed(140)[0] == (90, 140, "cudaFree", "cudaFree", "", "")
    theirs = Kernel("theirs", *us(91, 94), 1, process=2)
    assert freed(95, theirs)[0][2:] == ("cudaFree", "cudaFree", "", "a")


def test_a_copy_of_two_layers_is_that_of_the_outer_call(trace: MakeTrace) -> None:
    """The driver's call is the launch, and lies in the runtime's, which the host was in."""
    copy = launch_memcpy((0, 0), us(30, 100), id=2, kind=1, bytes=1 << 20)[1]
    path = trace(
        Range("run", 0, 200 * US),
        launch_kernel("a", us(0, 5), us(10, 20), id=1),
        Launch(*us(25, 110), 2, api="cudaMemcpy_v3020"),
        Launch(*us(26, 109), 2, event_class=67, api="cuMemcpyHtoD_v2"),
        copy,
        launch_kernel("b", us(150, 155), us(155, 200), id=3),
    )
    assert rows(path)[0] == (20, 25, "", "", "", "")
    assert (25, 110, "cudaMemcpy", "cudaMemcpy", "memcpy HtoD", "memcpy HtoD") in rows(path)


def test_rows_of_calls_are_no_columns_of_why_csv(trace: MakeTrace) -> None:
    """What they say is for programs: in files texts say it."""
    answer = why(attributed(trace(Range("run", 0, 100), launch_kernel("a", (10, 15), (20, 40), id=1))), "run")
    assert not {"call", "exposing", "copied", "on"} & set(answer.rows.columns)
    assert {"call", "exposing", "copied", "on"} <= set(answer.waits.columns)


def test_of_texts_with_equal_times_the_alphabetically_first_has_most() -> None:
    """Codes are in the order in which texts were first met."""
    texts = Texts()
    codes = np.array([texts.code(text) for text in ("b", "a", "c")])
    assert texts.words[texts.most(codes, np.array([5, 5, 4]))] == "a"


@pytest.mark.parametrize(("second", "words"), [(20, "20 B"), (22, "about 22 B"), (2_000, "20 B")])
def test_sizes_of_copies_are_exact_if_all_are_equal(trace: MakeTrace, second: int, words: str) -> None:
    """Copies of 20 B are no copies of 24 B, to which sizes are rounded; others of about the same size are one kind."""

    def copy(start: int, id: int, size: int) -> tuple[Launch, Memcpy]:
        moved = launch_memcpy((0, 0), us(start + 2, start + 4), id=id, kind=2, bytes=size)[1]
        return Launch(*us(start, start + 9), id, api="cudaMemcpy_v3020"), moved

    path = trace(
        Range("run", 0, 300 * US),
        launch_kernel("a", us(0, 5), us(10, 90), id=1),
        copy(95, 2, 20),
        launch_kernel("b", us(150, 155), us(155, 200), id=3),
        copy(205, 4, second),
        launch_kernel("c", us(250, 255), us(255, 300), id=5),
    )
    assert f"cudaMemcpy (DtoH pinned, {words}) in run" in set(why(attributed(path), "run").rows["culprit"])


def test_sizes_are_rounded_to_two_binary_digits() -> None:
    """Those of a half upwards; none and unknown ones stay."""
    sizes = [-1, 0, *range(1, 8), 9, 10, 11, 13, 14, 1 << 20, 5 << 18, (5 << 18) - 1]
    rounded = [-1, 0, 1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 16, 1 << 20, 6 << 18, 4 << 18]
    assert bucket(np.array(sizes)).tolist() == rounded


def test_what_is_missing_is_named_by_its_own_op(trace: MakeTrace) -> None:
    """An op without a launch by its name; holes in the recording share one text, whatever runs behind them."""
    path = trace(
        Range("run", 0, 300 * US),
        launch_kernel("first", us(0, 5), us(10, 90), id=1),
        Kernel("lost", *us(100, 110), 77),
        launch_kernel("last", us(200, 205), us(210, 290), id=3),
    )
    facts = why(attributed(path), "run").facts
    ops = np.arange(3)
    words = [
        [facts.texts.words[code] for code in _missing(facts, ops, np.full(3, kind, np.uint8), np.full(3, 5))]
        for kind in (UNKNOWN, HOLE)
    ]
    late = "begins before its dependency ends"
    assert words[0] == [f"first {late}", "no launch of lost is recorded", f"last {late}"]
    assert words[1] == ["a gap below 1 ms has no recorded cause"] * 3
