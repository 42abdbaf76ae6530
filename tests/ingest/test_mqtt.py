"""Messages of MQTT topics, from a real broker."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from odf_engine.base.config import FetchConfig, MqttConfig
from odf_engine.errors import BadData, Cancelled, InvalidManifest, OdfError, SourceUnavailable
from odf_engine.ingest.fetch.fetch_step import fetch
from odf_engine.ingest.fetch.model import FetchContext, Payload
from odf_engine.metadata.model import Mqtt, MqttQos, MqttTopicSubscription
from odf_engine.net.credentials import Credentials, Login
from odf_engine.workspace.workspace import Workspace
from tests.ingest.ftp_server import make_certificate
from tests.ingest.mqtt_broker import MOSQUITTO, Broker, run_broker
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder
from tests.ports import unused_port
from tests.waiting import run_with_timeout

pytestmark = pytest.mark.net
QOS = {0: MqttQos.AtMostOnce, 1: MqttQos.AtLeastOnce, 2: MqttQos.ExactlyOnce}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with run_broker(tmp_path / "broker") as running:
        yield running


def source(port: int, *topics: str, qos: int = 1, host: str = "127.0.0.1", **more: Any) -> Mqtt:
    listed = [MqttTopicSubscription(topic, QOS[qos]) for topic in topics or ("a",)]
    return Mqtt(host=host, port=port, topics=listed, **more)


def fetched(
    workspace: Workspace, step: Mqtt, reporter: Recorder, *, idle: float = 0.4, **config: Any
) -> Iterator[Payload]:
    limits = {name: config.pop(name) for name in list(config) if name in ("max_messages", "max_seconds")}
    context = FetchContext(
        resolve=workspace.resolve_path,
        root=workspace.folder,
        dataset=None,  # type: ignore[arg-type] - not read
        state=None,
        job=Path(tempfile.mkdtemp(dir=workspace.odf)),
        config=FetchConfig(**{"retries": 0, **config}),
        reporter=reporter,
        allowed=["PASSWORD"],
        environment={"PASSWORD": "secret"},
        dataset_id="did:odf:x",
        credentials=Credentials(workspace.odf),
        mqtt=MqttConfig(idle_seconds=idle, **limits),
    )
    return fetch(step, context)


def receive(workspace: Workspace, step: Mqtt, reporter: Recorder, **more: Any) -> list[str]:
    """All messages, which are acknowledged after each payload."""
    lines: list[str] = []
    for payload in fetched(workspace, step, reporter, **more):
        lines += payload.path.read_text().splitlines()
        payload.on_commit()
    return lines


def refusal(workspace: Workspace, step: Mqtt, reporter: Recorder, **more: Any) -> OdfError:
    with pytest.raises(SourceUnavailable) as caught:
        receive(workspace, step, reporter, **more)
    assert caught.value.where == f"mqtt://{step.host}:{step.port}" and caught.value.hint
    return caught.value


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_session_lasts_between_polls(
    workspace: Workspace, broker: Broker, reporter: Recorder, qos: int
) -> None:
    step = source(broker.port, "a/+", "b", qos=qos)
    assert receive(workspace, step, reporter) == []
    broker.publish("a/1", '{"x": 1}', '\n{"x":\n 2} ', "", qos=qos)
    broker.publish("b", '{"x": 3}', qos=qos)
    broker.publish("c", '{"x": 4}', qos=qos)
    # A broker does not queue messages with QoS 0.
    expected = ['{"x": 1}', '{"x":  2}', '{"x": 3}'] if qos else []
    assert receive(workspace, step, reporter) == expected
    assert reporter.amounts == ({"rows": 4, "bytes": 28} if qos else {})
    assert receive(workspace, step, reporter) == []
    # The topics of an earlier definition are dropped, once.
    broker.publish("b", '{"x": 5}', '{"x": 6}', qos=qos)
    assert receive(workspace, source(broker.port, "a/+", qos=qos), reporter) == []
    assert [text for text in reporter.warnings if "2 messages dropped" in text] != [] or not qos
    assert receive(workspace, step, reporter) == []


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.complete(after=1)
def test_a_kill_before_the_commit_loses_no_message(
    workspace: Workspace, broker: Broker, reporter: Recorder, qos: int
) -> None:
    step = source(broker.port, qos=qos)
    assert receive(workspace, step, reporter) == []
    broker.publish("a", "1", "2", qos=qos)
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from tests.ingest.test_mqtt import *\n"
        "step = source(int(sys.argv[2]), qos=int(sys.argv[3]))\n"
        "payload = next(fetched(Workspace.find(Path(sys.argv[1])), step, Recorder()))\n"
        "assert payload.path.read_text() == '1\\n2\\n'\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    arguments = [sys.executable, "-c", code, str(workspace.folder), str(broker.port), str(qos)]
    killed = subprocess.run(arguments, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    # The same after an error, which closes the fetch.
    with closing(fetched(workspace, step, reporter)) as payloads:  # type: ignore[type-var]
        assert next(payloads).path.read_text() == "1\n2\n"
    assert receive(workspace, step, reporter) == ["1", "2"]
    assert receive(workspace, step, reporter) == []


def test_payload_is_bounded_by_messages_and_poll_by_time(
    workspace: Workspace, broker: Broker, reporter: Recorder
) -> None:
    """The broker pauses after 20 messages that are not acknowledged."""
    step = source(broker.port, qos=2)
    assert receive(workspace, step, reporter) == []
    broker.publish("a", *map(str, range(100)), qos=2)
    sizes: list[int] = []
    for payload in fetched(workspace, step, reporter, max_messages=15):
        sizes.append(len(payload.path.read_text().splitlines()))
        payload.on_commit()
    assert sum(sizes) == 100 and max(sizes) == 15
    broker.publish("a", *map(str, range(70)), qos=2)
    assert receive(workspace, step, reporter) == [str(each) for each in range(70)]
    # A topic without a pause: the poll ends after its maximum time.
    broker.publish("a", *map(str, range(70)), qos=2)
    assert 0 < len(receive(workspace, step, reporter, max_seconds=0.2)) <= 40


def test_login_comes_from_source_or_credentials_and_stays_hidden(
    workspace: Workspace, tmp_path: Path, reporter: Recorder
) -> None:
    passwords = tmp_path / "passwords"
    if MOSQUITTO is not None:
        tool = str(Path(MOSQUITTO).parents[1] / "bin" / "mosquitto_passwd")
        subprocess.run([tool, "-b", "-c", str(passwords), "jane", "secret"], check=True)
    with run_broker(tmp_path / "broker", f"password_file {passwords}") as broker:
        url = f"mqtt://127.0.0.1:{broker.port}"
        broker.publish("a", "1", retain=True, login=("jane", "secret"))
        variable = source(broker.port, username="jane", password="${{ env.PASSWORD }}")
        assert receive(workspace, variable, reporter) == ["1"]
        wrong = refusal(workspace, source(broker.port, username="jane", password="hidden"), reporter)
        assert "user name or password" in wrong.message and f"odf repo login {url}" in str(wrong.hint)
        refusal(workspace, source(broker.port), reporter)
        Credentials(workspace.odf).set(url, Login("jane", "secret"))
        assert receive(workspace, source(broker.port), reporter) == ["1"]
        refusal(workspace, source(broker.port, username="jane", password="hidden"), reporter)
        Credentials(workspace.odf).set(url, Login(token="secret"))
        assert "no user name" in refusal(workspace, source(broker.port), reporter).message
        assert receive(workspace, source(broker.port, username="jane"), reporter) == ["1"]
    told = f"{reporter.lines} {wrong} {wrong.hint}"
    assert "secret" not in told and "hidden" not in told


def test_unresponsive_broker_is_reported(workspace: Workspace, reporter: Recorder) -> None:
    assert "refused" in refusal(workspace, source(unused_port()), reporter).message
    with socket.create_server(("127.0.0.1", 0)) as server:
        step = source(server.getsockname()[1])
        error = refusal(workspace, step, reporter, connect_timeout_seconds=0.3)
        assert "did not answer the connection request within 0.3 s" in error.message
        threading.Timer(0.2, reporter.cancel).start()
        with pytest.raises(Cancelled):
            run_with_timeout(lambda: receive(workspace, step, reporter, connect_timeout_seconds=600))
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        error = refusal(workspace, source(server.getsockname()[1]), Recorder())
        assert "closed the connection" in error.message


def _answer(server: socket.socket, granted: bytes, *published: bytes) -> None:
    """Be a broker for one connection: grant a subscription, publish packets, and acknowledge the rest."""
    connection, _ = server.accept()
    with connection:
        for reply in (b"\x20\x02\0\0", bytes([0x90, 2 + len(granted), 0, 1]) + granted + b"".join(published)):
            connection.recv(4096)
            connection.sendall(reply)
        while data := connection.recv(4096):
            found = data.find(b"\xa2")  # UNSUBSCRIBE
            rest = data if found < 0 else data[:found]
            for at in range(0, len(rest) - 3, 4):
                if rest[at] == 0x50:  # PUBREC
                    connection.sendall(b"\x62\x02" + rest[at + 2 : at + 4])
            if found >= 0:
                connection.sendall(b"\xb0\x02" + data[found + 2 : found + 4])


@pytest.mark.parametrize("qos", [1, 2])
def test_duplicate_deliveries_are_received_once(workspace: Workspace, reporter: Recorder, qos: int) -> None:
    """Some brokers send a message again, in the same connection, while its acknowledgement is awaited."""
    first, again = (bytes([0x30 | qos << 1 | dup, 7, 0, 1, ord("a"), 0, 5]) + b"42" for dup in (0, 8))
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = (server, bytes([qos]), first, again)
        threading.Thread(target=_answer, args=arguments, daemon=True).start()
        assert receive(workspace, source(server.getsockname()[1], qos=qos), reporter) == ["42"]
    assert reporter.warnings == []


def test_invalid_subscription_answer_is_reported(workspace: Workspace, reporter: Recorder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server, b"\1\1"), daemon=True).start()
        error = refusal(workspace, source(server.getsockname()[1]), reporter)
    assert error.message == "the broker sent an invalid answer to the subscription"


def test_a_poll_can_be_cancelled(workspace: Workspace, broker: Broker, reporter: Recorder) -> None:
    threading.Timer(0.3, reporter.cancel).start()
    with pytest.raises(Cancelled):
        receive(workspace, source(broker.port), reporter, idle=3600)


def test_secure_mqtt_verifies_the_certificate(
    workspace: Workspace, tmp_path: Path, reporter: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port of secure MQTT uses TLS, and certificates are verified."""
    certificate = make_certificate(tmp_path / "certificate.pem")
    host = "127.0.0.1"
    with socket.socket() as sock:
        if sock.connect_ex((host, 8883)) == 0:
            pytest.skip("port 8883 is in use")
    settings = [f"certfile {certificate}", f"keyfile {certificate}"]
    with run_broker(tmp_path / "broker", *settings, host=host, port=8883):
        step = source(8883, host=host)
        assert "invalid certificate" in refusal(workspace, step, reporter).message
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert receive(workspace, step, reporter) == []


MANIFEST = """
fetch:
  kind: Mqtt
  host: 127.0.0.1
  port: {port}
  topics:
    - path: temperature/+
      qos: AtLeastOnce
    - path: last
read:
  kind: NdJson
  schema: ["event_time TIMESTAMP", "value DOUBLE"]
merge:
  kind: {merge}
"""


def configure(pulled: Pulled, text: str) -> None:
    (pulled.workspace.odf / "config.yaml").write_text(text + "\n")
    pulled.workspace = Workspace.find(pulled.workspace.folder)


def reading(day: int, value: float) -> str:
    return json.dumps({"event_time": f"2026-01-{day:02}T00:00:00Z", "value": value})


def test_mqtt_pull_ingests_each_message_once(pulled: Pulled, broker: Broker) -> None:
    configure(pulled, "mqtt: {idleSeconds: 0.4}")
    pulled.add(MANIFEST.format(port=broker.port, merge="Ledger\n  primaryKey: [event_time]"))
    assert pulled.pull().new_head == pulled.pull().new_head  # nothing to commit; the broker opens a session
    broker.publish("last", reading(1, 0), retain=True)
    broker.publish("temperature/a", reading(2, 1.5), reading(3, 2.5))
    pulled.pull()
    assert pulled.rows("offset", "value") == [(0, 0.0), (1, 1.5), (2, 2.5)]
    assert "fetch" in pulled.reporter.phases and pulled.reporter.commits == [("AddData", 3)]
    # A retained message comes again, and is no new row.
    broker.publish("temperature/a", reading(4, 3.5))
    pulled.pull()
    assert pulled.rows("value")[3:] == [(3.5,)]
    before = pulled.dataset.head()
    pulled.pull()
    assert pulled.dataset.head() == before

    # An invalid message is reported with its topic, and stays on the broker.
    broker.publish("temperature/b", reading(5, 4.5), "no JSON", b"\xff\xfe")
    pulled.fails(BadData, "(topic temperature/b)")
    configure(pulled, "mqtt: {idleSeconds: 0.4}\nonBadRows: {data: reject}")
    pulled.pull()
    assert pulled.rows("value")[4:] == [(4.5,)]
    assert any("2 invalid rows rejected, the first in line 2 (topic temperature/b)" in text
               for text in pulled.reporter.warnings)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"topics": []}, "fetch.topics"),
        ({"topics": [MqttTopicSubscription("a/#/b")]}, "fetch.topics"),
        ({"topics": [MqttTopicSubscription("a+")]}, "fetch.topics"),
        ({"topics": [MqttTopicSubscription("")]}, "fetch.topics"),
        ({"topics": [MqttTopicSubscription("a"), MqttTopicSubscription("a")]}, "fetch.topics"),
        ({"port": 0}, "fetch.port"),
        ({"port": 65_536}, "fetch.port"),
        ({"host": "mqtt://x"}, "fetch.host"),
        ({"host": "x:1883"}, "fetch.host"),
        ({"password": "x"}, "fetch.username"),
    ],
)
def test_invalid_mqtt_source_is_rejected_with_its_field(
    workspace: Workspace, change: dict[str, Any], where: str
) -> None:
    from odf_engine.metadata.model import NdJson
    from tests.workspace.test_workspace import root

    step = Mqtt(**{"host": "h", "port": 1883, "topics": [MqttTopicSubscription("a")], **change})
    with pytest.raises(InvalidManifest) as caught:
        workspace.add([root("a", fetch=step, read=NdJson())])
    assert where in str(caught.value.where)
