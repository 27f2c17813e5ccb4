"""Manage the copy of a report while it is scrubbed: known secrets, removed data, and cleaned texts."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from nsysprof.scrub.allow_list import is_name, matches
from nsysprof.scrub.credentials import without_credentials
from nsysprof.scrub.private_text import REMOVED, assignments, without_addresses, without_paths, without_private_keys
from nsysprof.scrub.report_copy import Key, ReportCopy, string_references
from nsysprof.scrub.secrets import Secrets, environment_secrets

_UNKNOWN = {name: f"{name} unknown to nsysprof" for name in ("tables", "columns", "properties")}
Form = Literal["name", "fact", "text"]
"""The form of a value decides what is removed. A name loses credentials and known secrets. A fact about hardware also
loses ids. A text loses all private data."""


@dataclass(frozen=True)
class ScrubWork:
    """A copy while it is scrubbed: the secrets and variables known so far, and removed data.

    ``keep`` and ``names`` as in `scrub_report`; ``unknown`` has the names of items that were removed because they are
    unknown to nsysprof; ``kept`` has the patterns of ``keep`` that match an item.
    """

    copy: ReportCopy
    keep: Sequence[str] = ()
    names: bool = False
    secrets: Secrets = field(default_factory=Secrets)
    variables: set[tuple[bytes, bytes]] = field(default_factory=set)
    removed: Counter[str] = field(default_factory=Counter)
    unknown: dict[str, list[str]] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)

    def keeps(self, *names: str) -> bool:
        """Return whether ``keep`` matches one of the names of an unknown item."""
        asked = {pattern for pattern in self.keep for name in names if matches(name, [pattern])}
        self.kept.update(asked)
        return bool(asked)

    def drops(self, kind: str, name: str) -> None:
        """Record that an item was removed because it is unknown to nsysprof."""
        names = self.unknown.setdefault(_UNKNOWN[kind], [])
        if name not in names:
            names.append(name)

    def learn(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Treat environment variables as secrets."""
        for name, value in pairs:
            self.variables.add((name, value))
            self.secrets.add(environment_secrets(name, value))

    def cleaned(self, texts: set[bytes], form: Form) -> dict[bytes, bytes]:
        """Clean texts; return the changed texts with their new content."""
        redactor = self.secrets.redactor(texts, sure=form != "text")
        new: dict[bytes, bytes] = {}
        for text in sorted(texts):  # labels are numbered as they come
            clean = text
            if form == "text" and b"\0" in text and assignments(text):
                self.learn(assignments(text))
                clean = REMOVED
            elif form == "text":
                clean, paths = without_paths(without_private_keys(text))
                self.removed["paths cut down to the file name"] += paths
            elif form == "fact":
                clean = without_private_keys(text)
            clean, count = without_credentials(redactor(clean), same_length=b"\0" in clean)
            self.removed["credentials, mail addresses and hosts"] += count
            if form != "name":
                clean, count = without_addresses(clean, ids_alone=form == "fact")
                self.removed["addresses and ids"] += count
            if clean != text:
                new[text] = clean
        return new

    def clean_strings(self) -> None:
        """Clean StringIds: unreferenced strings are removed; names of work lose only certain secrets."""
        names, others = string_references(self.copy)
        used = names | others
        # What a program printed may be a gigabyte, and needs not come here; an environment has a NUL early.
        self.copy.connection.create_function("used", 1, lambda id: id in used)
        self.removed["unreferenced strings"] += self.copy.connection.execute(
            f"UPDATE StringIds SET value = '{REMOVED.decode()}' WHERE length(value) > 65536 AND NOT used(id)"
        ).rowcount
        rows = self.copy.texts("StringIds", "value", "id")
        unused = {row for row in rows if row[1] not in names and row[1] not in others}
        blocks = {row for row in rows if row in unused or b"\0" in row[0]}
        for value, _ in blocks:
            self.learn(assignments(value))
        new: dict[Key, bytes] = {row: REMOVED for row in blocks if row in unused or assignments(row[0])}
        self.removed["unreferenced strings"] += sum(value not in (b"", REMOVED) for value, _ in new)
        forms: tuple[tuple[set[int], Form], ...] = ((names, self._form_of_names), (others - names, "text"))
        for ids, form in forms:
            referred = [row for row in rows if row[1] in ids and row not in new]
            cleaned = self.cleaned({value for value, _ in referred}, form)
            new |= {row: cleaned[row[0]] for row in referred if row[0] in cleaned}
        self.copy.rewrite("StringIds", "value", new, "id")

    def clean_column(self, table: str, column: str) -> None:
        """Clean the texts of a column, and overwrite secrets in its binary data."""
        form: Form = "text"
        if is_name(table, column):
            form = self._form_of_names if table.startswith("NVTX_") else "name"
        cleaned = self.cleaned({value for (value,) in self.copy.texts(table, column)}, form)
        self.copy.rewrite(table, column, {(old,): new for old, new in cleaned.items()})
        changed = {}
        for row in self.copy.texts(table, column, kind="blob"):
            blank, count = without_credentials(self.secrets.blank(row[0]), same_length=True)
            self.removed["credentials, mail addresses and hosts"] += count
            if blank != row[0]:
                changed[row] = blank
        self.copy.rewrite(table, column, changed, kind="blob")

    @property
    def _form_of_names(self) -> Form:
        """How the names of ranges and kernels are cleaned."""
        return "text" if self.names else "name"
