"""Remove credentials of well-known services, recognized by their format, and personal data from any text.

Credentials also occur in names of ranges and kernels, and in JSON. No match ends inside an escape sequence, so JSON
stays valid.
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
# How tokens of known services begin, which are random from there on; none of these is a word of a program.
_SERVICES = rb"""
CCIPAT_ CFPAT- CLOJARS_ FLWSECK- FLWSECK_TEST- HRKU- NRAK- NRII- NRJS- PMAK- aio_ amzn.mws. api_org_ atlasv1. bkua_
csk- dckr_oat_ dckr_pat_ ddp_ doo_v1_ dop_v1_ dor_v1_ dp.ct. dp.pt. dp.st. dt0c01. dt0s01. duffel_live_ duffel_test_
esecret_ figd_ fio-u- fm1a_ fm1r_ fm2_ gho_ ghp_ ghr_ ghs_ ghu_ glc_ glffct- glimt- gloas- glsa_ gsk_ gta_ hf_ ico-
jina_ lin_api_ lin_oauth_ lsv2_pt_ lsv2_sk_ nfp_ npm_ ntn_ ops_ pat-eu1- pat-na1- pat. pcsk_ phc_ phx_ pk_live_
pk_test_ pnb_ pnu_ pscale_oauth_ pscale_pw_ pscale_tkn_ pul- r8_ rdme_ rk_live_ rk_test_ rnd_ rpa_ rubygems_ rzp_live_
rzp_test_ sb_secret_ sbp_ sdk- secret_ sgp_ sgp_local_ sha256~ shippo_live_ shippo_test_ shpat_ shpca_ shppa_ shpss_
sk_ sk_live_ sk_test_ sl. sntrys_ sntryu_ sq0atp- sq0csp- sqa_ sqp_ squ_ t1. tfp_ tk-eu- tk-us- tskey-api- tskey-auth-
tskey-client- v1.0- vercel_blob_rw_ wandb_v1_ whsec_ xkeysib-
""".split()
_DIGIT, _CASES = rb"(?=[A-Za-z]{0,20}\d)", rb"(?=[a-z\d]{0,30}[A-Z])(?=[A-Z\d]{0,30}[a-z])"
_RANDOM = rb"(?:%b[A-Za-z0-9]{12,}|%b[A-Za-z0-9]{24,}|%b[\w-]{30,})" % (_DIGIT, _CASES, rb"(?=[\w-]{0,29}\d)" + _CASES)
_UUID = rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
# In each of those tokens: a search for it takes as long as one for a few hints.
_RUN = re.compile(rb"[_.~:-](?:%b[A-Za-z0-9]{12,}|[A-Za-z0-9]{24,})" % _DIGIT)
# What stands in every match, in lower case ("": a `_RUN`), and the form. What its first group matches stays.
_FORMS: tuple[tuple[bytes, bytes], ...] = (
    (
        b"",
        rb"()(?<![A-Za-z0-9])(?:%b)(?:(?:\w{1,8}[_-])?%b|%b)[\w~=%%-]*(?:\.[\w-]{16,})*"
        % (b"|".join(map(re.escape, _SERVICES)), _RANDOM, _UUID),
    ),
    (b"", rb"()(?<![A-Za-z0-9])(?:a[ks]-|pa-|fw_)%b%b[A-Za-z0-9]{20,}" % (_DIGIT, _CASES)),
    (b"", rb"(AC[0-9a-f]{32}:|(?<!\w)1/\d{16}:|oauth:|github_pat_)\w{20,}"),
    (b"", rb"()(?<!\w)(?:M[TUZ][\w-]{20,40}\.[\w-]{6}\.[\w-]{27,}|[\w-]{3}\dQ~[\w~.-]{31,34}|pat\w{14}\.[0-9a-f]{64})"),
    (b"access_token$", rb"()access_token\$\w{1,20}\$\w{1,40}\$[0-9a-f]{32}"),
    (b"key- -us dapi live_ test_", rb"()(?<!\w)(?:(?:(?:pub)?key-|dapi|live_|test_)[0-9a-f]{32,}|[0-9a-f]{32}-us\d)"),
    (
        b"akcp ltai akid aqvn atbb atctt3 atta ezak eztk eaaa eaac gr1348941 cmvmdgtu dg9ro absk eyjrijoi aaaaaaaaa"
        b" 1//0 munge: :apa91b",
        rb"()(?<![A-Za-z0-9])(?:AKCp|LTAI|AKID|AQVN|ATBB|ATCTT3|ATTA|EZ[AT]K|EAA[AC]|GR1348941|cmVmdGtu|dG9rO|ABSK"
        rb"|eyJrIjoi|AAAAAAAAA|1//0|MUNGE:|[\w-]{11}:APA91b)(?=[\w=%+/-]{0,40}\d)[\w=%+/-]{16,}",
    ),
    (
        b"api- oy2 cio a3- 00d",
        rb"()(?<!\w)(?:API-[A-Z0-9]{25,}|oy2[a-z0-9]{43}|cio[A-Za-z0-9]{32}|A3(?:-[A-Z0-9]{5,6}){6}"
        rb"|00D\w{12,15}![\w.]{40,})(?!\w)",
    ),
    # hashes of passwords can be guessed from
    (b"$", rb"()\$(?:2[aby]|[156y]|apr1|argon2\w*|scrypt|pbkdf2[\w-]*)\$[\w./$,=+-]{20,}"),
    (b"response= nonce=", rb"((?i:response|nonce)=%b)[0-9a-f]{32,}" % _QUOTE),
    (b"ssws splunk ntlm", rb"((?i:ssws|splunk|ntlm) )[\w+/=-]{16,}"),
    # of command lines and ~/.netrc
    (b"-u --user", rb"((?<![\w-])(?:-u|--user)[ =\"',]+[\w.@-]+:)[^\s\"'\\/:\[]{6,}"),
    (b"sshpass mysql", rb"((?:sshpass|mysql\w{0,9}(?: [^\n\[]{0,99})?) -p ?)[^\s\"'\\\[-][^\s\"'\\]{5,}"),
    (b"login", rb"(login\s{1,9}\S{1,99}\s{1,9}password\s{1,9})[^\s\"'\\\[]+"),
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
    (
        b"key session _pat auth pass",
        rb"((?<![A-Za-z])(?i:key(?:-data)?|session|pat|auth|pass)%b)(?:base64:)?%b[A-Za-z0-9+/=]{20,}"
        % (_IS + _QUOTE + b"?", _MIXED),
    ),
    (b"token", rb"((?i:token)%b)(?=[a-z]*[A-Z])(?=[A-Z]*[a-z])[A-Za-z]{16,}(?!\w)" % (_IS + _QUOTE + b"?")),
    (b"token", rb"((?<![a-z])TOKEN%b)(?=[\w+/=.-]{0,99}[A-Za-z])[\w+/=.-]{8,}" % (_IS + _QUOTE + b"?")),
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
    (b"services/ hook workflows/", rb"(/(?i:services|workflows|webhooks?\w*)/)[^\s\"'\\<>\[]{16,}"),
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
    """Remove credentials, mail addresses, hosts with a domain and ids of GPUs from any text; also return the number of
    removals.

    With ``same_length`` (for binary data), matches in UTF-8 and UTF-16 are overwritten.
    """
    low, count, run = text.lower(), 0, _RUN.search(text)

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
        if any(hint in low for hint in hints) or (not hints and run):
            text = form.sub(cut, text)
    return (_WIDE.sub(wide, text) if same_length else text), count


def _names_user(word: bytes) -> bool:
    """Whether it is base64 of ``user:password``, which a word of a program is not."""
    with suppress(ValueError):
        text = b64decode(word, validate=True)
        return b":" in text and text.isascii() and text.decode().isprintable()
    return False


def lines_without_credentials(text: bytes) -> bytes:
    """Do the work of `without_credentials` on long text, such as JSON, line by line; most lines are skipped."""
    lines = text.split(b"\n")
    once = b"\n".join(dict.fromkeys(lines))  # many lines occur again and again
    low, found = once.lower(), set[bytes]()

    def look(at: int) -> int:
        begin, end = low.rfind(b"\n", 0, at) + 1, low.find(b"\n", at)
        end = end if end >= 0 else len(low)
        found.add(once[begin:end])
        return end

    for hint in {hint for hints, _ in _CREDENTIALS for hint in hints}:
        at = low.find(hint)
        while at >= 0:
            at = low.find(hint, look(at))
    for match in _RUN.finditer(once):
        look(match.start())
    cut = {line: without_credentials(line)[0] for line in found}
    return b"\n".join([cut.get(line, line) for line in lines])
