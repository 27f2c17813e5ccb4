"""Globs to pairs of ranges: what a glob matches, and what is paired with what."""

from pathlib import Path

import pytest

from nsysprof.attribution.globs import Match, find_matches, near_names, pair_up, side_names
from nsysprof.attribution.paths import Paths, merged_paths, range_paths
from nsysprof.errors import NsysprofError
from tests.conftest import MakeTrace
from tests.kit.reports import attributed
from tests.kit.trace import Range

RUNS = ("RUN::math::S512", "RUN::math::S4096", "RUN::flash::S512", "RUN::flash::S4096", "RUN::cudnn::S4096")


def merged(path: Path) -> tuple[Paths, list[str]]:
    """The merged paths of a report."""
    found = merged_paths(range_paths(attributed(path)))
    return found, found.texts()


def runs(trace: MakeTrace) -> tuple[Paths, list[str]]:
    """Five runs with two calls each."""
    items = []
    for number, name in enumerate(RUNS):
        start = 100 * number
        items += [Range(name, start, start + 90), Range("iter0", start + 1, start + 9)]
        items += [Range("iter1", start + 11, start + 19)]
    return merged(trace(*items))


def matched(trace: MakeTrace, glob: str) -> list[str]:
    """The paths that a glob matches among the runs."""
    return [match.text for match in find_matches(*runs(trace), glob, "r.sqlite")]


def test_the_outermost_of_ranges_in_one_another_counts(trace: MakeTrace) -> None:
    """A star matches `/` too, but what lies in a match is no match of its own; without a star it may be asked for."""
    assert matched(trace, "RUN::math::*") == ["RUN::math::S512", "RUN::math::S4096"]
    assert matched(trace, "*") == list(RUNS)
    assert matched(trace, "RUN::math::*/iter*") == ["RUN::math::S512/iter*", "RUN::math::S4096/iter*"]


def test_a_merged_path_as_it_is_printed_is_that_path_alone(trace: MakeTrace) -> None:
    """`iter*` matches `iter-eval` too, but whoever copies it from the screen means the one path."""
    items = [Range(f"iter{at}", 100 * at, 100 * at + 90) for at in range(3)]
    paths = merged(trace(*items, Range("iter-eval", 1000, 1090)))
    assert sorted(paths[1]) == ["iter*", "iter-eval"]
    assert [(match.text, match.stars) for match in find_matches(*paths, "iter*", "r.sqlite")] == [("iter*", ("*",))]
    assert [match.text for match in find_matches(*paths, "i*", "r.sqlite")] == ["iter*", "iter-eval"]


def test_other_wild_cards(trace: MakeTrace) -> None:
    """One character, one of some, none of some."""
    assert matched(trace, "RUN::flash::S51?") == ["RUN::flash::S512"]
    assert matched(trace, "RUN::[fc]*::S4096") == ["RUN::flash::S4096", "RUN::cudnn::S4096"]
    assert matched(trace, "RUN::[!m]*::S512") == ["RUN::flash::S512"]


def test_brackets_that_regular_expressions_would_misread(trace: MakeTrace) -> None:
    """A `]` right after `[!` belongs to the set, as `fnmatch` has it; what Python may once read as more is a sign."""
    odd = ("a[!]", "a]", "a[", "a&", "a-", "a^")
    paths = merged(trace(*(Range(name, 100 * at, 100 * at + 90) for at, name in enumerate(odd))))

    def found(glob: str) -> list[str]:
        return [match.text for match in find_matches(*paths, glob, "r.sqlite")]

    assert found("a[!]") == ["a[!]"]
    assert found("a[!]]") == ["a[", "a&", "a-", "a^"]
    assert found("a[[]") == ["a["]
    assert found("a[x&&--]") == ["a&", "a-"]
    assert found("a[]^]") == ["a]", "a^"]


def test_a_set_that_is_none_is_refused(trace: MakeTrace) -> None:
    """Not with a traceback of regular expressions; a bracket that is meant as such can be written."""
    with pytest.raises(NsysprofError, match=r"'RUN::\[z-a\]\*' is not a valid glob: bad character range z-a") as raised:
        matched(trace, "RUN::[z-a]*")
    assert raised.value.hint == "write a literal [ as [[]"


def test_a_name_alone_is_enough(trace: MakeTrace) -> None:
    """Where no path matches, the range's own name does; where it stands is one more thing that pairs."""
    path = trace(
        Range("train", 0, 100), Range("forward", 1, 9), Range("backward", 10, 19),
        Range("eval", 200, 300), Range("forward", 201, 209),
    )  # fmt: skip
    found = find_matches(*merged(path), "forward", "r.sqlite")
    assert [(match.text, match.stars) for match in found] == [
        ("train/forward", ("train",)),
        ("eval/forward", ("eval",)),
    ]
    pairs, alone = pair_up(found, find_matches(*merged(path), "backward", "r.sqlite"), ("forward", "backward"))
    assert [(one.text, other.text) for one, other in pairs] == [("train/forward", "train/backward")]
    assert alone == ["not compared, because the other side has no counterpart: 'eval/forward'"]


def test_no_match_names_what_is_near(trace: MakeTrace) -> None:
    """A typing error is answered with the names that are like it."""
    with pytest.raises(
        NsysprofError, match=r"no range of r\.sqlite matches 'RUN::maht::S512'; near it: 'RUN::math::S512'"
    ):
        matched(trace, "RUN::maht::S512")
    with pytest.raises(NsysprofError, match="it has no ranges at all"):
        find_matches(*merged(trace()), "x", "r.sqlite")


def test_what_is_near() -> None:
    """Without anything alike, the first few will do."""
    assert near_names(["alpha", "beta"], "zzzz") == ["alpha", "beta"]
    assert near_names(["alpha", "beta", "beta"], "betta*") == ["beta"]


def test_a_word_of_a_long_name_is_near() -> None:
    """A typing error in one word of a path is not lost in the length of the path."""
    names = ["CHECK::flash::S1024", "RUN::math::S1024/memory", "RUN::math::S1024/iter*"]
    assert near_names(names, "itre*") == ["RUN::math::S1024/iter*"]
    assert near_names(names, "RUN/mth") == names[1:]


def pairs_of(trace: MakeTrace, base: str, new: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Pairs among the runs, and what is alone."""
    paths = runs(trace)
    ones, others = (find_matches(*paths, glob, "r.sqlite") for glob in (base, new))
    pairs, alone = pair_up(ones, others, (base, new))
    return [(one.text, other.text) for one, other in pairs], alone


def test_pairs_are_what_the_stars_stand_for(trace: MakeTrace) -> None:
    """Each size of the one backend goes with the same size of the other."""
    assert pairs_of(trace, "RUN::math::*", "RUN::flash::*") == (
        [("RUN::math::S512", "RUN::flash::S512"), ("RUN::math::S4096", "RUN::flash::S4096")],
        [],
    )


def test_what_finds_no_partner_is_named(trace: MakeTrace) -> None:
    """Two sizes against a backend that ran one of them: the other size is not compared with anything."""
    assert pairs_of(trace, "RUN::math::*", "RUN::cudnn::*") == (
        [("RUN::math::S4096", "RUN::cudnn::S4096")],
        ["not compared, because the other side has no counterpart: 'RUN::math::S512'"],
    )


def test_one_range_can_be_held_against_many(trace: MakeTrace) -> None:
    """A glob without stars stands for one range, which goes with each of the others, on either side."""
    assert pairs_of(trace, "RUN::math::S4096", "RUN::[fc]*::S4096")[0] == [
        ("RUN::math::S4096", "RUN::flash::S4096"),
        ("RUN::math::S4096", "RUN::cudnn::S4096"),
    ]
    assert pairs_of(trace, "RUN::*::S512", "RUN::flash::S4096")[0] == [
        ("RUN::math::S512", "RUN::flash::S4096"),
        ("RUN::flash::S512", "RUN::flash::S4096"),
    ]


def test_two_single_matches_are_a_pair_whatever_the_stars(trace: MakeTrace) -> None:
    """Nothing else can be meant."""
    assert pairs_of(trace, "RUN::m*::S512", "RUN::c*")[0] == [("RUN::math::S512", "RUN::cudnn::S4096")]


def test_stars_that_stand_for_different_things_pair_nothing(trace: MakeTrace) -> None:
    """Sizes here and backends there: the message says both."""
    with pytest.raises(
        NsysprofError, match=r"the stars stand for '512', '4096' in the first glob and for 'math', 'flash'"
    ):
        pairs_of(trace, "RUN::math::S*", "RUN::*::S4096")


def test_many_matches_of_one_star_pair_each_with_each() -> None:
    """Paths that differ where no star is cannot be told apart, so all are compared."""
    ones = [Match(0, "a/x", ("1",)), Match(1, "b/x", ("1",))]
    others = [Match(2, "c/x", ("1",)), Match(3, "d/x", ("2",))]
    pairs, alone = pair_up(ones, others, ("", ""))
    assert [(one.code, other.code) for one, other in pairs] == [(0, 2), (1, 2)]
    assert alone == ["not compared, because the other side has no counterpart: 'd/x'"]


@pytest.mark.parametrize(
    ("base", "new", "names"),
    [
        ("RUN::math::S4096", "RUN::flash::S4096", ("math", "flash", "S=4096")),
        ("RUN::math::B4::S64::D8", "RUN::flash::B4::S64::D8", ("math", "flash", "B=4 S=64 D=8")),
        ("RUN::math::S512", "RUN::flash::S4096", ("math::S512", "flash::S4096", "")),
        ("RUN::math::B4::S64", "RUN::flash::B4::S128", ("RUN::math::B4::S64", "RUN::flash::B4::S128", "")),
        ("WARMUP::math::S64", "RUN::math::S64", ("WARMUP", "RUN", "math S=64")),
        ("aten::mm", "aten::addmm", ("aten::mm", "aten::addmm", "")),
        ("a/b::c::d", "a/b::x::d", ("b::c", "b::x", "a d")),
        ("old::k0", "new::k0", ("old", "new", "k0")),
        ("f<std::a>(x::y)", "g<std::a>(x::y)", ("f<std::a>(x::y)", "g<std::a>(x::y)", "")),
        ("a::b/c", "a/b::c", ("a::b/c", "a/b::c", "")),
        ("train/step*/aten::mm", "eval/step*/aten::addmm", ("train/step*/aten::mm", "eval/step*/aten::addmm", "")),
        ("a/ns::f/x", "a/ns::g/y", ("ns::f/x", "ns::g/y", "a")),
        ("train/step*/forward", "train/step*/backward", ("forward", "backward", "train step*")),
        (r"a\/b/x", r"a\/b/y", ("x", "y", r"a\/b")),
        ("train", "train/eval", ("train", "train/eval", "")),
        ("train", "train", ("train", "train", "")),
    ],
)
def test_what_the_sides_are_called(base: str, new: str, names: tuple[str, str, str]) -> None:
    """By where their paths differ; what they share is the place."""
    assert side_names(base, new) == names
