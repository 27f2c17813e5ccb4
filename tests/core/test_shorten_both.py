"""Two names in little room: short, and never the same."""

from __future__ import annotations

import pytest

from nsysprof.core.labels import shorten, shorten_both
from nsysprof.core.terminal import one_line


@pytest.mark.parametrize("cut", [shorten, one_line])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("math", "flash"),
        ("a_very_long_prefix_of_both_A_and_a_long_end", "a_very_long_prefix_of_both_B_and_a_long_end"),
        ("x" * 40, "x" * 41),
        ("model_" + "y" * 60, "model_" + "y" * 60 + "_v2_" + "y" * 60),
        ("two  blanks", "two blanks"),
        ("l" * 50 + "a" + "r" * 2000, "l" * 50 + "b" + "r" * 2000),
    ],
)
def test_two_names_stay_two(one: str, other: str, cut: type) -> None:
    """At most as long as asked for; where cutting the middle makes them one, the piece that differs is kept."""
    for most in (16, 24, 40):
        short = shorten_both(one, other, most, cut)
        assert short[0] != short[1]
        assert max(map(len, short)) <= most
        assert shorten_both(other, one, most, cut)[0] != short[0] or short[0].endswith("(base)")


def test_a_name_that_fits_stays_whole() -> None:
    """And equal names are equal in short."""
    assert shorten_both("math", "flash", 16) == ("math", "flash")
    assert len(set(shorten_both("z" * 50, "z" * 50, 16))) == 1
