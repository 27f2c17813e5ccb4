"""Final names: never those of files that are there already."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nsysprof.core.files import give_final_name


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_is_there_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """Nor is a link to nothing, whether or not the file system has hard links."""

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    part, taken, dead, free = (tmp_path / name for name in ("part", "taken", "dead", "free"))
    part.write_text("new")
    taken.write_text("mine")
    dead.symlink_to("nowhere")
    for final in (taken, dead):
        with pytest.raises(FileExistsError):
            give_final_name(part, final)
    assert taken.read_text() == "mine"
    assert dead.is_symlink()
    give_final_name(part, free)
    assert free.read_text() == "new"
