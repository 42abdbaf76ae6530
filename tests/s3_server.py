"""A small server that speaks as much of the S3 protocol as reading, writing and listing objects takes."""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

MODIFIED = "Fri, 01 Mar 2024 12:00:00 GMT"
_PAGE = 1000


@dataclass(frozen=True)
class Asked:
    """A request, as it was; the server's handlers live longer than one."""

    command: str
    path: str
    authorization: str | None
    range: str | None
    source: str | None = None


class S3Server:
    """Has objects by ``bucket/key``; ``before`` sees each request, and may answer it and return True.

    Attributes:
        buckets: those there are; None: every one that is asked for.
        key: the access key that a request has to show; None: any, or none.
        uploads: the parts of what is written in several requests, by its id, until it is whole.
        page: how many entries a listing has.
    """

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.endpoint = f"http://127.0.0.1:{server.server_port}"
        self.objects: dict[str, bytes] = {}
        self.requests: list[Asked] = []
        self.before: Callable[[BaseHTTPRequestHandler], bool] = lambda request: False
        self.buckets: set[str] | None = None
        self.key: str | None = None
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.page = _PAGE
        self.lock = threading.Lock()

    @property
    def ranges(self) -> list[str | None]:
        """The ranges that were asked for, in their order."""
        return [request.range for request in self.requests if request.command == "GET"]

    def forget(self) -> list[Asked]:
        """What was asked for since the last time."""
        asked, self.requests = self.requests, []
        return asked


def refuse(request: BaseHTTPRequestHandler, status: int, code: str) -> bool:
    """Answers with an error of S3."""
    _xml(request, f"<Error><Code>{code}</Code><Message>{code} it is</Message></Error>", status)
    return True


def _xml(request: BaseHTTPRequestHandler, text: str, status: int = 200) -> None:
    body = text.encode()
    request.send_response(status)
    request.send_header("Content-Type", "application/xml")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def _empty(request: BaseHTTPRequestHandler, status: int = 200, etag: str | None = None) -> None:
    request.send_response(status)
    if etag is not None:
        request.send_header("ETag", f'"{etag}"')
    request.send_header("Content-Length", "0")
    request.end_headers()


def _answer(server: S3Server, request: BaseHTTPRequestHandler) -> None:
    headers, parts = request.headers, urlsplit(request.path)
    content = _body(request)
    told = (headers["Authorization"], headers["Range"], headers["x-amz-copy-source"])
    asked = Asked(request.command, request.path, *told)
    server.requests.append(asked)
    if server.before(request):
        return
    path = unquote(parts.path.removeprefix("/"))
    bucket, _, key = path.partition("/")
    if server.key is not None and f"Credential={server.key}/" not in (asked.authorization or ""):
        refuse(request, 403, "AccessDenied" if asked.authorization is None else "InvalidAccessKeyId")
    elif server.buckets is not None and bucket not in server.buckets:
        refuse(request, 404, "NoSuchBucket")
    elif not key and request.command == "HEAD":
        _empty(request)
    elif not key and request.command == "GET":
        _list(server, request, bucket, parse_qs(parts.query))
    elif request.command in ("GET", "HEAD"):
        _get(server, request, path)
    else:
        _change(server, request, path, parse_qs(parts.query, keep_blank_values=True), content)


def _get(server: S3Server, request: BaseHTTPRequestHandler, path: str) -> None:
    body = server.objects.get(path)
    if body is None:
        refuse(request, 404, "NoSuchKey")
        return
    first, last = 0, len(body) - 1
    if asked := request.headers["Range"]:
        begin, _, end = asked.removeprefix("bytes=").partition("-")
        first, last = int(begin), min(int(end or last), last)
    request.send_response(206 if asked else 200)
    if asked:
        request.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
    request.send_header("Content-Length", str(last - first + 1))
    request.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')
    request.send_header("Last-Modified", MODIFIED)
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body[first : last + 1])


def _change(
    server: S3Server, request: BaseHTTPRequestHandler, path: str, query: dict[str, list[str]], content: bytes
) -> None:
    upload = query.get("uploadId", [""])[0]
    with server.lock:
        if request.command == "DELETE" and upload:
            server.uploads.pop(upload, None)
            _empty(request, 204)
        elif request.command == "DELETE":
            server.objects.pop(path, None)
            _empty(request, 204)
        elif request.command == "POST" and "uploads" in query:
            upload = f"upload-{len(server.requests)}"
            server.uploads[upload] = {}
            name = f"<UploadId>{upload}</UploadId>"
            _xml(request, f"<InitiateMultipartUploadResult>{name}</InitiateMultipartUploadResult>")
        elif request.command == "POST":
            named = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", content)]
            parts = server.uploads.pop(upload)
            server.objects[path] = b"".join(parts[number] for number in named)
            _xml(request, "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")
        elif upload:
            server.uploads[upload][int(query["partNumber"][0])] = content
            _empty(request, etag=hashlib.md5(content).hexdigest())
        elif source := request.headers["x-amz-copy-source"]:
            server.objects[path] = server.objects[unquote(source.removeprefix("/"))]
            _xml(request, "<CopyObjectResult><ETag>x</ETag></CopyObjectResult>")
        else:
            server.objects[path] = content
            _empty(request, etag=hashlib.md5(content).hexdigest())


def _list(
    server: S3Server, request: BaseHTTPRequestHandler, bucket: str, query: dict[str, list[str]]
) -> None:
    prefix, delimiter = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
    after = query.get("continuation-token", [""])[0]
    entries: dict[str, int | None] = {}
    with server.lock:
        for path, body in sorted(server.objects.items()):
            if not path.startswith(f"{bucket}/{prefix}"):
                continue
            key = path.removeprefix(f"{bucket}/")
            rest = key.removeprefix(prefix)
            if delimiter and delimiter in rest:
                entries[prefix + rest.partition(delimiter)[0] + delimiter] = None
            else:
                entries[key] = len(body)
    left = [(name, size) for name, size in entries.items() if name > after]
    shown = left[: min(server.page, int(query.get("max-keys", [_PAGE])[0]))]
    text = [
        f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(shown)}</KeyCount>"
    ]
    for name, size in shown:
        if size is None:
            text.append(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>")
        else:
            when = "<LastModified>2024-03-01T12:00:00.000Z</LastModified>"
            text.append(f"<Contents><Key>{escape(name)}</Key><Size>{size}</Size>{when}</Contents>")
    if len(shown) < len(left):
        text.append(f"<NextContinuationToken>{escape(shown[-1][0])}</NextContinuationToken>")
    text.append(f"<IsTruncated>{str(len(shown) < len(left)).lower()}</IsTruncated>")
    _xml(request, f"<ListBucketResult>{''.join(text)}</ListBucketResult>")


def _body(request: BaseHTTPRequestHandler) -> bytes:
    """What was sent, without the pieces of HTTP and those that Amazon's programs wrap it in."""
    if request.headers["Transfer-Encoding"] == "chunked":
        data = b"".join(iter(lambda: _chunk(request.rfile), b""))
    else:
        size = int(request.headers["Content-Length"] or 0)
        if len(data := request.rfile.read(size)) < size:
            raise ConnectionError("the client is gone")
    if "aws-chunked" not in (request.headers["Content-Encoding"] or ""):
        return data
    wrapped = io.BytesIO(data)
    return b"".join(iter(lambda: _chunk(wrapped), b""))


def _chunk(stream: BinaryIO) -> bytes:
    """The next piece; what follows the last one is a checksum or nothing."""
    if not (line := stream.readline()):
        raise ConnectionError("the client is gone")
    size = int(line.partition(b";")[0], 16)
    data = stream.read(size)
    while stream.readline().strip() and not size:
        pass
    return data


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Serves on a free port of this machine until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            _answer(server, self)

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

        def handle(self) -> None:
            with suppress(ConnectionError):
                super().handle()

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = S3Server(http)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    http.shutdown()
    http.server_close()
    thread.join()
