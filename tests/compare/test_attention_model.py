"""What a call should move by its shape, against counts by hand."""

import json
from itertools import chain
from typing import Any

import msgspec
import pandas as pd
import pytest

from nsysprof.compare.attention_model import expected, read_shape, shape_of, shape_warnings, traffic_rows
from nsysprof.compare.gap_ledger import Entry, SideLedger
from nsysprof.compare.op_causes import CAST_DOWN, CAST_UP, FUSED, GUARD, MASK_ADD, MASK_BUILD, PV, QK, SCALING, SOFTMAX
from nsysprof.errors import NsysprofError
from nsysprof.formats.run_record import RecordedRun
from tests.compare.conftest import answer
from tests.conftest import MakeTrace
from tests.kit.calls import run

RUN = RecordedRun((), 1, 8, 4096, 64, "fp16", True, False)
SCORES, INPUT = 8 * 4096 * 4096, 8 * 4096 * 64
MATH = {CAST_UP: 3, SCALING: 2, MASK_BUILD: 5, QK: 1, MASK_ADD: 1, SOFTMAX: 1, GUARD: 4, PV: 1, CAST_DOWN: 2}


def ledger(kernels: dict[str, int], calls: int = 1) -> SideLedger:
    """A side with so many kernels of each cause per call."""
    return SideLedger({cause: Entry(count * calls, count * calls, 10) for cause, count in kernels.items()}, 10, calls)


def test_math_attention_moves_its_score_matrix_again_and_again() -> None:
    """Every kernel of the real call, element by element: scores in float32, the inputs in half."""
    found = expected(RUN, ledger(MATH, calls=20))
    assert found is not None
    assert found.bytes_of == {
        CAST_UP: 3 * INPUT * (2 + 4),
        SCALING: 2 * INPUT * (4 + 4),
        MASK_BUILD: 4096 * 4096 * (1 + 1 + 1 + 1 + 4),
        QK: (2 * INPUT + SCORES) * 4,
        MASK_ADD: (SCORES + SCORES + 4096 * 4096) * 4,
        SOFTMAX: SCORES * (4 + 4),
        GUARD: SCORES * ((4 + 1) + 1 + (4 + 4)),
        PV: (SCORES + 2 * INPUT) * 4,
        CAST_DOWN: (SCORES + INPUT) * (4 + 2),
    }
    assert found.matrix_bytes == SCORES * 4
    assert found.flops == 4 * 64 * 8 * (4096 * 4097 // 2)
    assert found.text == "B=1 H=8 S=4096 D=64, fp16, causal"


def test_without_casts_the_scores_are_held_in_the_dtype() -> None:
    """`math_reduced` computes in half precision: half the bytes of a matrix in float32."""
    found = expected(RUN, ledger({QK: 1, SOFTMAX: 1, PV: 1}))
    assert found is not None
    assert found.matrix_bytes == SCORES * 2
    assert found.bytes_of == {QK: (2 * INPUT + SCORES) * 2, SOFTMAX: SCORES * 4, PV: (SCORES + 2 * INPUT) * 2}


def test_a_guard_or_casts_of_another_make_are_not_guessed() -> None:
    """Another version of PyTorch may have another number of kernels: then the model is silent about them."""
    found = expected(RUN, ledger({**MATH, GUARD: 3, CAST_DOWN: 1}))
    assert found is not None
    assert not {GUARD, CAST_DOWN} & found.bytes_of.keys()


def test_fused_attention_moves_inputs_and_output_once() -> None:
    """Q, K, V and O, two bytes each."""
    found = expected(RUN, ledger({FUSED: 1}))
    assert found is not None
    assert (found.bytes_of, found.matrix_bytes) == ({FUSED: 4 * INPUT * 2}, 0)
    assert found.least_bytes == 4 * INPUT * 2


def test_of_a_backward_pass_only_the_least_is_known() -> None:
    """FLOPs and compulsory bytes; which kernel moves what is not modelled."""
    backward = RecordedRun((), 1, 8, 4096, 64, "fp16", True, True)
    found = expected(backward, ledger(MATH))
    assert found is not None
    assert found.bytes_of == {}
    assert found.flops == 3 * 4 * 64 * 8 * (4096 * 4097 // 2)


@pytest.mark.parametrize("missing", ["batch", "heads", "seq", "head_dim", "dtype", "causal"])
def test_a_shape_that_is_not_known_in_full_has_no_model(missing: str) -> None:
    """Nothing is assumed."""
    known: dict[str, Any] = {**msgspec.structs.asdict(RUN), missing: None}
    assert expected(RecordedRun(**known), ledger(MATH)) is None
    assert expected(None, ledger(MATH)) is None


def test_a_shape_can_be_given_by_hand_and_the_name_of_the_range_counts() -> None:
    """What the name says goes before what was typed for all ranges."""
    given = read_shape("B=1,H=8, D64 fp16,causal")
    assert given == RecordedRun((), 1, 8, None, 64, "fp16", True, False)
    assert shape_of("RUN::math::B2::S512", given) == RecordedRun((), 2, 8, 512, 64, "fp16", True, False)
    assert shape_of("train", given) == given
    assert shape_of("RUN::math::S512", None) is None
    assert shape_of(f"RUN::math::S{'9' * 400}::D0::H016", given) == RecordedRun(
        (), 1, 16, None, 64, "fp16", True, False
    )


@pytest.mark.parametrize(
    ("shape", "names", "warning"),
    [
        ("B=1,H=8,D=64,fp16", ("a", "b"), "--shape has no effect, because S is not given: add S=…"),
        (
            "B=1,H=8",
            ("a", "c::S8"),
            "--shape has no effect, because D and the dtype are not given: add D=…,fp16|bf16|fp32",
        ),
        ("B=1,H=8,D=64,fp16", ("a", "c::S8"), None),
        (
            "B=1,H=8,D=64,fp16",
            ("x", "y"),
            "--shape has no effect, because the run record already has the shape of each range",
        ),
        ("B=1,H=8,D=64,fp16", ("x", "a"), "--shape has no effect, because S is not given: add S=…"),
    ],
)
def test_a_shape_that_nothing_comes_of_is_reported(
    shape: str, names: tuple[str, str], warning: str | None, trace: MakeTrace
) -> None:
    """With what it lacks for the side that it tells the most of; those that the record has are no concern of it."""
    items = [
        run(name, 5000 * at, [("k", 9)], first_id=10 * at + 1) for at, name in enumerate(("a", "b", "c::S8", "x", "y"))
    ]
    path = trace(*chain.from_iterable(items), duration=90_000)
    runs = [{"range": name, "status": "measured"} for name in ("x", "y")]
    record = {"schema": "nsysprof-workload/1", "runs": runs}
    path.with_suffix(".json").write_text(json.dumps(record), encoding="utf-8")
    (pair,) = answer(path, base=names[0], new=names[1]).sides
    assert list(shape_warnings(read_shape(shape), [pair.base, pair.new])) == ([warning] if warning else [])
    assert list(shape_warnings(None, [pair.base, pair.new])) == []


@pytest.mark.parametrize("word", ["Q=4", "B=0", "B=-1", "int8", "B=", "S=x", "S=" + "9" * 5000])
def test_words_that_are_no_part_of_a_shape(word: str) -> None:
    """The word is named, with an example of the form."""
    with pytest.raises(NsysprofError, match=f"not part of a shape: '{word}'") as raised:
        read_shape(f"B=1,{word}")
    assert raised.value.hint == "--shape B=1,H=8,S=4096,D=64,fp16,causal"


def test_bytes_stand_beside_the_time_of_their_cause() -> None:
    """Bytes of either side per call, and per second; nothing where the model or the side has nothing."""
    gaps = pd.DataFrame({"cause": ["idle", QK, FUSED, PV], "base_ns": [5, 1000, 0, 0], "new_ns": [0, 0, 500, 0]})
    models = expected(RUN, ledger({QK: 1, PV: 1})), expected(RUN, ledger({FUSED: 1}))
    frame = traffic_rows(*models, gaps)
    qk = (2 * INPUT + SCORES) * 2
    assert frame["cause"].tolist() == [QK, FUSED, PV]
    assert frame["base_bytes"].fillna(-1).tolist() == [qk, -1, (SCORES + 2 * INPUT) * 2]
    assert frame["base_bytes_per_s"].fillna(-1).tolist() == [qk * 1e6, -1, -1]
    assert frame["new_bytes"].fillna(-1).tolist() == [-1, 8 * INPUT, -1]
    assert frame["new_bytes_per_s"].fillna(-1).tolist() == [-1, 8 * INPUT * 2e6, -1]
    assert traffic_rows(None, None, gaps).empty
