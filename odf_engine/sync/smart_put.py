"""Uploads of slices and checkpoints to the URLs that a server told, several at a time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from odf_engine.chain.chain import Dataset
from odf_engine.errors import BadData, Cancelled, OdfError, SourceUnavailable
from odf_engine.identity.multiformats import Multihash
from odf_engine.ingest.retries import Failed
from odf_engine.progress import Reporter
from odf_engine.sync import messages as m
from odf_engine.sync.outgoing import pieces, send_each
from odf_engine.sync.remote import ObjectFile
from odf_engine.sync.transfer_urls import Transfer, transfer_of
from odf_engine.sync.web import Web


class Uploads:
    """The uploads of one push.

    Attributes:
        done: how many objects are there by now.
        sent, sent_bytes: how many of them were sent, and their bytes.
    """

    def __init__(self, dataset: Dataset, web: Web, base: str, reporter: Reporter, parallel: int) -> None:
        self.done = self.sent = self.sent_bytes = 0
        self._dataset, self._web, self._base = dataset, web, base
        self._reporter, self._parallel = reporter, parallel
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._moved = 0

    def begin(self, files: Sequence[ObjectFile]) -> None:
        """Says what is going to be sent, if it is not there."""
        total = sum(file.size for file in files)
        self._reporter.amount(bytes=0, total_bytes=total, files=0, total_files=len(files))

    def stop(self) -> None:
        """Breaks off what is running; from any thread."""
        self._stopped.set()
        self._web.connections.abort()

    def send(self, strategies: Sequence[m.PushStrategy]) -> None:
        """Uploads what is not there; the first failure ends it.

        Raises:
            SourceUnavailable: an upload failed.
            BadData: a URL that is not to be followed; an object here is damaged.
        """
        send_each(
            strategies,
            self._one,
            parallel=self._parallel,
            reporter=self._reporter,
            check=self._check,
            stop=self.stop,
        )

    def send_proof(self, head: Multihash, proof: bytes) -> None:
        """Sends the proof of a head, to a server that takes such."""
        url = f"{self._base}proofs/{head}"
        try:
            self._web.once("PUT", url, headers={"Content-Type": "application/json"}, body=proof).close()
        except Failed as failure:
            text = f"the server did not take the proof of the head: {failure.error.message}"
            self._reporter.line(text, "debug")

    # --- Inside ---

    def _one(self, strategy: m.PushStrategy) -> None:
        file = strategy.object_file.file
        if strategy.push_strategy == "HttpUpload":
            if strategy.upload_to is None:
                raise BadData(f"the server does not say where {_name(file)} goes", where=self._base)
            self._upload(file, transfer_of(strategy.upload_to, self._base))
            with self._lock:
                self.sent += 1
                self.sent_bytes += file.size
        else:
            self._told(file.size)
        with self._lock:
            self.done += 1
        self._reporter.amount(files=self.done)

    def _upload(self, file: ObjectFile, transfer: Transfer) -> None:
        path = self._path(file)
        for _ in pieces(file, path):  # a damaged one does not get there
            self._check()
        before = 0

        def told(sent: int) -> None:
            nonlocal before
            self._told(sent - before)
            before = sent

        def once(headers: dict[str, str]) -> None:
            typed = {"Content-Type": "application/octet-stream", **headers}
            self._web.once("PUT", transfer.url, headers=typed, body=path, told=told).close()

        def attempt() -> None:
            self._check()
            try:
                once(transfer.headers)
            except Failed as failure:
                spelled = _spelled(transfer)
                if failure.again or spelled is None:
                    raise
                once(spelled)

        try:
            self._web.retried(attempt)
        except Cancelled:
            raise
        except (OdfError, OSError) as error:
            self._check()
            why = error.message if isinstance(error, OdfError) else f"{error.strerror}"
            hint = "the head there is what it was; push again"
            raise SourceUnavailable(
                f"{_name(file)} could not be sent: {why}", where=getattr(error, "where", None), hint=hint
            ) from error

    def _path(self, file: ObjectFile) -> Path:
        if file.kind == "data":
            return self._dataset.slice_path(file.hash)
        return self._dataset.checkpoint_path(file.hash)

    def _check(self) -> None:
        self._reporter.check()
        if self._stopped.is_set():
            raise Cancelled

    def _told(self, more: int) -> None:
        self._check()
        with self._lock:
            self._moved += more
        self._reporter.amount(bytes=self._moved)


def _spelled(transfer: Transfer) -> dict[str, str] | None:
    """Headers with the login as the server's own URLs need it: older servers forget the word Bearer."""
    told = [name for name in transfer.headers if name.lower() == "authorization"]
    if not transfer.own or not told or " " in transfer.headers[told[0]]:
        return None
    return {**transfer.headers, told[0]: f"Bearer {transfer.headers[told[0]]}"}


def _name(file: ObjectFile) -> str:
    return f"{file.kind}/{file.hash}"
