"""Every string that people read: pages, help, descriptions of columns, messages, docstrings; each with its place."""

import ast
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.kit import manual

ROOT = Path(__file__).parents[2]
PAGES = (
    *("README.md", "CONTRIBUTING.md", "docs/*.md", "docs/fixes/*.md", "analysis/**/README.md"),
    *("*/README.md", "workloads/kernels/README.md"),
)
HIDDEN = "x"  # stands for inline code, names and numbers that a sentence holds


class Said(NamedTuple):
    """A sentence: its kind (docs, help, columns, messages, docstrings), where it stands, and its words."""

    kind: str
    place: str
    text: str


def every_string() -> list[Said]:
    """All sentences that people read, in a fixed order."""
    return [*_pages(), *_help(), *_columns(), *_sources()]


def sentences(text: str) -> Iterator[str]:
    """The sentences of a paragraph of prose."""
    for part in re.split(r"(?<=[.!?:;])[\"')*_]*\s+(?=[\"'(*_A-Z`\d→-]|nsys|ncu|p[a-z]+,)", " ".join(text.split())):
        if part.strip():
            yield part.strip()


def _pages() -> Iterator[Said]:
    for path in dict.fromkeys(path for glob in PAGES for path in sorted(ROOT.glob(glob))):
        if any(part.startswith(".") for part in path.relative_to(ROOT).parts):
            continue  # hidden folders contain pages of tools, such as .pytest_cache/README.md
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.M | re.S)
        for block in re.split(r"\n\s*\n|^(?=#|\s*[-*] |\s*\d+\. |\|)", text, flags=re.M):
            prose = re.sub(r"^[\s#>*-]*(\d+\. )?", "", block)
            prose = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", prose)
            for cell in prose.strip().strip("|").split(" | ") if block.startswith("|") else [prose]:
                yield from (Said("docs", path.relative_to(ROOT).as_posix(), each) for each in sentences(cell))


def _help() -> Iterator[Said]:
    for name, command in manual.commands().items():
        arguments, options = manual._parameters(name, command)
        texts = [command.help or "", *(about for _, about in (*arguments, *options))]
        yield from (Said("help", name, each) for text in texts for each in sentences(text))


def _columns() -> Iterator[Said]:
    for room, tables in manual.declared_tables().items():
        for table in tables:
            for text in (table.row, *(column.about for column in table.columns)):
                yield from (Said("columns", f"{room}/{table.file}", each) for each in sentences(text))


def _sources() -> Iterator[Said]:
    for path in sorted((ROOT / "nsysprof").rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                documented.add(node.body[0].value)  # type: ignore[attr-defined]
                if not getattr(node, "name", "").startswith("_"):
                    for part in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                        yield from (Said("docstrings", place, each) for each in sentences(part))
        yield from (Said("messages", place, text) for text in _messages(tree, documented))


def _messages(tree: ast.Module, documented: set[ast.expr]) -> Iterator[str]:
    """Literals and f-strings that read like a sentence: three words or more; no code, table heads or word lists."""
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if node in documented or node in inside or not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        inside.update(parts)
        text = "".join(
            part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else HIDDEN for part in parts
        )
        words = re.findall(r"\b[a-z]{2,}\b", text)
        code = re.search(
            r"\b(SELECT|WHERE|INSERT|PRAGMA|def|import|function|return)\b|[{};<>=]{1}\S*[{};<>]|^\s*[.\[(]|\\|__"
            r"|\w \| \w|^[\w\s]{300,}$",
            text,
        )
        if len(words) >= 3 and not code and len(text) < 2000:
            yield from sentences(text)


def sample(seed: int, sizes: dict[str, int]) -> list[Said]:
    """Random sentences of eight words or more of each kind."""
    chosen = random.Random(seed)
    found = every_string()
    return [
        said
        for kind, size in sizes.items()
        for said in chosen.sample([each for each in found if each.kind == kind and len(each.text.split()) >= 8], size)
    ]


if __name__ == "__main__":
    for said in sample(int(sys.argv[1]), {"docs": 50, "messages": 30, "docstrings": 20}):
        sys.stdout.write(f"{said.kind} · {said.place} · {said.text}\n")
