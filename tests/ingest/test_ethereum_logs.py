"""Logs of a chain, from a server that answers JSON-RPC."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from odf_engine.base.config import EthereumConfig, FetchConfig
from odf_engine.data.ethereum.abi import eth_event_selector
from odf_engine.errors import BadData, Cancelled, InvalidManifest, InvalidQuery, OdfError, SourceUnavailable
from odf_engine.ingest.fetch.fetch_step import fetch
from odf_engine.ingest.fetch.model import FetchContext, Payload
from odf_engine.metadata.model import EthereumLogs, Parquet, SourceState
from odf_engine.net.credentials import Credentials, Login
from odf_engine.workspace.workspace import Workspace
from tests.ingest.ethereum_stub import START, RpcError, StubChain, run_chain
from tests.ingest.pulling import Pulled
from tests.ingest.recorder import Recorder
from tests.workspace.test_workspace import root

pytestmark = pytest.mark.net
CONTRACT = "0xae78736cd615f374d3085123a210448e74fc6393"
SIGNATURE = "TokensMinted(address indexed to, uint256 amount, uint256 ethAmount, uint256 time)"
TOPIC = "0x6155cfd0fd028b0ca77e8495a60cbe563e8bce8611f0aad6fedbdaafc05d44a2"
TO = "0x" + "00" * 12 + "11" * 20


@pytest.fixture
def chain() -> Iterator[StubChain]:
    with run_chain() as running:
        yield running


def mint(chain: StubChain, block: int, amount: int) -> None:
    data = "0x" + "".join(f"{each:064x}" for each in (amount, amount * 2, START))
    chain.add_log(block, CONTRACT, [TOPIC, TO], data)


def fetched(
    workspace: Workspace,
    step: EthereumLogs,
    reporter: Recorder,
    state: SourceState | None = None,
    *,
    dataset: Any = None,
    untrusted: bool = False,
    **limits: Any,
) -> Iterator[Payload]:
    context = FetchContext(
        resolve=workspace.resolve_path,
        root=workspace.folder,
        dataset=dataset,
        state=state,
        job=Path(tempfile.mkdtemp(dir=workspace.odf)),
        config=FetchConfig(retries=2, longest_pause_seconds=0.01),
        reporter=reporter,
        allowed=["KEY"],
        environment={"KEY": "secret"},
        untrusted=untrusted,
        credentials=Credentials(workspace.odf),
        ethereum=EthereumConfig(**{"confirmations": 0, **limits}),
    )
    return fetch(step, context)


def refusal(workspace: Workspace, step: EthereumLogs, reporter: Recorder, **more: Any) -> OdfError:
    with pytest.raises(OdfError) as caught:
        list(fetched(workspace, step, reporter, **more))
    assert caught.value.where and caught.value.hint
    return caught.value


def states(payloads: Iterator[Payload]) -> list[tuple[str, int]]:
    """The states of payloads, and the number of their logs."""
    found: list[tuple[str, int]] = []
    for payload in payloads:
        assert payload.state is not None and payload.event_time is None
        found.append(
            (
                payload.state.value,
                pq.read_metadata(payload.path).num_rows if payload.path.stat().st_size else 0,
            )
        )
    return found


def test_logs_are_fetched_in_ranges_and_resumed_from_state(
    workspace: Workspace, chain: StubChain, reporter: Recorder
) -> None:
    chain.latest = 50
    for block in (3, 11, 12, 12, 31):
        mint(chain, block, block)
    chain.add_log(11, "0x" + "22" * 20, [TOPIC, TO], "0x")
    step = EthereumLogs(
        chain_id=1, node_url=chain.url, filter=f"block_number > 1 AND address = X'{CONTRACT[2:]}'"
    )
    limits = {"blocks_per_request": 10, "blocks_per_commit": 20, "logs_per_commit": 4}

    def at(number: int) -> SourceState:
        return SourceState("default", "odf/etag", f"{number}@{chain.hash_of(number)[2:]}")

    progress: list[int] = []
    reporter.on_amount = lambda amounts: progress.append(amounts["rows"])
    found = states(fetched(workspace, step, reporter, **limits))
    assert found == [(at(21).value, 4), (at(41).value, 1), (at(50).value, 0)]
    assert chain.ranges() == [(2, 11), (12, 21), (22, 31), (32, 41), (42, 50)]
    assert [amount for amount in progress if amount == 4]
    assert states(fetched(workspace, step, reporter, at(21), **limits)) == found[1:]
    assert chain.ranges()[0] == (22, 31)
    # The newest blocks wait for confirmation; no new block is no payload.
    assert states(fetched(workspace, step, reporter, at(41), confirmations=5)) == [(at(45).value, 0)]
    assert states(fetched(workspace, step, reporter, at(50))) == []
    assert states(fetched(workspace, step, reporter, at(48), confirmations=5)) == []
    bounded = EthereumLogs(node_url=chain.url, filter="block_number <= 30")
    assert states(fetched(workspace, bounded, reporter, at(11))) == [(at(30).value, 2)]
    assert states(fetched(workspace, bounded, reporter, at(30))) == []


def test_logs_are_decoded_into_typed_columns(
    workspace: Workspace, chain: StubChain, reporter: Recorder
) -> None:
    chain.latest = 50
    mint(chain, 9, 2**100)
    chain.add_log(10, CONTRACT, ["0x" + "00" * 32], "0xff")
    step = EthereumLogs(node_url=chain.url, signature=SIGNATURE)
    chain.times = False
    for timestamps in (True, False):
        (payload,) = fetched(workspace, step, reporter, block_timestamps=timestamps)
        table = pq.read_table(payload.path)
        (row,) = table.to_pylist()
        time = datetime.fromtimestamp(START + 12 * 9, UTC) if timestamps else None
        assert row.pop("block_timestamp") == time
    assert row == {
        "block_number": 9, "block_hash": bytes.fromhex(chain.hash_of(9)[2:]), "transaction_index": 2,
        "transaction_hash": row["transaction_hash"], "log_index": 0, "address": bytes.fromhex(CONTRACT[2:]),
        "topic0": bytes.fromhex(TOPIC[2:]), "topic1": bytes.fromhex(TO[2:]), "topic2": None, "topic3": None,
        "data": row["data"],
        "event": {
            "to": b"\x11" * 20, "amount": str(2**100), "ethAmount": str(2**101), "time": str(START),
        },
    }  # fmt: skip
    assert str(table.schema.field("block_number")) == "pyarrow.Field<block_number: uint64 not null>"
    assert str(table.schema.field("event").type) == (
        "struct<to: binary not null, amount: string not null, ethAmount: string not null, time: string not"
        " null>"
    )
    # Another event with the same selector.
    chain.add_log(11, CONTRACT, [TOPIC, TO, TO], "0x")
    error = refusal(workspace, step, reporter)
    assert "block 11, log 0" in str(error.where) and "1 indexed parameters, the log has 2" in error.message


def test_block_range_is_halved_and_retried_on_node_limits(
    workspace: Workspace, chain: StubChain, reporter: Recorder
) -> None:
    chain.latest = 99
    for block in range(0, 100, 10):
        mint(chain, block, block)
    step = EthereumLogs(node_url=chain.url)

    def before(method: str, parameters: list[Any]) -> None:
        if method == "eth_getLogs":
            blocks = int(parameters[0]["toBlock"], 16) - int(parameters[0]["fromBlock"], 16) + 1
            if blocks > 30:
                raise RpcError(-32005, "query returned more than 10000 results")

    chain.before = before
    assert [count for _, count in states(fetched(workspace, step, reporter))] == [10]
    assert chain.ranges() == [(0, 99), (0, 49), (0, 24), (25, 49), (50, 74), (75, 99)]
    # Limits on the rate of requests are waited for; other errors are not.
    waits = iter([RpcError(-32005, "daily request rate limit reached"), RpcError(429, "slow down")])

    def slow(method: str, parameters: list[Any]) -> None:
        if (error := next(waits, None)) is not None:
            raise error

    chain.before = slow
    assert len(list(fetched(workspace, step, reporter))) == 1
    chain.statuses = [429, 503]
    assert len(list(fetched(workspace, step, reporter))) == 1
    assert len([text for text in reporter.warnings if "retrying" in text]) == 4
    chain.statuses = [503] * 3
    assert "the server returned 503" in refusal(workspace, step, reporter).message
    chain.ranges()

    def broken(method: str, parameters: list[Any]) -> None:
        if method == "eth_getLogs":
            raise RpcError(-32000, "missing trie node")

    chain.before = broken
    assert "missing trie node (-32000)" in refusal(workspace, step, reporter).message
    assert len(chain.ranges()) == 1

    def refuse(method: str, parameters: list[Any]) -> None:
        if method == "eth_getLogs":
            raise RpcError(-32602, "block range is too wide")

    chain.before = refuse
    assert "a single block: block range is too wide" in refusal(workspace, step, reporter).message


def test_reorganisation_during_a_pull_is_detected(
    workspace: Workspace, chain: StubChain, reporter: Recorder
) -> None:
    chain.latest = 50
    mint(chain, 25, 1)
    step = EthereumLogs(node_url=chain.url)
    payloads = fetched(
        workspace, step, reporter, blocks_per_request=20, blocks_per_commit=20, dataset=NoBlocks()
    )
    next(payloads)
    chain.forks[15] = 1
    with pytest.raises(BadData, match="block 19 has the hash"):
        next(payloads)

    def replace(method: str, parameters: list[Any]) -> None:
        if method == "eth_getBlockByNumber" and parameters[0] == hex(50):
            chain.forks[20] = 2

    chain.before = replace
    mint(chain, 50, 1)
    error = refusal(workspace, step, reporter)
    assert "block 50 was replaced during the pull" in error.message
    state = SourceState("default", "odf/etag", f"60@{'0' * 64}")
    assert (
        "the node is behind: its newest block is 50"
        in refusal(workspace, step, reporter, state=state).message
    )


class NoBlocks:
    def blocks(self) -> Iterator[Any]:
        return iter(())


def test_node_url_comes_from_config_and_keys_stay_hidden(
    workspace: Workspace, chain: StubChain, reporter: Recorder
) -> None:
    step = EthereumLogs(chain_id=1)
    error = refusal(workspace, step, reporter)
    assert "ethereum.rpcEndpoints.1" in str(error.hint)
    endpoints = {"1": f"{chain.url}/key/secret", "7": chain.url}
    assert len(list(fetched(workspace, step, reporter, rpc_endpoints=endpoints))) == 1
    error = refusal(workspace, EthereumLogs(chain_id=7), reporter, rpc_endpoints=endpoints)
    assert error.message == "the node serves chain 1, not 7" and error.where == chain.url
    # Keys are not shown.
    chain.statuses = [401] * 9
    template = EthereumLogs(node_url=chain.url + "/${{ env.KEY }}")
    error = refusal(workspace, template, reporter)
    assert "returned 401" in error.message and error.where == template.node_url
    assert "secret" not in f"{reporter.lines} {refusal(workspace, step, reporter, rpc_endpoints=endpoints)}"
    chain.statuses = []
    Credentials(workspace.odf).set(chain.url, Login("jane", "x"))
    assert len(list(fetched(workspace, template, reporter))) == 1
    assert "not a public address" in refusal(workspace, template, reporter, untrusted=True).message
    assert isinstance(
        refusal(workspace, EthereumLogs(node_url="http://127.0.0.1:9"), reporter), SourceUnavailable
    )

    released = threading.Event()
    chain.before = lambda method, parameters: released.wait(20) and None
    threading.Timer(0.3, reporter.cancel).start()
    with pytest.raises(Cancelled):
        list(fetched(workspace, template, reporter))
    released.set()


@pytest.mark.parametrize(
    ("step", "where", "problem"),
    [
        (EthereumLogs(), "fetch", "requires a chain or a node"),
        (EthereumLogs(node_url="wss://node"), "fetch.nodeUrl", "WebSocket"),
        (EthereumLogs(node_url="node"), "fetch.nodeUrl", "not HTTP"),
        (EthereumLogs(1, filter="block_number >"), "fetch.filter", "not a condition"),
        (EthereumLogs(1, filter="block_number > 5 AND block_number < 5"), "fetch.filter", "no log can match"),
        (EthereumLogs(1, filter=f"topic0 = X'{'00' * 32}'", signature=SIGNATURE), "fetch.filter", "no log"),
        (EthereumLogs(1, signature="E(uint7)"), "fetch.signature", "column 3: unknown type 'uint7'"),
    ],
)
def test_invalid_ethereum_source_is_rejected_with_its_field(
    workspace: Workspace, step: EthereumLogs, where: str, problem: str
) -> None:
    with pytest.raises(InvalidManifest) as caught:
        workspace.add([root("a", fetch=step, read=Parquet())])
    assert where in str(caught.value.where) and problem in caught.value.message


MANIFEST = """
fetch:
  kind: EthereumLogs
  chainId: 1
  nodeUrl: {url}
  filter: |
    block_number > 1 AND address = X'{contract}'
  {signature}
read:
  kind: Parquet
preprocess:
  kind: Sql
  engine: spark
  query: |
    {query}
merge:
  kind: Append
"""


def configure(pulled: Pulled, text: str) -> None:
    (pulled.workspace.odf / "config.yaml").write_text(f"ethereum: {{{text}}}\n")
    pulled.workspace = Workspace.find(pulled.workspace.folder)


def test_pull_commits_logs_and_detects_a_reorganisation(pulled: Pulled, chain: StubChain) -> None:
    """Three logs in two requests, blocks without logs, no block, and a reorganisation."""
    chain.latest = 25
    for block, amount in ((3, 10), (4, 20), (15, 30)):
        mint(chain, block, amount)
    query = """SELECT block_timestamp AS event_time, block_number, hex(event.`to`) AS minter,
           CAST(event.amount AS DECIMAL(38, 0)) AS amount FROM input"""
    configure(pulled, "blocksPerRequest: 10, confirmations: 5")
    signature = f"signature: |\n    {SIGNATURE}"
    pulled.add(MANIFEST.format(url=chain.url, contract=CONTRACT[2:], signature=signature, query=query))
    pulled.pull()
    assert chain.ranges() == [(2, 11), (12, 20)]
    assert [(number, amount) for number, amount in pulled.rows("block_number", "amount")] == [
        (3, 10), (4, 20), (15, 30),
    ]  # fmt: skip
    assert pulled.rows("minter")[0] == ("11" * 20,)
    event = pulled.newest()
    assert event.new_source_state is not None and event.new_source_state.value.startswith("20@")
    assert event.new_watermark is not None and event.new_watermark.ms == (START + 12 * 15) * 1000
    assert pulled.dataset.head() == pulled.pull().new_head

    chain.latest = 28  # a commit without rows
    pulled.pull()
    event = pulled.newest()
    assert event.new_data is None and event.new_source_state is not None
    assert event.new_source_state.value.startswith("23@")
    assert pulled.pull().new_head == pulled.dataset.head()

    chain.forks[22] = 1
    error = pulled.fails(BadData, "reorganised: block 23 has the hash 0x", "ethereum.confirmations")
    newest, before = [row for row in pulled.dataset.list_blocks(10) if row.kind == "AddData"]
    assert f"odf reset data {before.sequence_number}, then pull again" in str(error.hint)
    pulled.dataset.reset(before.hash, expected_head=newest.hash)
    chain.latest = 40
    mint(chain, 24, 40)
    pulled.pull()
    assert pulled.rows("block_number")[3:] == [(24,)]


def test_ethereum_functions_decode_events_in_queries(pulled: Pulled, chain: StubChain) -> None:
    chain.latest = 9
    mint(chain, 3, 10)
    chain.add_log(4, CONTRACT, ["0x" + "00" * 32], "0x")
    text = SIGNATURE.replace("'", "")
    query = f"""SELECT block_number, topic0 = eth_event_selector('{text}') AS is_mint,
           ETH_TRY_DECODE_EVENT('{text}', topic0, topic1, topic2, topic3, data) AS event FROM input"""
    configure(pulled, "confirmations: 0")
    pulled.add(MANIFEST.format(url=chain.url, contract=CONTRACT[2:], signature="", query=query))
    pulled.pull()
    shown = f'{{"amount":"10","ethAmount":"20","name":"TokensMinted","time":"{START}","to":"{"11" * 20}"}}'
    assert pulled.rows("block_number", "is_mint", "event") == [(3, True, shown), (4, False, None)]

    for name, wrong, problem in (
        ("strict", f"eth_decode_event('{text}', topic0, topic1, topic2, topic3, data)", "topic0 is not the"),
        ("typo", "eth_event_selector('E(uint7)')", "event signature, column 3: unknown type 'uint7'"),
    ):
        query = f"SELECT {wrong} AS event FROM input"
        source = MANIFEST.format(url=chain.url, contract=CONTRACT[2:], signature="", query=query)
        pulled.add(source, name=name)
        pulled.fails(BadData if name == "strict" else InvalidQuery, problem)
    assert eth_event_selector(text).hex() == TOPIC[2:]
