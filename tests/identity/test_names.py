"""References and patterns: the specification's grammar, row by row, and round trips."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.errors import InvalidIdentity
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import (
    DatasetAlias,
    DatasetAliasAmbiguous,
    DatasetAliasRemote,
    DatasetIdRemote,
    DatasetPattern,
    DatasetUrl,
    is_valid_name,
    matches_pattern,
    parse_ref,
    parse_ref_any,
    parse_ref_remote,
)

KEY_TEXT = "did:odf:z6MkmgVreHBu2ABaD59Jq1J2JneXwzpsUWwEWXS4kLhjb4V4"
KEY = DatasetId.parse(KEY_TEXT)

subdomains = st.from_regex(r"[A-Za-z0-9]{1,6}(-[A-Za-z0-9]{1,4}){0,2}", fullmatch=True)
names = st.lists(subdomains, min_size=1, max_size=3).map(".".join)
ids = st.binary(min_size=32, max_size=32).map(DatasetId)


@pytest.mark.parametrize("text", ["local.id-only", "valid.dataset.id", "a", "0", "admin0.countries.10m"])
def test_valid_names_are_accepted(text: str) -> None:
    assert is_valid_name(text)


@pytest.mark.parametrize(
    "text",
    [
        ".invalid",
        "invalid-",
        "invalid--id",
        "invalid..id",
        "in^valid",
        "invalid_id",
        "-a",
        "a.",
        "é",
        "٣",
        "",
        "a\n",
        " a",
        "a b",
    ],
)
def test_invalid_names_are_rejected(text: str) -> None:
    assert not is_valid_name(text)


@pytest.mark.parametrize(
    ("text", "account", "name"),
    [("local.id", None, "local.id"), ("user-name/local.id", "user-name", "local.id")],
)
def test_alias_is_parsed_into_account_and_name(text: str, account: str | None, name: str) -> None:
    alias = DatasetAlias.parse(text)
    assert (alias.account, alias.name) == (account, name)
    assert str(alias) == text
    assert parse_ref(text) == alias


@pytest.mark.parametrize(
    "text",
    ["repo.name/user-name/blah", "user-name/.invalid", ".invalid/local.id", "invalid_alias", "/a", "a/", ""],
)
def test_invalid_alias_is_rejected(text: str) -> None:
    with pytest.raises(InvalidIdentity):
        DatasetAlias.parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("repo.name/local.id", ("repo.name", None, "local.id")),
        ("repo.name/user-name/local.id", ("repo.name", "user-name", "local.id")),
    ],
)
def test_remote_alias_is_parsed_into_repository_account_and_name(
    text: str, expected: tuple[str, str | None, str]
) -> None:
    alias = DatasetAliasRemote.parse(text)
    assert (alias.repo, alias.account, alias.name) == expected
    assert str(alias) == text
    assert parse_ref_remote(text) == alias


@pytest.mark.parametrize(
    "text",
    [
        "repo.name/.invalid",
        ".invalid/local.id",
        "repo.name/user-name/.invalid",
        "repo.name/.invalid/local.id",
        ".invalid/user-name/local.id",
        "local.id",
    ],
)
def test_invalid_remote_alias_is_rejected(text: str) -> None:
    with pytest.raises(InvalidIdentity):
        DatasetAliasRemote.parse(text)
    with pytest.raises(InvalidIdentity):
        parse_ref_remote(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dataset", DatasetAlias(None, "dataset")),
        ("mystery/dataset", DatasetAliasAmbiguous("mystery", "dataset")),
        ("repo/account/dataset", DatasetAliasRemote("repo", "account", "dataset")),
        (KEY_TEXT, KEY),
        (f"repo/{KEY_TEXT}", DatasetIdRemote("repo", KEY)),
        (
            "https://opendata.ca/odf/census-2016-population/",
            DatasetUrl("https://opendata.ca/odf/census-2016-population/"),
        ),
        (
            "ipfs://bafkreie3hfshd4ikinnbio3kewo2hvj6doh5jp3p23iwk2evgo2un5g7km/",
            DatasetUrl("ipfs://bafkreie3hfshd4ikinnbio3kewo2hvj6doh5jp3p23iwk2evgo2un5g7km/"),
        ),
        ("s3+https://bucket/x", DatasetUrl("s3+https://bucket/x")),
    ],
)
def test_reference_of_any_kind_is_parsed(text: str, expected: object) -> None:
    assert parse_ref_any(text) == expected


@pytest.mark.parametrize(
    "text",
    ["foo:bar", "did:odf:", "did:odf:z6Mk", "repo/did:odf:nonsense", "a/b/c/d", "", "://x", "_://x"],
)
def test_invalid_reference_is_rejected(text: str) -> None:
    with pytest.raises(InvalidIdentity):
        parse_ref_any(text)


def test_the_workspace_decides_what_is_ambiguous() -> None:
    def is_repo(name: str) -> bool:
        return name == "kamu"

    assert parse_ref_any("kamu/cities", is_repo) == DatasetAliasRemote("kamu", None, "cities")
    assert parse_ref_any("me/cities", is_repo) == DatasetAlias("me", "cities")


@pytest.mark.parametrize("text", ["net.example.com", "account/net.example.com", KEY_TEXT])
def test_pattern_without_wildcard_is_a_reference(text: str) -> None:
    assert DatasetPattern.parse(text).ref == parse_ref(text)


@pytest.mark.parametrize(
    ("text", "account", "name"),
    [("net.example.%", None, "net.example.%"), ("account/%", "account", "%")],
)
def test_pattern_with_wildcard_has_account_and_name(text: str, account: str | None, name: str) -> None:
    pattern = DatasetPattern.parse(text)
    assert pattern.ref is None
    assert (pattern.account, pattern.name, str(pattern)) == (account, name, text)


@pytest.mark.parametrize(
    "text",
    [
        "net.example.%",
        "net.e%.com",
        "net-%.com",
        "net%net",
        "%.example.com",
        "%e",
        "%-e",
        "net%.ex%.com",
        "%.ex%.com",
        "%.ex%.c%",
        "%-net.ex-%.c-%",
        "%",
        "%a%%",
    ],
)
def test_wildcards_are_accepted_anywhere_in_a_name(text: str) -> None:
    assert DatasetPattern.parse(text).name == text


@pytest.mark.parametrize(
    "text",
    [
        "invalid_ref^",
        "net.example.%-",
        "net.exa^mple.%",
        f"{KEY_TEXT}%",
        "&net%.exa%mple.net",
        "repo/account/%",
        "acc%/name",
        "/%",
    ],
)
def test_invalid_pattern_is_rejected(text: str) -> None:
    with pytest.raises(InvalidIdentity, match=re.escape(text)):
        DatasetPattern.parse(text)


def test_pattern_matches_names_accounts_and_ids() -> None:
    def matches(pattern: str, alias: str) -> bool:
        return DatasetPattern.parse(pattern).matches(DatasetAlias.parse(alias), KEY)

    assert matches("%odf%", "net.example.odf")
    assert not matches("%odf%", "net.example.com")  # its id's text has 'odf' in it
    assert matches("net%", "account2/net.example")
    assert not matches("account1/net%", "account2/net.example")
    assert not matches("account1/net%", "net.example")
    assert matches("ACCOUNT2/NET%", "account2/net.example")
    assert matches(KEY_TEXT, "anything")
    assert matches(str(KEY), "anything")
    assert not matches("net.example", "account2/net.example")
    assert matches("Net.Example", "net.example")


def test_names_are_equal_in_any_case() -> None:
    one, other = DatasetAlias.parse("NY-NewYork/Cities"), DatasetAlias.parse("ny-newyork/cities")
    assert one == other and len({one, other}) == 1
    assert str(one) == "NY-NewYork/Cities"
    assert one != DatasetAlias.parse("cities")
    assert DatasetAliasRemote.parse("A/b") == DatasetAliasRemote.parse("a/B")
    assert DatasetAlias.parse("a/b") != DatasetAliasRemote.parse("a/b")


@given(names, st.none() | names, st.none() | names)
def test_aliases_round_trip(name: str, account: str | None, repo: str | None) -> None:
    alias = DatasetAlias(account, name)
    assert DatasetAlias.parse(str(alias)) == alias == DatasetAlias.parse(str(alias).upper())
    if repo is not None:
        remote = DatasetAliasRemote(repo, account, name)
        assert parse_ref_remote(str(remote)) == remote
        assert remote.alias == alias


@given(ids, names)
def test_ids_round_trip(dataset_id: DatasetId, repo: str) -> None:
    assert parse_ref(str(dataset_id)) == dataset_id
    assert parse_ref_any(f"{repo}/{dataset_id}") == DatasetIdRemote(repo, dataset_id)
    assert DatasetPattern.parse(str(dataset_id)).matches(DatasetAlias(None, "x"), dataset_id)


@given(st.text(alphabet="aB%.", max_size=8), st.text(alphabet="aAbB.", max_size=10))
def test_wildcard_matches_like_sql_like(pattern: str, name: str) -> None:
    regex = ".*".join(re.escape(part) for part in pattern.split("%"))
    assert matches_pattern(pattern, name) == (
        re.fullmatch(regex, name, re.IGNORECASE | re.DOTALL) is not None
    )
