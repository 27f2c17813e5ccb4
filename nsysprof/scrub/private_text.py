"""Find private text by its format: environments, private properties and JSON keys, absolute paths, addresses.

All text is bytes, because reports contain environment variables that are not UTF-8.
"""

import json
import re
from typing import Any

REMOVED = b"[removed]"


class Kind:
    """The kinds of private text; labels of removed text use these words."""

    ENVIRONMENT = "environment"
    HOST = "host"
    USER = "user"
    HOME = "home"
    FOLDER = "working folder"
    PATH = "path"
    COMMAND = "command line"
    PROCESS = "process"
    ID = "id"


# What a property (`PROCESS_0:ENVIRONMENT_VARIABLE`, `Hostname`, `EXPORT_PARAM_INPUT_PATH_ABS`) or a key in JSON holds,
# by its name in lower case without `_`. Seen in reports of 2019 to 2025.
_PROPERTIES = (
    (re.compile(r"environ|envvar"), Kind.ENVIRONMENT),
    (re.compile(r"(host|hostname|devicedisplayname|computername|machinename|nodename|fqdn)$"), Kind.HOST),
    (re.compile(r"(uuid|guid|serial|serialnumber)$"), Kind.ID),
    (re.compile(r"(systemuid|machineid|nicinfo)$|(mac|ip|remote|net|network)(address|addr)$"), Kind.HOST),
    (re.compile(r"(user|username|login|logname|useraccount|email)$"), Kind.USER),
    (re.compile(r"(workingdir|workingdirectory|workdir|currentdir|currentdirectory|cwd|pwd)$"), Kind.FOLDER),
    (re.compile(r"home(dir|directory|path|folder)?$"), Kind.HOME),
    (re.compile(r"argument\d*$|cmdline|commandline|^args?$|^argv$|^arguments$"), Kind.COMMAND),
    (re.compile(r"(file|filename|path|dir|directory|folder)(abs)?$"), Kind.PATH),
)
_ASSIGNMENT = re.compile(rb"[^\s=/\0\"']{1,200}=")
# Folders that every machine has: a path that begins with one is not private.
_SYSTEM = re.compile(
    rb"/(usr|bin|sbin|lib\w*|etc|dev|proc|sys|boot)(/|\Z)|/opt/nvidia(/|\Z)"
    rb"|(?i:[a-z]:[\\/]+(windows|program files( \(x86\))?)([\\/]|\Z))"
)
_PART, _DRIVE_PART = rb"[^\s/\0:;,\"'<>|()\[\]{}=]+", rb"[^\\/:*?\"'<>|;,\r\n\0]+"
# The folders of an absolute path with the slash behind them; of somebody's home the name too, slash or not.
_PATHS = re.compile(
    rb"(?:(?<=file://)|(?<![\w./~\]\x80-\xff-]))(?:"
    rb"/(?:home|Users)/%(part)s/?(?:%(part)s/)*|/(?:%(part)s/)+"
    rb"|(?:[A-Za-z]:|\\\\[\w.-]+)[\\/]{1,2}(?:(?i:users)[\\/]{1,2}%(drive)s[\\/]{0,2})?(?:%(drive)s[\\/]{1,2})*)"
    % {b"part": _PART, b"drive": _DRIVE_PART}
)
# Where no key contains one of these, none is private: most JSON need not be parsed.
_KEYS = re.compile(
    rb"(?i)\"[^\"]*(environ|envvar|host|name|fqdn|uid|machine|info|number|serial|addr|user|log|account|mail|dir|cwd|pwd"
    rb"|home|cmd|command|arg)"
)


_HEX = rb"[0-9A-Fa-f]"
_IDS = (  # UUIDs, MAC addresses, and the ids of InfiniBand's adapters: 4 or 8 times 4 digits
    rb"(?:%(hex)s{8}-(?:%(hex)s{4}-){3}%(hex)s{12}"
    rb"|(?:%(hex)s{2}:){5}(?:%(hex)s{2}:%(hex)s{2}:)?%(hex)s{2}|(?:%(hex)s{4}:){3}(?:(?:%(hex)s{4}:){4})?%(hex)s{4})(?!:\w)"
) % {b"hex": _HEX}
_ADDRESSES = (  # IPv4, and IPv6 of networks that are in use, which "std::a::b" is not
    rb"(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)"
    rb"|(?i:fe80|f[cd]%(hex)s{2}|2%(hex)s{3})(?::%(hex)s{0,4}){2,7}"
) % {b"hex": _HEX}
_AROUND = rb"(?<![\w.:-])(?<!\w/)(?:%b)(?![\w-]|\.\w)"
_ID, _ADDRESS = (re.compile(_AROUND % forms) for forms in (_IDS, _IDS + b"|" + _ADDRESSES))
_LOCAL_ADDRESS = re.compile(rb"127(\.\d+){3}|0\.0\.0\.0")
_NSIGHT = re.compile(rb"(?i)nsight[-_ ]?(?:systems|compute)[-\w ]*[-/\\ ]v?\d[\d.]*(?:[\\/](?:host|target)[-\w]*)*")


def installation(path: bytes) -> bytes | None:
    """Return the product and version in the path of an nsys, or None if the path has none."""
    product = _NSIGHT.search(path)
    return None if product is None else path if is_system(path) else b"[path]/" + product[0]


def without_addresses(text: bytes, *, ids_alone: bool) -> tuple[bytes, int]:
    """Remove network addresses and ids of adapters and GPUs (or only the ids); also return the number of removals."""
    count = 0

    def cut(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if _LOCAL_ADDRESS.fullmatch(match[0]):
            return match[0]
        count += 1
        return b"[address]"

    return (_ID if ids_alone else _ADDRESS).sub(cut, text), count


def is_system(path: bytes) -> bool:
    """Return whether a path begins with a folder that exists on every machine, such as a system folder."""
    return _SYSTEM.match(path) is not None


def is_absolute(path: bytes) -> bool:
    """Return whether a text begins like an absolute path."""
    return re.match(rb"/|[A-Za-z]:[\\/]", path) is not None


def assignments(text: bytes) -> list[tuple[bytes, bytes]]:
    """Parse the variables of an environment: NUL-separated as in the system, or ``A=b;C=d`` as in nsys reports.

    The result is empty if most of the text has another format. A single ``A=b`` counts, because a process may have only
    one variable.
    """
    parts = text.split(b"\0") if b"\0" in text else re.split(rb";(?=[^\s=;/]+=)", text)
    parts = [part for part in parts if part]
    pairs = [part.partition(b"=") for part in parts if _ASSIGNMENT.match(part)]
    return [(name, value) for name, _, value in pairs] if 2 * len(pairs) > len(parts) else []


def kind_of_property(name: str) -> str | None:
    """Return the kind of private text in a property or JSON key with this name, or None if it is not private."""
    plain = name.rpartition(":")[2].lower().replace("_", "").replace(" ", "").replace("-", "")
    return next((kind for pattern, kind in _PROPERTIES if pattern.search(plain)), None)


def without_paths(text: bytes) -> tuple[bytes, int]:
    """Shorten each absolute path, except system paths, to ``[path]/file``; also return their number."""
    if text.startswith(b"/") and not is_system(text) and not re.search(rb"[\n\0]|: ", text):
        folder, _, name = text.rpartition(b"/")  # the path of a module, blanks and all
        if folder and folder not in (b"/home", b"/Users"):
            return b"[path]/" + name, 1
    count = 0

    def cut(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if is_system(match[0]):
            return match[0]
        count += 1
        return b"[path]/"

    return _PATHS.sub(cut, text), count


def private_values(text: bytes) -> list[tuple[str, Any]]:
    """Find the values of private JSON keys, with their kinds; paths are left out, because they are found by their
    format.
    """
    private: list[tuple[str, Any]] = []
    left = [_parsed(text)]
    while left:
        value = left.pop()
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        kinds = [(kind_of_property(name), value[name]) for name in value] if isinstance(value, dict) else []
        private += [(kind, inner) for kind, inner in kinds if kind is not None and kind != Kind.PATH]
    return private


def without_private_keys(text: bytes) -> bytes:
    """Remove private keys from a JSON text; the text is serialized again only if a key is removed."""
    if text[:1] not in (b"{", b"[") or not _KEYS.search(text):
        return text
    value = _parsed(text)
    try:
        public = _public(value)
    except RecursionError:
        return REMOVED  # nobody nests so deep
    if public == value:
        return text
    spelled = json.dumps(public, ensure_ascii=False, separators=(",", ":"))
    try:
        return spelled.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character, escaped in the JSON
        return spelled.encode("utf-8", "replace")


def _public(value: Any) -> Any:
    if isinstance(value, list):
        return [_public(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _public(inner)
        for name, inner in value.items()
        # numbers are not private: `user` may be a time
        if kind_of_property(name) in (None, Kind.PATH) or isinstance(inner, (int, float, type(None)))
    }


def _parsed(text: bytes) -> Any:
    if text[:1] not in (b"{", b"["):
        return None
    try:
        return json.loads(text.decode("utf-8", "surrogateescape"), strict=False)
    except (ValueError, RecursionError):
        return None
