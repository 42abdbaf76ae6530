"""Reads the logs of Ethereum chains, as Parquet files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.base.progress import count_of
from odf_engine.data.ethereum.abi import (
    AbiEvent,
    AbiType,
    DecodeError,
    is_text_number,
    parse_event,
    plain_value,
)
from odf_engine.data.ethereum.log_filter import LogFilter, parse_filter
from odf_engine.errors import BadData, SourceUnavailable
from odf_engine.ingest.fetch.model import ETAG, SOURCE_NAME, FetchContext, Payload
from odf_engine.metadata.model import AddData, EthereumLogs, SourceState
from odf_engine.net.address_policy import AddressPolicy, HomeNetwork, PublicAddresses
from odf_engine.net.credentials import Login
from odf_engine.net.ethereum_node import EthereumNode, Log, TooManyLogs
from odf_engine.net.urls import origin_of, without_login

_STATE: Final = re.compile(r"([0-9]{1,19})@([0-9a-f]{64})")
_GROWTH: Final = 4
"""Requests in a row that succeed, after which the next has twice as many blocks."""
_MAX_STATES: Final = 1_000  # that are compared after a reorganisation
_COLUMNS: Final = pa.schema(
    [
        pa.field("block_number", pa.uint64(), False),
        pa.field("block_hash", pa.binary(), False),
        pa.field("block_timestamp", pa.timestamp("s", "UTC")),
        pa.field("transaction_index", pa.uint64(), False),
        pa.field("transaction_hash", pa.binary(), False),
        pa.field("log_index", pa.uint64(), False),
        pa.field("address", pa.binary(), False),
        *(pa.field(f"topic{number}", pa.binary()) for number in range(4)),
        pa.field("data", pa.binary(), False),
    ]
)


class _Position(NamedTuple):
    """The last block that was read, and its hash in hexadecimal without 0x: the source state."""

    number: int
    hash: str

    @classmethod
    def parse(cls, state: SourceState | None) -> _Position | None:
        match = _STATE.fullmatch(state.value) if state is not None and state.kind == ETAG else None
        return cls(int(match[1]), match[2]) if match else None

    @property
    def state(self) -> SourceState:
        return SourceState(SOURCE_NAME, ETAG, f"{self.number}@{self.hash}")


def fetch_ethereum_logs(step: EthereumLogs, context: FetchContext) -> Iterator[Payload]:
    """Yield the logs since ``context.state``, in files of Parquet; a file without logs is empty.

    Raises:
        SourceUnavailable: the node is unknown, not available, on another chain, or behind the dataset.
        BadData: the chain was reorganised since the last pull, or a log does not match the signature.
        InvalidManifest: the filter is invalid.
        Cancelled: immediately.
    """
    with _open_node(step, context) as node:
        yield from _Scan(step, context, node).payloads()


def _open_node(step: EthereumLogs, context: FetchContext) -> EthereumNode:
    if step.node_url is not None:
        url, name = context.substitute_variables(step.node_url), without_login(step.node_url)
    else:
        configured = context.ethereum.rpc_endpoints.get(str(step.chain_id))
        if configured is None:
            raise SourceUnavailable(
                f"no node is configured for the Ethereum chain {step.chain_id}",
                where="fetch",
                hint=f"run odf config set ethereum.rpcEndpoints.{step.chain_id} URL, or set fetch.nodeUrl",
            )
        url, name = configured, origin_of(configured)  # the path may be a key
    parts = urlsplit(url)
    policy: AddressPolicy = HomeNetwork.of(url)
    if step.node_url is not None and context.untrusted:
        policy = PublicAddresses()
    if parts.username is not None:
        login = Login(unquote(parts.username), unquote(parts.password or ""))
    else:
        login = None if context.credentials is None else context.credentials.of(url)
    node = EthereumNode(url, name, context.config, context.reporter, policy, login)
    if step.chain_id is not None:
        try:
            if (served := node.chain_id()) != step.chain_id:
                raise SourceUnavailable(
                    f"the node serves chain {served}, not {step.chain_id}",
                    where=name,
                    hint="correct fetch.chainId, or the URL of the node",
                )
        except BaseException:
            node.__exit__()
            raise
    return node


class _Scan:
    """Reads logs request by request."""

    def __init__(self, step: EthereumLogs, context: FetchContext, node: EthereumNode) -> None:
        self._context, self._node, self._reporter = context, node, context.reporter
        self._limits = context.ethereum
        self._filter = parse_filter(step.filter) if step.filter is not None else LogFilter()
        self._event = None if step.signature is None else parse_event(step.signature)
        if self._event is not None and not self._event.anonymous:
            self._filter = self._filter.with_value("topic0", self._event.selector)
        self._stride, self._successes = self._limits.blocks_per_request, 0

    def payloads(self) -> Iterator[Payload]:
        """Yield a file for each commit."""
        latest = self._node.latest_block()
        position = _Position.parse(self._context.state)
        end = latest - self._limits.confirmations
        waiting = min(self._limits.confirmations, latest + 1)
        if self._filter.last is not None:
            end = min(end, self._filter.last)
        start = max(self._filter.first or 0, 0 if position is None else position.number + 1)
        self._reporter.log(
            f"{self._node.name}: newest block {latest:,}; {count_of(waiting, 'block')} not confirmed yet"
            " (ethereum.confirmations)"
        )
        if position is not None and position.number > latest:
            raise SourceUnavailable(
                f"the node is behind: its newest block is {latest:,}, the dataset has {position.number:,}",
                where=self._node.name,
                hint="wait until the node is synchronised, or use another node",
            )
        if start > end:
            if position is not None:
                self._check_position(position)
            self._reporter.log(f"{self._node.name}: no new blocks")
        while start <= end:
            if position is not None:
                self._check_position(position)
            logs, last = self._read_slice(start, end)
            position = self._position_at(last, logs)
            path = self._context.job / "logs.parquet"
            self._write(logs, path)
            yield Payload(path, f"{self._node.name}, blocks {start:,} to {last:,}", position.state, None)
            start = last + 1

    def _read_slice(self, start: int, end: int) -> tuple[list[Log], int]:
        """Return the logs for one commit, and the number of its last block."""
        logs: list[Log] = []
        at = start
        while True:
            last = min(at + self._stride - 1, end)
            try:
                new_logs = [] if self._filter.is_empty else self._node.logs(at, last, self._filter.parameters)
            except TooManyLogs as error:
                self._reduce_stride(last - at + 1, error)
                continue
            logs += new_logs
            self._reporter.log(f"blocks {at:,} to {last:,} of {end:,}: {count_of(len(new_logs), 'log')}")
            self._reporter.set_amounts(rows=len(logs))
            self._successes += 1
            if self._successes % _GROWTH == 0:
                self._stride = min(self._stride * 2, self._limits.blocks_per_request)
            at = last + 1
            is_complete = (
                len(logs) >= self._limits.logs_per_commit or at - start >= self._limits.blocks_per_commit
            )
            if last == end or is_complete:
                return logs, last

    def _reduce_stride(self, blocks: int, error: TooManyLogs) -> None:
        if blocks == 1:
            raise SourceUnavailable(
                f"the node does not return the logs of a single block: {error}",
                where=self._node.name,
                hint="use another node, or select fewer logs with fetch.filter",
            ) from None
        self._stride, self._successes = blocks // 2, 0
        self._reporter.log(f"the node refuses {blocks:,} blocks ({error}): requesting {blocks // 2:,}")

    def _position_at(self, number: int, logs: list[Log]) -> _Position:
        block = self._node.find_block(number)
        if block is None:
            raise self._reorganised(f"the node no longer has block {number:,}")
        position = _Position(number, self._node.binary(block.hash).hex())
        hashes = {number: position.hash}
        for log in logs:
            at, block_hash = self._node.number(log.block_number), self._node.binary(log.block_hash).hex()
            if log.removed or hashes.setdefault(at, block_hash) != block_hash:
                raise self._reorganised(f"block {at:,} was replaced during the pull")
        return position

    def _reorganised(self, problem: str) -> SourceUnavailable:
        return SourceUnavailable(
            f"the chain was reorganised: {problem}",
            where=self._node.name,
            hint="pull again, or increase the setting ethereum.confirmations",
        )

    def _check_position(self, position: _Position) -> None:
        """Compare the block of the source state with the chain's block.

        Raises:
            BadData: it has another hash, so rows of the dataset may be of blocks that were replaced.
        """
        block = self._node.find_block(position.number)
        block_hash = None if block is None else self._node.binary(block.hash).hex()
        if block_hash == position.hash:
            return
        is_now = "is missing" if block_hash is None else f"has the hash 0x{block_hash}"
        raise BadData(
            f"the chain was reorganised: block {position.number:,} {is_now}, but had 0x{position.hash} in the"
            " last pull",
            where=self._node.name,
            hint=f"{self._reset_hint()}; to read blocks later, increase the setting ethereum.confirmations",
        )

    def _reset_hint(self) -> str:
        """Return how to remove the rows of replaced blocks: a reset to the last valid source state."""
        name, seen = self._context.name, set[_Position]()
        for stored in self._context.dataset.blocks():
            event = stored.block.event
            state = _Position.parse(event.new_source_state) if isinstance(event, AddData) else None
            if state is None or state in seen:
                continue
            seen.add(state)
            if len(seen) > _MAX_STATES:
                break
            block = self._node.find_block(state.number)
            if block is not None and self._node.binary(block.hash).hex() == state.hash:
                number = stored.block.sequence_number
                return f"remove the blocks after {state.number:,}: odf reset {name} {number}, then pull again"
        return f"delete the dataset and create it again: odf delete {name}"

    def _write(self, logs: list[Log], path: Path) -> None:
        """Write the logs in the order of the chain; without logs, an empty file."""
        path.unlink(missing_ok=True)
        if not logs:
            path.touch()
            return
        number = self._node.number
        logs.sort(key=lambda log: (number(log.block_number), number(log.log_index)))
        times = self._block_times(logs)
        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS.names}
        events: list[Any] = []
        for log in logs:
            self._reporter.raise_if_cancelled()
            topics = [self._node.binary(topic) for topic in log.topics]
            columns["block_number"].append(number(log.block_number))
            columns["block_hash"].append(self._node.binary(log.block_hash))
            columns["block_timestamp"].append(times.get(log.block_number))
            columns["transaction_index"].append(number(log.transaction_index))
            columns["transaction_hash"].append(self._node.binary(log.transaction_hash))
            columns["log_index"].append(number(log.log_index))
            columns["address"].append(self._node.binary(log.address))
            for position, topic in enumerate((*topics, None, None, None, None)[:4]):
                columns[f"topic{position}"].append(topic)
            columns["data"].append(data := self._node.binary(log.data))
            if self._event is not None:
                events.append(self._decode(self._event, log, topics, data))
        table = pa.table(columns, _COLUMNS)
        if self._event is not None:
            field = pa.field("event", _event_type(self._event), False)
            table = table.append_column(field, pa.array(events, field.type))
        pq.write_table(table, path)
        self._reporter.set_amounts(rows=len(logs), bytes=path.stat().st_size)

    def _block_times(self, logs: list[Log]) -> dict[str, int]:
        """Return the time of each block in seconds since 1970, by its number in the logs."""
        times = {
            log.block_number: self._node.number(log.block_timestamp)
            for log in logs
            if log.block_timestamp is not None
        }
        missing = dict.fromkeys(log.block_number for log in logs if log.block_number not in times)
        if missing and self._limits.block_timestamps:
            self._reporter.log(f"requesting the times of {count_of(len(missing), 'block')}")
            for number in missing:
                block = self._node.find_block(self._node.number(number))
                if block is None:
                    raise self._reorganised(f"the node no longer has block {self._node.number(number):,}")
                times[number] = self._node.number(block.timestamp)
        return times

    def _decode(self, event: AbiEvent, log: Log, topics: list[bytes], data: bytes) -> dict[str, Any]:
        try:
            values = event.decode(topics, data)
        except DecodeError as error:
            raise BadData(
                f"the log is not an event {event.canonical}: {error}",
                where=f"{self._node.name}, block {self._node.number(log.block_number):,}, log"
                f" {self._node.number(log.log_index):,}",
                hint="correct fetch.signature, limit the address in fetch.filter, or remove the signature and"
                " use eth_try_decode_event in preprocess",
            ) from None
        members = zip(event.log_order, values, strict=True)
        return {member.name: plain_value(member.log_type, value) for member, value in members}


def _event_type(event: AbiEvent) -> pa.StructType:
    return pa.struct([pa.field(field.name, _arrow_type(field.log_type), False) for field in event.log_order])


def _arrow_type(kind: AbiType) -> pa.DataType:
    if kind.kind == "array":
        assert kind.item is not None
        return pa.list_(pa.field("item", _arrow_type(kind.item), False))
    if kind.kind == "tuple":
        return pa.struct([pa.field(member.name, _arrow_type(member.type), False) for member in kind.members])
    if kind.kind in ("uint", "int") and not is_text_number(kind):
        width = next(width for width in (8, 16, 32, 64) if (kind.size or 0) <= width)
        return pa.type_for_alias(f"{kind.kind}{width}")
    if kind.kind == "bool":
        return pa.bool_()
    return pa.binary() if kind.kind in ("address", "bytes", "fixed-bytes") else pa.string()
