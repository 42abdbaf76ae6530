"""Tokens of clients: as Bearer token, or as password of a handshake."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyarrow import flight

from odf_engine.errors import OdfError
from odf_engine.workspace.tokens import AccessToken, Tokens

ENGINE_HEADER: Final = "odf-engine"
"""The header with the engine of the queries of a call."""


class OpenHandshake(flight.ServerAuthHandler):
    """Accepts handshakes: :class:`TokenCheck` checks their headers."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Send nothing: the answer is a header."""

    def is_valid(self, token: bytes) -> bytes:
        """Return the identity of the client, which is not used."""
        return b""


class TokenCheck(flight.ServerMiddlewareFactory):
    """Checks the token of each call.

    Args:
        tokens: the tokens of the workspace, or None if clients need none.
    """

    def __init__(self, tokens: Tokens | None) -> None:
        super().__init__()
        self._tokens = tokens

    def start_call(self, info: flight.CallInfo, headers: Mapping[str, Sequence[Any]]) -> CallHeaders:
        """Check the token of a call, and return its headers.

        Raises:
            FlightUnauthenticatedError: the token is missing, unknown, revoked or expired.
        """
        text, token = _read_token(next(iter(headers.get("authorization", ())), "")), None
        if self._tokens is not None:
            if not text:
                raise flight.FlightUnauthenticatedError(
                    "a token is required (hint: ask the operator of the server for one)"
                )
            try:
                token = self._tokens.find(text)
            except OdfError:
                raise flight.FlightUnavailableError("the tokens cannot be read") from None
            if token is None:
                raise flight.FlightUnauthenticatedError("the token is unknown, revoked or expired")
            self._tokens.record_use(token)
        is_handshake = info.method == flight.FlightMethod.HANDSHAKE
        reply = {"authorization": f"Bearer {text or 'none'}"} if is_handshake else {}
        return CallHeaders(token, next(iter(headers.get(ENGINE_HEADER, ())), ""), reply)


class CallHeaders(flight.ServerMiddleware):
    """The headers of a call. The answer to a handshake has its token for the next calls.

    Attributes:
        token: the token, or None if clients need none.
        engine: the requested engine, or "" for the default.
    """

    def __init__(self, token: AccessToken | None, engine: str, reply: dict[str, str]) -> None:
        super().__init__()
        self.token = token
        self.engine = engine
        self._reply = reply

    def sending_headers(self) -> dict[str, str]:
        """Return the headers of the answer."""
        return self._reply


def _read_token(header: object) -> str:
    """Return the token in a header ``Authorization``, or ""."""
    scheme, _, value = (header if isinstance(header, str) else "").partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value
    if scheme.lower() != "basic":
        return ""
    try:
        value += "=" * (-len(value) % 4)  # the Go client omits the padding
        return b64decode(value, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""
