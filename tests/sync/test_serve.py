"""``odf serve``: what it gives away, to whom, and in which words."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odf_engine.base.progress import Reporter
from odf_engine.errors import OdfError, SourceUnavailable, UsageError
from odf_engine.identity.multiformats import Multihash, base58btc_encode
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.connector import Connector
from odf_engine.net.credentials import RemoteAccess
from odf_engine.sync.pull import clone_dataset
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.sync.server.request_router import _parse_path
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.ingest.ftp_server import make_certificate
from tests.sync.builders import add_files, as_old_repository, describe, make_derivative, make_root
from tests.sync.in_process_server import Running, served

pytestmark = pytest.mark.net


class Answer(NamedTuple):
    """What a server said."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


def ask(server: Running, path: str, method: str = "GET", **headers: str) -> Answer:
    """One request, with the path as it is."""
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


@pytest.fixture
def numbers(there: Workspace) -> DatasetEntry:
    """A dataset with small slices, and one of more than a megabyte."""
    entry = make_root(there, slices=2)
    add_files(entry, 1, 1_300_000)
    return entry


@pytest.fixture
def server(there: Workspace, numbers: DatasetEntry) -> Iterator[Running]:
    """Serves it, read-only."""
    with served(there) as running:
        yield running


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, DatasetEntry]]:
    """The same for tests that change nothing."""
    workspace = Workspace.init(tmp_path_factory.mktemp("lasting") / "there")
    entry = make_root(workspace, "numbers")
    add_files(entry, 1, 1_300_000)
    with served(workspace) as running:
        yield running, entry


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a further host name."""
    workspace = Workspace.init(tmp_path_factory.mktemp("named") / "there")
    make_root(workspace, "numbers")
    with served(workspace, host_names=["data.example"]) as running:
        yield running


def largest(entry: DatasetEntry) -> Path:
    """The file of the largest slice."""
    return max((entry.dataset.folder / "data").iterdir(), key=lambda path: path.stat().st_size)


class TestObjects:
    def test_all_of_a_dataset_is_served_byte_by_byte(self, server: Running, numbers: DatasetEntry) -> None:
        folder = numbers.dataset.folder
        for kind in ("blocks", "data"):
            for path in (folder / kind).iterdir():
                answer = ask(server, f"/numbers/{kind}/{path.name}")
                assert (answer.status, answer.body) == (200, path.read_bytes())
                assert answer.headers["ETag"] == f'"{path.name}"'
                assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
                assert answer.headers["Content-Type"] == "application/octet-stream"
                head = ask(server, f"/numbers/{kind}/{path.name}", "HEAD")
                assert (head.status, head.body) == (200, b"")
                assert head.headers["Content-Length"] == str(path.stat().st_size)

    def test_checkpoints_and_proofs_are_served(
        self, there: Workspace, numbers: DatasetEntry, server: Running
    ) -> None:
        from odf_engine.identity.ownership_proof import create_and_store_proof

        entry = make_derivative(there, numbers)
        (checkpoint,) = (entry.dataset.folder / "checkpoints").iterdir()
        assert ask(server, f"/derived/checkpoints/{checkpoint.name}").body == checkpoint.read_bytes()
        head = numbers.dataset.head()
        assert head is not None
        assert ask(server, f"/numbers/proofs/{head}").status == 404
        proof = create_and_store_proof(
            numbers.dataset.folder, numbers.id, there.keys.private_key_pem(numbers.id), head
        )
        answer = ask(server, f"/numbers/proofs/{head}")
        assert (answer.body, answer.headers["Content-Type"]) == (
            bytes(proof),
            "application/json; charset=utf-8",
        )

    def test_head_is_never_cached(self, server: Running, numbers: DatasetEntry) -> None:
        answer = ask(server, "/numbers/refs/head")
        assert answer.body == str(numbers.dataset.head()).encode()
        assert answer.headers["Cache-Control"] == "no-cache"
        assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert ask(server, "/numbers/refs/head", If_None_Match=answer.headers["ETag"]).status == 304
        new = describe(numbers, "now with words")
        assert (
            ask(server, "/numbers/refs/head", If_None_Match=answer.headers["ETag"]).body == str(new).encode()
        )
        assert ask(server, "/numbers/refs/before-reset-1").status == 404

    @pytest.mark.parametrize("spell", [str, lambda h: base58btc_encode(bytes(h)), lambda h: str(h).upper()])
    def test_hashes_are_accepted_in_any_encoding(
        self, server: Running, numbers: DatasetEntry, spell: object
    ) -> None:
        head = numbers.dataset.head()
        assert head is not None and callable(spell)
        answer = ask(server, f"/numbers/blocks/{spell(head)}")
        assert answer.body == numbers.dataset.block_bytes(head)
        assert answer.headers["ETag"] == f'"{head}"'

    def test_files_with_old_names_are_found(
        self, there: Workspace, numbers: DatasetEntry, tmp_path: Path
    ) -> None:
        old = tmp_path / "old"
        as_old_repository(numbers.dataset.folder, old)
        (old / "info").mkdir()
        (old / "info" / "alias").write_text("numbers")
        folder = numbers.dataset.folder
        folder.rename(tmp_path / "gone")
        old.rename(folder)
        head = Multihash.parse((folder / "refs" / "head").read_text())
        with served(there) as server:
            assert ask(server, "/numbers/refs/head").body == str(head).encode()
            block = ask(server, f"/numbers/blocks/{head}").body
        assert Multihash.sha3_256(block) == head

    def test_dataset_is_found_by_name_in_any_case_or_id(self, there: Workspace, server: Running) -> None:
        entry = make_root(there, "acme/Plans")
        head = str(entry.dataset.head()).encode()
        for name in ("acme/plans", "ACME/Plans", str(entry.id), str(entry.id).replace(":", "%3A")):
            assert ask(server, f"/{name}/refs/head").body == head
        for name in ("plans", "acme", "acme/plans/more"):
            assert ask(server, f"/{name}/refs/head").status == 404

    def test_only_selected_datasets_are_served(self, there: Workspace, numbers: DatasetEntry) -> None:
        make_root(there, "secret")
        with served(there, patterns=("num%",)) as server:
            assert ask(server, "/numbers/refs/head").status == 200
            assert ask(server, "/secret/refs/head").status == 404
            assert [
                row["name"]
                for row in json.loads(ask(server, "/", Accept="application/json").body)["datasets"]
            ] == ["numbers"]

    def test_added_and_deleted_datasets_are_noticed(
        self, there: Workspace, server: Running, numbers: DatasetEntry
    ) -> None:
        assert ask(server, "/later/refs/head").status == 404
        later = make_root(there, "later")
        assert ask(server, "/later/refs/head").status == 200
        there.delete(later)
        assert ask(server, "/later/refs/head").status == 404
        assert ask(server, f"/later/blocks/{numbers.dataset.head()}").status == 404

    def test_damaged_head_does_not_reveal_paths(self, server: Running, numbers: DatasetEntry) -> None:
        (numbers.dataset.folder / "refs" / "head").write_text("nonsense")
        answer = ask(server, "/numbers/refs/head")
        assert answer.status == 500
        assert b"/" not in answer.body
        page = ask(server, "/").body.decode()
        assert "damaged" in page and str(numbers.dataset.folder) not in page


class TestRanges:
    @given(data=st.data())
    def test_any_requested_range_selects_that_part(self, data: st.DataObject) -> None:
        from odf_engine.sync.server.object_handlers import _requested_range

        size = data.draw(st.integers(0, 50))
        numbers = st.none() | st.integers(0, 60)
        first, last = data.draw(numbers), data.draw(numbers)

        written = f"bytes={'' if first is None else first}-{'' if last is None else last}"
        request = SimpleNamespace(headers={"Range": written})
        content = bytes(range(size))
        found = content[slice(*_requested_range(cast("Any", request), size, '"x"'))]
        if first is None:
            assert found == (content if last is None else content[max(0, size - last) :] if last else b"")
        elif last is not None and last < first:
            assert found == content
        else:
            assert found == content[first : None if last is None else last + 1]

    @pytest.mark.parametrize(
        ("asked", "status", "part"),
        [
            ("bytes=0-0", 206, slice(0, 1)),
            ("bytes=1299999-", 206, slice(1_299_999, None)),
            ("bytes=-5", 206, slice(-5, None)),
            ("bytes=-99999999", 200, slice(None)),
            ("bytes=1000000-99999999", 206, slice(1_000_000, None)),
            ("bytes=1300000-", 416, slice(0)),
            ("bytes=-0", 416, slice(0)),
            ("bytes=5-2", 200, slice(None)),
            ("bytes=0-1,5-6", 200, slice(None)),
            ("bytes=a-b", 200, slice(None)),
            ("lines=1-2", 200, slice(None)),
            ("bytes=" + "9" * 40 + "-", 200, slice(None)),
            ("bytes=-", 200, slice(None)),
        ],
    )
    def test_ranges_of_large_files_are_served(
        self, lasting: tuple[Running, DatasetEntry], asked: str, status: int, part: slice
    ) -> None:
        server, numbers = lasting
        path = largest(numbers)
        answer = ask(server, f"/numbers/data/{path.name}", Range=asked)
        assert answer.status == status
        assert answer.body == path.read_bytes()[part]
        if status == 206:
            first = part.indices(1_300_000)[0]
            assert answer.headers["Content-Range"] == f"bytes {first}-{first + len(answer.body) - 1}/1300000"
        if status == 416:
            assert answer.headers["Content-Range"] == "bytes */1300000"

    def test_range_of_another_version_returns_the_whole_file(
        self, server: Running, numbers: DatasetEntry
    ) -> None:
        path = largest(numbers)
        target = f"/numbers/data/{path.name}"
        assert ask(server, target, Range="bytes=1-2", If_Range=f'"{path.name}"').status == 206
        assert ask(server, target, Range="bytes=1-2", If_Range='"other"').status == 200


class TestWhatIsPrivate:
    @pytest.mark.parametrize(
        ("path", "status"),
        [
            ("/numbers/info/alias", 404),
            ("/numbers/info/", 404),
            ("/numbers/", 200),
            ("/.odf/config.yaml", 400),
            ("/config.yaml/refs/head", 404),
            ("/numbers/../../config.yaml", 400),
            ("/numbers/data/../../../config.yaml", 400),
            ("/numbers/data/..%2f..%2fconfig.yaml", 400),
            ("/numbers/data/%2e%2e", 400),
            ("/numbers/data/.pending-1", 400),
            ("/numbers/data/f1620%00", 400),
            ("/numbers/data/\\..\\x", 400),
            ("/numbers/data/%ff", 400),
            ("/numbers/data/f1620" + "0" * 2000, 400),
            ("/numbers/data/f1620" + "0" * 64, 404),
            ("/numbers/data/", 404),
            ("/numbers/locks/f1620", 404),
            ("//numbers/refs/head", 400),
            ("/n%20x/refs/head", 400),
            ("/did:odf:nonsense/refs/head", 400),
            ("/numbers/refs/Head", 404),
            ("/pull", 404),
        ],
    )
    def test_paths_outside_of_datasets_are_rejected(
        self, lasting: tuple[Running, DatasetEntry], path: str, status: int
    ) -> None:
        answer = ask(lasting[0], path)
        assert answer.status == status
        if status != 200:
            assert b".odf" not in answer.body and len(answer.body) < 200

    @given(st.text(max_size=60) | st.text("/.%2eEfF\\\0data:", max_size=60))
    def test_parsed_path_never_leaves_the_dataset(self, text: str) -> None:
        try:
            way = _parse_path("/" + text)
        except OdfError:
            return
        assert way.dataset.count("/") <= 1
        for part in (*way.dataset.split("/"), way.name):
            assert part not in (".", "..") and "/" not in part and "\0" not in part

    @pytest.mark.parametrize("text", ["\udcff", "caf\udce9/refs/head", "%ff", "\ud800"])
    def test_a_path_is_utf8(self, text: str) -> None:
        with pytest.raises(UsageError, match="the path is not UTF-8"):
            _parse_path("/" + text)

    def test_folders_and_pipes_are_not_served(self, server: Running, numbers: DatasetEntry) -> None:
        folder = numbers.dataset.folder / "data"
        name = str(Multihash.sha3_256(b"a folder"))
        (folder / name).mkdir()
        assert ask(server, f"/numbers/data/{name}").status == 404
        pipe = str(Multihash.sha3_256(b"a pipe"))
        os.mkfifo(folder / pipe)
        assert ask(server, f"/numbers/data/{pipe}").status == 404

    def test_other_methods_are_rejected(self, server: Running, numbers: DatasetEntry) -> None:
        for method in ("POST", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE"):
            assert ask(server, "/numbers/refs/head", method).status == 405
        assert ask(server, f"/numbers/data/{largest(numbers).name}", "PUT").status == 403  # it is read-only


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


class TestPage:
    def test_page_lists_datasets_with_escaped_text_and_pull_commands(
        self, server: Running, numbers: DatasetEntry
    ) -> None:
        describe(numbers, "<script>alert(1)</script> & \u202egnp.exe")
        answer = ask(server, "/", Accept="text/html,*/*")
        page = _Page()
        page.feed(answer.body.decode())
        state = numbers.dataset.state()
        assert f"odf pull odf+{server.url}numbers/" in page.text
        assert str(state.head) in page.text and str(state.records) in page.text
        assert "<script>alert(1)</script> & \ufffdgnp.exe" in page.text
        assert "script" not in page.tags
        assert {"html", "title", "main", "h1", "h2", "dl"} <= set(page.tags)
        assert page.links == [server.url + "catalog.jsonld", server.url + "numbers/"]
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]

    def test_one_dataset_has_a_page(self, server: Running) -> None:
        answer = ask(server, "/numbers/")
        assert answer.status == 200 and b"<h2>" in answer.body
        assert ask(server, "/nothing/").status == 404

    def test_page_is_json_on_request(self, server: Running, numbers: DatasetEntry) -> None:
        describe(numbers, "Numbers")
        answer = ask(server, "/", Accept="application/json")
        assert answer.headers["Content-Type"].startswith("application/json")
        state = numbers.dataset.state()
        (row,) = json.loads(answer.body)["datasets"]
        assert {**row, "watermark": None} == {
            "name": "numbers", "id": str(numbers.id), "kind": "Root", "head": str(state.head),
            "blocks": state.blocks, "records": state.records, "size": state.data_size,
            "watermark": None, "description": "Numbers", "keywords": [], "damaged": False,
        }  # fmt: skip


class TestAddresses:
    def test_addresses_use_the_requested_host(self, there: Workspace, numbers: DatasetEntry) -> None:
        with served(there, host_names=["data.example", "a.example"]) as server:
            page = ask(server, "/", Host="data.example:99").body
            assert b"odf pull odf+http://data.example:99/numbers/" in page
            told = {"X_Forwarded_Host": "b.example", "X_Forwarded_Proto": "https"}
            spoofed = ask(server, "/", Host="a.example", **told)
        assert b"odf+http://a.example/" in spoofed.body and b"b.example" not in spoofed.body

    @pytest.mark.parametrize("host", ["", "a/b", "a b", "a@b", '"><script>', "a:1:2"])
    def test_invalid_host_is_rejected(self, lasting: tuple[Running, DatasetEntry], host: str) -> None:
        assert ask(lasting[0], "/", Host=host).status == 400

    def test_proxy_headers_determine_the_addresses(self, there: Workspace, numbers: DatasetEntry) -> None:
        with served(there, behind_proxy=True, host_names=["data.example", "b.example"]) as server:
            told = {
                "Host": "127.0.0.1",
                "X_Forwarded_Host": "evil, data.example",
                "X_Forwarded_Proto": "https",
            }
            assert b"odf+https://data.example/numbers/" in ask(server, "/", **told).body
            told = {"Forwarded": 'for=1.2.3.4;host="b.example";proto=https', "X_Forwarded_Prefix": "/odf"}
            assert b"odf+https://b.example/odf/numbers/" in ask(server, "/", **told).body
            assert ask(server, "/", X_Forwarded_Proto="javascript").status == 400


class TestSites:
    """Web pages in a browser, and DNS names that are directed to this machine."""

    @pytest.mark.parametrize("host", [
        "127.0.0.1", "127.0.0.1:99", "localhost", "LOCALHOST.:80", "a.localhost", "[::1]:8080", "192.168.1.7",
        "data.example:443", socket.gethostname(),
    ])  # fmt: skip
    def test_own_host_names_and_addresses_are_answered(self, named: Running, host: str) -> None:
        assert ask(named, "/numbers/refs/head", Host=host).status == 200

    @pytest.mark.parametrize(
        "host", ["evil.example", "127.0.0.1.evil.example:80", "localhost.evil", "data.examplee"]
    )
    @pytest.mark.parametrize("path", ["/", "/numbers/refs/head", "/numbers/pull", "/metrics", "/none"])
    def test_other_host_names_are_refused(self, named: Running, host: str, path: str) -> None:
        answer = ask(named, path, Host=host)
        name = host.partition(":")[0]
        assert answer.status == 421
        assert answer.body.decode().startswith(f"{name} is not a host name of this server")
        assert b"numbers" not in answer.body

    @pytest.mark.parametrize(
        ("origin", "status"),
        [
            ("https://evil.example", 403), ("http://127.0.0.1:1", 403), ("http://localhost", 403),
            ("null", 403), ("", 403), ("file://", 403),
            ("https://data.example.evil.example", 403), ("ftp://data.example", 403),
            ("https://data.example", 101), ("http://data.example:99", 101), ("same", 101), (None, 101),
        ],
    )  # fmt: skip
    def test_pages_of_other_sites_open_no_websocket(
        self, named: Running, origin: str | None, status: int
    ) -> None:
        if origin == "same":
            origin = f"http://127.0.0.1:{named.address[1]}"
        headers = {} if origin is None else {"Origin": origin}
        assert asyncio.run(open_websocket(named.url + "numbers/pull", headers)) == status
        assert ask(named, "/", **headers).status == (200 if status == 101 else 403)

    def test_host_of_the_proxy_is_checked(self, there: Workspace, numbers: DatasetEntry) -> None:
        with served(there, behind_proxy=True, host_names=["data.example"]) as server:
            told = {"X_Forwarded_Host": "data.example"}
            assert ask(server, "/", **told, Origin="https://data.example").status == 200
            assert ask(server, "/", **told, Origin="https://evil.example").status == 403
            assert ask(server, "/", **told, Host="evil.example").status == 421  # a page that sets the header
            assert ask(server, "/", X_Forwarded_Host="evil.example").status == 421

    def test_client_reports_an_unknown_host_name(
        self, here: Workspace, access: RemoteAccess, named: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Connector, "_resolve", lambda *_: ["127.0.0.1"])
        url = f"odf+http://other.example:{named.address[1]}/numbers/"
        with closing(open_remote(url, access)) as remote, pytest.raises(SourceUnavailable) as caught:
            clone_dataset(here, DatasetAlias(None, "pulled"), remote, Reporter(), parallel=1)
        assert "does not have this host name" in caught.value.message
        assert "--host-name" in str(caught.value.hint)


async def open_websocket(url: str, headers: dict[str, str]) -> int:
    """Open a WebSocket; return the status of the response."""
    async with aiohttp.ClientSession() as session:
        try:
            async with session.ws_connect(url, headers=headers):
                return 101
        except aiohttp.WSServerHandshakeError as error:
            return error.status


class TestProcess:
    def test_server_process_starts_serves_and_stops(self, there: Workspace, numbers: DatasetEntry) -> None:
        with Started(there, "--json", "--host-name", "data.example") as process:
            url = said(process)
            assert url["datasets"] == 1 and url["push"] is False
            connection = http.client.HTTPConnection(url["url"].split("/")[2], timeout=60)
            connection.request("GET", "/numbers/refs/head")
            assert connection.getresponse().read() == str(numbers.dataset.head()).encode()
            for host, status in (("data.example", 200), ("evil.example", 421)):
                connection.request("GET", "/numbers/refs/head", headers={"Host": host})
                answer = connection.getresponse()
                assert (answer.status, answer.read() != b"") == (status, True)
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            assert "pyarrow" not in maps  # nothing that only Spark or rows need is loaded
            process.send_signal(signal.SIGTERM)  # while the connection is open and idle
            assert process.wait(60) == 0

    @pytest.mark.complete
    def test_running_transfer_completes_on_shutdown(self, there: Workspace) -> None:
        entry = make_root(there, "big")
        (name,) = add_files(entry, 1, 30_000_000)
        with Started(there, "--json") as process:
            connection = http.client.HTTPConnection(said(process)["url"].split("/")[2], timeout=60)
            connection.request("GET", f"/big/data/{name}")
            answer = connection.getresponse()
            assert len(answer.read(1000)) == 1000
            process.send_signal(signal.SIGINT)
            assert len(answer.read()) == 30_000_000 - 1000
            assert process.wait(60) == 0

    def test_invalid_options_are_reported(self, there: Workspace, server: Running, tmp_path: Path) -> None:
        key = tmp_path / "key.pem"
        key.write_text("no key")
        for words, says in (
            (["--port", str(server.address[1])], "address already in use"),
            (["--tls-cert", str(key)], "TLS requires both files"),
            (["--tls-cert", str(key), "--tls-key", str(key)], "certificate and key cannot be used"),
            (["--dataset", "nothing%"], "no dataset matches"),
            (["--host-name", "https://data.example"], "'https://data.example' is not a host name"),
        ):
            from odf_engine.sync.server import __main__

            given = [sys.executable, "-m", __main__.__name__, "--workspace", str(there.folder), *words]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "argv", given[2:])
                errors: list[str] = []
                patch.setattr(sys.stderr, "write", errors.append)
                assert __main__.main() != 0
            assert says in "".join(errors)


class TestTls:
    def test_objects_are_served_over_tls(
        self, there: Workspace, numbers: DatasetEntry, tmp_path: Path
    ) -> None:
        from odf_engine.sync.server.__main__ import _load_tls

        both = make_certificate(tmp_path / "both.pem")
        with served(there, tls=_load_tls(both, both)) as server:
            context = ssl.create_default_context(cafile=str(both))
            connection = http.client.HTTPSConnection(
                "localhost", server.address[1], context=context, timeout=10
            )
            path = largest(numbers)
            connection.request("GET", f"/numbers/data/{path.name}")
            assert connection.getresponse().read() == path.read_bytes()
            connection.request("GET", "/")
            assert (
                f"odf+https://localhost:{server.address[1]}/numbers/".encode()
                in connection.getresponse().read()
            )
            connection.close()


class Started:
    """The process of ``odf serve``, at a free port."""

    def __init__(self, workspace: Workspace, *options: str) -> None:
        command = [sys.executable, "-c", "from odf_tui.main import main; main()"]
        command += ["serve", "-w", str(workspace.folder), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def said(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The line that it writes once it listens."""
    assert process.stdout is not None
    return json.loads(process.stdout.readline())
