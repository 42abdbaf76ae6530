"""``odf fetch``: the programs of sources, as an image runs them by the container protocol."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.cli.conftest import Ran, call_odf
from tests.ingest.conftest import reply, web_server


def run_batches(folder: Path, *arguments: str, **environment: str) -> list[Ran]:
    """Run a program until it has no more data, with the state of the run before."""
    etag, more = folder / "new-etag", folder / "new-has-more-data"
    environment |= {"ODF_NEW_ETAG_PATH": str(etag), "ODF_NEW_HAS_MORE_DATA_PATH": str(more)}
    runs: list[Ran] = []
    while not runs or more.exists():
        more.unlink(missing_ok=True)
        if etag.exists():
            environment["ODF_ETAG"] = etag.read_text()
        runs.append(call_odf("fetch", *arguments, cwd=folder, **environment))
    return runs


def answer(request: BaseHTTPRequestHandler) -> None:
    """Serve three pages to those with a key, and a folder with two files."""
    parts = urlsplit(request.path)
    if parts.path == "/items":
        number = int(parse_qs(parts.query)["page"][0])
        items = [{"id": number}] if number < 4 else []
        reply(request, 200 if request.headers["Key"] == "s3cret" else 403, json.dumps(items).encode())
    elif parts.path == "/data/":
        reply(request, 200, b'<a href="a.csv">a</a> <a href="b.csv">b</a>')
    else:
        reply(request, 200, parts.path.encode() + b"\n")


def test_pages_are_printed_batch_by_batch(tmp_path: Path) -> None:
    with web_server() as web:
        web.answer = answer
        arguments = ["pages", "--url", f"{web.url}/items", "--page", "page", "--pages-per-batch", "2"]
        arguments += ["--header", "Key: ${{ env.ITEM_KEY }}"]
        runs = run_batches(tmp_path, *arguments, ITEM_KEY="s3cret")
        assert [run.out for run in runs] == ['{"id":1}\n{"id":2}\n', '{"id":3}\n']
        refused = call_odf("fetch", *arguments, cwd=tmp_path, ITEM_KEY="wr0ng-key")
        assert refused.code == 1
        assert "page 1: the server returned 403" in refused.err
        assert "wr0ng-key" not in refused.err
        quiet = call_odf("fetch", "-q", *arguments, cwd=tmp_path, ITEM_KEY="s3cret")
        assert (quiet.code, quiet.err) == (0, "")


def test_files_of_a_listing_are_printed_one_by_one(tmp_path: Path) -> None:
    with web_server() as web:
        web.answer = answer
        arguments = ["listing", "--url", f"{web.url}/data/", "--pattern", "*.csv"]
        runs = run_batches(tmp_path, *arguments)
        assert [run.out for run in runs] == ["/data/a.csv\n", "/data/b.csv\n"]
        (again,) = run_batches(tmp_path, *arguments)
        assert (again.code, again.out) == (0, "")


def test_invalid_options_of_a_program_are_reported(tmp_path: Path) -> None:
    failed = call_odf("fetch", "pages", "--url", "http://x/", "--pag", "1", cwd=tmp_path)
    assert failed.code == 1
    assert "unrecognized arguments: --pag 1" in failed.err
