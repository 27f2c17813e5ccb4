"""The workloads' command line: shapes, range names, defaults, mistakes; nothing of it needs torch."""

import argparse
import re
from pathlib import Path

import pytest

WORKLOADS = Path(__file__).parents[2] / "workloads"


def parsed(arguments: str) -> argparse.Namespace:
    """The options that a line of arguments gives."""
    from _workload import parse
    from sdpa import WORKLOAD

    return parse(WORKLOAD, "says", arguments.split())


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("", ["S1024"]),
        ("--seq 8 16", ["S8", "S16"]),
        ("--seq 8 --batch 1 4", ["B1::S8", "B4::S8"]),
        ("--seq 8 --heads 2 4 --head-dim 16 32", ["H2::S8::D16", "H2::S8::D32", "H4::S8::D16", "H4::S8::D32"]),
        (
            "--batch 4 1 --heads 16 --heads 8 --seq 4096 --head-dim 128 64",
            [f"B{b}::H{h}::S4096::D{d}" for b in (4, 1) for h in (16, 8) for d in (128, 64)],
        ),
    ],
)
def test_a_range_is_named_by_what_varies(arguments: str, names: list[str]) -> None:
    """The sequence always, batch, heads and head dimension where several are asked for."""
    from _workload import cases
    from sdpa import WORKLOAD

    found = dict(cases(WORKLOAD, parsed(arguments)))
    assert list(found) == names
    for name, shape in found.items():
        for letter, size in re.findall(r"([BHSD])(\d+)", name):
            field = {"B": "batch", "H": "heads", "S": "seq", "D": "head_dim"}[letter]
            assert getattr(shape, field) == int(size)


def test_defaults_are_replaced_and_values_are_run_once() -> None:
    """What is given takes the place of the default; a flag may be repeated or have several values."""
    assert parsed("").backend == ["math", "flash"]
    assert parsed("").causal
    options = parsed("--backend flash --backend naive flash --seq 4 --seq 4 8 --no-causal --dtype bf16")
    assert options.backend == ["flash", "naive"]
    assert options.seq == [4, 8]
    assert options.heads == [8]
    assert not options.causal


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--backend flash2", r"invalid choice: 'flash2' \(choose from '?math'?, .*'?tiled_o6'?\)"),
        ("--backend", "expected at least one argument"),
        ("--seq 0", "'0' is not a whole number of 1 or more"),
        ("--heads -3", "'-3' is not a whole number of 1 or more|expected at least one argument"),
        ("--batch 1.5", "'1.5' is not a whole number of 1 or more"),
        (f"--head-dim {2**63}", "is not a whole number of 1 or more"),
        ("--iterations 0", "'0' is not a whole number of 1 or more"),
        ("--warmup -1", "'-1' is not a whole number of 0 or more"),
        ("--seed x", "'x' is not a whole number of 0 or more"),
        ("--dtype fp8", "invalid choice: 'fp8'"),
        ("--device tpu", "invalid choice: 'tpu'"),
        ("--iter 3", "unrecognized arguments"),
    ],
)
def test_a_mistake_is_a_usage_error(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and a line that says which option and what is wrong."""
    with pytest.raises(SystemExit) as stopped:
        parsed(arguments)
    assert stopped.value.code == 2
    assert re.search(said, capsys.readouterr().err)


def test_the_help_names_every_backend(capsys: pytest.CaptureFixture[str]) -> None:
    """In plain ASCII, so that any terminal can show it."""
    from _attention import BACKENDS

    with pytest.raises(SystemExit) as stopped:
        parsed("--help")
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    assert text.isascii()
    assert all(re.search(rf"^  {name} +\w", text, re.M) for name in BACKENDS)


def test_the_readme_states_options_backends_and_tolerances() -> None:
    """Each option, each backend and each tolerance of the code is in the tables of workloads/README.md."""
    from _attention import BACKENDS, TOLERANCES
    from _workload import GRADIENT_FACTOR

    text = (WORKLOADS / "README.md").read_text(encoding="utf-8")
    for option in vars(parsed("")):
        assert f"`--{option.replace('_', '-')}" in text, option
    for name in BACKENDS:
        assert re.search(rf"^\| .*`{name}`.* \|", text, re.M), name
    assert GRADIENT_FACTOR == 2
    for dtype, (exact, rounded) in TOLERANCES.items():
        row = re.search(rf"^\| {dtype} \| (\S+) \| (\S+) \| twice that \|$", text, re.M)
        assert row, dtype
        assert (float(row[1]), float(row[2])) == (exact, rounded)
    assert [name for name, backend in BACKENDS.items() if not backend.exact] == ["math_reduced", "naive"]
