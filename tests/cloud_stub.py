"""A stub of Google Cloud Storage (XML API) and Azure Blob Storage: what datasets in buckets require of them.

There is no emulator of either on the package index that the client library can use. The stub follows the
documentation of the services; it is not evidence for how they behave.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

MODIFIED = "Fri, 01 Mar 2024 12:00:00 GMT"


class CloudStub:
    """A container ``box``.

    Attributes:
        objects: bytes and generation of each object, by its key.
        uploads: parts of incomplete uploads, by their names.
        authorizations: values of the header of each request.
        before: is called with each request.
    """

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.endpoint = f"http://127.0.0.1:{server.server_port}"
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.uploads: dict[str, bytes] = {}
        self.authorizations: list[str | None] = []
        self.generation = 0
        self.before: Callable[[BaseHTTPRequestHandler], None] = lambda request: None
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    stub: CloudStub

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.query = {name: each[0] for name, each in parse_qs(parts.query, keep_blank_values=True).items()}
        self.is_azure = "x-ms-version" in self.headers
        self.stub.authorizations.append(self.headers["Authorization"])
        self.stub.before(self)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        with self.stub.lock:
            if bucket != "box":
                self._refuse(404, "ContainerNotFound" if self.is_azure else "NoSuchBucket")
            elif self.command in ("GET", "HEAD") and key:
                self._get(key)
            elif self.command == "GET":
                self._list()
            else:
                self._change(key)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _get(self, key: str) -> None:
        if key not in self.stub.objects:
            self._refuse(404, "BlobNotFound" if self.is_azure else "NoSuchKey")
            return
        data, generation = self.stub.objects[key]
        wanted = self.headers["x-ms-range"] or self.headers["Range"]
        first, _, last = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
        chosen = data[int(first) : int(last) + 1 if last else None]
        headers = {"ETag": f'"{generation}"', "x-goog-generation": str(generation), "Last-Modified": MODIFIED}
        if wanted:
            end = int(first) + len(chosen) - 1
            headers["Content-Range"] = f"bytes {first}-{end}/{len(data)}"
        self._answer(206 if wanted else 200, chosen, headers)

    def _change(self, key: str) -> None:
        stub, name = self.stub, self.query.get("blockid") or self.query.get("partNumber")
        if self.command == "DELETE":
            self._answer(204)
        elif "uploads" in self.query:
            xml = b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
            self._answer(200, xml)
        elif name is not None:
            stub.uploads[name] = self.body
            self._answer(201, headers={"ETag": '"part"'})
        elif self.query.get("comp") == "blocklist":
            names = re.findall(r">([^<]+)</(?:Latest|Uncommitted)>", self.body.decode())
            assert all(base64.b64decode(each) for each in names)
            self._store(key, b"".join(stub.uploads.pop(each) for each in names))
        elif "uploadId" in self.query:
            numbers = re.findall(r"<PartNumber>(\d+)<", self.body.decode())
            self._store(key, b"".join(stub.uploads.pop(number) for number in numbers))
        elif not self._holds_condition(key):
            self._refuse(412, "ConditionNotMet")
        else:
            self._store(key, self.body)

    def _holds_condition(self, key: str) -> bool:
        generation = self.stub.objects.get(key, (b"", 0))[1]
        if (wanted := self.headers["x-goog-if-generation-match"]) is not None:
            return int(wanted) == generation
        if self.headers["If-None-Match"] == "*":
            return generation == 0
        return self.headers["If-Match"] in (None, f'"{generation}"')

    def _store(self, key: str, data: bytes) -> None:
        self.stub.generation += 1
        self.stub.objects[key] = data, self.stub.generation
        generation = str(self.stub.generation)
        headers = {"ETag": f'"{generation}"', "x-goog-generation": generation}
        xml = f'<CompleteMultipartUploadResult><ETag>"{generation}"</ETag></CompleteMultipartUploadResult>'
        self._answer(201 if self.is_azure else 200, xml.encode(), headers)

    def _list(self) -> None:
        prefix = self.query.get("prefix", "")
        folders, files = set[str](), []
        for key, (data, generation) in sorted(self.stub.objects.items()):
            if key.startswith(prefix):
                head, slash, _ = key[len(prefix) :].partition("/")
                if slash:
                    folders.add(f"{prefix}{head}/")
                else:
                    files.append((key, len(data), generation))
        if self.is_azure:
            text = "".join(
                f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>{MODIFIED}</Last-Modified>"
                f"<Etag>{generation}</Etag><Content-Length>{size}</Content-Length>"
                "<Content-Type>x/y</Content-Type></Properties></Blob>"
                for key, size, generation in files
            )
            text += "".join(f"<BlobPrefix><Name>{escape(folder)}</Name></BlobPrefix>" for folder in folders)
            xml = f"<EnumerationResults><Blobs>{text}</Blobs><NextMarker/></EnumerationResults>"
        else:
            text = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>{generation}</ETag>"
                "<LastModified>2024-03-01T12:00:00.000Z</LastModified></Contents>"
                for key, size, generation in files
            )
            text += "".join(
                f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders
            )
            xml = f"<ListBucketResult><IsTruncated>false</IsTruncated>{text}</ListBucketResult>"
        self._answer(200, xml.encode())

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code} it is</Message></Error>".encode())

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle(self) -> None:
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def cloud_stub() -> Iterator[CloudStub]:
    """Serve on a free port of this machine until the block ends."""
    handler = type("Handler", (_Handler,), {})
    web = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    web.daemon_threads = True
    handler.stub = stub = CloudStub(web)
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield stub
    web.shutdown()
    web.server_close()
    thread.join()
