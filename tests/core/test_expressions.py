"""Expressions of users: compiled, or refused with the reason."""

import pytest

from nsysprof.core.expressions import compiled


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a(b", r"missing \)"),
        ("[[a]", "Possible nested set"),
        ("(" * 5000, "recursion"),
        ("a{99999999999999999999}", "too large"),
        ("(?a)(?u)", "incompatible"),
        ("(?z)a", "unknown extension"),
    ],
)
def test_what_python_refuses_or_warns_of_has_a_reason(text: str, reason: str) -> None:
    """In one kind of error, whatever Python raises: six kinds, and warnings of what will mean something else."""
    with pytest.raises(ValueError, match=reason):
        compiled(text)
    assert compiled(r"rank_(\d+)").groups == 1
