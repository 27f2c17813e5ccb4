"""Which files of the checkout the site is made of: the manual and all that its pages link to, under their own paths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)#\s]+)|\b(?:src|href)=\"([^\"#]+)\"")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Take the pages below docs/ and whatever they lead to, so that a link is right here and on a repository's pages.

    A file is known by its path in the checkout; pages of docs/ stand at the top of the site.
    """
    paths = {path for pattern in ("*.md", "site/*.css") for path in Path(config.docs_dir).rglob(pattern)}
    waiting = list(paths)
    while waiting:
        page = waiting.pop()
        for found in _linked(page) - paths:
            paths.add(found)
            waiting.append(found)
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*of_theme, *(_file(path, config) for path in sorted(paths))])


def _linked(page: Path) -> set[Path]:
    """The files of the checkout that a page links to or shows."""
    if page.suffix != ".md":
        return set()
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    named = {first or second for first, second in LINK.findall(text)}
    targets = {(page.parent / name).resolve() for name in named if ":" not in name}
    return {path for path in targets if path.is_file() and path.is_relative_to(ROOT)}


def _file(path: Path, config: MkDocsConfig) -> File:
    place = path.relative_to(ROOT)
    shown = place.relative_to("docs") if place.parts[0] == "docs" else place
    if place.as_posix() == "README.md":
        shown = Path("readme.md")  # the top of the site is the manual's
    settings = (None, config.site_dir, config.use_directory_urls)
    made = File(place.as_posix(), *settings, dest_uri=File(shown.as_posix(), *settings).dest_uri)
    made.abs_src_path = str(path)
    return made


def on_page_markdown(markdown: str, **_: object) -> str:
    r"""Take the backslash from `A\|B` in tables: repository pages need it there, Python's Markdown shows it."""
    rows = re.compile(r"^\|.*", re.M)
    return rows.sub(lambda row: re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0]), markdown)
