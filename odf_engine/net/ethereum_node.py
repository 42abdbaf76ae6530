"""JSON-RPC client of an Ethereum node (Ethereum execution API)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from odf_engine.base.config import FetchConfig
from odf_engine.base.progress import Reporter
from odf_engine.errors import BadData, OdfError, SourceUnavailable
from odf_engine.net.address_policy import AddressPolicy
from odf_engine.net.credentials import Login
from odf_engine.net.download import AttemptFailed, parse_retry_after
from odf_engine.net.http_client import HttpClient, RequestBody, Response, is_temporary, sanitize_text

_MAX_ANSWER_BYTES: Final = 256 << 20
_ERROR_STATUSES: Final = (400, 413)  # Some nodes send an error of JSON-RPC with them.
_RATE_LIMIT: Final = re.compile(
    r"rate.?limit|too many requests|requests? (per|limit)|per.second|compute units|throttl|try again",
    re.IGNORECASE,
)
_TOO_LARGE: Final = re.compile(
    r"more than|too (many|large|big|wide|long)|exceed|range|limit|response size|time.?out|timed out",
    re.IGNORECASE,
)


class TooManyLogs(Exception):
    """The node does not return the logs of as many blocks; the message is the node's."""


class Block(msgspec.Struct, frozen=True):
    """A block; all values are hexadecimal with 0x."""

    number: str
    hash: str
    timestamp: str


class Log(msgspec.Struct, frozen=True, rename="camel"):
    """A log; all values are hexadecimal with 0x."""

    address: str
    topics: list[str]
    data: str
    block_number: str
    block_hash: str
    transaction_hash: str
    transaction_index: str
    log_index: str
    block_timestamp: str | None = None
    removed: bool = False


class _RpcError(msgspec.Struct):
    code: int = 0
    message: str = ""
    data: Any = None


class _Answer(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"")
    error: _RpcError | None = None


class EthereumNode:
    """A node; a context manager. All calls are repeated after temporary failures.

    Args:
        url: http or https, with keys if it has any.
        name: the node, for messages.
        config: timeouts and retries.
        reporter: its cancellation ends all calls immediately.
        policy: the addresses that may be reached.
        login: the login for the node.
    """

    def __init__(
        self,
        url: str,
        name: str,
        config: FetchConfig,
        reporter: Reporter,
        policy: AddressPolicy,
        login: Login | None,
    ) -> None:
        self._url, self.name = url, name
        self._client = _NodeClient(
            url, config, reporter, policy=policy, login=lambda: login, min_rate=0, name=name
        )

    def __enter__(self) -> EthereumNode:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def chain_id(self) -> int:
        """Return the id of the chain."""
        return self.number(self._call("eth_chainId", [], str))

    def latest_block(self) -> int:
        """Return the number of the newest block."""
        latest = self._call("eth_getBlockByNumber", ["latest", False], Block)
        return self.number(latest.number)

    def find_block(self, number: int) -> Block | None:
        """Return a block, or None if the node does not have it."""
        return self._call("eth_getBlockByNumber", [hex(number), False], Block | None)

    def logs(self, first: int, last: int, parameters: Mapping[str, Any]) -> list[Log]:
        """Return the logs of blocks, in any order.

        Args:
            first: number of the first block.
            last: number of the last block, included.
            parameters: conditions on address and topics.

        Raises:
            TooManyLogs: fewer blocks may succeed.
        """
        query = {"fromBlock": hex(first), "toBlock": hex(last), **parameters}
        return self._call("eth_getLogs", [query], list[Log])

    def number(self, text: str) -> int:
        """Return the number in an answer.

        Raises:
            BadData: it is not hexadecimal.
        """
        try:
            return int(text, 16)
        except ValueError:
            raise self._invalid(f"'{sanitize_text(text)}' is not a number") from None

    def binary(self, text: str) -> bytes:
        """Return the bytes in an answer; errors as :meth:`number`."""
        try:
            return bytes.fromhex(text.removeprefix("0x"))
        except ValueError:
            raise self._invalid(f"'{sanitize_text(text)}' is not hexadecimal") from None

    def _call(self, method: str, parameters: list[Any], kind: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": parameters}).encode()
        return self._client.with_retries(lambda: self._attempt(method, body, kind))

    def _attempt(self, method: str, body: bytes, kind: Any) -> Any:
        try:
            with self._client.request(
                "POST",
                self._url,
                conditions={"Content-Type": "application/json", "Accept": "application/json"},
                body=RequestBody(body),
                accepted=_ERROR_STATUSES,
            ) as response:
                data = b"".join(response.iter_chunks(_MAX_ANSWER_BYTES + 1))
                failure = self._client.status_error(response)
                status = response.status
        except AttemptFailed as failed:
            if method == "eth_getLogs" and "timeout" in failed.error.message:
                raise TooManyLogs(failed.error.message) from None
            raise
        if len(data) > _MAX_ANSWER_BYTES or status == 413:
            if method == "eth_getLogs":
                raise TooManyLogs("the answer is too large")
            raise failure
        try:
            answer = msgspec.json.decode(data, type=_Answer)
            if answer.error is not None:
                raise self._error(method, answer.error)
            if status in _ERROR_STATUSES:
                raise failure
            return msgspec.json.decode(answer.result, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            if status in _ERROR_STATUSES:
                raise failure from None
            problem = f"invalid answer to {method}: {sanitize_text(str(error), 200)}"
            hint = "check that the URL is that of an Ethereum node (JSON-RPC)"
            invalid = BadData(problem, where=self.name, hint=hint)
            raise AttemptFailed(invalid, again=False) from None

    def _error(self, method: str, error: _RpcError) -> Exception:
        text = sanitize_text(error.message, 200) or f"error {error.code}"
        if _RATE_LIMIT.search(error.message) or error.code == 429:
            hint = "try again later, or use another node"
            unavailable = SourceUnavailable(f"the node limits requests: {text}", where=self.name, hint=hint)
            return AttemptFailed(unavailable, again=True)
        if method == "eth_getLogs" and (_TOO_LARGE.search(error.message) or error.code == -32005):
            return TooManyLogs(text)
        unavailable = SourceUnavailable(
            f"the node returned an error for {method}: {text} ({error.code})",
            where=self.name,
            hint="check the node and its limits, or use another node",
        )
        return AttemptFailed(unavailable, again=False)

    def _invalid(self, problem: str) -> BadData:
        return BadData(f"invalid answer: {problem}", where=self.name, hint="use another node")


class _NodeClient(HttpClient):
    """HTTP client whose errors show the name of the node."""

    network_hint = "check the URL of the node and the network, then try again"

    def __init__(self, *given: Any, name: str, **options: Any) -> None:
        super().__init__(*given, **options)
        self._name = name

    def where(self, url: str) -> str:
        return self._name

    def status_error(self, response: Response, missing: tuple[int, ...] = ()) -> AttemptFailed:
        status, hint = response.status, "try again later"
        if status in (401, 403):
            hint = "check the key in the URL of the node, or store a login: odf repo login URL"
        elif not is_temporary(status):
            hint = "check the URL of the node"
        text = f"the server returned {status} {sanitize_text(response.reason)}".rstrip()
        error: OdfError = SourceUnavailable(text, where=self._name, hint=hint)
        pause = parse_retry_after(response.headers.get("Retry-After"))
        return AttemptFailed(error, again=is_temporary(status), pause=pause)
