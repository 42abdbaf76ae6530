"""A real FTP server on this machine, which can be told to misbehave, and a certificate for TLS."""

from __future__ import annotations

import datetime
import ipaddress
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import DTPHandler, FTPHandler, TLS_DTPHandler, TLS_FTPHandler
from pyftpdlib.ioloop import IOLoop
from pyftpdlib.servers import FTPServer

USER, PASSWORD = "me@home", "pa ss"


class Server:
    """Serves ``folder``; anonymous readers are let in, and one with a login.

    Attributes:
        cut_after: close both connections once a transfer has sent so many bytes.
        lacks: commands that the server does not know.
        commands: what was asked.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self.cut_after: int | None = None
        self.lacks: set[str] = set()
        self.commands: list[str] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def asked(self, command: str) -> list[str]:
        """The commands of this kind, in their order."""
        return [each for each in self.commands if each.startswith(command)]


@contextmanager
def ftp_server(folder: Path, certificate: Path | None = None, *, implicit: bool = False) -> Iterator[Server]:
    """Serves on a free port until the block ends; with a certificate, TLS is demanded.

    ``implicit`` speaks TLS from the first byte.
    """
    logging.getLogger("pyftpdlib").setLevel(logging.CRITICAL)
    known = Server(folder)
    authorizer = DummyAuthorizer()
    authorizer.add_anonymous(str(folder))
    authorizer.add_user(USER, PASSWORD, str(folder))
    members: dict[str, Any] = {
        "authorizer": authorizer,
        "banner": "at your service",
        "use_sendfile": False,
        "auth_failed_timeout": 0.05,
        # What a server says about where its data are must not lead anybody elsewhere.
        "masquerade_address": "10.255.255.1",
    }
    if certificate is not None:
        members |= {"certfile": str(certificate), "tls_control_required": True, "tls_data_required": True}
    control, data = (FTPHandler, DTPHandler) if certificate is None else (TLS_FTPHandler, TLS_DTPHandler)
    handler = type(
        "Control", (_control(known, control, implicit),), members | {"dtp_handler": _data(known, data)}
    )
    loop = IOLoop()
    server = FTPServer(("127.0.0.1", 0), handler, ioloop=loop)
    known.port = server.address[1]
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            server.serve_forever(timeout=0.02, blocking=False, handle_exit=False)
        server.close_all()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield known
    stop.set()
    thread.join()


def _control(known: Server, base: type, implicit: bool) -> type:
    class Control(base):
        def handle(self) -> None:
            if implicit:
                self.secure_connection(self.ssl_context)
            super().handle()

        def pre_process_command(self, line: str, cmd: str, arg: str) -> None:
            known.commands.append(line)
            if cmd in known.lacks:
                self.respond(f'502 Command "{cmd}" not understood.')
            else:
                super().pre_process_command(line, cmd, arg)

    return Control


def _data(known: Server, base: type) -> type:
    class Data(base):
        def send(self, data: bytes) -> int:
            if known.cut_after is not None and self.tot_bytes_sent >= known.cut_after:
                known.cut_after = None
                self.cmd_channel.close()
                return 0
            return super().send(data)

    return Data


def make_certificate(path: Path) -> Path:
    """Writes a key and a certificate for this machine, signed by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now - day, now + day
        )
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, form, plain)
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path
