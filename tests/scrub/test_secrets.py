"""What counts as a secret, and how text loses it: without files."""

import socket
from pathlib import Path

import pytest

from nsysprof.scrub.private_text import (
    assignments,
    kind_of_property,
    private_values,
    without_paths,
    without_private_keys,
)
from nsysprof.scrub.secrets import Secret, Secrets, environment_secrets, machine_secrets, redacted, secrets_of


def cut(text: bytes, *secrets: Secret, sure: bool = False) -> bytes:
    """The text without these secrets."""
    known = Secrets()
    known.add(secrets)
    return known.redactor([text], sure=sure)(text)


def learned(kind: str, text: bytes) -> list[tuple[bytes, bool]]:
    """Text and certainty of each secret in a value."""
    return [(secret.text, secret.sure) for secret in secrets_of(kind, text)]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("home", b"/home/al", [(b"/home/al", True)]),
        ("home", b"/root", [(b"/root", False)]),
        ("working folder", b"/srv/jobs/", [(b"/srv/jobs", True)]),
        ("working folder", b"/", []),
        ("working folder", b"/tmp", []),
        ("working folder", b"/usr/src/app", []),
        ("home", rb"C:\Users\Al B", [(rb"C:\Users\Al B", True)]),
        ("path", rb"C:\Windows\System32", []),
        ("user", b"root", [(b"root", False)]),
        ("user", b"ubuntu", [(b"ubuntu", False)]),
        ("user", b"johndoe", [(b"johndoe", False)]),
        ("user", b"john-doe", [(b"john-doe", True)]),
        ("host", b"gpu", [(b"gpu", False)]),
        ("host", b"worker7", [(b"worker7", False)]),
        ("host", b"gpu-07.lab.example", [(b"gpu-07.lab.example", True), (b"gpu-07", True)]),
        ("host", b"{}", [(b"{}", False)][:0]),
        ("environment", b"1", []),
        ("environment", b"12.4.1", []),
        ("environment", b"1234567890123456", []),
        ("environment", b"efficient", [(b"efficient", False)]),
        ("environment", b"scaled_dot_product_attention", [(b"scaled_dot_product_attention", False)]),
        ("environment", b"job 4711 of the night run", [(b"job 4711 of the night run", False)]),
        ("environment", b"q7Zp-2kLm-99Xw-vv01", [(b"q7Zp-2kLm-99Xw-vv01", True)]),
    ],
)
def test_what_a_value_gives_away(kind: str, text: bytes, expected: list[tuple[bytes, bool]]) -> None:
    """System folders, versions and flags give nothing away; words do where they are not names of work."""
    assert learned(kind, text) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (b"API_TOKEN", b"hunter2", [Secret(b"hunter2", "environment")]),
        (b"DB_PASSWORD", b"a b c d", [Secret(b"a b c d", "environment")]),
        (b"TOKENIZERS_PARALLELISM", b"false", []),
        (b"SSH_AUTH_SOCK", b"/tmp/ssh-1/agent.2", [Secret(b"/tmp/ssh-1/agent.2", "path")]),
        (b"USER", b"al", [Secret(b"al", "user", sure=False)]),
        (b"HOME", b"/home/al", [Secret(b"/home/al", "home")]),
        (b"SHELL", b"/bin/bash", []),
    ],
)
def test_what_a_variable_gives_away(name: bytes, value: bytes, expected: list[Secret]) -> None:
    """The name of a variable says what its value is; a credential counts from six characters on."""
    known = Secrets()
    known.add(environment_secrets(name, value))
    assert list(known.known.values()) == expected


def test_each_folder_of_a_list_is_a_secret_of_its_own() -> None:
    """Of PATH the folders that not every machine has are looked for, and with drives as well."""
    texts = {secret.text for secret in environment_secrets(b"PATH", b"/home/al/bin:/usr/bin:/opt/tool/bin")}
    assert {b"/home/al/bin", b"/opt/tool/bin"} <= texts
    assert b"/usr/bin" not in texts
    texts = {secret.text for secret in environment_secrets(b"Path", rb"C:\Windows;D:\tool\bin")}
    assert rb"D:\tool\bin" in texts
    assert rb"C:\Windows" not in texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"opened /home/al/x.py", b"opened [home]/x.py"),
        (b"/home/al", b"[home]"),
        (b"-I/home/al/include", b"-I[home]/include"),
        (b"file:///home/al/x", b"file://[home]/x"),
        (rb'{"p":"\/home\/al\/x"}', rb'{"p":"[home]\/x"}'),
        (b"/home/alice and /home/al-2 and /home/al.old", b"/home/alice and /home/al-2 and /home/al.old"),
        (b"at /home/al.", b"at [home]."),
    ],
)
def test_a_path_ends_where_a_folder_ends(text: bytes, expected: bytes) -> None:
    """Everything below a folder loses it, however it is written; a longer name is another folder."""
    assert cut(text, Secret(b"/home/al", "home"), sure=True) == expected


def test_windows_paths_are_found_in_any_spelling() -> None:
    """Either slash, either case, and escaped as in JSON."""
    home = Secret(rb"C:\Users\Al", "home")
    for text in (rb"C:\Users\Al\x", rb"c:\users\AL\x", b"C:/Users/Al/x", rb"C:\\Users\\Al\x"):
        assert cut(text, home, sure=True).startswith(b"[home]"), text
    assert cut(rb"C:\Users\Alan\x", home, sure=True) == rb"C:\Users\Alan\x"


def test_a_folder_below_the_root_needs_a_beginning() -> None:
    """`/root` is no part of `sysroot/root`, and of no name of work."""
    root = Secret(b"/root", "home", sure=False)
    assert cut(b"see /root/x, sysroot/root/x", root) == b"see [home]/x, sysroot/root/x"
    assert cut(b"/root/child", root, sure=True) == b"/root/child"


@pytest.mark.parametrize("word", [b"root", b"ubuntu", b"gpu", b"vm", b"worker3"])
def test_common_words_are_cut_as_names_only(word: bytes) -> None:
    """Quotes, an @ or the whole text say that a word is a user or a host; anywhere else it stays."""
    secret = Secret(word, "user", sure=False)
    assert cut(b"a %b b" % word, secret) == b"a %b b" % word
    assert cut(b'{"u":"%b"}' % word, secret) == b'{"u":"[user]"}'
    assert cut(b"%b@gateway" % word, secret) == b"[user]@gateway"
    assert cut(word, secret) == b"[user]"
    assert cut(word, secret, sure=True) == word


def test_a_telling_name_is_cut_as_a_word() -> None:
    """A host with a number is cut wherever it is a word, but not out of longer words."""
    host = next(iter(secrets_of("host", b"gpu-07")))
    assert cut(b"on gpu-07: lost", host, sure=True) == b"on [host]: lost"
    assert cut(b"on mygpu-07 and gpu-071", host, sure=True) == b"on mygpu-07 and gpu-071"


def test_json_spellings_of_a_value_are_found() -> None:
    """Quotes, backslashes and characters that are not ASCII, escaped or not."""
    secret = Secret('pa"ss\\wörd'.encode(), "environment")
    assert cut(b'{"a":"pa\\"ss\\\\w\\u00f6rd"}', secret) == b'{"a":"[environment]"}'
    assert cut('{"a":"pa\\"ss\\\\wörd"}'.encode(), secret) == b'{"a":"[environment]"}'
    assert cut(b"caf\xe9\xff!", Secret(b"caf\xe9\xff", "environment")) == b"[environment]!"


def test_the_longest_secret_wins_and_labels_tell_them_apart() -> None:
    """A working folder in the home folder is cut as such; the second secret of a kind gets a number, for good."""
    known = Secrets()
    known.add([Secret(b"/h/al", "home"), Secret(b"/h/al/w", "working folder"), Secret(b"/h/bo", "home")])
    redactor = known.redactor([b"/h/al/w /h/al /h/bo"], sure=True)
    assert redactor(b"/h/al/w/x /h/al/x /h/bo /h/al") == b"[working folder]/x [home]/x [home 2] [home]"
    assert known.cuts == {"working folder": 1, "home": 3}


def test_blobs_keep_their_length() -> None:
    """Binary data loses secrets in UTF-8 and UTF-16, byte by byte."""
    known = Secrets()
    known.add([Secret(b"hunter22", "environment")])
    raw = b"\0\1hunter22\2" + "hunter22".encode("utf-16-le")
    assert known.blank(raw) == b"\0\1" + b"x" * 8 + b"\2" + b"x" * 16


@pytest.mark.parametrize(
    ("text", "expected", "count"),
    [
        (b"/data/x/lib a.so", b"[path]/lib a.so", 1),
        (b"see /tmp/x/run.log, /tmp/y/z.", b"see [path]/run.log, [path]/z.", 2),
        (b"/usr/lib/x.so /etc/ssl/c.pem /proc/1/maps /opt/nvidia/n", None, 0),
        (b"/usr/bin/python3 /home/al/t.py", b"/usr/bin/python3 [path]/t.py", 1),
        (b"/home/al", b"[path]/", 1),
        (b"in /home/al", b"in [path]/", 1),
        (b"a/b/c, 1/2, https://h/a/b, operator/", None, 0),
        (b"file:///data/x/y", b"file://[path]/y", 1),
        (rb"C:\Users\Al B\x.exe", rb"[path]/x.exe", 1),
        (rb"C:\Windows\k.dll", None, 0),
        (rb'"\\srv\share\x"', b'"[path]/x"', 1),
    ],
)
def test_paths_are_cut_down_to_the_file(text: bytes, expected: bytes | None, count: int) -> None:
    """Absolute paths lose their folders; those that every machine has keep them, and fractions are no paths."""
    assert without_paths(text) == (text if expected is None else expected, count)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"A=1\0B=2=3\0", [(b"A", b"1"), (b"B", b"2=3")]),
        (b"A=x;y;B=2", [(b"A", b"x;y"), (b"B", b"2")]),
        (b"ONLY=one", [(b"ONLY", b"one")]),
        (b"BASH_FUNC_x%%=() { :; }\0A=\xff\0", [(b"BASH_FUNC_x%%", b"() { :; }"), (b"A", b"\xff")]),
        (b"python\0train.py\0--lr=3\0", []),
        (b"a text of some length", []),
        (b"", []),
    ],
)
def test_environments_are_recognised(text: bytes, expected: list[tuple[bytes, bytes]]) -> None:
    """Both forms, values with semicolons and equals signs, but no command lines."""
    assert assignments(text) == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("PROCESS_0:ENVIRONMENT_VARIABLE", "environment"),
        ("DeviceEnvironment", "environment"),
        ("Hostname", "host"),
        ("EXPORT_HOST", "host"),
        ("DEVICE_DISPLAY_NAME", "host"),
        ("SystemUID", "host"),
        ("PROCESS_12:USER_NAME", "user"),
        ("EXPORT_USER", "user"),
        ("PROCESS_0:WORKING_DIR", "working folder"),
        ("PROCESS_0:ARGUMENT_3", "command line"),
        ("EXPORT_PARAM_OUTUPT_PATH_ABS", "path"),
        ("EXPORT_PARAM_INPUT_FILE", "path"),
        ("InjectionFilesStoragePath", "path"),
        ("PROCESS_0:COMMAND", None),
        ("EXPORT_PRODUCT_VERSION", None),
        ("DEVICE_ID", None),
        ("NvDriverVersion", None),
        ("OsDescription", None),
        ("GpuInfo", None),
        ("CAPTURE_EVENT_TYPE", None),
        ("PROCESS_0:LAUNCH_AS_ROOT", None),
        ("EXPORT_TIME_LOCAL", None),
    ],
)
def test_properties_are_known_by_their_name(name: str, kind: str | None) -> None:
    """The names of nsys 2022 to 2025; what describes hardware, versions and options is not private."""
    assert kind_of_property(name) == kind


def test_json_loses_its_private_keys() -> None:
    """At any depth; numbers stay, and what holds nothing private keeps its spelling to the letter."""
    text = b'{"a":[{"Hostname":"h1","Name":"x"}],"user":"al","times":{"user":1.5},"Environment":{"A":"b"}}'
    assert without_private_keys(text) == b'{"a":[{"Name":"x"}],"times":{"user":1.5}}'
    assert dict(private_values(text)) == {"host": "h1", "user": 1.5, "environment": {"A": "b"}}
    for text in (b'{ "Name" : "x" }', b"{not json, user", b"[]", b"", b"plain", b'"user"'):
        assert without_private_keys(text) == text
    deep = b'{"a":' * 900 + b'{"user":"al"}' + b"}" * 900
    assert b"al" not in without_private_keys(deep)


def test_a_record_is_redacted() -> None:
    """Texts and keys at any depth are cut, everything else stays as it is, and the value given is not changed."""
    known = Secrets()
    known.add([Secret(b"/home/al", "home"), Secret(b"al", "user", sure=False)])
    record = {"/home/al/x": ["/home/al", 1, 2.5, None, True, {"user": "al", "also": "also al"}]}
    before = repr(record)
    assert redacted(record, known) == {
        "[home]/x": ["[home]", 1, 2.5, None, True, {"user": "[user]", "also": "also al"}]
    }
    assert repr(record) == before
    assert redacted({"a": "\ud800 /home/al \udcff"}, known) == {"a": "\ud800 [home] \udcff"}


def test_a_user_whose_name_is_a_word_of_ours_does_not_break_a_record() -> None:
    """Neither keys, nor names of ranges, nor values that are that word; where a key says who it is, it goes."""
    record = {
        "schema": "nsysprof-run/1",
        "flash": {"backend": "flash", "user": "flash", "login": {"names": ["flash"]}},
        "runs": [{"range": "RUN::flash::S64"}],
        "order": ["RUN::flash::S64"],
        "note": "by flash",
    }
    for user in (b"schema", b"nsysprof"):
        known = Secrets()
        known.add(secrets_of("user", user))
        assert redacted(record, known) == record
    known = Secrets()
    known.add([*secrets_of("user", b"flash"), *secrets_of("home", b"/root")])
    assert redacted({**record, "at": "/root"}, known) == {
        **record,
        "flash": {"backend": "flash", "user": "[user]", "login": {"names": ["[user]"]}},
        "note": "by [user]",
        "at": "[home]",
    }


def test_the_secrets_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Home and working folder, host, user and credentials of the environment; no other variable."""
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    for name, value in {
        "HOME": str(tmp_path / "home"),
        "USER": "planted-user-1",
        "LOGNAME": "planted-user-1",
        "PLANTED_API_KEY": "planted-key",
        "PLANTED_OTHER": "an-ordinary-value-123",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(socket, "gethostname", lambda: "planted-host-2.example.org")
    record = {
        "cwd": f"{tmp_path}/job/x",
        "argv": ["--key=planted-key", f"{tmp_path}/home/data"],
        "by": "planted-user-1@planted-host-2",
        "other": "an-ordinary-value-123",
    }
    assert redacted(record, machine_secrets()) == {
        "cwd": "[working folder]/x",
        "argv": ["--key=[environment]", "[home]/data"],
        "by": "[user]@[host]",
        "other": "an-ordinary-value-123",
    }


def test_a_working_folder_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record can be redacted after its folder was removed."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert redacted(["x"], machine_secrets()) == ["x"]
