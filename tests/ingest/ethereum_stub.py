"""A chain of Ethereum behind an HTTP server of this machine that answers JSON-RPC."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from odf_engine.data.ethereum.abi import keccak256

START = 1_700_000_000  # time of block 0; a block comes every 12 seconds


class RpcError(Exception):
    """The server answers with this error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class StubChain:
    """Blocks and logs.

    Attributes:
        latest: number of the newest block.
        forks: the number of the fork from a block on; it is part of the hashes.
        logs: by block number, without the members that follow from the block.
        calls: all requests, as method and parameters.
        before: called before each answer; it may raise :class:`RpcError`.
        times: whether logs have the time of their block.
    """

    chain_id = 1

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.latest = 0
        self.forks: dict[int, int] = {}
        self.logs: dict[int, list[dict[str, Any]]] = {}
        self.calls: list[tuple[str, list[Any]]] = []
        self.before: Callable[[str, list[Any]], None] = lambda method, parameters: None
        self.times = True
        self.statuses: list[int] = []

    def hash_of(self, number: int) -> str:
        fork = max((fork for start, fork in self.forks.items() if start <= number), default=0)
        return "0x" + keccak256(f"{number}/{fork}".encode()).hex()

    def add_log(self, block: int, address: str, topics: list[str], data: str) -> None:
        self.logs.setdefault(block, []).append({"address": address, "topics": topics, "data": data})

    def ranges(self) -> list[tuple[int, int]]:
        """The blocks whose logs were requested, since the last call."""
        found = [
            (int(given[0]["fromBlock"], 16), int(given[0]["toBlock"], 16))
            for method, given in self.calls
            if method == "eth_getLogs"
        ]
        self.calls.clear()
        return found

    def answer(self, method: str, parameters: list[Any]) -> Any:
        self.calls.append((method, parameters))
        self.before(method, parameters)
        match method:
            case "eth_chainId":
                return hex(self.chain_id)
            case "eth_getBlockByNumber":
                number = self.latest if parameters[0] == "latest" else int(parameters[0], 16)
                return self._block(number) if number <= self.latest else None
            case "eth_getLogs":
                return list(self._find(parameters[0]))
        raise RpcError(-32601, f"the method {method} does not exist")

    def _block(self, number: int) -> dict[str, Any]:
        return {"number": hex(number), "hash": self.hash_of(number), "timestamp": hex(START + 12 * number)}

    def _find(self, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for number in range(int(query["fromBlock"], 16), min(int(query["toBlock"], 16), self.latest) + 1):
            for index, log in enumerate(self.logs.get(number, ())):
                allowed = [query.get("address")] + (query.get("topics") or [])
                values = [log["address"], *log["topics"]]
                if all(each is None or value in each for each, value in zip(allowed, values, strict=False)):
                    block = self._block(number)
                    time = {"blockTimestamp": block["timestamp"]} if self.times else {}
                    yield log | time | {
                        "blockNumber": block["number"], "blockHash": block["hash"], "logIndex": hex(index),
                        "transactionHash": "0x" + keccak256(block["hash"].encode()).hex(),
                        "transactionIndex": "0x2", "removed": False,
                    }  # fmt: skip


@contextmanager
def run_chain() -> Iterator[StubChain]:
    """Serves a chain on a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = chain.statuses.pop(0) if chain.statuses else 200
            answer: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
            if status == 200:
                try:
                    answer["result"] = chain.answer(request["method"], request["params"])
                except RpcError as error:
                    answer["error"] = {"code": error.code, "message": str(error)}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    chain = StubChain(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield chain
    server.shutdown()
    server.server_close()
    thread.join()
