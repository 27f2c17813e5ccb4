"""What people read is in the words of the field: pages, help, columns, messages and docstrings, each sentence once."""

import re
from functools import cache

import pytest

from tests.kit.strings import ROOT, Said, every_string

# words that are out, and what is said instead
OUT = {
    r"mend(s|ed|ing)?": "fix",
    r"blam(e|es|ed|ing)": "cause",
    r"runs? dry": "drains the GPU queue; is idle",
    r"(no|some)body": "unknown; name who",
    r"made[- ]up": "synthetic",
    r"at hand": "leave it out",
    r"surely": "significant; certainly",
    r"held against|laid beside": "compared with",
    r"(is|are|was|were|be) told": "prints; recognizes",
    r"least effect": "smallest meaningful effect",
    r"would bring": "would save",
    r"stands? beside": "is beside; is compared with",
    r"unlike machines": "different machines",
    r"wherever": "everywhere; if",
    r"in place of": "instead of",
    r"helper threads?": "worker thread",
    r"leaves 1 out": "excludes 1",
    r"whoever": "any",
    r"what of": "the part that",
    r"anew": "again; a new",
    r"given back": "released",
    r"lies? beside": "is outside; is beside",
    r"by so (much|many)": "by a number with its unit",
    r"as (it|they) (has|have) (it|them)": "recorded; unchanged",
    r"be they": "with or without",
    r"less that of": "minus",
    r"(is|are) no (part|size|grid|rank|factor|time)": "is not a",
    r"(report|trace|recording) holds? (no|launches)": "has no",
    r"(?!end )(?P<twice>[a-z]{3,}) (?P=twice)": "once",
}
# words that code and columns keep, and people read as others: culprit as cause or responsible code, window as step
OF_CODE = {r"culprits?": "cause; responsible code", r"windows": "steps", r"per window": "per step"}
KEPT = (  # where such a word is the name of something else, or of the column that the sentence is about
    "culprit (responsible code)",
    "responsible code (column `culprit`)",
    "windows are",
    "masks but windows",
    "NVIDIA Control Panel",
    "Linux, macOS",
    "Reading works on Windows",
)
LONGEST = 40
OURS = re.compile(r"`[^`]*`|\"[^\"]*\"|“[^”]*”")


@cache
def said() -> tuple[Said, ...]:
    """All sentences, once."""
    return tuple(every_string())


@pytest.mark.parametrize("word", OUT)
def test_a_word_that_is_out_is_said_nowhere(word: str) -> None:
    """Neither on a page nor in help, columns, messages or docstrings."""
    pattern = re.compile(rf"\b({word})\b", re.I)
    found = [f"{each.place}: {each.text}" for each in said() if pattern.search(OURS.sub("x", each.text))]
    assert found == [], f"instead: {OUT[word]}"


@pytest.mark.parametrize("word", OF_CODE)
def test_a_word_of_the_code_is_not_said_to_users(word: str) -> None:
    """Code, keys and columns keep their names; pages, help and messages use the words of the field."""
    pattern = re.compile(rf"\b({word})\b")
    found = [
        f"{each.place}: {each.text}"
        for each in said()
        if each.kind != "docstrings"
        and not any(kept in each.text for kept in KEPT)
        and pattern.search(OURS.sub("x", each.text))
    ]
    assert found == [], f"instead: {OF_CODE[word]}"


def words(text: str) -> list[str]:
    """The words of a sentence, without code: a list of keys may be as long as it has to."""
    return re.findall(r"\S*\w\S*", OURS.sub("", text))


def test_sentences_are_short() -> None:
    """At most 40 words, on pages, in help and in messages; heads of tables and lists of words are no sentences."""
    long = [each for each in said() if each.kind != "docstrings" and len(words(each.text)) > LONGEST]
    long = [each for each in long if " | " not in each.text and each.place != "nsysprof/kernels/names.py"]
    assert [f"{each.place}: {each.text}" for each in long] == []


EXPLAINING = ("words.md", "fixes.md")
# ordinary English and terms that the field hyphenates
ORDINARY = set((ROOT / "tests" / "house" / "hyphenated.txt").read_text(encoding="utf-8").split())


def test_terms_of_ours_are_explained() -> None:
    """A hyphenated term on a page is in docs/words.md, a kind of finding in the fix guide, or one of the listed."""
    explained = "".join((ROOT / "docs" / page).read_text(encoding="utf-8").lower() for page in EXPLAINING)
    unknown = set()
    for each in said():
        if each.kind == "docs" and each.place.startswith(("docs/", "README")):
            for term in re.findall(r"(?<![\w/.-])[a-z]+(?:-[a-z]+)+(?![\w/.-])", OURS.sub("x", each.text)):
                if term not in explained and term not in ORDINARY:
                    unknown.add(term)
    assert unknown == set(), "explain them in docs/words.md, or list them in hyphenated.txt"
