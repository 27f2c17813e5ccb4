"""Numbers to text."""

import math

import pytest

from nsysprof.core.units import format_bytes, format_count, format_ns, format_ratio, format_share, scale_ns


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (1, "1 ns"),
        (-1, "-1 ns"),
        (830, "830 ns"),
        (999, "999 ns"),
        (999.6, "1.00 µs"),
        (1_000, "1.00 µs"),
        (2_416, "2.42 µs"),
        (99_949, "99.9 µs"),
        (99_951, "100 µs"),
        (999_499, "999 µs"),
        (999_501, "1.00 ms"),
        (56_506_445, "56.5 ms"),
        (-56_506_445, "-56.5 ms"),
        (999_600_000, "1.00 s"),
        (1_204_000_000, "1.20 s"),
        (90_000_000_000, "90.0 s"),
        (599_000_000_000, "599 s"),
        (600_000_000_000, "10.0 min"),
        (750_000_000_000, "12.5 min"),
        (-750_000_000_000, "-12.5 min"),
        (2**62, "76,861,434 min"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_format_ns(ns: float, text: str) -> None:
    """A duration has three digits and the unit that keeps it at least 1."""
    assert format_ns(ns) == text


@pytest.mark.parametrize(
    ("max_ns", "scale"),
    [
        (0, (1, "ns")),
        (999, (1, "ns")),
        (1_000, (1_000, "µs")),
        (56_000_000, (1_000_000, "ms")),
        (-56_000_000, (1_000_000, "ms")),
        (2_000_000_000, (1_000_000_000, "s")),
        (600_000_000_000, (60_000_000_000, "min")),
    ],
)
def test_scale_ns(max_ns: int, scale: tuple[int, str]) -> None:
    """An axis gets the unit that its largest value would be printed in."""
    assert scale_ns(max_ns) == scale


@pytest.mark.parametrize("max_ns", [1, 999, 999_500, 12_345_678, 61 * 10**9, 10**15])
def test_axis_and_text_agree_on_the_unit(max_ns: int) -> None:
    """The unit of an axis is the unit of the text of its largest value."""
    assert format_ns(max_ns).endswith(" " + scale_ns(max_ns)[1])


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1_023, "1,023 B"),
        (1_024, "1.00 KiB"),
        (1_536, "1.50 KiB"),
        (-1_536, "-1.50 KiB"),
        (1024**2 - 1, "1.00 MiB"),
        (1_018 * 1024, "1,018 KiB"),
        (5_226_000_000, "4.87 GiB"),
        (3 * 2**40, "3.00 TiB"),
        (2**62, "4,096 PiB"),
    ],
)
def test_format_bytes(size: int, text: str) -> None:
    """A size uses powers of 1,024 and says so."""
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (7, "7"),
        (1_234, "1,234"),
        (-1_234, "-1,234"),
        (999_999, "999,999"),
        (1_000_000, "1.00 M"),
        (1_234_567, "1.23 M"),
        (-12_345_678, "-12.3 M"),
        (999_600_000, "1.00 G"),
        (4_560_000_000, "4.56 G"),
        (7_000_000_000_000, "7.00 T"),
    ],
)
def test_format_count(count: int, text: str) -> None:
    """A count is exact while it is short and rounded only from a million on."""
    assert format_count(count) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (0.0000001, "<0.1 %"),
        (-0.0000001, "-<0.1 %"),
        (0.001, "0.1 %"),
        (0.044, "4.4 %"),
        (0.0994, "9.9 %"),
        (0.0996, "10 %"),
        (0.44, "44 %"),
        (0.994, "99 %"),
        (0.999, ">99 %"),
        (0.9999999, ">99 %"),
        (1, "100 %"),
        (1.5, "150 %"),
        (12.345, "1,234 %"),
        (-0.25, "-25 %"),
        (math.nan, "-"),
    ],
)
def test_format_share(share: float, text: str) -> None:
    """A share never reads 100 % unless it is all, nor 0 % unless it is nothing."""
    assert format_share(share) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (24.18, "24.2x"),
        (1, "1.00x"),
        (0.95, "0.95x"),
        (0, "0.00x"),
        (0.0042, "0.0042x"),
        (0.0999, "0.100x"),
        (9.996, "10.0x"),
        (99.96, "100x"),
        (1_234.5, "1,234x"),
        (-2, "-2.00x"),
        (math.inf, "-"),
        (math.nan, "-"),
    ],
)
def test_format_ratio(ratio: float, text: str) -> None:
    """A ratio has three digits; a division by nothing is a dash."""
    assert format_ratio(ratio) == text
