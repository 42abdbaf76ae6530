"""A broker of MQTT on this machine: mosquitto, in a folder of its own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from paho.mqtt import publish

from tests.ports import unused_port
from tests.waiting import wait_until_listening

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


class Broker:
    """A running broker.

    Attributes:
        port: on 127.0.0.1.
        log: what it logs, with every packet.
    """

    def __init__(self, port: int, log: Path) -> None:
        self.port, self.log = port, log

    def publish(
        self,
        topic: str,
        *payloads: str | bytes,
        qos: int = 1,
        retain: bool = False,
        login: tuple[str, str] | None = None,
    ) -> None:
        """Publishes messages, and waits until the broker has them."""
        messages = [
            {"topic": topic, "payload": payload, "qos": qos, "retain": retain} for payload in payloads
        ]
        auth = None if login is None else {"username": login[0], "password": login[1]}
        publish.multiple(messages, hostname="127.0.0.1", port=self.port, auth=auth)  # type: ignore[arg-type]


@contextmanager
def run_broker(folder: Path, *settings: str, host: str = "127.0.0.1", port: int = 0) -> Iterator[Broker]:
    """Runs a broker with these lines of configuration; the test skips without mosquitto."""
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    port, log = port or unused_port(host), folder / "broker.log"
    lines = [f"listener {port} {host}", f"log_dest file {log}", "log_type all", "user root", *settings]
    if not any(line.startswith("password_file") for line in settings):
        lines.append("allow_anonymous true")
    configuration = folder / "mosquitto.conf"
    configuration.write_text("\n".join(lines) + "\n")
    with subprocess.Popen([MOSQUITTO, "-c", str(configuration)], stderr=subprocess.DEVNULL) as process:
        try:
            wait_until_listening(process, port, host)
            yield Broker(port, log)
        finally:
            process.terminate()
