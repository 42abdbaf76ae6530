"""Definitions of alerts: the YAML files in ``.odf/alerts``.

Example::

    headers: {name: ops}
    spec:
      target: my.%
      events: [JobFailed, CheckFailed, FlowPaused]
      sink: {kind: Webhook, url: https://hooks.example.com/odf, signature: hmac-sha256}
      retry: {maxAttempts: 8, minDelay: 5s, backoff: Exponential}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from odf_engine.automation.flows.definition import Retry
from odf_engine.net.urls import origin_of
from odf_engine.workspace.documents.document import Document, Kind, Target, TargetedSpec
from odf_engine.workspace.documents.values import DurationText

EventKind = Literal[
    "DatasetUpdated",
    "JobStarted",
    "JobSucceeded",
    "JobFailed",
    "JobWarned",
    "JobCancelled",
    "CheckFailed",
    "VerifyFailed",
    "FlowSucceeded",
    "FlowFailed",
    "FlowPaused",
]
LINEAGE_EVENTS: Final[tuple[EventKind, ...]] = ("JobStarted", "JobSucceeded", "JobFailed", "JobCancelled")
"""The events that OpenLineage describes: a start, and each end of a run."""
_URL: Final = re.compile(r"[A-Za-z0-9%/:=&?~+._@!$,;'()*\[\]-]+")
_MAIL: Final = re.compile(r"[^\s@<>,;\"\x00-\x1f\x7f]+@[A-Za-z0-9.-]+|[^\s@<>,;\"]+@\[[0-9A-Fa-f:.]+\]")


def _check_url(url: str, schemes: Sequence[str]) -> None:
    """Check the address of a sink.

    Raises:
        ValueError: it is no address, or it has a user or a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"invalid URL: {str(error).lower()}") from None
    if parts.scheme not in schemes:
        raise ValueError(f"the URL must start with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    if not parts.hostname or port == 0:
        raise ValueError("the URL has no valid host and port")
    if "@" in parts.netloc:
        raise ValueError("the URL has a user or password; store it with odf repo login URL instead")
    if parts.fragment or not _URL.fullmatch(url):
        raise ValueError("the URL has a fragment, or characters that must be percent-encoded")


class Webhook(Kind, frozen=True, tag="Webhook"):
    """Sends each event in an HTTP POST request.

    Attributes:
        url: the address. Its login, if it requires one, is among the credentials of the workspace.
        signature: how requests are signed (RFC 9421): ``hmac-sha256`` with the secret of the alert,
            ``ed25519`` with the private key of a dataset.
        key: id or name of the dataset whose key signs; by default the dataset of the event.
        format: ``cloudevents`` (CloudEvents 1.0, JSON), or ``kamu`` for the form and the signature of kamu.
        timeout: limit of each wait for the server.
    """

    url: str
    signature: Literal["none", "hmac-sha256", "ed25519"] = "none"
    key: str = ""
    format: Literal["cloudevents", "kamu"] = "cloudevents"
    timeout: DurationText = DurationText("10s")

    def __post_init__(self) -> None:
        _check_url(self.url, ("http", "https"))
        if self.key and self.signature != "ed25519":
            raise ValueError("key requires signature: ed25519")
        if self.format == "kamu" and self.signature != "hmac-sha256":
            raise ValueError("format: kamu requires signature: hmac-sha256")

    @property
    def address(self) -> str:
        """The address without its path, which can be secret."""
        return origin_of(self.url)


class Email(Kind, frozen=True, tag="Email"):
    """Sends each event as a mail.

    Attributes:
        server: ``smtp://HOST[:PORT]`` (port 587) or, for TLS from the start, ``smtps://HOST[:PORT]`` (465).
        sender: address of the sender, in YAML ``from``.
        to: addresses of the recipients.
        starttls: encrypt the connection to an ``smtp`` server; without it, no login is sent.
    """

    server: str
    to: list[str]
    sender: str = msgspec.field(name="from")
    starttls: bool = True

    def __post_init__(self) -> None:
        _check_url(self.server, ("smtp", "smtps"))
        if urlsplit(self.server).path.strip("/"):
            raise ValueError("the URL of a mail server has no path")
        if not self.to:
            raise ValueError("to is empty")
        for address in (self.sender, *self.to):
            if not _MAIL.fullmatch(address):
                raise ValueError(f"'{address}' is not a mail address")

    @property
    def address(self) -> str:
        """The server and the recipients."""
        return f"{origin_of(self.server)} to {', '.join(self.to)}"


class OpenLineage(Kind, frozen=True, tag="OpenLineage"):
    """Sends the starts and ends of jobs as OpenLineage run events.

    Attributes:
        url: the address of an HTTP endpoint.
        file: path of a file of JSON lines, relative to the folder of the workspace; events are appended.
        namespace: the namespace of jobs and datasets; by default one for the workspace.
    """

    url: str = ""
    file: str = ""
    namespace: str = ""

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.file):
            raise ValueError("an OpenLineage sink requires either url or file")
        if self.url:
            _check_url(self.url, ("http", "https"))
        if "\0" in self.file:
            raise ValueError("invalid path of the file")

    @property
    def address(self) -> str:
        """The address without its path, or the file."""
        return origin_of(self.url) if self.url else self.file


class Terminal(Kind, frozen=True, tag="Terminal"):
    """Shows each event in open workstations: a notice, and the notification of the terminal."""

    @property
    def address(self) -> str:
        """Where events are shown."""
        return "open workstations"


class Repetition(Retry, frozen=True):
    """Repetition of failed deliveries. It has the fields of :class:`Retry`, with other defaults."""

    max_attempts: int = 8
    min_delay: DurationText = DurationText("5s")
    backoff: Literal["Fixed", "Linear", "Exponential", "ExponentialWithJitter"] = "Exponential"


Sink = Webhook | Email | OpenLineage | Terminal


class AlertSpec(TargetedSpec, frozen=True, kw_only=True):
    """The content of an alert.

    Attributes:
        sink: where events are sent.
        events: the kinds of events; for an OpenLineage sink none, since they are fixed.
        target: names of datasets, patterns such as ``my.%``, or selectors by labels; by default all
            datasets. For events of flows: names of flows, or patterns.
        retry: repetition of failed deliveries. After the last one, a delivery becomes a dead letter.
    """

    sink: Sink
    events: list[EventKind] = msgspec.field(default_factory=list)
    target: Target | list[Target] = "%"
    retry: Repetition = Repetition()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.sink, OpenLineage):
            if self.events:
                raise ValueError("an OpenLineage sink has no events: it sends the starts and ends of jobs")
        elif not self.events:
            raise ValueError("events is empty")
        if isinstance(self.sink, Webhook):
            if self.sink.format == "kamu" and self.events != ["DatasetUpdated"]:
                raise ValueError("format: kamu requires events: [DatasetUpdated]")
            flow = next((event for event in self.events if event.startswith("Flow")), None)
            if self.sink.signature == "ed25519" and not self.sink.key and flow is not None:
                raise ValueError(f"signature: ed25519 requires key for {flow}, which is not of a dataset")

    @property
    def kinds(self) -> Sequence[EventKind]:
        """The kinds of events that are sent."""
        return LINEAGE_EVENTS if isinstance(self.sink, OpenLineage) else self.events


class Alert(Document[AlertSpec], frozen=True):
    """An alert. It sends only if the user has accepted it, since it sends data to other hosts."""

    word = "alert"
