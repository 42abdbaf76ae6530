"""Whatever is sent to it, the worker answers or closes, and lives. See also tests/faults/fuzzing.py."""

from __future__ import annotations

import json
import socket

import pytest

from odf_engine.jobs.pull import Pull
from odf_engine.worker.protocol import (
    MAX_COMMAND_BYTES,
    Ping,
    Rejected,
    Submit,
    decode_event,
    encode_line,
)


@pytest.fixture
async def address(home):
    client = await home.connect()
    yield home.files.address()
    assert (await client.ping()).pid == client.status.pid
    assert " ERROR " not in (home.odf / "worker.log").read_text()
    await client.close()


def ask(address: str, data: bytes) -> list[bytes]:
    """What comes back until the worker has answered a ping or closed."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(address)
        try:
            connection.sendall(data + b"\n" + encode_line(Ping()))
            connection.shutdown(socket.SHUT_WR)
        except BrokenPipeError:
            pass
        received = b""
        try:
            while chunk := connection.recv(1 << 16):
                received += chunk
        except ConnectionResetError:
            pass
    return received.splitlines()


NO_COMMANDS = [
    b"",
    b"{}",
    b"null",
    b"[1, 2]",
    b"\xff\xfe\x00",
    b'{"type": "fly"}',
    b'{"type": "submit"}',
    b'{"type": "submit", "target": "a", "tag": "t", "request": {"type": "pull", "dataset": 7}}',
    b'{"type": "submit", "target": "a", "tag": "t", "request": {"type": "burn", "dataset": "x"}}',
    b'{"type": "subscribe", "since": "yesterday"}',
    b'{"type": "cancel", "job": "\\u0000"}',
    b"[" * 60_000,
    b'{"type":' * 5_000,
]


async def test_malformed_command_is_rejected(address):
    for line in NO_COMMANDS:
        answers = [decode_event(answer) for answer in ask(address, line)]
        assert isinstance(answers[0], Rejected) and answers[0].error.message, line[:50]
        assert answers[0].tag == ("t" if b'"t"' in line else "")
        assert len(answers) == 2, line[:50]  # and the ping is answered


async def test_subscribe_with_out_of_range_number_is_answered(address):
    for since in (-(10**30), -1, 10**9, 10**30):
        answers = ask(address, json.dumps({"type": "subscribe", "since": since}).encode())
        assert len(answers) in (2, 3), since  # a third one if Spark becomes ready meanwhile


async def test_an_endless_line_is_cut_off(address):
    answers = ask(address, b"x" * (MAX_COMMAND_BYTES * 4))
    assert len(answers) <= 1 and all(b"longer than" in answer for answer in answers)


async def test_incomplete_command_is_ignored(address):
    whole = encode_line(Submit(Pull("count:1"), "a", "t"))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        connection.sendall(whole[:-10])
    assert json.loads(ask(address, b"")[-1])["queued"] == 0


async def test_connection_is_closed_when_a_client_leaves_during_events(home):
    client = await home.connect()
    for _ in range(60):
        last = await client.submit(Pull("count:1"), "x")
    await home.job(last)
    await client.close()
    for _ in range(300):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(home.files.address())
            connection.sendall(b'{"type": "subscribe", "since": 0}\n')
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
