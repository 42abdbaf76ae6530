"""Asking servers which datasets they have: ours tell, others do not, and some tell nonsense."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from odf_engine.errors import BadData, OdfError, SourceUnavailable, Unsupported
from odf_engine.net.credentials import RemoteAccess
from odf_engine.sync.remotes.base import RepositoryEntry
from odf_engine.sync.remotes.transports import open_repository
from odf_engine.workspace.workspace import Workspace
from tests.sync import builders
from tests.sync.hostile_server import Behaviour, Exchange, HostileServer, hostile
from tests.sync.in_process_server import served

pytestmark = pytest.mark.net

ID = "did:odf:fed01df230b49615d175307d580c33d6fda61fc7b9aec91df0f5c1a5ebe3b8cbfee02"
HEAD = "f1620" + "ab" * 32
JSON = "Content-Type: application/json; charset=utf-8"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HostileServer]:
    with hostile(tmp_path) as running:
        yield running


@pytest.fixture
def patience(access: RemoteAccess) -> RemoteAccess:
    fetch = msgspec.structs.replace(access.config.fetch, retries=0)
    return access._replace(config=msgspec.structs.replace(access.config, fetch=fetch))


def listed(url: str, access: RemoteAccess) -> list[RepositoryEntry]:
    with closing(open_repository(url, access)) as repository:
        return [*repository.datasets()]


def tells(what: Any, *headers: str) -> Behaviour:
    body = what if isinstance(what, bytes) else json.dumps(what).encode()
    return lambda exchange: exchange.answer("200 OK", body, *(headers or (JSON,)))


@pytest.mark.parametrize("scheme", ["", "odf+"])
def test_server_list_is_parsed_and_its_urls_ignored(
    server: HostileServer, patience: RemoteAccess, scheme: str
) -> None:
    """Addresses are made here: what a server says of them is of no matter."""
    full = {
        "name": "weather.bern",
        "id": ID,
        "kind": "Root",
        "head": HEAD,
        "blocks": 3,
        "records": 10,
        "size": 1 << 40,
        "description": "Rain\n\x1b[31mand sun",
        "keywords": ["a", "b\x07"],
        "url": "http://evil.example/",
        "watermark": None,
        "damaged": False,
    }
    server.says["repo/"] = tells({"datasets": [full, {"name": "me/air"}], "more": [[]]})
    url = f"{scheme}{server.url}repo/"
    air, weather = listed(url, patience)
    assert air == RepositoryEntry("me/air", f"{url}me/air/")
    assert weather == RepositoryEntry(
        name="weather.bern", url=f"{url}weather.bern/", id=ID, kind="Root", head=HEAD, blocks=3, records=10,
        size=1 << 40, description="Rain [31mand sun", keywords=("a", "b"),
    )  # fmt: skip
    assert server.asked[0].headers["accept"] == "application/json"


def test_own_server_lists_its_datasets(there: Workspace, access: RemoteAccess) -> None:
    entry = builders.make_root(there, "weather.bern", slices=1)
    builders.make_derivative(there, entry, "mean.weather")
    with served(there) as running:
        for url in (running.url, f"odf+{running.url}"):
            mean, weather = listed(url, access)
            assert (mean.name, mean.kind) == ("mean.weather", "Derivative")
            assert (weather.url, weather.id) == (f"{url}weather.bern/", str(entry.id))
            assert (weather.head, weather.blocks, weather.records) == (str(entry.dataset.head()), 3, 3)


def forever(exchange: Exchange) -> None:
    exchange.send(f"HTTP/1.1 200 OK\r\n{JSON}\r\n\r\n".encode() + b'{"datasets":[')
    exchange.forever(b'{"name":"a"},' * 9999)


@pytest.mark.parametrize(
    ("behave", "error", "text"),
    [
        (tells({"datasets": [{"name": "../../etc"}]}), BadData, "cannot be read"),
        (tells({"datasets": [{"name": "a", "id": "someone"}]}), BadData, "cannot be read"),
        (tells({"datasets": [{"name": "a", "head": "master"}]}), BadData, "cannot be read"),
        (tells({"datasets": [{"name": "a", "size": -1}]}), BadData, "cannot be read"),
        (tells({"datasets": [{"name": "a", "blocks": 1 << 70}]}), BadData, "cannot be read"),
        (tells({"datasets": [{"id": ID}]}), BadData, "missing required field `name`"),
        (tells({"datasets": {"a": 1}}), BadData, "Expected `array`"),
        (tells([1, 2]), BadData, "Expected `object`"),
        (tells(b'{"datasets": '), BadData, "truncated"),
        (tells(b'{"datasets": [], "x": ' + b"[" * 200_000), BadData, "cannot be read"),
        (tells(b'{"datasets": [{"name": "\xff"}]}'), BadData, "cannot be read"),
        (tells(b""), BadData, "cannot be read"),
        (forever, BadData, "more than 16,777,216 bytes"),
        (tells(b"{}", JSON, "Content-Encoding: gzip"), BadData, "Content-Encoding gzip"),
        (tells(b"<html>Index of /", "Content-Type: text/html"), Unsupported, "does not list"),
        (tells(b"hello", "Content-Type: text/plain"), Unsupported, "does not list"),
        (lambda exchange: exchange.answer("404 No"), Unsupported, "does not list"),
        (lambda exchange: exchange.answer("403 No"), Unsupported, "does not list"),
        (lambda exchange: exchange.answer("401 No"), SourceUnavailable, "authentication required"),
        (lambda exchange: None, SourceUnavailable, "without a response"),
    ],
)  # fmt: skip
def test_invalid_list_is_rejected(
    server: HostileServer, patience: RemoteAccess, behave: Behaviour, error: type[OdfError], text: str
) -> None:
    server.says["repo/"] = behave
    with pytest.raises(error, match=text) as caught:
        listed(f"{server.url}repo/", patience)
    assert str(caught.value).isprintable()
    assert error is not Unsupported or f"{server.url}repo/NAME/" in str(caught.value.hint)
