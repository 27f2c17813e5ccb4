"""Credentials planted wherever texts of a program come to stand: none is left in any byte of what may be passed on."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from nsysprof.scrub.credentials import without_credentials
from nsysprof.scrub.report_copy import copy_trace
from nsysprof.scrub.scrub import scrub_report
from nsysprof.scrub.secrets import Secrets, redacted
from tests.conftest import MakeTrace
from tests.kit.kineto import annotation, launch, operator
from tests.kit.trace import Diagnostic, Items, Mark, Process, Range, Row, ThreadName, launch_kernel

# A text with a credential in it, and the part that must not stay. None is one: all are made up.
TEXTS = {
    f"push with ghp_{'x9Q2' * 9}": "x9Q2x9Q2",
    f"gho_{'w8R3' * 9}/step": "w8R3w8R3",
    f"github_pat_11AB_{'v7S4' * 9} end": "v7S4v7S4",
    f"load hf_{'uTgH' * 8}": "uTgHuTgH",
    f"sk-proj-{'t6U5' * 9}": "t6U5t6U5",
    "notify xoxb-1234567-89012345-sLackSecret": "sLackSecret",
    f"glpat-{'r5V6' * 5}": "r5V6r5V6",
    f"nvapi-{'q4W7' * 9}": "q4W7q4W7",
    "aws AKIAQ3X8EXAMPLE77": "Q3X8EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJqd3QifQ.p3Y9jwtjwt": "eyJzdWIiOiJqd3QifQ",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEo2Z1\nmlines==\n-----END RSA PRIVATE KEY-----": "MIIEo2Z1",
    "Authorization: Bearer n1A3.bearer-secret": "bearer-secret",
    "DB_PASSWORD=m9B4hunter and more": "m9B4hunter",
    'login {"password": "l8C5 of two words", "n": 1}': "of two words",
    "aws_secret_access_key = k7D6/slash+plus": "k7D6/slash",
    "api_key:j6E7apikey": "j6E7apikey",
    "token=i5F8abcdefghijkl99": "i5F8abcdefgh",
    "clone https://h4G9user:h4G9pass@git.example.test/x": "h4G9pass",
    "by g3H1.first.last@corp.example.org": "g3H1.first",
    "on f2I2-gpu07.cluster.example.com now": "f2I2-gpu07",
    "at e1J3-node.rack2.internal": "e1J3-node",
    "hostname=d9K4box": "d9K4box",
    "GPU-c8d7e6f5-1111-2222-3333-c8d7e6f5a4b3 of it": "c8d7e6f5a4b3",
    f"sk-ant-api03-{'p2X9' * 9}": "p2X9p2X9",
    f"sk-{'oNlY' * 12}": "oNlYoNlY",
    f"npm_{'y2Wm' * 9}": "y2Wmy2Wm",
    f"pypi-AgEIcHlwaS5vcmc{'x3Vn' * 4}": "x3Vnx3Vn",
    f"sk_live_{'w4Uo' * 6}": "w4Uow4Uo",
    f"rk_test_{'v5Tp' * 6}": "v5Tpv5Tp",
    f"AIzaSy{'u6Sq' * 9}": "u6Squ6Sq",
    f"ya29.{'t7Rr' * 9}": "t7Rrt7Rr",
    f"GOCSPX-{'s8Qs' * 6}": "s8Qss8Qs",
    f"hvs.{'r9Pt' * 6}": "r9Ptr9Pt",
    f"SG.{'q1Ou' * 5}.{'p2Nv' * 5}": "p2Nvp2Nv",
    f"dckr_pat_{'o3Mw' * 6}": "o3Mwo3Mw",
    f"xapp-1-A01-{'n4Lx' * 4}": "n4Lxn4Lx",
    f"gsk_{'m5Ky' * 9}": "m5Kym5Ky",
    f"bot 123456789:AA{'l6Jz' * 9}": "l6Jzl6Jz",
    f"https://hooks.slack.com/services/T01/B02/{'k7Ia' * 6}": "k7Iak7Ia",
    f"https://discord.com/api/webhooks/123456/{'j8Hb' * 9}": "j8Hbj8Hb",
    f"wandb login {'a1b2c3d4e5' * 4}": "a1b2c3d4e5",
    "aws wJ9aXUtnFEMI/K7MDENG/bPxRfiCYSecretKeyX1": "K7MDENG",
    "AWS_SESSION_TOKEN=IQoJb3JpZ2luX2VjEXAMPLE//////////wEa": "IQoJb3Jp",
    "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtl==;EndpointSuffix=x": "Eby8vdM02",
    "GET https://b.test/k?X-Amz-Signature=fe5f80f77d5fa3be": "fe5f80f7",
    "blob?sv=2020-08-04&sig=h0Gc1234abcdefgh%3D": "h0Gc1234",
    "redis://:i9Fd0pass@db:6379": "i9Fd0pass",
    "https://j8Ee1only@git.test/x": "j8Ee1only",
    "mongodb://u:k7/Df2slash@db.test": "Df2slash",
    "https%3A%2F%2Fu%3Al6Cg3pass%40git.test%2Fx": "l6Cg3pass",
    "mail to m5Bh4.name%40corp.example.org": "m5Bh4.name",
    "Authorization: Basic dXNlcjpuNEFpNXBhc3M=": "dXNlcjpuNEFp",
    "authorization=token o3Zj6secret": "o3Zj6secret",
    "Cookie: theme=dark; id=p2Yk7cookie": "p2Yk7cookie",
    "session_id=q1Xl8abcdefgh12345": "q1Xl8abcd",
    "train.py --password r9Wm9secret --lr 0.1": "r9Wm9secret",
    "--hub-token s8Vn0secret": "s8Vn0secret",
    "machine x login y password t7Uo1secret": "t7Uo1secret",
    "Server=x;Uid=sa;Pwd=u6Tp2secret;": "u6Tp2secret",
    "password%3Dv5Sq3secret": "v5Sq3secret",
    'password => "w4Rr4secret"': "w4Rr4secret",
    "<password>x3Qs5secret</password>": "x3Qs5secret",
    "the password is y2Pt6secret": "y2Pt6secret",
    "MY_SECRET_THING=z1Ou7secret": "z1Ou7secret",
    "OPENAI_KEY=a9Nv8secretsecret": "a9Nv8secret",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIb8Mw9": "AAAAIb8Mw9",
    "ssh gpu-07.c7Lx0acme.io": "c7Lx0acme",
}
# How tokens of services begin, with something random behind it.
BEGINNINGS = (
    "AQVN ATBB ATTA AKCp ABSK CCIPAT_ CFPAT- CLOJARS_ EAAC EZAK FLWSECK_TEST- GR1348941 HRKU- LTAI NRAK- "
    "PMAK- aio_ ak- as- bkua_ csk- dckr_oat_ ddp_ dop_v1_ dor_v1_ dp.pt. dt0c01. duffel_live_ eyJrIjoi figd_ "
    "fio-u- fm2_ fw_ ghr_ glc_ gloas- glsa_ gta_ ico- jina_ lin_oauth_ lsv2_pt_ nfp_ ntn_ ops_ pa- pat-na1- pcsk_ "
    "phx_ pnu_ pscale_pw_ pul- rdme_ rnd_ rpa_ rubygems_ sb_secret_ sbp_ secret_ sgp_local_ sha256~ shippo_live_ "
    "shpss_ sl. sntrys_ sq0csp- squ_ tfp_ tk-us- tskey-auth- vercel_blob_rw_ wandb_v1_ xkeysib-"
)
TEXTS |= {
    f"use {begin}{f'K7xQ{number:02}m' * 6} now": f"K7xQ{number:02}mK7"
    for number, begin in enumerate(BEGINNINGS.split())
}
HEX = [hashlib.sha256(b"%d" % number).hexdigest()[:32] for number in range(8)]
TEXTS |= {
    "TOKEN=abcdEFGHijklmnopQR": "abcdEFGHijkl",
    'say "token": "hlRuQFHABzemVXCC"': "hlRuQFHABzem",
    f"key-{HEX[0]}": HEX[0],
    f"{HEX[1]}-us12": HEX[1],
    f"Digest username='u', uri='/', response='{HEX[2]}'": HEX[2],
    f"dapi{HEX[3]}": HEX[3],
    f"AC{HEX[0][::-1]}:{HEX[4]}": HEX[4],
    f"access_token$production$abcdef012345${HEX[5]}": HEX[5],
    f'{{"username": "x", "key": "{HEX[6]}"}}': HEX[6],
    f"Ocp-Apim-Subscription-Key: {HEX[7]}": HEX[7],
    "MTEzSST85IOArykeFbCYHvWvTI.5aYiv3.s989Nzwe0OsBdLJox2L0rvOBLIYam": "s989Nzwe0O",
    "pat65qw44Wts3Dpcl.7521377f4ae6e622c33537f49ad3c554e18b183ab86a425b0815b19ea3dc9246": "7521377f4ae6",
    "abc8Q~Tk2RkV9aPlmeGZoQxUwYd4Lh7Jn0Cs5Bx": "Tk2RkV9aPlme",
    "1/1200000000000000:b7f03a1ffff437f8dbf040e55bad1da7": "b7f03a1ffff4",
    "A3-PXVGXK-7XVGXK-HJOS0-HJOS1-HJOS2-HJOS3": "PXVGXK-7XVG",
    f"oy2{'k8z' * 14}q": "k8zk8zk8z",
    "Authorization: Splunk 0d1e2f3a4b5c6d7e": "0d1e2f3a4b5c",
    f"API-{'J9QX' * 7}": "J9QXJ9QX",
    "APP_KEY=base64:lDqtuFoUmEIKAsskcQ5iLIiuhTjNrrVwI14n6NHdrt4=": "lDqtuFoUmEIK",
    '{"auths": {"x": {"auth": "nzPAqy29fNjxTOVRUo1uZVJ2vLbrxG=="}}}': "nzPAqy29fNjx",
    "root:$6$rounds=5000$somesalt$D4IrlXatmP7rx3P3InaxBe": "D4IrlXatmP7r",
    "curl -u user:Zq7Xw9Kd3mP https://h.test": "Zq7Xw9Kd3mP",
    "sshpass -p Yq8Xw9Kd3mP ssh h": "Yq8Xw9Kd3mP",
    "machine h login u password hunterSecret": "hunterSecret",
    "https://hooks.example.test/workflows/T20PRJJ/A20/8XGNkM1fJqlr1s97LI": "8XGNkM1fJqlr",
}
# What programs really call things: words of that kind alone give nothing away.
PLAIN = (
    *("tokens: 1024", "token=17", "backward pass=2", "void foo::token::bar<int>(password::x)", "sk-learn", "a@b"),
    *("hf_transformer_layer", "torch.nn.io", "model.layers.0.attn", "train.py:33", "foo@bar.py", "disk-usage-of-x"),
    *("torch._inductor.local", "std::secret::local", "ghp_short", "AKIA", "eyJ", "node.internal", "Memcpy HtoD"),
    *("pthread_create@GLIBC_2.2.5", "Basic BlockForward", "pass=forward bf16x3", "token mixing_layer2", "session=3"),
    *(
        "void f<cutlass::gemm::GemmShape<128, 64, 16>, key=2>",
        "triton_red_fused_0d1d2 key=fp16_128x64",
        "aws",
        "cookie",
    ),
    *(
        "k_c8d7e6f511112222",
        *(
            *("key=fp16_layers_of_12_heads", "token=BOS", "hf_bigbirdpegasusattention"),
            *("as_strided_12", "fw_conv2d_128x128"),
        ),
        *(
            *("pat.match12", "sl.layer_norm12", "std::vector16_tests_0123"),
            *("cudnn.sm90_fprop_implicit_gemm_f16", "sort -u a:b"),
        ),
        *(
            *("login step", "mysql -p", "$6 of $12", "test_attention_layer0"),
            *("$_6_nn_sigmoid2", "sk_attention_layer_norm_12"),
        ),
        "graph b7d7e6f5-1111-2222-3333-b7d7e6f5a4b3",
        "PWD",
        "x.0.in",
        "secret<int>",
        "sort --key id",
    ),
)


def left(raw: bytes) -> list[str]:
    """The planted parts that are found in bytes, in whatever encoding."""
    codes = ("utf-8", "utf-16-le", "utf-16-be")
    low = raw.lower()
    return [part for part in TEXTS.values() if any(part.lower().encode(code) in low for code in codes)]


def planted() -> list[Items]:
    """A report with each of the texts in each place that texts of a program come to."""
    out: list[Items] = [Process(1, "train"), ThreadName(1, next(iter(TEXTS)))]
    out.append(Row("META_DATA_CAPTURE", {"name": "PROCESS_0:COMMAND", "value": " ".join(TEXTS)}))
    for number, text in enumerate(TEXTS):
        at = 1000 * number
        out += [
            Range(text, at, at + 900),
            Range(f"{text} again", at + 1, at + 800, text_id=True),
            Mark(text, at + 2),
            Diagnostic(f"said: {text}"),
            launch_kernel(f"kernel<{text}>", (at + 10, at + 20), (at + 30, at + 40), id=number + 1),
            Row("ENUM_NSYS_EVENT_TYPE", {"id": 900 + number, "name": text, "label": f"label {text}"}),
            Row("NVTX_PAYLOAD_SCHEMAS", {"name": text, "description": f"schema {text}"}),
            Row("TARGET_INFO_SYSTEM_ENV", {"name": "OsDescription", "value": f"{number} {text}"}),
            Row("TARGET_INFO_SYSTEM_ENV", {"name": "GpuInfo", "value": json.dumps({"Gpus": [{"Name": text}]})}),
            Row("META_DATA_CAPTURE", {"name": "NVTX_OPTIONS:NVTX_DOMAIN_FILTER_STRING", "value": text}),
            *(
                Row("NVTX_EVENTS", {"start": at, "eventType": 34, "jsonText": text, "binaryData": form})
                for form in (f"\0\1{text}\2".encode(), f"{text}\0".encode("utf-16-le"))
            ),
        ]
    return out


@pytest.mark.parametrize("names", [False, True])
@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
def test_no_credential_is_left_in_a_report(trace: MakeTrace, tmp_path: Path, names: bool, encoding: str) -> None:
    """In no table and no free page; ranges, kernels and marks are as many as before, and most of a name stays."""
    source = trace(*planted(), pragmas=[f"encoding='{encoding}'"])
    assert left(source.read_bytes()) == list(TEXTS.values())
    done = scrub_report(source, tmp_path / "out.sqlite", names=names)
    raw = done.path.read_bytes()
    assert left(raw) == []
    assert done.removed["credentials, mail addresses and hosts"] > 10 * len(TEXTS)
    for word in ("push with [credential]", "DB_PASSWORD=[credential] and more", "https://[credential]@"):
        assert word.encode("utf-16-le" if encoding == "UTF-16le" else "utf-8") in raw


@pytest.mark.parametrize("names", [False, True])
def test_no_credential_is_left_in_a_trace_of_pytorch(tmp_path: Path, names: bool) -> None:
    """Nor a folder or an address outside of names, with `--names` also in them; what is left is the same JSON."""
    place = "/srv/secretplace/x.py(3): f of 10.20.30.44"
    events: list[Any] = []
    for number, text in enumerate((*TEXTS, *PLAIN, place)):
        at = 1000 * number
        events += [
            annotation(text, at, at + 900),
            operator(f"op {text}", at + 1, at + 800, **{"Call stack": text, "Concrete Inputs": ["", f'"{text}"']}),
            *launch(f"kernel<{text}>", (at + 10, at + 20), (at + 30, at + 40), id=number + 1),
        ]
    uuid = {"id": 0, "name": "H100", "uuid": "c8d7e6f5-1111-2222-3333-c8d7e6f5a4b3"}
    document = {"deviceProperties": [uuid], "host_name": "d9K4box", "traceEvents": events, "traceName": "/x"}
    source, out = tmp_path / "t.json", tmp_path / "t.json.gz"
    source.write_text(json.dumps(document, indent=1), encoding="utf-8")
    assert set(left(source.read_bytes())) >= set(TEXTS.values()) - {"of two words"}
    copy_trace(source, out, "mine", scrubbed=True, names=names)
    raw = gzip.decompress(out.read_bytes())
    assert left(raw) == []
    read = json.loads(raw)
    assert [event["ts"] for event in read["traceEvents"]] == [event["ts"] for event in events]
    called = [event["name"] for event in read["traceEvents"]]
    assert {text for text in PLAIN if not (names and "-1111-" in text)} <= set(called)
    assert ("/srv/secretplace/x.py(3): f of 10.20.30.44" in called) is not names
    stacks = [event["args"]["Call stack"] for event in read["traceEvents"] if "Call stack" in event["args"]]
    assert stacks[-1] == "[path]/x.py(3): f of [address]"
    copy_trace(source, out, "mine", scrubbed=False)
    assert left(gzip.decompress(out.read_bytes())) == left(source.read_bytes())


def test_no_credential_is_left_in_a_record() -> None:
    """In values and in keys, however deep."""
    record = {"workload": [{"say": text, text: [text]} for text in TEXTS], "plain": list(PLAIN)}
    clean = redacted(record, Secrets())
    assert left(json.dumps(clean, ensure_ascii=False).encode()) == []
    assert clean["plain"] == list(PLAIN)


@pytest.mark.parametrize("text", PLAIN)
def test_words_alone_give_nothing_away(text: str) -> None:
    """Names of programs stay as they are."""
    assert without_credentials(text.encode()) == (text.encode(), 0)


@pytest.mark.parametrize("text", TEXTS)
def test_what_was_cut_is_not_cut_again(text: str) -> None:
    """Once is enough; in binary data each byte keeps its place."""
    once, count = without_credentials(text.encode())
    assert count >= 1
    assert without_credentials(once) == (once, 0)
    assert len(without_credentials(text.encode(), same_length=True)[0]) == len(text)
