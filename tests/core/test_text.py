"""Texts as people read them: visible, short and never the same, in one number with their counts."""

from pathlib import Path

import pytest

from nsysprof.core.text import (
    cut,
    drop_repeats,
    join_first,
    join_words,
    one_line,
    plural,
    quote_path,
    shorten,
    shorten_all,
    shorten_both,
    visible,
)


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


def test_labels_of_a_list_are_cut_where_they_are_alike() -> None:
    """Long names that differ only in their middle show that part; those that differ anyway keep both ends."""
    layers = [f"model.decoder.block.{number}.attention.self.projection.output" for number in range(12)]
    short = shorten_all([*layers, "x" * 60, "head"], 24)
    assert len(set(short)) == 14
    assert short[3].startswith("…")
    assert ".3." in short[3]
    assert short[-1] == "head"
    assert max(map(len, short)) <= 24
    assert shorten_all(layers[:1], 24) == [shorten(layers[0], 24)]


def test_a_name_that_fits_stays_whole() -> None:
    """And equal names are equal in short."""
    assert shorten_both("math", "flash", 16) == ("math", "flash")
    assert len(set(shorten_both("z" * 50, "z" * 50, 16))) == 1


def test_sentences_that_repeat_stand_once_with_a_count() -> None:
    """Those that differ in numbers and in whom they are about say one thing; others stay."""
    alike = [f"RUN::x::S{n}: drifts by {n}.5 %" for n in range(69)]
    assert drop_repeats(["first", *alike, "RUN::x::S1: is late", "first"]) == [
        "first (1 more like it)",
        "RUN::x::S0: drifts by 0.5 % (68 more like it)",
        "RUN::x::S1: is late",
    ]


def test_visible_leaves_text_alone() -> None:
    """What a terminal shows is not touched; what it obeys is written as Python would."""
    assert visible("plain µs ± 日本 🚀") == "plain µs ± 日本 🚀"
    assert visible("\x1b\x00\x85\u202e\udc80\n") == r"\x1b\x00\x85\u202e\udc80\n"


@pytest.mark.parametrize("width", [2, 3, 12, 48])
def test_one_line_is_never_wider(width: int) -> None:
    """A long text keeps its beginning and more of it than of its end; one that fits is whole."""
    text = one_line("abcdefghijklmnopqrstuvwxyz" * 4, width)
    assert len(text) == width
    assert text[0] == "a"
    assert one_line("x" * width, width) == "x" * width


def test_plurals_and_lists() -> None:
    """One has no s; the last of several stands behind an "and"."""
    assert [plural(n, "range") for n in (0, 1, 1234, 1_230_000)] == [
        *("0 ranges", "1 range", "1,234 ranges", "1.23 M ranges")
    ]
    assert [join_words(words) for words in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
    assert [join_first(words, 2, repr) for words in ("", "ab", "abcd")] == ["", "'a', 'b'", "'a', 'b' and 2 more"]


def test_the_end_is_cut() -> None:
    """What is cut at its end is as long as it may be."""
    assert (cut("abcd", 4), cut("abcde", 4)) == ("abcd", "abc…")


def test_a_path_is_typed_so_that_it_is_one() -> None:
    """Neither a shell nor a command takes it for something else."""
    assert quote_path(Path("-a.sqlite")) == "./-a.sqlite"
    assert quote_path(Path("traces/a b.sqlite")) == "'traces/a b.sqlite'"
