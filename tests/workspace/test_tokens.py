"""Tokens for pushing: shown once, kept as hashes, good until they are revoked or expire."""

from __future__ import annotations

import hashlib
import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.errors import AlreadyExists, BadData, InvalidIdentity, NotFound, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import DatasetAlias
from odf_engine.workspace.tokens import Tokens
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.shared.root import odf as odf_group

ID = DatasetId(bytes(range(32)))


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    """Those of a workspace."""
    return Tokens(tmp_path)


def covers(tokens: Tokens, text: str, alias: str, dataset_id: DatasetId | None = ID) -> bool:
    """Whether a dataset may be pushed with the token of this text."""
    found = tokens.find(text)
    assert found is not None
    return found.permits(DatasetAlias.parse(alias), dataset_id)


class TestTokens:
    def test_only_the_hash_is_kept_for_the_owner_alone(self, tokens: Tokens, tmp_path: Path) -> None:
        token, text = tokens.create("nightly", ["weather.%"], 30)
        (kept,) = [path for path in (tmp_path / "keys").iterdir() if path.name == "push-tokens.json"]
        assert text not in kept.read_text() and text[4:] not in kept.read_text()
        assert token.hash == hashlib.sha256(text.encode()).hexdigest()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
        assert len(text) >= 43 and tokens.create("other")[1] != text
        assert text not in repr(token) and token.hash not in repr(token)

    def test_token_is_found_until_it_is_revoked(self, tokens: Tokens, tmp_path: Path) -> None:
        token, text = tokens.create("nightly")
        beside = Tokens(tmp_path)  # of another process
        assert beside.find(text) == token
        for wrong in ("", text[:-1], text + "x", text.upper(), token.hash, "\ud800", "x" * 10_000):
            assert beside.find(wrong) is None
        assert tokens.revoke("NIGHTLY").name == "nightly"
        assert beside.find(text) is None and beside.list_tokens() == []
        with pytest.raises(NotFound):
            tokens.revoke("nightly")

    def test_token_expires_after_its_lifetime(self, tokens: Tokens) -> None:
        _, soon = tokens.create("soon", days=1e-9)
        _, later = tokens.create("later", days=1)
        assert tokens.find(soon) is None and tokens.find(later) is not None
        assert [token.has_expired for token in tokens.list_tokens()] == [False, True]

    def test_token_permits_only_its_datasets(self, tokens: Tokens) -> None:
        everything = tokens.create("everything")[1]
        some = tokens.create("some", ["weather.%", "acme/plans", str(ID)])[1]
        other = DatasetId(bytes(32))
        assert covers(tokens, everything, "any") and covers(tokens, everything, "acme/any", None)
        assert covers(tokens, some, "Weather.rain", other) and covers(tokens, some, "ACME/plans", other)
        assert covers(tokens, some, "whatever", ID)
        for alias, dataset_id in (("weather", other), ("plans", other), ("x", None), ("acme/plans2", other)):
            assert not covers(tokens, some, alias, dataset_id)
        assert not covers(tokens, tokens.create("nobody", [str(DatasetId(b"x" * 32))])[1], "x", None)

    def test_use_of_a_token_is_recorded(self, tokens: Tokens) -> None:
        token, text = tokens.create("nightly")
        tokens.record_use(token)
        (used,) = tokens.list_tokens()
        assert used.last_used is not None and tokens.find(text) == used
        tokens.revoke("nightly")
        tokens.record_use(token)  # which does not bring it back
        assert tokens.list_tokens() == []

    def test_invalid_names_lifetimes_and_patterns_are_refused(self, tokens: Tokens) -> None:
        tokens.create("nightly")
        with pytest.raises(AlreadyExists):
            tokens.create("Nightly")
        for name, days in (
            ("../x", 1),
            ("", 1),
            ("a b", 1),
            ("x", 0),
            ("x", -1),
            ("x", 1e12),
            ("x", float("nan")),
        ):
            with pytest.raises(UsageError):
                tokens.create(name, days=days)
        with pytest.raises(InvalidIdentity):
            tokens.create("x", ["../%"])
        assert len(tokens.list_tokens()) == 1

    def test_damaged_file_is_reported_without_its_content(self, tokens: Tokens, tmp_path: Path) -> None:
        _, text = tokens.create("nightly")
        (tmp_path / "keys" / "push-tokens.json").write_text('[{"name": "secret-of-it"')
        with pytest.raises(BadData) as told:
            tokens.find(text)
        assert "secret-of-it" not in told.value.format_line

    def test_concurrent_creation_loses_no_token(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(8) as threads:
            made = list(threads.map(lambda at: Tokens(tmp_path).create(f"t{at}")[1], range(16)))
        tokens = Tokens(tmp_path)
        assert all(tokens.find(text) for text in made) and len(tokens.list_tokens()) == 16

    @given(st.text())
    def test_random_text_is_no_token(self, text: str) -> None:
        tokens = Tokens(Path("/nonexistent"))
        assert tokens.find(text) is None


class TestVerb:
    def test_command_creates_lists_and_revokes_tokens(self, tmp_path: Path) -> None:
        workspace = Workspace.init(tmp_path)

        def odf(*words: str) -> str:
            result = CliRunner().invoke(odf_group, ["keys", "token", *words, "-w", str(tmp_path)])
            assert result.exit_code == 0, result.output
            return result.stdout

        text = odf("new", "nightly", "--dataset", "weather.%", "--days", "90").strip()
        assert Tokens(workspace.odf).find(text) is not None
        more = json.loads(odf("new", "other", "--json"))
        assert more["datasets"] == ["%"] and more["expires"] is None
        listed = odf("list")
        assert "nightly" in listed and "weather.%" in listed and text not in listed
        assert [each["name"] for each in json.loads(odf("list", "--json"))] == ["nightly", "other"]
        assert text not in odf("list", "--json")
        odf("revoke", "nightly")
        assert Tokens(workspace.odf).find(text) is None


def test_deeply_nested_or_unreadable_file_is_reported(tokens: Tokens, tmp_path: Path) -> None:
    path = tmp_path / "keys" / "push-tokens.json"
    path.parent.mkdir()
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(BadData, match="the tokens cannot be read"):
        tokens.list_tokens()
    path.unlink()
    path.symlink_to(path.name)
    with pytest.raises(BadData, match="the tokens cannot be read"):
        tokens.list_tokens()
