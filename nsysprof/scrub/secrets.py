"""Find the secrets of a machine and its user, and remove them from text.

All text is bytes, because reports contain environment variables that are not UTF-8. A *sure* secret has the form of a
secret (a path of at least two folders, a credential, a long value with digits). It is removed everywhere. Other
secrets, such as the user ``root`` or the host ``gpu``, may be ordinary words. They are removed from text that nsys or
the system wrote, but never from names of kernels and ranges.
"""

import getpass
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nsysprof.scrub.credentials import without_credentials
from nsysprof.scrub.private_text import REMOVED, Kind, is_absolute, is_system, kind_of_property

# Characters that a name of a host or user, a credential, another value and one that is surely a secret must have.
DISTINCT_FROM, CREDENTIAL_FROM, WEAK_FROM, SURE_FROM = 5, 6, 8, 16

_VARIABLES = {
    **dict.fromkeys((b"HOST", b"HOSTNAME", b"COMPUTERNAME", b"SLURMD_NODENAME"), Kind.HOST),
    **dict.fromkeys((b"USER", b"USERNAME", b"LOGNAME", b"SUDO_USER"), Kind.USER),
    **dict.fromkeys((b"HOME", b"USERPROFILE"), Kind.HOME),
    **dict.fromkeys((b"PWD", b"OLDPWD", b"INIT_CWD"), Kind.FOLDER),
}
_CREDENTIAL = re.compile(rb"(?i)(^|_)(\w*(token|secret|passw|credential|apikey|cookie)\w*|key|pass|auth|pwd)(_|$)")
_PLAIN_ROOTS = {b"tmp", b"var", b"opt", b"home", b"users", b"mnt", b"media", b"srv", b"run", b"data"}
# Hosts and users that are also words: cut only where quotes or an @ show that they are names.
_COMMON = re.compile(
    rb"(?i)(admin(istrator)?|build(er)?|compute|debian|default|docker|guest|jenkins|linux|local|localhost|ncu|nsys"
    rb"|nsysprof|nvidia|python|runner|server|service|system|tester|torch|ubuntu|users?|worker|workstation)\d*"
)
_RANGES = ("range", "order")  # the keys of records under which ranges are named
_W = rb"[\w\x80-\xff]"  # part of a word; what is not ASCII counts


@dataclass(frozen=True)
class Secret:
    """A text to remove, its kind (``environment``, ``host`` …), and whether it is a sure secret."""

    text: bytes
    kind: str
    sure: bool = True


@dataclass
class Secrets:
    """Secrets, the label that replaces each secret, and the number of removals of each kind."""

    known: dict[bytes, Secret] = field(default_factory=dict)
    labels: dict[bytes, bytes] = field(default_factory=dict)
    cuts: Counter[str] = field(default_factory=Counter)

    def add(self, secrets: Iterable[Secret]) -> None:
        """Add secrets. If a text occurs in several places, it keeps its first kind. It is a sure secret if it is one in
        at least one place.
        """
        for secret in secrets:
            first = self.known.setdefault(secret.text, secret)
            if secret.sure and not first.sure:
                self.known[secret.text] = replace(first, sure=True)

    def redactor(self, texts: Iterable[bytes], *, sure: bool) -> Callable[[bytes], bytes]:
        """Return a function that replaces secrets by labels; it searches only for secrets that occur in the texts.

        With ``sure``, only sure secrets are removed. A secret must end at the end of a word or path component:
        ``/home/al`` is not in ``/home/alice``.
        """
        among = b"\n".join(texts).lower()
        wanted = [one for one in self.known.values() if (one.sure or not sure) and _probe(one.text) in among]
        if not wanted:
            return lambda text: text
        wanted.sort(key=lambda one: (-len(one.text), one.text))
        pattern = re.compile(b"|".join(b"(%s)" % _expression(one) for one in wanted))

        def label(match: re.Match[bytes]) -> bytes:
            return self._label(wanted[(match.lastindex or 0) - 1])

        return lambda text: pattern.sub(label, text)

    def blank(self, raw: bytes) -> bytes:
        """Overwrite every sufficiently long secret in binary data (in UTF-8 and UTF-16), keeping the length."""
        for one in self.known.values():
            if len(one.text) < CREDENTIAL_FROM:
                continue
            for form in (one.text, one.text.decode("utf-8", "replace").encode("utf-16-le")):
                if form in raw:
                    self.cuts[one.kind] += raw.count(form)
                    raw = raw.replace(form, b"x" * len(form))
        return raw

    def _label(self, secret: Secret) -> bytes:
        """Return ``[home]`` for the first of its kind, ``[home 2]`` for the next: what differed still does."""
        self.cuts[secret.kind] += 1
        if secret.text not in self.labels:
            number = 1 + sum(text.startswith(f"[{secret.kind}".encode()) for text in self.labels.values())
            name = secret.kind if number == 1 else f"{secret.kind} {number}"
            self.labels[secret.text] = f"[{name}]".encode()
        return self.labels[secret.text]


def secrets_of(kind: str, text: bytes) -> Iterator[Secret]:
    """Find the secrets in a value of this kind; a value that is too common contains none."""
    if kind == Kind.ID:
        text = text.strip().removeprefix(b"GPU-")
        if len(text) >= WEAK_FROM and len(set(text)) > 2:
            yield Secret(text, kind)
        return
    text = text.strip().rstrip(b"\\/") if is_absolute(text.strip()) else text.strip()
    if is_absolute(text):
        folders = [part for part in re.split(rb"[\\/]+", text) if part]
        plain = len(folders) < 2 and (not folders or folders[0].lower() in _PLAIN_ROOTS)
        if not plain and not is_system(text) and text not in (b"/var/tmp", b"/dev/shm"):
            path = kind if kind in (Kind.HOME, Kind.FOLDER) else Kind.PATH
            yield Secret(text, path, len(folders) >= 2)
    elif kind in (Kind.HOST, Kind.USER):
        short = text.partition(b".")[0]
        for name in dict.fromkeys((text, short) if kind == Kind.HOST and not short.isdigit() else (text,)):
            if re.fullmatch(rb"[\w.@\\ \x80-\xff-]{2,253}", name):
                sure = re.search(rb"[\d.-]", name) and not _COMMON.fullmatch(name)
                yield Secret(name, kind, bool(sure) and len(name) >= DISTINCT_FROM)
    elif len(text) >= WEAK_FROM and not re.fullmatch(rb"[\d\s.,:+-]*", text):
        mixed = re.search(rb"\d", text) and re.search(rb"[A-Za-z]", text) and not re.search(rb"\s", text)
        yield Secret(text, kind, bool(mixed) and len(text) >= SURE_FROM and kind == Kind.ENVIRONMENT)


def environment_secrets(name: bytes, value: bytes) -> Iterator[Secret]:
    """Find the secrets in an environment variable: its value, and each folder in a list of folders."""
    kind = _VARIABLES.get(name.upper(), Kind.ENVIRONMENT)
    if _CREDENTIAL.search(name) and len(value.strip()) >= CREDENTIAL_FROM and not is_absolute(value):
        yield Secret(value.strip(), Kind.ENVIRONMENT)
        return
    folders = re.split(rb"[:;]" if value.startswith(b"/") else rb";", value)
    if kind in (Kind.HOME, Kind.FOLDER) or len(folders) == 1:
        yield from secrets_of(kind, value)
    for part in (*folders, *re.split(rb"[:;,\s]+", value)):
        if is_absolute(part):
            yield from secrets_of(Kind.PATH, part)


def machine_secrets() -> Secrets:
    """Collect this machine's secrets that a record may contain: home and working folder, host, user, credentials."""
    environ = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    values = [(_VARIABLES[name], value) for name, value in environ.items() if name in _VARIABLES]
    values.append((Kind.HOST, os.fsencode(socket.gethostname())))
    for kind, ask in ((Kind.FOLDER, Path.cwd), (Kind.HOME, Path.home), (Kind.USER, getpass.getuser)):
        try:
            values.append((kind, os.fsencode(ask())))
        except (OSError, KeyError, RuntimeError):  # a folder that was removed, a user without an entry
            continue
    secrets = Secrets()
    for kind, value in values:
        secrets.add(secrets_of(kind, value))
    for name, value in environ.items():
        if _CREDENTIAL.search(name):
            secrets.add(environment_secrets(name, value))
    return secrets


def redacted(value: Any, secrets: Secrets) -> Any:
    """Remove secrets and credentials from the texts and keys of a JSON value (dicts, lists, texts); return a new value.

    From keys and range names, only *sure* secrets are removed. A text that is exactly the name of a host or user stays
    unless its key is private: ``"backend": "math"`` is no user.
    """
    texts = list(_texts(value))
    sure, every = (secrets.redactor(texts, sure=only) for only in (True, False))
    unsure = [one for one in secrets.known.values() if one.kind in (Kind.HOST, Kind.USER) and not one.sure]
    words = {one.text.decode("utf-8", "surrogateescape") for one in unsure}

    def clean(inner: Any, key: str, private: bool) -> Any:
        if isinstance(inner, str):
            return _cut(inner, sure if key in _RANGES or (inner in words and not private) else every)
        if isinstance(inner, dict):
            return {
                _cut(name, sure): clean(one, name, private or kind_of_property(name) is not None)
                for name, one in inner.items()
            }
        return [clean(one, key, private) for one in inner] if isinstance(inner, (list, tuple)) else inner

    return clean(value, "", private=False)


def _texts(value: Any) -> Iterator[bytes]:
    if isinstance(value, str):
        yield value.encode("utf-8", "surrogatepass")
    elif isinstance(value, (dict, list, tuple)):
        for inner in value:
            yield from _texts(inner)
        if isinstance(value, dict):
            yield from _texts(list(value.values()))


def _cut(text: str, redactor: Callable[[bytes], bytes]) -> str:
    # The first is how Python holds names that are not UTF-8, the second what JSON may hold beside them.
    for errors in ("surrogateescape", "surrogatepass"):
        try:
            return without_credentials(redactor(text.encode("utf-8", errors)))[0].decode("utf-8", errors)
        except UnicodeError:
            continue
    return REMOVED.decode()


def _probe(text: bytes) -> bytes:
    """Return the longest word of a secret: where that does not occur, however spelled, the secret does not."""
    return max(re.findall(rb"[A-Za-z0-9_]+", text), key=len, default=b"").lower()


def _expression(secret: Secret) -> bytes:
    """Compose the regular expression that finds a secret, as it is and as JSON spells it."""
    text = secret.text
    if secret.kind == Kind.PROCESS:
        return rb"(?<=[\"'])" + re.escape(text) + rb"(?=[\"'])"
    if is_absolute(text):
        drive = not text.startswith(b"/")
        slash = rb"(?:\\{1,2}|/)" if drive else rb"(?:\\?/)"
        body = slash.join(re.escape(part) for part in re.split(rb"[\\/]+", text))
        before = b"" if secret.sure and not drive else rb"(?<![\w.~\x80-\xff-])"
        return before + (b"(?i:%s)" % body if drive else body) + rb"(?![\w\x80-\xff-]|\.\w)"
    spelled = {json.dumps(text.decode("utf-8", "surrogateescape"), ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    forms = {text, *(form.encode("utf-8", "surrogateescape") for form in spelled)}
    body = b"|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
    if secret.kind in (Kind.HOST, Kind.USER) and (len(text) < DISTINCT_FROM or _COMMON.fullmatch(text)):
        return rb"(?<![^\"'@=])(?:%s)(?![^\"'@:])" % body
    before = rb"(?<!%s)" % _W if re.match(_W, text) else b""
    after = rb"(?!%s)" % _W if re.match(_W, text[-1:]) else b""
    return before + b"(?:%s)" % body + after
