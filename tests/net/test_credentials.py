"""Logins: one an origin, readable by their owner alone, never shown."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.errors import BadData, UsageError
from odf_engine.net.credentials import Credentials, Login
from odf_engine.net.urls import normalize_login_url, normalize_url


@pytest.fixture
def logins(tmp_path: Path) -> Credentials:
    return Credentials(tmp_path)


def test_login_is_used_for_its_origin_only(logins: Credentials) -> None:
    assert logins.of("https://h.org/x/") is None
    assert logins.set("odf+https://H.org:443/x/", Login(token="t1")) == "https://h.org"
    assert logins.set("s3+http://h.org/one/", Login("key", "secret", "session")) == "s3+http://h.org/one"
    assert logins.of("https://h.org/elsewhere/") == Login(token="t1")
    assert logins.of("s3+http://h.org:80/one/deep/") == Login("key", "secret", "session")
    for stranger in (
        "http://h.org/", "https://h.org:444/", "https://sub.h.org/", "https://h.org.evil.com/",
        "s3+http://h.org/two/", "s3://h.org/",
    ):  # fmt: skip
        assert logins.of(stranger) is None
    assert logins.origins() == ["https://h.org", "s3+http://h.org/one"]


def test_newest_login_replaces_the_earlier_and_can_be_removed(logins: Credentials) -> None:
    logins.set("https://h.org/", Login(token="t1"))
    logins.set("https://h.org/", Login("joe", "pw"))
    assert logins.of("https://h.org/") == Login("joe", "pw")
    assert logins.forget("odf+https://h.org/any/")
    assert not logins.forget("https://h.org/")
    assert logins.origins() == []


def test_only_the_owner_can_read_logins(logins: Credentials, tmp_path: Path) -> None:
    logins.set("https://h.org/", Login(token="t1"))
    assert stat.S_IMODE((tmp_path / "keys" / "logins.json").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_login_becomes_bearer_or_basic_header() -> None:
    assert Login(token="abc").header == "Bearer abc"
    assert Login("joe", "pässword:x").header == "Basic " + base64.b64encode(b"joe:p\xc3\xa4ssword:x").decode()


@given(st.text(min_size=1), st.text(min_size=1))
def test_login_repr_hides_the_secret(user: str, secret: str) -> None:
    for login in (Login(user, secret), Login(token=secret)):
        assert repr(login) == str(login) == "Login(…)"


@pytest.mark.parametrize(
    "login", [Login(token="a\r\nX-Evil: 1"), Login("jo\ne", "x"), Login("joe", "x\0"), Login("a:b", "x")]
)
def test_login_that_would_break_a_header_is_rejected(logins: Credentials, login: Login) -> None:
    with pytest.raises(UsageError):
        logins.set("https://h.org/", login)
    assert logins.origins() == []


def test_error_about_damaged_logins_quotes_no_secret(logins: Credentials, tmp_path: Path) -> None:
    logins.set("https://h.org/", Login(token="geheim"))
    path = tmp_path / "keys" / "logins.json"
    path.write_text(path.read_text()[:-2])
    with pytest.raises(BadData) as caught:
        logins.of("https://h.org/")
    assert caught.value.where == str(path)
    assert caught.value.__cause__ is None
    assert "geheim" not in str(caught.value)


def test_unreadable_login_file_is_reported(logins: Credentials, tmp_path: Path) -> None:
    logins.set("https://h.org/", Login(token="t1"))
    (path,) = [each for each in tmp_path.rglob("*") if each.is_file() and each.suffix == ".json"]
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(BadData, match="the stored logins cannot be read"):
        logins.origins()
    path.unlink()
    path.symlink_to(path.name)
    with pytest.raises(BadData, match="the stored logins cannot be read"):
        logins.origins()


def test_broker_login_uses_the_default_mqtt_port(logins: Credentials) -> None:
    """The default port is that of MQTT. A broker is no repository."""
    login = Login("jane", "secret")
    assert logins.set(normalize_login_url("mqtt://Broker.example"), login) == "mqtt://broker.example"
    assert logins.of("mqtt://broker.example:1883") == login
    assert logins.of("mqtt://broker.example:8883") is None
    with pytest.raises(UsageError, match="unsupported URL: mqtt:"):
        normalize_url("mqtt://broker.example")
