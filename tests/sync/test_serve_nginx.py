"""``odf serve`` behind a plain nginx: objects, sessions, and addresses as the client sees them."""

from __future__ import annotations

import http.client
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.identity.names import DatasetAlias
from odf_engine.net.credentials import Login, RemoteAccess
from odf_engine.sync.pull import clone_dataset
from odf_engine.sync.push import push
from odf_engine.sync.remotes.transports import open_remote
from odf_engine.workspace.workspace import Workspace
from tests.ingest.ftp_server import make_certificate
from tests.ports import unused_port
from tests.sync.builders import add_files, make_root, objects
from tests.sync.in_process_server import served
from tests.waiting import wait_until_listening

pytestmark = [pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not here"), pytest.mark.net]

CONFIG = """
worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
  server {{
    listen 127.0.0.1:{plain};
    listen 127.0.0.1:{tls} ssl;
    ssl_certificate {certificate};
    ssl_certificate_key {certificate};
    client_max_body_size 0;
    location / {{
      proxy_pass http://127.0.0.1:{port};
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Host $http_host;
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_request_buffering off;
      proxy_read_timeout 1h;
    }}
  }}
}}
"""


@contextmanager
def nginx(folder: Path, port: int) -> Iterator[tuple[int, int, Path]]:
    """A plain nginx before a port; its ports, without and with TLS, and its certificate."""
    folder.mkdir()
    certificate = make_certificate(folder / "both.pem")
    plain, tls = unused_port(), unused_port()
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, plain=plain, tls=tls, certificate=certificate))
    process = subprocess.Popen(["nginx", "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        wait_until_listening(process, plain)
        yield plain, tls, certificate
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def test_server_works_behind_nginx(
    there: Workspace, here: Workspace, access: RemoteAccess, tmp_path: Path
) -> None:
    entry = make_root(there, slices=2)
    (name,) = add_files(entry, 1, 1_300_000)
    with (
        served(there, behind_proxy=True, allow_push=True) as server,
        nginx(tmp_path / "nginx", server.address[1]) as (plain, tls, certificate),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", plain, timeout=60)
        connection.request("GET", f"/numbers/data/{name}", headers={"Range": "bytes=5-1200000"})
        answer = connection.getresponse()
        content = (entry.dataset.folder / "data" / str(name)).read_bytes()
        assert (answer.status, answer.read()) == (206, content[5:1_200_001])
        assert answer.headers["ETag"] == f'"{name}"'
        connection.request("GET", "/")
        page = connection.getresponse().read().decode()
        assert f"odf pull odf+http://127.0.0.1:{plain}/numbers/" in page
        connection.close()

        context = ssl.create_default_context(cafile=str(certificate))
        secure = http.client.HTTPSConnection("localhost", tls, timeout=60, context=context)
        secure.request("GET", "/")
        assert f"odf pull odf+https://localhost:{tls}/numbers/" in secure.getresponse().read().decode()
        secure.close()

        with closing(open_remote(f"odf+http://127.0.0.1:{plain}/numbers/", access)) as remote:
            pulled, _ = clone_dataset(here, DatasetAlias(None, "pulled"), remote, Reporter(), parallel=4)
        assert objects(pulled.dataset.folder) == objects(entry.dataset.folder)
        assert any(" /numbers/pull 101 " in line for line in server.lines)

        own = make_root(here, "own", slices=2)
        login = Login(token=server.serving.tokens.create("friend")[1])
        access.credentials.set(f"http://127.0.0.1:{plain}/", login)
        with closing(open_remote(f"odf+http://127.0.0.1:{plain}/own/", access)) as remote:
            assert push(own, remote, Reporter(), force=False, parallel=2).objects == 2
        assert objects(there.resolve("own").dataset.folder) == objects(own.dataset.folder)
