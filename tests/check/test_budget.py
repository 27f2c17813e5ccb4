"""Budgets as files: what they can say is understood, and what they cannot mean is refused with its place."""

from pathlib import Path

import pytest

from nsysprof.attribution.paths import DEFAULT_MERGE
from nsysprof.check import budget as format_of_budgets
from nsysprof.check.budget import Budget, Forbidden, Share, UnitShare, read_budget
from nsysprof.errors import NsysprofError
from nsysprof.kernels.classify import FAMILIES, MATH_UNITS

EXAMPLE = """\
stat = "median"
skip = 1
merge = ["iter*", "step*"]
[[range]]
path = "RUN::flash::*/iter*"
max_kernels = 2
max_span = "300 us"
max_idle = "20 %"
max_launch_bound_share = "10 %"
max_exposed_communication = "1 ms"
max_syncs = 1
forbid = ["memcpy", "softmax"]
forbid_causes = ["cast*"]
forbid_kernels = ['^void cunn_']
backend = "flash"
max_growth = { span = "5 %" }
[[range]]
path = "RUN::math::*"
stat = "p95"
optional = true
min_instances = 10
math_unit = { family = "gemm", unit = "tensor core", min_share = "95 %" }
"""
RANGE_KEYS = format_of_budgets._Range.__struct_fields__


def read(folder: Path, text: str | bytes) -> Budget:
    """What a budget with this text says."""
    path = folder / "budget.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_budget(path)


def refused(folder: Path, text: str | bytes) -> NsysprofError:
    """The error that a budget with this text is."""
    with pytest.raises(NsysprofError) as error:
        read(folder, text)
    assert "\n" not in error.value.message
    assert error.value.message.startswith(f"{folder / 'budget.toml'}: ")
    return error.value


def limited(folder: Path, line: str) -> NsysprofError:
    """The error that one line in the table of a range is."""
    return refused(folder, f'[[range]]\npath = "step*"\n{line}\n')


def test_an_example_of_all_keys(tmp_path: Path) -> None:
    """What a budget can say means what it says."""
    found = read(tmp_path, EXAMPLE)
    assert (found.skip, found.merge) == (1, ("iter*", "step*"))
    flash, math = found.ranges
    assert flash.glob == "RUN::flash::*/iter*"
    waits = {"launch_bound_share": 0.1, "exposed_communication": 1_000_000, "syncs": 1}
    assert flash.caps == {"kernels": 2, "span": 300_000, "idle": 0.2, **waits}
    assert flash.forbidden == (
        Forbidden("family", "memcpy"),
        Forbidden("family", "softmax"),
        Forbidden("cause", "cast*"),
        Forbidden("kernel", "^void cunn_"),
    )
    assert (flash.backend, flash.growth, flash.stat) == ("flash", {"span": 0.05}, "median")
    assert (flash.optional, math.optional, math.min_instances, math.stat) == (False, True, 10, "p95")
    assert math.units == (UnitShare("gemm", "tensor core", Share(0.95)),)


def test_what_is_not_said(tmp_path: Path) -> None:
    """A range alone asks that it is there; medians of all instances count, merged as an analysis does."""
    found = read(tmp_path, '[[range]]\npath = "a"\n')
    assert (found.skip, found.merge) == (0, DEFAULT_MERGE)
    [only] = found.ranges
    assert not only.is_limited
    assert (only.stat, only.optional, only.caps, only.forbidden) == ("median", False, {}, ())
    assert (only.backend, only.units, only.growth, only.min_instances) == (None, (), {}, None)


def test_a_range_overrules_the_statistic_of_all(tmp_path: Path) -> None:
    """`stat` at the top is for the ranges that say nothing else."""
    found = read(
        tmp_path, 'stat = "p95"\n[[range]]\npath = "a"\n[[range]]\npath = "b"\nstat = "max"\n[[range]]\npath="c"'
    )
    assert [each.stat for each in found.ranges] == ["p95", "max", "p95"]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ('max_span = "2.5 ms"', 2_500_000),
        ('max_span = "300us"', 300_000),
        ('max_span = "300 µs"', 300_000),
        ('max_span = "300 μs"', 300_000),
        ('max_span = " 1 s "', 10**9),
        ('max_span = ".5 us"', 500),
        ('max_span = "1.0019 us"', 1001),
        ('max_span = "17 ns"', 17),
        ('max_span = "0 ns"', 0),
        ("max_span_ns = 1_234", 1234),
        ("max_span_ns = 0", 0),
        ('max_span = "9223372036854775807 ns"', 2**63 - 1),
    ],
)
def test_times(tmp_path: Path, text: str, ns: int) -> None:
    """A time has a unit, or is an integer under a key that names it; it ends up in whole ns, rounded down."""
    for name in ("span", "exposed_communication"):
        line = text.replace("max_span", f"max_{name}")
        [found] = read(tmp_path, f'[[range]]\npath = "a"\n{line}').ranges
        assert found.caps == {name: ns}


@pytest.mark.parametrize(
    ("text", "share"),
    [('"20 %"', 0.2), ('"5%"', 0.05), ('"0.5 %"', 0.005), ("0.25", 0.25), ("1", 1.0), ("0", 0.0), ('"100 %"', 1.0)],
)
def test_shares(tmp_path: Path, text: str, share: float) -> None:
    """A share is a percentage, or a number from 0 to 1."""
    [found] = read(tmp_path, f'[[range]]\npath = "a"\nmax_idle = {text}').ranges
    assert found.caps == {"idle": share}


def test_growth_may_be_more_than_all(tmp_path: Path) -> None:
    """Twice as slow is a growth of 100 %, three times one of 200 %."""
    [found] = read(tmp_path, '[[range]]\npath = "a"\nmax_growth = { busy = "200 %", cpu = 0.1 }').ranges
    assert found.growth == {"busy": 2.0, "cpu": 0.1}


def test_one_value_stands_for_a_list_of_one(tmp_path: Path) -> None:
    """What may be several can be written as one, and what is said twice counts once."""
    [found] = read(
        tmp_path,
        '[[range]]\npath = "a"\nforbid = "memcpy"\nforbid_kernels = ["x", "x"]\n'
        'math_unit = [{ family = "gemm", unit = "tensor core" }, { family = "softmax", unit = "FP32 FMA" }]',
    ).ranges
    assert found.forbidden == (Forbidden("family", "memcpy"), Forbidden("kernel", "x"))
    assert found.units == (UnitShare("gemm", "tensor core", Share(1.0)), UnitShare("softmax", "FP32 FMA", Share(1.0)))


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    """Files of editors on Windows begin with one."""
    assert len(read(tmp_path, b'\xef\xbb\xbf[[range]]\r\npath = "a"\r\n').ranges) == 1


def test_a_thousand_ranges(tmp_path: Path) -> None:
    """Long budgets are read as they stand."""
    text = "".join(f'[[range]]\npath = "r{i}/*"\nmax_kernels = {i}\n' for i in range(1000))
    found = read(tmp_path, text).ranges
    assert [each.caps["kernels"] for each in found] == list(range(1000))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", ["no [[range]] table"]),
        (b"# nothing\n", ["no [[range]] table"]),
        (b"range = []", ["no [[range]] table"]),
        (b"= 1", ["not TOML", "line 1"]),
        (b"hello\x00", ["not TOML"]),
        (b"SQLite format 3\x00\xff\xfe", ["not UTF-8, so no budget", "byte 16"]),
        (b"a = " + b"[" * 100_000, ["not TOML", "nested too deeply"]),
        (b"a" + b".a" * 50_000 + b" = 1", ["not TOML", "a key of too many parts"]),
        (b"[[range]]\nx = {y = 1, 'a'" + b' . "b"' * 50_000 + b" = 1}", ["not TOML", "too many parts"]),
        (b"x = 1\n" * (1 << 18), ["no budget: larger than 1 MiB"]),
        (b"skip = " + b"9" * 10_000, ["not TOML"]),
        (b"range = 3", ["budget.toml: range[0]: expected object, got int"]),
        (b"range = [1]", ["budget.toml: range[0]: expected object, got int"]),
        (b'[[ranges]]\npath = "a"', ["budget.toml: unknown key 'ranges'"]),
        (b'skip = -1\n[[range]]\npath = "a"', ["skip: expected int >= 0, got -1"]),
        (b'skip = true\n[[range]]\npath = "a"', ["skip: expected int, got bool"]),
        (b'skip = 1.5\n[[range]]\npath = "a"', ["skip: expected int, got float"]),
        (b'stat = "mean"\n[[range]]\npath = "a"', ["stat: 'mean' is not one of median, p95, max"]),
        (b'merge = []\n[[range]]\npath = "a"', ["merge: expected array of length >= 1, got []"]),
        (b"[[range]]\nmax_kernels = 1", ["range 1: 'path' is missing"]),
        (b"[[range]]\npath = 7", ["range 1: path: expected str, got int"]),
        (b'[[range]]\npath = ""', ["range 1 (''): path: expected str of length >= 1, got ''"]),
        (b'[[range]]\npath = "a"\npath = "b"', ["not TOML"]),
    ],
)
def test_what_is_no_budget(tmp_path: Path, text: bytes, words: list[str]) -> None:
    """One line says what is wrong and where, whatever the file holds, and a hint says how to go on."""
    error = refused(tmp_path, text)
    for word in words:
        assert word in error.message
    assert len(error.message) < 300


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("max_kernels = -1", "max_kernels: expected int >= 0, got -1"),
        ("max_kernels = 1.0", "max_kernels: expected int, got float"),
        ("max_kernels = true", "max_kernels: expected int, got bool"),
        ('max_kernels = "1"', "max_kernels: expected int, got str"),
        ("max_kernels = nan", "max_kernels: expected int, got float"),
        ("max_kernels = 9223372036854775808", "max_kernels: expected int <= 9223372036854775807"),
        ("max_span = 300", 'max_span: must be a number with a unit (ns, us, ms or s): "2.5 ms", got 300'),
        ('max_span = "300"', "a number with a unit"),
        ('max_span = "-3 ms"', "a number with a unit"),
        ('max_span = "nan ms"', "a number with a unit"),
        ('max_span = "1e3 ms"', "a number with a unit"),
        ('max_span = "3 hours"', "a number with a unit"),
        ('max_span = "9999999999999 s"', "longer than any recording"),
        ("max_span_ns = nan", "max_span_ns: expected int, got float"),
        ("max_span_ns = -5", "max_span_ns: expected int >= 0, got -5"),
        ('max_span_ns = "5"', "max_span_ns: expected int, got str"),
        ('max_span = "1 ms"\nmax_span_ns = 5', "both max_span and max_span_ns are set: keep only one of them"),
        ("max_idle = nan", "must be a percentage"),
        ("max_idle = inf", "must be a percentage"),
        ("max_idle = -0.1", "must be a percentage"),
        ("max_idle = 20", 'max_idle: must be a percentage ("20 %") or a number from 0 to 1, got 20'),
        ("max_idle = false", "must be a percentage"),
        ('max_idle = "101 %"', "cannot be more than 100 %"),
        ('max_idle = "-5 %"', "must be a percentage"),
        ('forbid = "memcopy"', f"forbid[0]: 'memcopy' is not one of {', '.join(FAMILIES)}"),
        ("forbid = []", "forbid: expected array of length >= 1"),
        ('forbid = [""]', "forbid[0]: '' is not one of"),
        ("forbid = [1]", "forbid[0]: expected str, got int"),
        ("forbid_causes = {}", "forbid_causes[0]: expected str, got object"),
        (
            'forbid_kernels = ["a("]',
            "forbid_kernels[0]: does not compile: missing ), unterminated subpattern at position 1, got 'a('",
        ),
        ('forbid_kernels = ["x*"]', "forbid_kernels[0]: matches every name, got 'x*'"),
        ('optional = "yes"', "optional: expected bool, got str"),
        ("optional = true", "the range is optional and has no limit"),
        ("min_instances = 0", "min_instances: expected int >= 1, got 0"),
        ("backend = 1", "backend: expected str, got int"),
        ('backend = ""', "backend: expected str of length >= 1"),
        ("math_unit = 3", "math_unit[0]: expected object, got int"),
        ("math_unit = { }", "math_unit[0]: 'family' is missing"),
        ('math_unit = { family = "gemm" }', "math_unit[0]: 'unit' is missing"),
        ('math_unit = { family = "gem", unit = "tensor core" }', "math_unit[0].family: 'gem' is not one of"),
        ('math_unit = { family = "gemm", unit = "unknown" }', f"'unknown' is not one of {', '.join(MATH_UNITS[:-1])}"),
        (
            'math_unit = { family = "gemm", unit = "FP32 FMA", min_share = 2 }',
            "math_unit[0].min_share: must be a percentage",
        ),
        ("max_growth = {}", "must be a table with at least one entry"),
        ('max_growth = "5 %"', "max_growth: expected object, got str"),
        ("max_growth = { span = -1 }", "max_growth.span: must be a percentage"),
        ('max_growth = { kernels = "5 %" }', "max_growth: unknown key 'kernels'"),
        ('stat = "avg"', "stat: 'avg' is not one of median, p95, max"),
    ],
)
def test_impossible_values(tmp_path: Path, line: str, words: str) -> None:
    """What a key cannot mean is refused, with the file, the table and what it could mean."""
    error = limited(tmp_path, line)
    assert ": range 1 ('step*'): " in error.message
    assert words in error.message


def test_an_unknown_key_names_those_there_are(tmp_path: Path) -> None:
    """A misspelt key is no limit that silently never breaks: the error lists the keys, the likely one first."""
    error = limited(tmp_path, "max_kernel = 1")
    assert "range 1 ('step*'): unknown key 'max_kernel'" in error.message
    assert (error.hint or "").startswith("did you mean max_kernels? keys are path, optional, stat,")
    for key in RANGE_KEYS:
        assert key in (error.hint or "")


def test_one_glob_has_one_table(tmp_path: Path) -> None:
    """Limits of one glob in two tables would hide one another."""
    error = refused(tmp_path, '[[range]]\npath = "a"\n[[range]]\npath = "b"\n[[range]]\npath = "a"\n')
    assert "range 1 ('a') and range 3 ('a') have the same path" in error.message


def test_long_values_are_cut(tmp_path: Path) -> None:
    """A message stays one short line however long the value."""
    error = refused(tmp_path, f'[[range]]\npath = "{"x" * 5000}"\nmax_kernels = [{"1, " * 500}]')
    assert len(error.message) < 400


@pytest.mark.parametrize(("kind", "word"), [("missing", "No such file"), ("folder", "Is a directory")])
def test_a_budget_that_cannot_be_read(tmp_path: Path, kind: str, word: str) -> None:
    """The error names the file and why; for one that is not there the hint makes one."""
    path = tmp_path / "budget.toml"
    if kind == "folder":
        path.mkdir()
    with pytest.raises(NsysprofError, match=word) as error:
        read_budget(path)
    assert str(path) in error.value.message
    if kind == "missing":
        assert error.value.hint == "nsysprof check --init REPORT"
