"""Remove credentials of well-known services, recognized by their form, and personal data from any text.

They also occur in names of ranges and kernels, and in JSON: no match ends inside an escape, so JSON stays valid.
"""

import re
from base64 import b64decode
from contextlib import suppress

_KEY = (
    rb"(?i:(?:pass(?:word|wd|phrase|code)|passwort|secret|api[_-]?key|credentials?"
    rb"|(?:access|auth|private|account|secret|signing|encryption|license|ssh)[_-]?(?:key|token)"
    rb"|(?:refresh|id|session|csrf|bearer)[_-]?token)(?:[_-]?\w{1,20})?)"
)
_QUOTE = rb"\\?[\"']"
_IS = rb"\\?[\"']?\s*(?:[:=]=|=>|[=:](?!:)|%3[AaDd]|\\u003[AaDd]|\sis\s|>(?=[^<>\s]{1,99}</))\s*"
_WORDS = b"pass secret key token credential"  # of `_KEY`
_MIXED = rb"(?=[\w+/=.-]{0,99}\d)(?=[\d+/=.-]{0,99}[A-Za-z_])"
_COMMON_ENDS = rb"com|net|org|edu|gov"
_LOCAL_ENDS = rb"internal|local|lan|corp|cloud|intranet"  # words of programs, too: a host has a number or a dash
_OTHER_ENDS = rb"io|ai|dev|tech|info|eu|de|fr|ch|at|nl|se|dk|uk|ca|us|au|jp|cn|kr|in|br|mil"  # a host has a dash
_HOST = rb"(?i:(?:[a-z0-9][a-z0-9-]{0,62}\.)+(?:%b))(?![\w-]|\.\w)"
# What stands in every text that matches, in lower case; and the form. What its first group matches stays.
_FORMS: tuple[tuple[bytes, bytes], ...] = (
    (b"github_pat_", rb"()(?<![A-Za-z0-9])github_pat_\w{16,}"),
    (
        b"ghp_ gho_ ghu_ ghs_ ghr_ hf_ npm_ api_org_ r8_ gsk_ dckr_pat_ dop_v1_ lin_api_ shpat_ _live_ _test_ whsec_",
        rb"()(?<![A-Za-z0-9])(?:gh[pousr]|hf|npm|api_org|r8|gsk|dckr_pat|dop_v1|lin_api|shpat|[rsp]k_(?:live|test)|whsec)"
        rb"_[A-Za-z0-9]{16,}",
    ),
    (
        b"glpat- gldt- glrt- glft- glcbt- glptt- glsoat- glagent- nvapi- pypi- gocspx- pplx- xai- tvly- age-secret",
        rb"()(?<![A-Za-z0-9-])(?:gl(?:pat|dt|rt|ft|cbt|ptt|soat|agent)|nvapi|pypi|GOCSPX|pplx|xai|tvly|AGE-SECRET-KEY)"
        rb"-(?=[\w-]{0,99}[A-Z\d])[\w-]{16,}",
    ),
    (b"sk-", rb"()(?<![A-Za-z0-9-])sk-(?:(?=[\w-]{0,99}\d)[\w-]{16,}|[A-Za-z0-9]{32,})"),
    (b"xox xapp-", rb"()(?<![A-Za-z0-9])(?:xox[a-z]|xapp)-[\w-]{8,}"),
    (b"ya29. hvs. hvb. sg.", rb"()(?<![\w.])(?:(?:ya29|hv[sb])\.|SG\.[\w-]{16,}\.)[\w-]{16,}"),
    (b"atatt3 aiza", rb"()(?<![A-Za-z0-9])(?:AIza|ATATT3)[\w=-]{20,}"),
    (b"akia asia abia acca aroa aida", rb"()(?<![A-Za-z0-9])(?:A[KSB]IA|A(?:CC|RO|ID)A)[A-Z0-9]{12,}"),
    (b":aa", rb"()(?<!\w)\d{8,10}:AA[\w-]{30,}"),
    (b"eyj", rb"()(?<![A-Za-z0-9])eyJ[\w-]{6,999}\.[\w-]{4,}(?:\.[\w-]*)?"),
    (b"-----begin", rb"()-----BEGIN [A-Z0-9 ]+-----(?:[\w+/=\s:,.-]|\\[nrt])*"),
    (b"private-lines", rb"(Private-Lines: \d+)(?:[\w+/=\s]|\\[nrt])+"),
    (b"aaaa b3blbnnz", rb"()(?<!\w)(?:AAAA[A-Z]3Nz|AAAAE2Vj|b3BlbnNzaC1rZX)[\w+/=]+"),
    (b"bearer", rb"((?i:bearer)(?:[\s:=+\"']|\\\"|%20)+)[\w.~+/=-]{8,}"),
    (b"basic", rb"((?i:basic)(?:[\s:=+]|%20)+)(?P<basic>[A-Za-z0-9+/]{4,}={0,2})(?![\w+/=])"),
    (
        b"authorization",
        rb"((?i:authorization)%b(?:%b)?)(?![\s\[]|(?i:bearer|basic)\W)(?:\\.|[^\\\r\n\"'])+" % (_IS, _QUOTE),
    ),
    (b"cookie", rb"((?i:cookie)%b(?:%b)?)(?![\s\[])(?:\\.|[^\\\r\n\"'])+" % (_IS, _QUOTE)),
    (
        b"token key session sid",
        rb"((?:(?i:token|session[_-]?id|sid)|(?<![A-Za-z])KEY)%b)%b[\w+/=.-]{16,}" % (_IS + _QUOTE + b"?", _MIXED),
    ),
    (b"_token", rb"([A-Z]_TOKEN%b)(?=[\w+/=.-]{0,99}[A-Za-z])[\w+/=.-]{8,}" % (_IS + _QUOTE + b"?")),
    (_WORDS, rb"(%b%b(?P<quote>%b))(?!\[)(?:(?!(?P=quote))(?:\\.|[^\\\r\n])){1,500}" % (_KEY, _IS, _QUOTE)),
    (_WORDS, rb"(%b%b)[^\s\"',;&<\\}\)>\[\]]+" % (_KEY, _IS)),
    # options, words of a list, and files such as ~/.netrc: a value that looks like one
    (
        _WORDS,
        rb"((?:%b|--[\w-]{0,20}(?i:token|key)|(?i:token))[\s\"',]+)(?=[\w+/=.!@$-]{0,99}\d)(?=[\w+/=.!@$-]{0,99}[A-Za-z])"
        rb"[A-Za-z0-9+/=.!@$-]{8,}(?!\w)" % _KEY,
    ),
    (
        b"pwd pass",
        rb"((?:(?<![A-Za-z])(?i:pwd)|(?<![^?&;,\"'{])(?i:pass))%b)%b(?![/~$]|\w:)[\w+/=.!@$-]{6,}" % (_IS, _MIXED),
    ),
    (b"wandb", rb"((?i:wandb)[\w\s:=\"'-]{0,20}?)(?<![0-9a-f])[0-9a-f]{40}(?!\w)"),
    (
        b"aws",
        rb"((?i:aws)[^\r\n\\]{0,40}?)(?<![\w+/])(?=[a-z+/A-Z]{0,39}\d)(?=[a-z\d+/]{0,39}[A-Z])[A-Za-z0-9+/]{40}(?![\w+/=])",
    ),
    # of URLs: who asks, what is asked (it may be signed), and where a message goes
    (b"://", rb"(://)(?!\[)(?:[^\s/@\"'\\]+|[^\s/:@\"'\\]*:(?!\d+/)[^\s@\"'\\]{1,99})(?=@)"),
    (b"%3a%2f%2f", rb"((?i:%3A%2F%2F))[\w.~+%-]{1,99}?(?=%40)"),
    (b"://", rb"(://[^\s?\"'\\<>]{1,500}\?)(?!\[)[^\s\"'\\<>]+"),
    (b"sig= signature= code= key= token=", rb"([?&](?i:sig|signature|code|key|[\w-]*token)=)[^\s&\"'\\<>\[]{8,}"),
    (b"services/ hook", rb"(://[^\s?\"'\\<>]{1,500}/(?i:services|webhooks?\w*)/)[^\s\"'\\<>\[]{16,}"),
    (
        b"@ %40",
        rb"()(?<![\w.+%-])[\w.+%-]{1,64}(?:@|%40)(?:[A-Za-z0-9-]{1,63}\.)+(?!(?:py|cu|cuh|so|h|hpp|c|cpp)\b)[A-Za-z]{2,24}"
        rb"(?![\w-])",
    ),
    (b"gpu- mig-", rb"()(?<![A-Za-z0-9])(?i:MIG-GPU|GPU|MIG)-[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{2,12})+(?:/\d+)*"),
    (b"hostname", rb"((?i:hostname)%b)[\w.-]{2,}" % (_IS + _QUOTE + b"?")),
    *(
        (b"." + ends.replace(b"|", b" ."), rb"()(?<![\w.-])" + ahead + _HOST % ends)
        for ends, ahead in (
            (_COMMON_ENDS, b""),
            (_LOCAL_ENDS, rb"(?=[\w.]{0,99}[\d-])"),
            (_OTHER_ENDS, rb"(?=[\w.]{0,99}-)"),
        )
    ),
)
_CREDENTIALS = tuple((hints.split(), re.compile(form)) for hints, form in _FORMS)
_WIDE = re.compile(rb"(?:[\t\n\r\x20-\x7e]\0){8,}")


def without_credentials(text: bytes, *, same_length: bool = False) -> tuple[bytes, int]:
    """Remove credentials, mail addresses, hosts with a domain and ids of GPUs from any text; also return their number.

    With ``same_length`` (for binary data), they are overwritten, in UTF-8 and UTF-16.
    """
    low, count = text.lower(), 0

    def cut(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if match.lastgroup == "basic" and not _names_user(match["basic"]):
            return match[0]
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


def _names_user(word: bytes) -> bool:
    """Whether it is base64 of ``user:password``, which a word of a program is not."""
    with suppress(ValueError):
        text = b64decode(word, validate=True)
        return b":" in text and text.isascii() and text.decode().isprintable()
    return False


def lines_without_credentials(text: bytes) -> bytes:
    """Remove the same from long text in which no match spans lines, such as JSON; most lines are skipped."""
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
