"""Each figure in the text of a study is recomputed from the file that has it, or the page says that it cannot be."""

import re

import pytest

from tests.end_to_end import test_two_ranks
from tests.end_to_end.test_studies import CLAIMS as SWEEPS
from tests.kit import forecast_claims, prose_claims, record_claims, training_claims
from tests.kit.o6_claims import O6, claims_of_o6
from tests.kit.study_figures import ANALYSIS

MODULES = (prose_claims, record_claims, forecast_claims, training_claims)
FUNCTIONS = {name: each for module in MODULES for name, each in vars(module).items() if name.startswith("claims_of_")}
CLAIMS = {**SWEEPS, **{name[10:].replace("_", "-"): each for name, each in FUNCTIONS.items()}, O6: claims_of_o6}
CLAIMS["two-ranks"] = test_two_ranks.claims
UNIT = r"(?:x|[  ]?(?:%|µs|ms|s|[KMG]i?B|cycles|TFLOP/s|[GTM]B/s|[MG]Hz|W|times|points|G))"
FIGURE = re.compile(
    rf"[^.]{{0,30}}?(?<![\w.,])(?:\d[\d.,]*{UNIT}(?![\w-])|\d+[.,]\d+(?![\w.]|,\d)"
    r"|\d+ (?:of|in) (?:the |all )?\d+|\d+ / \d+)"
)
# Versions and products, names in code, targets of links, and what an interval is of.
NO_FIGURE = re.compile(
    r"\b(?:torch|driver|nsys|ncu|nvcc|cuDNN|CUDA|CuPy|Python|PyTorch|transformers|flash-attn(?:-4)?|cutlass-dsl|Ubuntu)"
    r" v?\d[\w.+]*\w|NVIDIA H\w+(?: 80GB)?|`[^`]*`|\]\([^)]*\)|\b9[05] %(?: (?:confidence )?(?:intervals?|should)|\))"
)
LISTED = "(?:Not recomputable|cannot be recomputed) from this folder"


def prose_of(study: str) -> tuple[str, str]:
    """The text with single blanks, without code and what is excepted as a whole; and the exceptions."""
    text = (ANALYSIS / study / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text, given = (*re.split(LISTED, text, maxsplit=1), "")[:2]
    given, _, rest = given.partition("\n\n")
    given, text = " ".join(given.split()), f"{text}\n\n{rest}\n\n"
    for head in re.findall(r'"([|#][^"]+)"', given):  # a table, or a section
        end = r"\n\n" if head[0] == "|" else r"\n(?=#)"
        text = re.sub(rf"^{re.escape(head)}.*?{end}", f"{head}\n\n", text, flags=re.DOTALL | re.MULTILINE)
    return " ".join(text.split()), given


@pytest.mark.parametrize("study", CLAIMS)
def test_each_figure_of_a_page_is_recomputed_or_named_as_not_recomputable(study: str) -> None:
    """Claims stand in the text as the files have them; no figure is left beside them and the quoted exceptions."""
    text, given = prose_of(study)
    left = text
    for claim in [*CLAIMS[study](), *re.findall(r'"([^"]+)"', given)]:
        claim = " ".join(claim.split())
        assert claim in text, claim
        for found in re.finditer(re.escape(claim), text):
            left = left[: found.start()] + "¦" * len(claim) + left[found.end() :]
    left = left.replace(prose_claims.reported("best-kernels", "power limit"), "")  # of every H200
    assert [found.strip() for found in FIGURE.findall(NO_FIGURE.sub(" ", left))] == []


def test_every_page_of_a_study_is_recomputed() -> None:
    """None is left out."""
    assert {f"{page.parent.relative_to(ANALYSIS)}" for page in ANALYSIS.rglob("README.md")} - {"."} == {*CLAIMS}
