"""Credentials of well-known services by their form, and personal data, cut out of any text.

Names of ranges and kernels and JSON hold them, too: no match ends inside of an escape, so that JSON stays JSON.
"""

import re

_KEY = (
    rb"(?i:pass(?:word|wd|phrase|code)|secret|api[_-]?key|credentials?"
    rb"|(?:access|auth|private|account|secret)[_-]?(?:key|token))(?:[_-]?(?i:access))?(?:[_-]?(?i:key))?"
)
_IS, _QUOTE = rb"\\?[\"']?\s*[=:](?!:)\s*", rb"\\?[\"']"
_COMMON_ENDS = rb"com|net|org|edu|gov"
_LOCAL_ENDS = rb"internal|local|lan|corp|cloud|intranet"  # words of programs, too: a host has a number or a dash
# What stands in every text that matches, in lower case; and the form. What its first group matches stays.
_FORMS: tuple[tuple[tuple[bytes, ...], bytes], ...] = (
    (
        (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
        rb"()(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,})",
    ),
    ((b"hf_",), rb"()(?<![A-Za-z0-9])hf_[A-Za-z0-9]{16,}"),
    ((b"sk-",), rb"()(?<![A-Za-z0-9-])sk-(?=[\w-]{0,99}\d)[\w-]{16,}"),
    ((b"xox",), rb"()(?<![A-Za-z0-9])xox[a-z]-[\w-]{8,}"),
    ((b"glpat-", b"nvapi-"), rb"()(?<![A-Za-z0-9-])(?:glpat|nvapi)-[\w-]{16,}"),
    ((b"akia", b"asia"), rb"()(?<![A-Za-z0-9])A[KS]IA[A-Z0-9]{12,}"),
    ((b"aiza",), rb"()(?<![A-Za-z0-9])AIza[\w-]{30,}"),
    ((b"eyj",), rb"()(?<![A-Za-z0-9])eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?"),
    ((b"-----begin",), rb"()-----BEGIN [A-Z0-9 ]+-----(?:[\w+/=\s:,.-]|\\[nrt])*"),
    ((b"bearer",), rb"((?i:bearer)[\s:=]+)[\w.~+/=-]{8,}"),
    (
        (b"token",),
        rb"((?i:token)%b)(?=[\w+/=.-]{0,99}\d)(?=[\d+/=.-]{0,99}[A-Za-z_])[\w+/=.-]{16,}" % (_IS + _QUOTE + b"?"),
    ),
    (
        (b"pass", b"secret", b"key", b"token", b"credential"),
        rb"(%b%b(?P<quote>%b))(?!\[)(?:(?!(?P=quote))(?:\\.|[^\\\r\n])){1,500}" % (_KEY, _IS, _QUOTE),
    ),
    ((b"pass", b"secret", b"key", b"token", b"credential"), rb"(%b%b)[^\s\"',;&\\}\)>\[\]]+" % (_KEY, _IS)),
    ((b"://",), rb"(://)[^\s/:@\"'\\]+:[^\s/@\"'\\]+(?=@)"),
    (
        (b"@",),
        rb"()(?<![\w.+%-])[\w.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)+(?!(?:py|cu|cuh|so|h|hpp|c|cpp)\b)[A-Za-z]{2,24}(?![\w-])",
    ),
    ((b"gpu-", b"mig-"), rb"()(?<![A-Za-z0-9])(?:MIG-GPU|GPU|MIG)-[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{2,12})+(?:/\d+)*"),
    ((b"hostname",), rb"((?i:hostname)%b)[\w.-]{2,}" % (_IS + _QUOTE + b"?")),
    (
        tuple(b"." + end for end in _COMMON_ENDS.split(b"|")),
        rb"()(?<![\w.-])(?i:(?:[a-z0-9][a-z0-9-]{0,62}\.)+(?:%b))(?![\w-]|\.\w)" % _COMMON_ENDS,
    ),
    (
        tuple(b"." + end for end in _LOCAL_ENDS.split(b"|")),
        rb"()(?<![\w.-])(?=[\w.]{0,99}[\d-])(?i:(?:[a-z0-9][a-z0-9-]{0,62}\.)+(?:%b))(?![\w-]|\.\w)" % _LOCAL_ENDS,
    ),
)
_CREDENTIALS = tuple((hints, re.compile(form)) for hints, form in _FORMS)
_WIDE = re.compile(rb"(?:[\t\n\r\x20-\x7e]\0){8,}")


def without_credentials(text: bytes, *, same_length: bool = False) -> tuple[bytes, int]:
    """Cut credentials, mail addresses, hosts with a domain and ids of GPUs out of any text; returns also how many.

    With ``same_length`` they are overwritten, in UTF-8 and UTF-16: for binary data.
    """
    low, count = text.lower(), 0

    def cut(match: re.Match[bytes]) -> bytes:
        nonlocal count
        count += 1
        return match[1] + (b"x" * (match.end() - match.end(1)) if same_length else b"[credential]")

    def wide(match: re.Match[bytes]) -> bytes:
        nonlocal count
        narrow, more = without_credentials(match[0][::2], same_length=True)
        count += more
        return b"".join(b"%c\0" % char for char in narrow) if more else match[0]

    for hints, form in _CREDENTIALS:
        if any(hint in low for hint in hints):
            text = form.sub(cut, text)
    return (_WIDE.sub(wide, text) if same_length else text), count


def lines_without_credentials(text: bytes) -> bytes:
    """Cut the same out of long text in which none takes more than a line, such as JSON; most lines need no look."""
    low, lines = text.lower(), {}
    for hints, _ in _CREDENTIALS:
        for hint in hints:
            at = low.find(hint)
            while at >= 0:
                begin, end = low.rfind(b"\n", 0, at) + 1, low.find(b"\n", at) + 1 or len(low)
                lines[begin] = end
                at = low.find(hint, end)
    parts, at = [], 0
    for begin, end in sorted(lines.items()):
        parts += [text[at:begin], without_credentials(text[begin:end])[0]]
        at = end
    return b"".join([*parts, text[at:]])
