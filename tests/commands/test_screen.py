"""Colours of text on a terminal: heads of tables, and hints of several lines."""

from __future__ import annotations

import pytest

from nsysprof.commands.screen import show

TEXT = """\
cause      kernels
-------  ---------
softmax          1
-------  ---------
total            1

   → start it earlier, in
     smaller buckets
   $ nsysprof why run.sqlite
"""


def test_a_head_is_bold_and_the_row_above_a_total_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ruler above a total makes no head of the row above it; a hint keeps its colour over all of its lines."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    show(TEXT)
    bold, green, cyan = "\x1b[1m", "\x1b[32m", "\x1b[36m"
    lines = capsys.readouterr().out.split("\n")
    assert [line.startswith(bold) for line in lines[:5]] == [True, False, False, False, False]
    hint = "\n".join(lines[6:8])
    assert hint.startswith(f"{green}   → start")
    assert hint.endswith("smaller buckets\x1b[0m")
    assert lines[8].startswith(cyan)
