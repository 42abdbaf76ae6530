"""Files that are listed by a bucket, an index of a web server, or an FTP server, and fetched once each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from time import monotonic
from urllib.parse import parse_qs, urlsplit

import pytest

from odf_engine.base.config import FetchConfig
from odf_engine.errors import BadData, InvalidManifest, OdfError, SourceUnavailable
from odf_engine.ingest.fetch.fetch_step import fetch
from odf_engine.ingest.fetch.model import FetchContext
from odf_engine.ingest.fetch.object_index import parse_index
from odf_engine.metadata.model import Container, SourceState
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from tests.ingest.conftest import WebServer, reply
from tests.ingest.ftp_server import ftp_server
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder
from tests.s3_server import S3Server, s3_server

Handler = BaseHTTPRequestHandler


@pytest.fixture
def context(workspace: Workspace, reporter: Recorder) -> FetchContext:
    (workspace.odf / "cache" / "job").mkdir(parents=True)
    return FetchContext(
        resolve=workspace.resolve_path,
        root=workspace.folder,
        dataset=None,  # type: ignore[arg-type]
        state=None,
        job=workspace.odf / "cache" / "job",
        config=FetchConfig(longest_pause_seconds=0.05, retries=1),
        reporter=reporter,
        environment={"TOKEN": "s3cret-token"},
        allowed=["TOKEN"],
    )


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "my-key-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "my-secret-key")
    with s3_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        yield server


def files_of(context: FetchContext, *arguments: str) -> list[tuple[str, str, SourceState, bool]]:
    got: list[tuple[str, str, SourceState, bool]] = []
    for payload in fetch(Container("odf/listing", args=list(arguments)), context):
        assert payload.state is not None
        got.append((payload.name, payload.path.read_text(), payload.state, payload.has_more))
    return got


def names_of(context: FetchContext, *arguments: str) -> list[str]:
    return [name for name, *_ in files_of(context, *arguments)]


def fails(context: FetchContext, kind: type[OdfError], text: str, *arguments: str) -> OdfError:
    with pytest.raises(kind) as caught:
        files_of(context, *arguments)
    assert text in str(caught.value), str(caught.value)
    return caught.value


NGINX = """<html>
<head><title>Index of /data/</title></head>
<body><h1>Index of /data/</h1><hr><pre><a href="../">../</a>
<a href="sub/">sub/</a>                       02-Mar-2024 10:00                   -
<a href="b%20%C3%BC.csv">b ü.csv</a>          01-Mar-2024 12:00                1234
<a href="a.csv">a.csv</a>                     03-Mar-2024 12:00                  12
<a href="notes.txt">notes.txt</a>             01-Mar-2024 12:00                  12
</pre><hr></body></html>"""

APACHE = """<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN"><html><body><table>
<tr><th><a href="?C=N;O=D">Name</a></th><th><a href="?C=M;O=A">Last modified</a></th></tr>
<tr><td><a href="/">Parent Directory</a></td><td>&nbsp;</td><td align="right">  - </td></tr>
<tr><td><a href="a.csv">a 2020-01-01 00:00.csv</a></td><td align="right">2024-03-03 12:00  </td>
  <td align="right"> 12 </td></tr>
<tr><td><a href="b%20%C3%BC.csv">b</a></td><td align="right">2024-03-01 12:00  </td></tr>
<tr><td><a href="sub/">sub/</a></td><td align="right">2024-03-02 10:00  </td><td> - </td></tr>
</table></body></html>"""


def serve_index(web: WebServer, index: str) -> None:
    """Serve an index at /data/, and files whose content is their path."""
    sub = '<a href="../">..</a> <a href="c.csv">c.csv</a> 02-Mar-2024 10:00 1'
    pages = {"/data/": index, "/data/sub/": sub}

    def answer(request: Handler) -> None:
        path = request.path
        reply(request, 200, pages.get(path, path).encode(), Content_Type="text/html")

    web.answer = answer


@pytest.mark.parametrize("index", [NGINX, APACHE])
def test_indexes_of_web_servers(
    context: FetchContext, web: WebServer, reporter: Recorder, index: str
) -> None:
    serve_index(web, index)
    url = ("--url", f"{web.url}/data/")
    got = files_of(context, *url, "--pattern", "*.csv")
    assert [(name, text, more) for name, text, _, more in got] == [
        ("a.csv", "/data/a.csv", True),
        ("b ü.csv", "/data/b%20%C3%BC.csv", False),
    ]
    assert reporter.warnings == []
    assert names_of(context, *url, "--pattern", "*.csv", "--order", "time") == ["b ü.csv", "a.csv"]
    assert names_of(context, *url, "--pattern", "s*/*.csv") == ["sub/c.csv"]
    assert reporter.amounts["total_files"] == 1


def test_only_files_after_the_last_one_are_fetched(context: FetchContext, web: WebServer) -> None:
    index = '<a href="b.csv">b</a> <a href="d.csv">d</a>'
    serve_index(web, index)
    arguments = ("--url", f"{web.url}/data/")
    (_, _, first, _), (_, _, last, _) = files_of(context, *arguments)
    assert names_of(replace(context, state=first), *arguments) == ["d.csv"]
    assert names_of(replace(context, state=last), *arguments) == []
    serve_index(web, f'{index} <a href="a.csv">a</a> <a href="e.csv">e</a>')
    assert names_of(replace(context, state=last), *arguments) == ["e.csv"]


def test_files_with_the_time_of_the_last_one_are_not_lost(context: FetchContext, web: WebServer) -> None:
    def line(name: str, minute: int) -> str:
        return f'<a href="{name}">{name}</a> 2024-01-01 00:{minute:02}\n'

    index = line("c.csv", 1) + line("d.csv", 1)
    serve_index(web, index)
    arguments = ("--url", f"{web.url}/data/", "--order", "time")
    *_, (_, _, state, _) = files_of(context, *arguments)
    serve_index(web, index + line("b.csv", 1) + line("a.csv", 2) + line("e.csv", 0))
    later = replace(context, state=state)
    assert names_of(later, *arguments) == ["b.csv", "a.csv"]


def test_times_in_names(context: FetchContext, web: WebServer) -> None:
    serve_index(web, '<a href="b-2024.csv">b</a> <a href="a-2025.csv">a</a>')
    arguments = ("--url", f"{web.url}/data/", "--order", "time")
    by_name = ("--time-pattern", r"-(\d{4})\.")
    assert names_of(context, *arguments, *by_name) == ["b-2024.csv", "a-2025.csv"]
    fails(context, BadData, "the modification time of the file is not known", *arguments)
    fails(context, BadData, "does not match --time-pattern", *arguments, "--time-pattern", "x(y)")


def test_links_that_lead_out_of_the_folder_are_ignored(
    context: FetchContext, web: WebServer, reporter: Recorder
) -> None:
    targets = ["/etc/x.csv", "../x.csv", "a/../../x.csv", "..%2Fx.csv", "//other.example/x.csv"]
    targets += [
        "https://other.example/x.csv",
        "mailto:x.csv",
        "x%00.csv",
        "%24%7B%7B%20env.TOKEN%20%7D%7D.csv",
    ]
    serve_index(web, "".join(f'<a href="{target}">x</a>' for target in [*targets, "ok.csv"]))
    assert names_of(context, "--url", f"{web.url}/data/") == ["ok.csv"]
    assert [request.path for request in web.requests] == ["/data/", "/data/ok.csv"]
    (warning,) = reporter.warnings
    assert "ignored 9 links that lead out of the folder: '/etc/x.csv', '../x.csv'" in warning


def test_s3_lists_on_web_servers_are_read_in_parts(context: FetchContext, web: WebServer) -> None:
    def answer(request: Handler) -> None:
        parts = urlsplit(request.path)
        asked = parse_qs(parts.query)
        if parts.path != "/bucket/":
            return reply(request, 200, request.path.encode())
        last = "continuation-token" in asked
        keys = ["d/c.csv"] if last else ["d/", "d/a &amp; b.csv", "d/b.csv"]
        more = "" if last else "<NextContinuationToken>t+1</NextContinuationToken>"
        assert asked["prefix"] == ["d/"]
        assert not last or asked["continuation-token"] == ["t+1"]
        entries = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in keys
        )
        head = '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        text = f"{head}<IsTruncated>{'false' if last else 'true'}</IsTruncated>{more}{entries}"
        return reply(request, 200, f"{text}</ListBucketResult>".encode())

    web.answer = answer
    got = files_of(context, "--url", f"{web.url}/bucket/?prefix=d/", "--pattern", "d/*.csv")
    assert [text for _, text, _, _ in got] == [
        "/bucket/d/a%20%26%20b.csv",
        "/bucket/d/b.csv",
        "/bucket/d/c.csv",
    ]


@pytest.mark.net
def test_objects_of_a_bucket(context: FetchContext, s3: S3Server, reporter: Recorder) -> None:
    for name in ("2024/b.csv", "2024/a ü.csv", "2024/note.txt", "2023/x.csv", "2024/deep/c.csv"):
        s3.objects[f"bucket/{name}"] = name.encode()
    s3.objects["bucket/2024/${{ env.TOKEN }}.csv"] = b"x"
    arguments = ("--url", "s3://bucket/2024", "--pattern", "*.csv")
    got = files_of(context, *arguments)
    assert [(name, text) for name, text, *_ in got] == [("a ü.csv", "2024/a ü.csv"), ("b.csv", "2024/b.csv")]
    assert not any("s3cret" in request.path for request in s3.requests)
    assert "ignored 1 name" in reporter.warnings[0]
    s3.objects["bucket/2024/c.csv"] = b"c"
    s3.requests.clear()
    assert names_of(replace(context, state=got[-1][2]), *arguments) == ["c.csv"]
    assert "start-after=2024%2Fb.csv" in s3.requests[0].path
    assert names_of(context, "--url", "s3://bucket", "--pattern", "*/deep/*.csv") == ["2024/deep/c.csv"]
    fails(context, SourceUnavailable, "bucket not found", "--url", "s3://missing-bucket/")


def test_files_of_an_ftp_server(context: FetchContext, tmp_path: Path) -> None:
    folder = tmp_path / "served"
    (folder / "pub" / "2024").mkdir(parents=True)
    for number, name in enumerate(["b ü.csv", "a.csv", "2024/c.csv", "n.txt"]):
        (folder / "pub" / name).write_text(name)
        os.utime(folder / "pub" / name, (0, 1_700_000_000 + number))
    with ftp_server(folder) as server:
        url = ("--url", f"ftp://{server.address}/pub/")
        got = files_of(context, *url, "--pattern", "*.csv")
        assert [(name, text) for name, text, *_ in got] == [("a.csv", "a.csv"), ("b ü.csv", "b ü.csv")]
        assert names_of(context, *url, "--pattern", "*.csv", "--order", "time") == ["b ü.csv", "a.csv"]
        assert names_of(context, *url, "--pattern", "2*/*") == ["2024/c.csv"]
        server.lacks = {"MLSD"}
        assert names_of(context, *url, "--pattern", "*.csv") == ["a.csv", "b ü.csv"]
        missing = ("--url", f"ftp://{server.address}/none/")
        fails(context, SourceUnavailable, "the server returned 550", *missing)


@pytest.mark.parametrize("kind", ["html", "xml"])
def test_many_entries_are_listed_in_bounded_time(kind: str) -> None:
    names = [f"file-{number:06}.csv" for number in range(100_000)]
    if kind == "html":
        text = "".join(f'<a href="{name}">{name}</a> 01-Mar-2024 12:00 1234\n' for name in names)
    else:
        parts = (f"<Contents><Key>{name}</Key></Contents>" for name in names)
        text = f"<ListBucketResult>{''.join(parts)}</ListBucketResult>"
    started = monotonic()
    content = parse_index(text.encode(), "http://x/", "x")
    assert [entry.name for entry in content.entries] == names
    assert monotonic() - started < 30


def test_page_that_is_no_index_and_empty_index_are_errors(context: FetchContext, web: WebServer) -> None:
    web.answer = lambda request: reply(request, 200, b'{"files": []}')
    fails(context, BadData, "not an index of files: '{\"files\": []}'", "--url", f"{web.url}/data/")
    web.answer = lambda request: reply(request, 200, b"<html></html>")
    fails(context, SourceUnavailable, "no files match '*.csv'", "--url", web.url, "--pattern", "*.csv")


def test_listing_of_an_untrusted_source_reaches_public_addresses_only(
    context: FetchContext, web: WebServer
) -> None:
    untrusted = replace(context, untrusted=True)
    fails(untrusted, SourceUnavailable, "127.0.0.1 is not a public address", "--url", web.url)
    address = f"ftp://127.0.0.1:{urlsplit(web.url).port}/"
    fails(untrusted, SourceUnavailable, "127.0.0.1 is not a public address", "--url", address)
    assert web.requests == []


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--url", "file:///etc/"), "'file:///etc/' is not a URL"),
        (("--url", "http://x/", "--pattern", "../*"), "is not a pattern of names"),
        (("--url", "http://x/", "--time-pattern", "(x)"), "--time-pattern requires --order time"),
        (("--url", "http://x/", "--order", "time", "--time-pattern", "x"), "'x' has no group"),
        (("--url", "${{ env.TOKEN }}"), "unsupported URL scheme"),
    ],
)
def test_invalid_arguments_of_listings(
    context: FetchContext, arguments: tuple[str, ...], problem: str
) -> None:
    error = fails(context, InvalidManifest, problem, *arguments)
    assert error.where == "fetch.args"


def test_pull_of_a_listing_commits_each_file_once(pulled: Pulled, web: WebServer) -> None:
    bodies = {"/data/a.csv": b"1\n", "/data/b.csv": b"2\n", "/data/": b""}
    bodies["/data/"] = b'<a href="a.csv">a</a> <a href="b.csv">b</a>'
    broken = {"/data/b.csv"}

    def answer(request: Handler) -> None:
        reply(request, 400 if request.path in broken else 200, bodies[request.path])

    web.answer = answer
    entry = pulled.add(f"""
fetch:
  kind: Container
  image: odf/listing:1
  args: [--url, "{web.url}/data/", --pattern, "*.csv"]
read:
  kind: Csv
  schema: [id BIGINT]
merge:
  kind: Append
""")
    runs = [(run.kind, run.text) for run in Trust(pulled.workspace).list_executions(entry)]
    assert runs == [("url", f"{web.url}/data/")]
    with pytest.raises(SourceUnavailable, match="the server returned 400"):
        pulled.pull()
    assert pulled.rows("id") == [(1,)]
    broken.clear()
    pulled.pull()
    assert pulled.rows("id") == [(1,), (2,)]
    head = pulled.dataset.head()
    pulled.pull()
    assert pulled.dataset.head() == head
