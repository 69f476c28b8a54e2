"""Keys, files of keys, and the accounts behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.access_config import LimitsConfig, SecurityConfig
from octavo.core.errors import ConfigError
from octavo.server.access.control import Access
from octavo.server.access.keys import KeyLimits, parse

VARIABLES = ("OCTAVO_API_KEY", "OCTAVO_API_KEYS", "OCTAVO_METRICS_KEY")


@pytest.fixture(autouse=True)
def no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def access(limits: LimitsConfig | None = None, **security: Any) -> Access:
    return Access(SecurityConfig(**security), limits or LimitsConfig(), lambda: 0.0)


def name_of(found: Access, key: str) -> str | None:
    account = found.account(key.encode())
    return account and account.principal.name


def limits_of(found: Access, key: str) -> KeyLimits:
    account = found.account(key.encode())
    assert account is not None
    return account.limits


def test_without_keys_the_server_is_open() -> None:
    found = access()
    assert not found.needs_key
    assert not found.hides_metrics
    assert not found.opens_metrics(b"")
    assert found.account(b"") is None


def test_keys_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("\ufeff# ours\n\nplain-in-file # a comment\r\n  alice:in:file  \nbob:sk=#1\n")
    monkeypatch.setenv("OCTAVO_API_KEY", "env:with:colons")
    monkeypatch.setenv("OCTAVO_API_KEYS", "carol:one, two\ndan:three")
    found = access(api_key=("flag:1", "flag2"), api_key_file=str(file))
    keys = ["flag:1", "flag2", "env:with:colons", "plain-in-file", "two"]
    names = [name_of(found, key) for key in keys]
    assert all(name is not None and name.startswith("key-") for name in names)
    assert len(set(names)) == len(keys)
    assert name_of(found, "in:file") == "alice"
    assert name_of(found, "sk=#1") == "bob"
    assert name_of(found, "one") == "carol"
    assert name_of(found, "three") == "dan"
    assert found.num_keys == 9
    for wrong in ("alice", "alice:in:file", "", "flag", "two ", "TWO", "1", "#", "comment"):
        assert name_of(found, wrong) is None


def test_names_of_keys_without_one_tell_nothing_of_the_key() -> None:
    assert name_of(access(api_key=("k",)), "k") != name_of(access(api_key=("k",)), "k")


def test_limits_of_a_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a:1\nb:2 tokens_per_minute=7 max_concurrency=none # x\nb:3 "
                    "max_concurrency=none tokens_per_minute=7\n")  # fmt: skip
    defaults = LimitsConfig(max_concurrency_per_key=3, requests_per_minute_per_key=4)
    found = access(defaults, api_key_file=str(file))
    assert limits_of(found, "1") == KeyLimits(max_concurrency=3, requests_per_minute=4)
    assert limits_of(found, "2") == KeyLimits(requests_per_minute=4, tokens_per_minute=7)
    assert found.account(b"2") is found.account(b"3")


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no keys"),
        ("# nothing\n \n", "has no keys"),
        (f"a:1\nb:{SECRET}é", "line 2: the key has characters"),
        ("a:", "line 1: the key is empty"),
        (f":{SECRET}", "line 1: what stands before the colon is no name"),
        (f"{SECRET}/{SECRET}:x", "line 1: what stands before the colon is no name"),
        (f"a:my {SECRET}", "line 1: word 2 is no limit"),
        ("a:b tokens_per_minute=0", "line 1: word 2 is no limit"),
        ("a:b tokens_per_minute=1.5", "word 2 is no limit"),
        ("a:b tokens_per_minute", "word 2 is no limit"),
        ("a:b tokens_per_minute=1 tokens_per_minute=2", "tokens_per_minute stands there twice"),
        (f"a:{SECRET}\nb:{SECRET}", "line 2: the key is that of .*line 1"),
        (f"a:{SECRET}\na:{SECRET}", "line 2: the key is that of .*line 1"),
        (f"a:{SECRET} admin\na:x", "line 2: a is admin with one of its keys and not with another"),
        (f"a:{SECRET}\na:x max_concurrency=1", "line 2: a has other limits"),
        (f"a:{SECRET}\0", "line 1: the key has characters"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        access(api_key_file=str(file))
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        access(api_key_file=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="Is a directory"):
        access(api_key_file=str(tmp_path))
    (tmp_path / "binary").write_bytes(b"a:\xff\xfe")
    with pytest.raises(ConfigError, match="is no UTF-8 text"):
        access(api_key_file=str(tmp_path / "binary"))


@pytest.mark.parametrize("key", ["", " ", "a b", "a\n", "é", "a\x7f"])
def test_keys_that_no_header_could_carry(key: str) -> None:
    with pytest.raises(ConfigError, match="api_key: the key"):
        access(api_key=(key,))
    with pytest.raises(ConfigError, match="metrics_key: the key"):
        access(metrics_key=key or "é")


@given(st.text())
def test_any_text_is_entries_or_an_error(text: str) -> None:
    try:
        entries = list(parse(text, "x", KeyLimits()))
    except ConfigError as error:
        assert str(error).startswith("x, line ")
    else:
        assert all(entry.key.isascii() and entry.key for entry in entries)


def test_what_needs_keys() -> None:
    with pytest.raises(ConfigError, match="cache_isolation is key, but there are no API keys"):
        access(cache_isolation="key")
    with pytest.raises(ConfigError, match="tokens_per_minute_per_key is 5, but there are no"):
        access(LimitsConfig(tokens_per_minute_per_key=5))


def test_the_key_of_the_metrics_opens_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in (access(metrics_key="m"), None):
        if found is None:
            monkeypatch.setenv("OCTAVO_METRICS_KEY", "m")
            found = access()
        assert found.hides_metrics
        assert found.opens_metrics(b"m")
        assert not found.opens_metrics(b"n")
        assert not found.needs_key
        assert found.account(b"m") is None


def test_reload(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("a:1 max_concurrency=1\nb:2\n")
    found = access(api_key=("flag",), api_key_file=str(file))
    before = {key: found.account(key) for key in (b"1", b"2", b"flag")}
    assert before[b"1"] is not None
    assert before[b"1"].admit() is None

    file.write_text("a:new max_concurrency=1\nc:3\n")
    found.reload()
    assert found.account(b"1") is None
    assert found.account(b"2") is None
    assert name_of(found, "3") == "c"
    assert found.account(b"flag") is before[b"flag"]
    assert found.account(b"new") is before[b"1"]
    refusal = before[b"1"].admit()
    assert refusal is not None and refusal.kind == "requests"

    file.write_text("a b\n")
    with pytest.raises(ConfigError):
        found.reload()
    file.write_text("")
    with pytest.raises(ConfigError, match="no keys"):
        found.reload()
    file.unlink()
    with pytest.raises(ConfigError):
        found.reload()
    assert name_of(found, "new") == "a"
    assert found.num_keys == 3
