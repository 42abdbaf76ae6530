"""MQTT 3.1.1 client of a persistent session that acknowledges messages on request.

paho-mqtt implements the protocol. Internal methods of it are replaced: the one that opens the socket, so that
the address policy and cancellation apply, and those that acknowledge a message on receipt. Its option
``manual_ack`` does not suffice: with QoS 2 it still sends PUBREC on receipt, and then the broker deletes the
message.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, Final, NamedTuple

from paho.mqtt.client import Client, MQTTMessage, topic_matches_sub
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

from odf_engine.base.progress import Reporter
from odf_engine.errors import SourceUnavailable
from odf_engine.net.connector import Connector
from odf_engine.net.download import connection_failure, run_cancellable

# Errors are raised here.
logging.getLogger("paho").setLevel(logging.CRITICAL)
_KEEP_ALIVE_SECONDS: Final = 3600  # No packets are exchanged during a commit.
_SLICE_SECONDS: Final = 0.1  # maximum delay of a cancellation
_NETWORK_HINT: Final = "check host and port, and that the broker is running, then try again"
_CONNECT_ERRORS: Final = {
    132: "the broker does not support MQTT 3.1.1",
    133: "the broker rejected the client id",
    134: "the broker rejected the user name or password",
    135: "the broker denied access: wrong user name or password",
    136: "the broker is unavailable",
}
"""Return codes of CONNACK (MQTT 3.1.1, table 3.1), which paho-mqtt reports as those of MQTT 5."""
_FAILURE: Final = 0x80
_NO_TOPIC: Final = "odf-workstation/no-topic"
"""A topic without a subscription."""


class Subscription(NamedTuple):
    """A topic filter, and the maximum quality of service: 0, 1 or 2."""

    path: str
    qos: int


class MqttMessage(NamedTuple):
    """A published message; ``packet`` is the id to acknowledge it with."""

    topic: str
    payload: bytes
    qos: int
    packet: int


class MqttSession:
    """A connection to a broker with a persistent session; a context manager.

    The broker stores the session under the client id. It sends messages with QoS 1 or 2 again, in the next
    connection, until they are acknowledged.

    Args:
        address: host and port.
        client_id: stable name of the session.
        connector: opens the socket.
        timeout: seconds that the broker may take to answer a request.
        reporter: its cancellation ends all calls immediately.
        login: user name and password, if any; the password may be missing.
        tls: connect over TLS.

    Attributes:
        name: the address, for messages.
        unrelated: number of messages that were dropped, since they belong to subscriptions that the session
            has from earlier definitions of the source.
    """

    def __init__(
        self,
        address: tuple[str, int],
        client_id: str,
        connector: Connector,
        timeout: float,
        reporter: Reporter,
        *,
        login: tuple[str, str | None] | None = None,
        tls: bool = False,
    ) -> None:
        self._address, self._timeout, self._reporter = address, timeout, reporter
        self._connector = connector
        self.name = broker_url(*address)
        self._client = _HoldingClient(client_id, connector)
        self._client.connect_timeout = timeout
        self._client.on_message = self._on_message
        # The reason codes are arguments 3 of the callbacks.
        self._client.on_connect = lambda *given: self._answers.update(connect=given[3].value)
        self._client.on_subscribe = lambda *given: self._answers.update(
            subscribe=[code.value for code in given[3]]
        )
        self._client.on_unsubscribe = lambda *_: self._answers.update(unsubscribe=True)
        self._answers: dict[str, Any] = {}
        self._messages: deque[MqttMessage] = deque()
        self._subscriptions: Sequence[Subscription] = ()
        self._unrelated: list[int] = []
        self.unrelated = 0
        if login is not None:
            self._client.username_pw_set(*login)
        if tls:
            self._client.tls_set_context(connector.tls_context)

    def __enter__(self) -> MqttSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, subscriptions: Sequence[Subscription]) -> list[int]:
        """Connect and subscribe; return the quality of service that the broker grants for each.

        Raises:
            AttemptFailed: no connection; another attempt may succeed.
            SourceUnavailable: the login is wrong, a subscription is refused, or no answer within the timeout.
            Cancelled: immediately.
        """
        self._subscriptions = subscriptions
        with self._attempt():
            run_cancellable(self._connect, self._connector.abort, self._reporter)
        with self._reporter.on_cancel(self._connector.abort):
            code = self._await("connect", "the connection request")
            if code:
                raise self._error(_CONNECT_ERRORS.get(code, f"the broker refused the connection ({code})"))
            self._client.subscribe([(subscription.path, subscription.qos) for subscription in subscriptions])
            granted: list[int] = self._await("subscribe", "the subscription")
        if len(granted) != len(subscriptions):
            raise self._error("the broker sent an invalid answer to the subscription")
        for topic, qos in zip(subscriptions, granted, strict=True):
            if qos >= _FAILURE:
                raise self._error(
                    f"the broker denied the subscription to '{topic.path}'",
                    hint="check fetch.topics, and the permissions of the user on the broker",
                )
        return granted

    def receive(self, seconds: float) -> MqttMessage | None:
        """Return the next message, or None if no message arrives within some seconds.

        Raises:
            SourceUnavailable: the connection broke.
            Cancelled: immediately.
        """
        until = monotonic() + seconds
        with self._reporter.on_cancel(self._connector.abort):
            while not self._messages:
                if (left := until - monotonic()) <= 0:
                    return None
                self._exchange(left)
        return self._messages.popleft()

    def acknowledge(self, messages: Iterable[MqttMessage]) -> None:
        """Acknowledge messages, and wait until the broker has processed them.

        Raises:
            SourceUnavailable: the connection broke, or the broker does not answer: it may send the messages
                again.
            Cancelled: immediately.
        """
        packets = [message.packet for message in messages if message.qos] + self._unrelated
        self._unrelated = []
        with self._reporter.on_cancel(self._connector.abort):
            self._client.release(packets)
            # A broker handles packets in order, so this answer follows the acknowledgements.
            self._client.unsubscribe(_NO_TOPIC)
            self._await("unsubscribe", "the acknowledgements")
            until = monotonic() + self._timeout
            while self._client.unfinished:
                if (left := until - monotonic()) <= 0:
                    raise self._error("the broker did not confirm the acknowledgements in time")
                self._exchange(left)

    def close(self) -> None:
        """Disconnect. The session with its unacknowledged messages stays on the broker."""
        self._client.disconnect()
        self._connector.abort()

    def _connect(self) -> None:
        self._client.connect(*self._address, keepalive=_KEEP_ALIVE_SECONDS)

    def _await(self, key: str, what: str) -> Any:
        until = monotonic() + self._timeout
        while key not in self._answers:
            if (left := until - monotonic()) <= 0:
                problem = f"the broker did not answer {what} within {self._timeout:g} s"
                raise self._error(problem, hint="check that host and port are those of an MQTT broker")
            self._exchange(left)
        return self._answers.pop(key)

    def _exchange(self, seconds: float) -> None:
        """Send and receive packets once."""
        self._reporter.raise_if_cancelled()
        code = self._client.loop(timeout=min(seconds, _SLICE_SECONDS))
        self._reporter.raise_if_cancelled()
        if code != MQTTErrorCode.MQTT_ERR_SUCCESS and not self._answers:
            raise self._error("the broker closed the connection")

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            topic = ""
        # A session also has the subscriptions of earlier definitions of the source.
        if topic and any(
            topic_matches_sub(_without_group(subscription.path), topic)
            for subscription in self._subscriptions
        ):
            self._messages.append(MqttMessage(topic, bytes(message.payload), message.qos, message.mid))
            return
        self.unrelated += 1
        if message.qos:
            self._unrelated.append(message.mid)

    def _error(self, problem: str, hint: str = _NETWORK_HINT) -> SourceUnavailable:
        if "user name" in problem:
            hint = (
                "set fetch.username and fetch.password, such as ${{ env.NAME }}, or store a login: odf repo"
                f" login {self.name} --user USER"
            )
        return SourceUnavailable(problem, where=self.name, hint=hint)

    @contextmanager
    def _attempt(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._reporter.raise_if_cancelled()
            raise connection_failure(error, self.name, _NETWORK_HINT) from None


class _HoldingClient(Client):
    """A client that acknowledges messages when :meth:`release` is called.

    Attributes:
        held: packet ids with their acknowledgement, PUBACK or PUBREC. Some brokers send a message again
            when its acknowledgement is late; it is dropped.
        unfinished: packet ids with QoS 2 whose PUBREL has not arrived.
    """

    def __init__(self, client_id: str, connector: Connector) -> None:
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=False,
            protocol=MQTTProtocolVersion.MQTTv311,
            reconnect_on_failure=False,
        )
        self._connector = connector
        self.held: dict[int, int] = {}
        self.unfinished: set[int] = set()
        self._is_repeated = False

    def release(self, packets: Iterable[int]) -> None:
        """Send the acknowledgements of messages that are held."""
        for mid in packets:
            if self.held.pop(mid) == 1:
                super()._send_puback(mid)
            else:
                self.unfinished.add(mid)
                super()._send_pubrec(mid)

    def _create_socket_connection(self) -> socket.socket:
        return self._connector.connect(self._host, self._port)

    def _send_puback(self, mid: int) -> MQTTErrorCode:
        self.held[mid] = 1
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle_publish(self) -> MQTTErrorCode:
        code = super()._handle_publish()
        # The library passes on a message with QoS 2 when PUBREL arrives: after its acknowledgement.
        while self._in_messages:
            _, message = self._in_messages.popitem()
            if self.on_message is not None and not self._is_repeated:
                self.on_message(self, None, message)
        return code

    def _handle_on_message(self, message: MQTTMessage) -> None:
        if message.qos == 0 or message.mid not in self.held:
            super()._handle_on_message(message)

    def _send_pubrec(self, mid: int) -> MQTTErrorCode:
        if mid in self.unfinished:  # the broker did not receive it
            self._is_repeated = True
            return super()._send_pubrec(mid)
        self._is_repeated = mid in self.held
        self.held[mid] = 2
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _send_pubcomp(self, mid: int) -> MQTTErrorCode:
        self.unfinished.discard(mid)
        return super()._send_pubcomp(mid)


def broker_url(host: str, port: int) -> str:
    """Return the URL of a broker, for messages and stored logins."""
    return f"mqtt://[{host}]:{port}" if ":" in host else f"mqtt://{host}:{port}"


def _without_group(path: str) -> str:
    """Return the topic filter of a shared subscription, ``$share/GROUP/FILTER``."""
    return path.split("/", 2)[2] if path.startswith("$share/") and path.count("/") > 1 else path
