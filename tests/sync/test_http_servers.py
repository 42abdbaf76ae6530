"""Real servers of others: nginx with and without TLS, and that of Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from odf_engine.errors import SourceUnavailable, Unsupported
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.credentials import Credentials, RemoteAccess
from odf_engine.sync.pull import clone_dataset
from odf_engine.sync.remotes.base import ObjectFile
from odf_engine.sync.remotes.transports import open_remote, open_repository
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.ingest.ftp_server import make_certificate
from tests.ports import unused_port
from tests.sync import builders
from tests.waiting import wait_until_listening

_NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
needs_nginx = pytest.mark.skipif(_NGINX is None, reason="nginx is not here")

_CONFIGURATION = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 64; }}
http {{
  access_log off; default_type text/plain; keepalive_requests 5;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
  server {{ listen 127.0.0.1:{secure} ssl; root {root};
    ssl_certificate {certificate}; ssl_certificate_key {certificate}; }}
}}
"""


@pytest.fixture
def source(there: Workspace) -> DatasetEntry:
    entry = builders.make_root(there, slices=3, blocks=5)
    builders.add_files(entry, 1, 3_000_000)
    return entry


@contextmanager
def nginx(root: Path, tmp_path: Path) -> Iterator[tuple[int, int, Path]]:
    """Ports without and with TLS, and the certificate of the latter."""
    folder = tmp_path / "nginx"
    folder.mkdir()
    certificate = make_certificate(tmp_path / "localhost.pem")
    port, secure = unused_port(), unused_port()
    text = _CONFIGURATION.format(folder=folder, root=root, port=port, secure=secure, certificate=certificate)
    (folder / "nginx.conf").write_text(text)
    command = [str(_NGINX), "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors")]
    with running(command, port):
        yield port, secure, certificate


@contextmanager
def running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_listening(process, port)
        yield
    finally:
        process.kill()
        process.wait()


def check(here: Workspace, source: DatasetEntry, url: str, access: RemoteAccess, name: str) -> None:
    """Pulls all of it, and reads a part of a large slice."""
    with closing(open_remote(f"{url}{source.dataset.folder.name}/", access)) as remote:
        entry, pulled = clone_dataset(here, DatasetAlias(None, name), remote, access.reporter, parallel=4)
        assert pulled.new_head == source.dataset.head()
        assert builders.objects(entry.dataset.folder) == builders.objects(source.dataset.folder)
        [large] = [
            path for path in (source.dataset.folder / "data").iterdir() if path.stat().st_size > 1 << 20
        ]
        data = large.read_bytes()
        file = ObjectFile("data", builders.Multihash.parse(large.name), len(data))
        assert b"".join(map(bytes, remote.chunks(file, 1_234_567))) == data[1_234_567:]
    with closing(open_remote(f"{url}nothing/", access)) as remote:
        assert remote.head() is None
    with (
        closing(open_repository(url, access)) as repository,
        pytest.raises(Unsupported, match="does not list"),
    ):
        [*repository.datasets()]


@pytest.mark.net
@needs_nginx
def test_dataset_is_pulled_from_nginx_with_and_without_tls(
    here: Workspace,
    source: DatasetEntry,
    access: RemoteAccess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = source.dataset.folder.parent
    with nginx(root, tmp_path) as (port, secure, certificate):
        check(here, source, f"http://127.0.0.1:{port}/", access, "plain")
        url = f"https://localhost:{secure}/"
        with (
            closing(open_remote(url, access)) as remote,
            pytest.raises(SourceUnavailable, match="certificate"),
        ):
            remote.head()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        other = Workspace.init(tmp_path / "other")
        elsewhere = access._replace(credentials=Credentials(other.odf))
        check(other, source, url, elsewhere, "secure")


def test_dataset_is_pulled_from_the_python_http_server(
    here: Workspace, source: DatasetEntry, access: RemoteAccess
) -> None:
    port = unused_port()
    root = str(source.dataset.folder.parent)
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", root]
    with running(command, port):
        check(here, source, f"http://127.0.0.1:{port}/", access, "python")
