"""Addresses in their one spelling, and what a workspace remembers of its datasets' remotes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odf_engine.errors import AlreadyExists, BadData, NotFound, OdfError, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import DatasetAlias, is_valid_name, parse_ref_any
from odf_engine.net.urls import dataset_name_from_url, normalize_url, origin_of, redact_url
from odf_engine.workspace.remotes import DatasetRemotes, Remotes, RemoteStatus, Repo
from odf_engine.workspace.workspace import Workspace
from tests.sync.builders import make_root

ID = DatasetId.parse("did:odf:fed01" + "ab" * 32)
URL = "https://h.org/cities/"


def seen(url: str = URL, **changes: object) -> RemoteStatus:
    plain = {
        "url": url, "relation": "behind", "ours": 0, "theirs": 3, "common": "f1", "our_head": "f1",
        "their_head": "f2", "at": "2024-05-01T00:00:00Z",
    }  # fmt: skip
    return RemoteStatus(**{**plain, **changes})  # type: ignore[arg-type]


@pytest.fixture
def remotes(tmp_path: Path) -> Remotes:
    return Remotes(tmp_path)


@pytest.mark.parametrize(
    ("written", "spelling"),
    [
        ("https://Example.COM", "https://example.com/"),
        ("HTTPS://example.com:443/a/b//", "https://example.com/a/b/"),
        ("http://example.com:80/", "http://example.com/"),
        ("http://example.com:8080", "http://example.com:8080/"),
        ("odf+https://example.com:443/x", "odf+https://example.com/x/"),
        (" https://example.com/Ünï code ", "https://example.com/%C3%9Cn%C3%AF%20code/"),
        ("https://example.com/a%20b", "https://example.com/a%20b/"),
        ("https://example.com/%41%2f%ff%2D", "https://example.com/A%2F%FF-/"),
        ("http://[2001:DB8::1]:8080/x", "http://[2001:db8::1]:8080/x/"),
        ("s3://Bucket/Path", "s3://Bucket/Path/"),
        ("s3+http://HOST:9000/bucket/x", "s3+http://host:9000/bucket/x/"),
        ("ipfs://QmCaSe/x", "ipfs://QmCaSe/x/"),
        ("file:///a/b", "file:///a/b/"),
        ("FILE:///a//b/./c/../d/", "file:///a/b/d/"),
        ("file://localhost/a", "file:///a/"),
        ("file:///with space", "file:///with%20space/"),
        ("file:///with%20space/", "file:///with%20space/"),
        ("file:///100%/x", "file:///100%25/x/"),
        ("/mnt/stick", "file:///mnt/stick/"),
    ],
)
def test_equivalent_urls_are_normalized_to_one_spelling(written: str, spelling: str) -> None:
    assert normalize_url(written) == spelling
    assert normalize_url(spelling) == spelling


def test_relative_paths_start_at_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for written in ("./x", "file:x", "file://x"):
        assert normalize_url(written) == f"file://{tmp_path}/x/"
    assert normalize_url("~/x") == f"file://{Path.home()}/x/"


@pytest.mark.parametrize(
    "wrong",
    [
        "", "cities", "ftp://h/x", "javascript://h/x", "http://", "https:///x", "http://h:99999/", "http://[::1",
        "http://h/a?b=c", "http://h/a#b", "http://h/a/../b", "http://h/%2e%2e/b", "http://h/a\nb", "s3:///x",
    ],
)  # fmt: skip
def test_invalid_urls_are_refused(wrong: str) -> None:
    with pytest.raises(UsageError):
        normalize_url(wrong)


@pytest.mark.parametrize(
    "url", ["https://joe:geheim@h.org/x", "odf+http://geheim@h", "s3://key:geheim@bucket/x", "joe:geheim@h"]
)
def test_url_with_login_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        normalize_url(url)
    assert "geheim" not in f"{caught.value}{caught.value.hint}" or "://" not in url


HOSTS = st.from_regex(r"[A-Za-z0-9]{1,8}(\.[A-Za-z]{2,5})?", fullmatch=True)
PATHS = st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6), max_size=4)


@settings(max_examples=50)
@given(st.sampled_from(["http", "https", "odf+http", "odf+https", "s3+https"]), HOSTS, PATHS, st.booleans())
def test_normalized_url_is_stable_and_keeps_its_origin(
    scheme: str, host: str, path: list[str], loud: bool
) -> None:
    written = f"{scheme.upper() if loud else scheme}://{host.upper() if loud else host}/{'/'.join(path)}"
    try:
        url = normalize_url(written)
    except UsageError:
        return
    assert normalize_url(url) == url
    assert url.endswith("/")
    assert url.isascii()
    assert origin_of(url) == origin_of(written) or scheme == "s3+https"  # a bucket may be written with %
    assert url.startswith(f"{scheme}://{host.lower()}/")


@given(PATHS)
def test_folder_url_leads_back_to_its_folder(path: list[str]) -> None:
    folder = Path("/", *[part.replace("/", "") for part in path if part.strip("./")])
    from odf_engine.sync.remotes.folder_remote import folder_of

    if str(folder).strip() == str(folder):
        assert folder_of(normalize_url(str(folder))) == folder


def test_origin_is_scheme_host_and_port() -> None:
    same = ["https://h.org/a/", "https://H.org:443/b/", "odf+https://h.org/"]
    assert {origin_of(url) for url in same} == {"https://h.org"}
    others = ["http://h.org/", "https://h.org:8443/", "https://g.org/", "https://h.org.evil.com/"]
    assert len({origin_of(url) for url in [*same, *others]}) == 5
    assert origin_of("http://[::1]:80/x/") == "http://[::1]"
    assert origin_of("s3+https://h.org/one/x/") == "s3+https://h.org/one"
    assert origin_of("s3+https://h.org/one/") != origin_of("s3+https://h.org/two/")
    assert origin_of("s3://bucket/x/") == "s3://bucket"


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://h.org/data/cities/", "cities"),
        ("https://h.org/cities/%20/", "cities"),
        ("https://h.org/a%2Db/", "a-b"),
        ("https://h.org/", "h.org"),
        ("s3://bucket/", "bucket"),
        ("https://h.org/_/", "h.org"),
        ("ipfs://QmX/population.csv/", "population.csv"),
    ],
)
def test_dataset_name_is_derived_from_the_url(url: str, name: str) -> None:
    assert dataset_name_from_url(url) == name
    assert is_valid_name(name)


def test_url_without_a_name_requires_an_alias() -> None:
    with pytest.raises(UsageError) as caught:
        dataset_name_from_url("file:///_/")
    assert "--as NAME" in str(caught.value.hint)


def test_shown_urls_omit_credentials() -> None:
    assert redact_url("https://joe:geheim@h.org/x?token=geheim") == "https://h.org/x"
    assert redact_url("http://[::1") == "http:…"


def test_repositories_are_kept(remotes: Remotes, tmp_path: Path) -> None:
    assert remotes.repositories() == []
    remotes.add("lab", "https://H.org")
    remotes.add("Backup", "/mnt/stick")
    assert remotes.repositories() == [Repo("Backup", "file:///mnt/stick/"), Repo("lab", "https://h.org/")]
    assert remotes.repository("LAB").url == "https://h.org/"
    assert Remotes(tmp_path).is_repository("backup")
    with pytest.raises(AlreadyExists):
        remotes.add("Lab", "https://g.org")
    with pytest.raises(UsageError):
        remotes.add("no/name", "https://g.org")
    with pytest.raises(NotFound) as caught:
        remotes.remove("shop")
    assert "Backup, lab" in str(caught.value.hint)
    remotes.remove("lab")
    assert not remotes.is_repository("lab")


def test_damaged_repositories_file_is_named_in_the_error(remotes: Remotes, tmp_path: Path) -> None:
    (tmp_path / "repositories.json").write_text('[{"name": 3}]')
    with pytest.raises(BadData) as caught:
        remotes.repositories()
    assert caught.value.where == str(tmp_path / "repositories.json")


def test_aliases_are_resolved_to_urls_and_back(remotes: Remotes) -> None:
    remotes.add("lab", "https://h.org/")
    remotes.add("deep", "https://h.org/deep/")
    for text, url, name in (
        ("lab/cities", "https://h.org/cities/", "cities"),
        ("lab/joe/cities", "https://h.org/joe/cities/", "cities"),
        ("LAB/cities", "https://h.org/cities/", "cities"),
        ("https://G.org/x", "https://g.org/x/", "x"),
    ):
        assert remotes.locate(parse_ref_any(text, remotes.is_repository)) == (url, name)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        remotes.locate(parse_ref_any("shop/joe/cities", remotes.is_repository))  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        remotes.locate(parse_ref_any(f"lab/{ID}"))  # type: ignore[arg-type]
    assert remotes.display_name("https://h.org/joe/cities/") == "lab/joe/cities"
    assert remotes.display_name("https://h.org/deep/x/") == "deep/x"
    assert remotes.display_name("https://h.org.evil.com/x/") == "https://h.org.evil.com/x/"
    assert remotes.display_name("https://h.org/") == "https://h.org/"


def test_remotes_and_statuses_are_recorded_and_detached(remotes: Remotes) -> None:
    assert remotes.get(ID) == DatasetRemotes()
    remotes.record_status(ID, seen(), "pull")
    remotes.record_status(ID, seen(theirs=4))
    remotes.record_status(ID, seen("file:///b/", relation="equal"), "push")
    assert remotes.get(ID).pull == [URL]
    assert remotes.get(ID).push == ["file:///b/"]
    found = remotes.get(ID).find_status(URL)
    assert found is not None and found.theirs == 4
    assert remotes.find_by_url(URL) == ID
    assert remotes.find_by_url("file:///b/") == ID
    assert remotes.find_by_url("file:///c/") is None
    assert remotes.detach(ID, URL, ("push",)) == []
    assert remotes.detach(ID, URL) == ["pull"]
    assert remotes.get(ID).find_status(URL) is None
    assert remotes.get(ID).push == ["file:///b/"]
    remotes.forget(ID)
    remotes.forget(ID)
    assert remotes.get(ID) == DatasetRemotes()


def test_pull_remote_takes_precedence_over_push_remote(remotes: Remotes) -> None:
    other = DatasetId.parse("did:odf:fed01" + "00" * 32)
    remotes.attach(other, URL, "push")
    remotes.attach(ID, URL, "pull")
    assert remotes.find_by_url(URL) == ID


def test_damaged_remotes_file_is_ignored(remotes: Remotes, tmp_path: Path) -> None:
    remotes.attach(ID, URL, "pull")
    (tmp_path / "remotes" / f"{ID.multibase}.json").write_bytes(b"\xff{")
    (tmp_path / "remotes" / "notes.json").write_text("{}")
    assert remotes.get(ID) == DatasetRemotes()
    assert remotes.find_by_url(URL) is None


def test_concurrent_status_updates_lose_nothing(tmp_path: Path) -> None:
    def note(number: int) -> None:
        for each in range(10):
            Remotes(tmp_path).record_status(ID, seen(f"https://h.org/{number}/{each}/"), "push")

    threads = [threading.Thread(target=note, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = Remotes(tmp_path).get(ID)
    assert len(known.push) == len(known.seen) == 40


def test_remotes_follow_rename_and_deletion(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path / "home")
    entry, remotes = make_root(workspace), Remotes(workspace.odf)
    remotes.attach(entry.id, URL, "pull")
    entry = workspace.rename(entry, DatasetAlias.parse("other"))
    assert remotes.get(entry.id).pull == [URL]
    workspace.delete(entry)
    assert remotes.get(entry.id) == DatasetRemotes()
    assert remotes.find_by_url(URL) is None


def test_unwritable_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(OdfError) as caught:
        Remotes(tmp_path / "gone").add("lab", URL)
    assert "cannot be written" in caught.value.message


def test_deeply_nested_or_unreadable_repositories_are_reported(remotes: Remotes, tmp_path: Path) -> None:
    (tmp_path / "remotes").mkdir()
    files = (tmp_path / "repositories.json", tmp_path / "remotes" / f"{ID.multibase}.json")
    for path in files:
        path.write_bytes(b"[" * 100_000)
    with pytest.raises(BadData, match="repositories cannot be read"):
        remotes.repositories()
    assert remotes.get(ID) == DatasetRemotes()
    for path in files:
        path.unlink()
        path.symlink_to(path.name)
    with pytest.raises(BadData, match="repositories cannot be read"):
        remotes.repositories()
    with pytest.raises(BadData, match="the remotes of the dataset cannot be read"):
        remotes.get(ID)


@pytest.mark.parametrize("text", ["https://h.org/caf\udce9", "/mnt/\udcff/x", "file:///\ud800"])
def test_urls_must_be_utf8(text: str) -> None:
    with pytest.raises(UsageError, match="the URL is not UTF-8 text") as caught:
        normalize_url(text)
    assert str(caught.value).isprintable()
