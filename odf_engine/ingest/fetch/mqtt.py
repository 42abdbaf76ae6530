"""Receives the messages of MQTT topics, as lines of JSON."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

from odf_engine.base.progress import count_of
from odf_engine.errors import Cancelled, OdfError, SourceUnavailable
from odf_engine.ingest.fetch.model import FetchContext, Payload
from odf_engine.metadata.model import Mqtt, MqttQos
from odf_engine.net.address_policy import AddressPolicy, PublicAddresses
from odf_engine.net.connector import Connector
from odf_engine.net.download import AttemptFailed, RetryPolicy
from odf_engine.net.mqtt_client import MqttMessage, MqttSession, Subscription, broker_url

_TLS_PORT: Final = 8883  # secure-mqtt in the registry of IANA; the manifest has no option for TLS
_QOS: Final = {MqttQos.AtMostOnce: 0, MqttQos.AtLeastOnce: 1, MqttQos.ExactlyOnce: 2}
_SPACES: Final = bytes.maketrans(b"\r\n", b"  ")  # JSON has line breaks between its tokens only


def fetch_mqtt(step: Mqtt, context: FetchContext) -> Iterator[Payload]:
    """Yield the messages that the broker sends, in files of lines; see :class:`MqttConfig` for the limits.

    The messages of a payload are acknowledged by its ``on_commit``. Without it, the broker sends those with
    QoS 1 and 2 again in the next poll.

    Raises:
        SourceUnavailable: no connection, wrong login, refused subscription, or no answer.
        Cancelled: immediately.
    """
    with _open(step, context) as session:
        yield from _Poll(session, context).payloads()


def _open(step: Mqtt, context: FetchContext) -> MqttSession:
    subscriptions = [Subscription(topic.path, _QOS[topic.qos or MqttQos.AtMostOnce]) for topic in step.topics]
    retries = RetryPolicy(context.config, context.reporter)
    while True:
        session = _new_session(step, context)
        context.reporter.log(f"connecting to {session.name}")
        try:
            granted = session.open(subscriptions)
        except AttemptFailed as failure:
            session.close()
            retries.wait(failure)
            continue
        except BaseException:
            session.close()
            raise
        for subscription, qos in zip(subscriptions, granted, strict=True):
            if qos < subscription.qos:
                wanted, topic = subscription.qos, subscription.path
                text = f"the broker grants QoS {qos} instead of {wanted} for topic '{topic}'"
                context.reporter.log(text, "warning")
        return session


def _new_session(step: Mqtt, context: FetchContext) -> MqttSession:
    policy = PublicAddresses() if context.untrusted else AddressPolicy()
    return MqttSession(
        (step.host, step.port),
        f"odf-ingest-{context.dataset_id}",
        Connector(policy, context.config.connect_timeout_seconds, context.reporter),
        context.config.connect_timeout_seconds,
        context.reporter,
        login=_login(step, context),
        tls=step.port == _TLS_PORT,
    )


def _login(step: Mqtt, context: FetchContext) -> tuple[str, str | None] | None:
    """Return user name and password from the manifest, else the ones that are stored for the address."""
    user = context.substitute_variables(step.username or "")
    if step.password is not None:
        return user, context.substitute_variables(step.password)
    url = broker_url(step.host, step.port)
    stored = None if context.credentials is None else context.credentials.of(url)
    if stored is None:
        return (user, None) if user else None
    if not (name := stored.user or user):
        raise SourceUnavailable(
            "the stored login has no user name, which MQTT requires",
            where=url,
            hint=f"run odf repo login {url} --user USER",
        )
    return name, stored.secret or stored.token


class _Poll:
    """Receives messages until the broker has no more, or until the time limit."""

    def __init__(self, session: MqttSession, context: FetchContext) -> None:
        self._session, self._context = session, context
        self._limits, self._reporter = context.mqtt, context.reporter
        self._until = monotonic() + context.mqtt.max_seconds
        self._is_broken = False

    def payloads(self) -> Iterator[Payload]:
        """Yield the messages, in files of lines."""
        received = 0
        while not self._is_broken and monotonic() < self._until:
            path = self._context.job / "messages"
            topics, messages = self._receive(path)
            if not messages:
                break
            received += len(messages)
            acknowledge = partial(self._acknowledge, messages)
            if topics:
                name = self._session.name
                yield Payload(path, name, None, None, line_origins=topics, on_commit=acknowledge)
            else:
                acknowledge()
        if not self._is_broken:
            self._session.acknowledge(())  # shows whether the broker still answers
        if not received:
            self._reporter.log(f"{self._session.name}: no new messages")
        if dropped := self._session.unrelated:
            text = f"{count_of(dropped, 'message')} dropped: the topics are no longer in the manifest"
            self._reporter.log(f"{self._session.name}: {text}", "warning")

    def _receive(self, path: Path) -> tuple[list[str], list[MqttMessage]]:
        """Write messages to a file until the broker is idle, or until a limit of the settings.

        Returns:
            The origin of each line, and the messages. Messages without payload have no line.
        """
        topics: list[str] = []
        messages: list[MqttMessage] = []
        size = 0
        with path.open("wb") as file:
            while len(messages) < self._limits.max_messages and monotonic() < self._until:
                # Many brokers pause after some messages, such as 20, until these are acknowledged.
                message = self._session.receive(self._limits.idle_seconds)
                if message is None:
                    break
                messages.append(message._replace(payload=b""))  # it is in the file
                if line := message.payload.translate(_SPACES).strip():
                    # Invalid UTF-8 becomes invalid JSON, so that the reader rejects only this line.
                    line = line.decode("utf-8", "backslashreplace").encode()
                    file.write(line + b"\n")
                    topics.append(f"topic {message.topic}")
                    size += len(line) + 1
                self._reporter.set_amounts(rows=len(messages), bytes=size)
        return topics, messages

    def _acknowledge(self, messages: list[MqttMessage]) -> None:
        try:
            self._session.acknowledge(messages)
        except Cancelled:
            raise
        except OdfError as error:
            self._is_broken = True
            text = f"{error}; the messages are committed, and the broker may send them again"
            self._reporter.log(text, "warning")
