"""Reads files on servers: HTTP, FTP, S3."""

from __future__ import annotations

import ftplib
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from odf_engine.base.config import FetchConfig
from odf_engine.base.progress import Reporter
from odf_engine.errors import SourceUnavailable, Unsupported
from odf_engine.net.address_policy import AddressPolicy, HomeNetwork
from odf_engine.net.bucket_client import read_start
from odf_engine.net.connector import Connector
from odf_engine.net.credentials import Login
from odf_engine.net.download import AttemptFailed
from odf_engine.net.ftp import FtpSession
from odf_engine.net.http_client import HttpClient, Response
from odf_engine.net.urls import without_login


class _SampleClient(HttpClient):
    """Reads the URL of a source. Its credentials are in the manifest."""

    def status_error(self, response: Response, missing: tuple[int, ...] = ()) -> AttemptFailed:
        failure = super().status_error(response, missing)
        if response.status in (401, 403):
            failure.error.hint = "write the manifest with the credentials in fetch.headers"
        return failure


def download_chunks(
    url: str, limit: int, config: FetchConfig, reporter: Reporter, home: str = ""
) -> Iterator[bytes]:
    """Yield at most ``limit`` bytes of a file on a server.

    Args:
        url: its URL.
        limit: the maximum number of bytes.
        config: timeouts.
        reporter: cancels the download.
        home: the URL of the document that names this URL, or "" if the user named it. A document on a public
            server cannot name a file in a private network.

    Raises:
        SourceUnavailable: the server does not respond, or refuses.
        Unsupported: the scheme of the URL is unknown.
    """
    scheme = urlsplit(url).scheme.lower()
    try:
        if scheme in ("http", "https"):
            parts = urlsplit(url)
            login = Login(unquote(parts.username), unquote(parts.password or "")) if parts.username else None
            headers = {"Authorization": login.header} if login else {}
            policy = HomeNetwork.of(home if urlsplit(home).scheme in ("http", "https") else url)
            client = _SampleClient(url, config, reporter, policy=policy, keep_alive=False, min_rate=0)
            try:
                with client.request("GET", url, headers=headers) as response:
                    yield from response.iter_chunks(limit)
            finally:
                client.close()
        elif scheme in ("ftp", "ftps"):
            connector = Connector(AddressPolicy(), config.connect_timeout_seconds, reporter)
            with FtpSession(url, connector, config.read_timeout_seconds) as session:
                sock = session.begin_transfer(0)
                assert sock is not None
                with sock:
                    while limit > 0 and (piece := sock.recv(min(1 << 16, limit))):
                        limit -= len(piece)
                        yield piece
        elif scheme == "s3":
            yield from read_start(url, config, limit)
        else:
            raise Unsupported(f"unsupported URL scheme: {scheme}")
    except AttemptFailed as failure:
        raise failure.error from None
    except (OSError, EOFError, ValueError, ftplib.Error) as error:
        raise SourceUnavailable(
            f"the file cannot be downloaded: {error}", where=without_login(url), hint="check the URL"
        ) from None
