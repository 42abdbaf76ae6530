"""The targets of the fuzzing: for each decoder of foreign bytes its seeds, its call, and its errors."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from odf_engine.api.samples import MANIFESTS
from odf_engine.api.text import printable
from odf_engine.base import settings
from odf_engine.base.config import Config
from odf_engine.base.terminal_text import escape_controls, escape_json
from odf_engine.data.arrow_schema import decode_schema, encode_schema
from odf_engine.data.ddl import parse_ddl, to_ddl
from odf_engine.engines import grpc_messages as engine
from odf_engine.errors import OdfError
from odf_engine.identity.did import DatasetId, generate_key
from odf_engine.identity.multiformats import Multihash, multibase_decode, varint_decode
from odf_engine.identity.names import (
    DatasetPattern,
    is_valid_name,
    parse_ref,
    parse_ref_any,
    parse_ref_remote,
)
from odf_engine.identity.ownership_proof import OwnershipProof, create_proof, verify_proof
from odf_engine.ingest.fetch.files_glob import event_time_from_url, read_state
from odf_engine.ingest.merge.key_file import CorruptKeyFile
from odf_engine.jobs.diff import Diff
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.query import Query
from odf_engine.jobs.remotes import Search
from odf_engine.jobs.trace import Trace
from odf_engine.jobs.verify import Verify
from odf_engine.metadata import model
from odf_engine.metadata.block_layout import parse_block_layout
from odf_engine.metadata.flatbuffers import decode_block, decode_table, encode_table
from odf_engine.metadata.timestamp import Timestamp, looks_like_time, parse_user_time
from odf_engine.metadata.yaml import block_to_yaml, read_event, read_manifests, to_yaml
from odf_engine.net.download import parse_http_date, parse_retry_after
from odf_engine.net.http_client import printable_url
from odf_engine.net.urls import (
    dataset_name_from_url,
    folder_of,
    normalize_url,
    origin_of,
    redact_url,
    supports_login,
    without_login,
)
from odf_engine.rows import query_proof
from odf_engine.rows.query_proof import QueryProof
from odf_engine.sql.query_lineage import trace_columns
from odf_engine.sql.repeatability import find_nonrepeatable
from odf_engine.sync.smart import messages as smart
from odf_engine.sync.smart.smart_remote import parse_transfer_url
from odf_engine.worker import protocol
from odf_engine.worker.protocol import JobState
from odf_engine.workspace.workspace import Workspace
from odf_tui.panes.datasets.dataset_filter import parse_filter
from odf_tui.text.job_text import printable_lines
from tests.faults import fuzz_files as files
from tests.faults import fuzz_peers as peers
from tests.faults.fuzz_scene import Scene, Target, fixed, of_text, run_each
from tests.metadata.test_block_layout import check_tiles
from tests.sync import builders


def _events(scene: Scene) -> list[Any]:
    found = [
        event
        for text in MANIFESTS.values()
        for manifest in read_manifests(text, "m")
        for event in manifest.metadata
    ]
    return found + [
        block.block.event
        for entry in Workspace(scene.workspace).datasets()
        for block in entry.dataset.blocks()
    ]


def _event_texts(scene: Scene) -> list[bytes]:
    return [to_yaml(each).encode() for each in _events(scene)]


def _block_contents(scene: Scene) -> list[bytes]:
    return [
        encode_table(model.MetadataBlock(system_time=builders.START, sequence_number=7, event=event,
                                         prev_block_hash=Multihash.sha3_256(b"x")))
        for event in _events(scene)
    ]  # fmt: skip


def _run_block(content: bytes, scene: Scene) -> None:
    data = encode_table(model.Manifest(kind=0x400000, version=3, content=content))
    layout = parse_block_layout(data)
    check_tiles(layout, len(data))
    decoded = decode_block(data)
    assert layout.fault is None, layout.fault
    block_to_yaml(decoded.block, decoded.version)


_KINDS: Final = (
    model.RawQueryRequest, model.RawQueryResponse, model.TransformRequest, model.TransformResponse,
)  # fmt: skip


def _run_engine_message(data: bytes, scene: Scene) -> None:
    content = engine.decode_field(data)
    for kind in (
        engine.ErrorMessage,
        engine.ValidatedQuery,
        engine.ComputedResult,
        engine.RowProvenance,
        engine.ProgressMessage,
    ):
        with suppress(ValueError, OdfError):
            answer = engine.decode(content, kind)
            if isinstance(answer, engine.ErrorMessage):
                str(engine.to_exception(answer))
    for kind in _KINDS:
        with suppress(OdfError):
            decode_table(content, kind)


def _engine_messages(scene: Scene) -> list[bytes]:
    answers = (
        engine.ErrorMessage("no such column", "BadData", "query", "hint", ["1 SELECT"]),
        engine.ProgressMessage("read", {"rows": 7}, [engine.Line("text", "info")]),
    )
    tables = (
        model.TransformSuccess(new_offset_interval=model.OffsetInterval(1, 2)),
        model.RawQuerySuccess(num_records=7),
        model.TransformInternalError(message="x", backtrace="y"),
    )
    return [engine.encode_fields(engine.encode(answer)) for answer in answers] + [
        engine.encode_fields(encode_table(table), b"{}") for table in tables
    ]


_SCHEMA: Final = pa.schema(
    [
        *builders.SCHEMA,
        pa.field("s", pa.struct([("l", pa.list_(pa.decimal128(5, 2))), ("t", pa.time32("s"))])),
        pa.field("m", pa.binary(3), metadata={"k": "v"}),
    ],
    metadata={"x": "y"},
)
_DDL: Final = [line.encode() for line in to_ddl(_SCHEMA)] + [
    b"a ARRAY<STRUCT<x: DECIMAL(9, 2), `y z`: INT>> NOT NULL"
]


def _run_ddl(text: str, scene: Scene) -> None:
    schema = parse_ddl([text])
    assert parse_ddl(to_ddl(schema)) == schema, "another schema"


_ID: Final = DatasetId(b"\x07" * 32)
_HASH: Final = Multihash.sha3_256(b"x")
_NAMES: Final = [
    str(_ID).encode(), str(_HASH).encode(), b"account/city.numbers", b"repo/account/name", b"repo/%.x",
    b"http://host/x", b"zQ3shP2mWsYNi4gQxD", b"uAQIDBA", f"repo/{_ID}".encode(),
]  # fmt: skip
_URLS: Final = [
    b"https://user:pw@host:8443/a/b%20c/?x=1#f", b"s3://bucket/prefix/", b"s3+http://[::1]:9000/bucket/x",
    b"odf+https://host/city/", b"file:///tmp/x", b"ftp://host/a;type=i", b"ipfs://bafy/x/", b"../relative",
    b"http://xn--bcher-kva.example/\xc3\xa4",
]  # fmt: skip
_TIMES: Final = [
    b"2024-03-05T10:00:00.123456789Z", b"2024-03-05", b"Thu, 05 Mar 2024 10:00:00 GMT", b"120", b"now",
    b"2024-03-05 10:00:00+05:30", b"-0001-01-01T00:00:00Z", b"yesterday", b"2 days ago",
]  # fmt: skip
_SETTINGS: Final = [
    b"ui.theme=tide", b"fetch.retries=5", b"spark.conf.x=y", b"allowedEnv=A,B", b'safeDirectories=["/a"]',
    b"watermark.maxAhead.x=3 days", b"engines.flink=grpc://h:1", b"sandbox.memory=1 GB", b"serve.port=1",
]  # fmt: skip
_QUERIES: Final = [
    b"SELECT window.start AS t, sum(x) FROM a GROUP BY window(t, '1 hour')",
    b"WITH c AS (SELECT * FROM a JOIN b FOR SYSTEM_TIME AS OF a.t ON a.k = b.k) SELECT k, `x y` FROM c",
    b"SELECT *, row_number() OVER (PARTITION BY k ORDER BY t) AS n FROM a -- note\n WHERE x > 1e3 /* c */",
    b"SELECT CASE WHEN x = 'it''s' THEN 1 ELSE explode(array(1, 2)) END FROM a UNION ALL SELECT 1",
]  # fmt: skip
_FORBIDDEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _run_identity(text: str, scene: Scene) -> None:
    is_valid_name(text)
    run_each(
        multibase_decode, Multihash.parse, DatasetId.parse, parse_ref, parse_ref_remote, parse_ref_any,
        DatasetPattern.parse, lambda text: parse_ref_any(text, lambda name: name == "repo"),
        lambda text: Multihash.from_bytes(text.encode(errors="surrogateescape")),
        lambda text: DatasetId.from_bytes(text.encode(errors="surrogateescape")),
        lambda text: varint_decode(text.encode(errors="surrogateescape")),
    )(text, scene)  # fmt: skip


_URL_READERS: Final = (folder_of, origin_of, supports_login, dataset_name_from_url)


def _run_url(text: str, scene: Scene) -> None:
    run_each(
        lambda text: [read(normalize_url(text)) for read in _URL_READERS],
        without_login, redact_url, printable_url,
        lambda text: event_time_from_url(model.FromPath(r"(\d+-\d+-\d+)"), f"http://host/{text}", "url"),
        lambda text: parse_transfer_url(smart.TransferUrl(text, [smart.HeaderRow(text, text)]), "https://host/"),
    )(text, scene)  # fmt: skip


def _run_time(text: str, scene: Scene) -> None:
    for read in (looks_like_time, parse_http_date, parse_retry_after, read_state):
        read(text)
    with suppress(ValueError):
        str(Timestamp.parse(text))
    str(parse_user_time(text))


def _run_setting(text: str, scene: Scene) -> None:
    key, _, value = text.partition("=")
    config = settings.set_value(Config(), key, value)
    settings.render(config)
    config.watermark.max_ahead_of("x")
    config.watermark.delay_of("x")
    config.watermark.is_static("x")


def _run_terminal(text: str, scene: Scene) -> None:
    shown = [escape_controls(text).replace("\r\n", ""), printable(text), *printable_lines(text)]
    document = escape_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(document) == text, "another value"
    shown.append(document.encode(errors="replace").decode())
    assert not any(map(_FORBIDDEN.search, shown)), "a control character remains"


def _run_query(text: str, scene: Scene) -> None:
    steps = [model.SqlQueryStep(query=text)]
    trace_columns(steps, {"a": ["t", "k", "x"], "b": None})
    find_nonrepeatable(steps)
    parse_filter(text)


_PLAN: Final = smart.TransferPlan(6, 1, 4646, 4136, 148978)
_OBJECT: Final = smart.ObjectReference("DataSlice", _HASH, 148978)
_URL: Final = smart.TransferUrl("http://host/data/x", [smart.HeaderRow("authorization", "Bearer x")])
_ARCHIVE: Final = smart.write_archive(
    [(Multihash.sha3_256(each), each) for each in (b"one", b"two" * 200)], 1 << 20
)
_MESSAGES: Final = (
    smart.PullRequest(_HASH, _HASH), smart.PullAccepted(_PLAN), smart.PullBlocks(smart.batch_of(2, _ARCHIVE)),
    smart.PullObjects([_OBJECT]), smart.PullStrategies([smart.PullStrategy(_OBJECT, "HttpDownload", _URL)]),
    smart.PushRequest(_PLAN, _HASH), smart.PushBlocks(smart.batch_of(2, _ARCHIVE)),
    smart.PushObjects([_OBJECT]),
    smart.PushStrategies([smart.PushStrategy(_OBJECT, "HttpUpload", _URL)]),
    smart.PushProgress(smart.RunningDetails(smart.Running(3))),
)  # fmt: skip


def _run_smart(data: bytes, scene: Scene) -> None:
    def read(kind: type[Any]) -> None:
        answer = smart.read_answer(data, kind, "url")
        for batch in (getattr(answer, "blocks", None), getattr(answer, "new_blocks", None)):
            if batch is not None:
                list(smart.read_archive(smart.archive_of(batch, "url"), batch.num_blocks, "url"))

    run_each(
        *(lambda _, each=each: read(type(each)) for each in _MESSAGES),
        lambda _: str(smart.parse_peer_error(data, "url")),
        lambda _: str(smart.problem_of_close(data.decode("utf-8", "replace"), "url")),
    )(data, scene)


def _run_archive(data: bytes, scene: Scene) -> None:
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    assert len(list(smart.read_archive(packer.compress(data) + packer.flush(), 2, "url"))) == 2


_COMMANDS: Final = [
    *peers.COMMANDS,
    protocol.encode_line(protocol.Stop()),
    protocol.encode_line(protocol.JobChanged(7, protocol.Job("7", "pull", "x", "id", JobState.done, "2024"))),
]


def _run_command(data: bytes, scene: Scene) -> None:
    run_each(protocol.decode_command, protocol.decode_event, allowed=(ValueError,))(data, scene)


_RESULTS: Final = [b'{"rows": 3, "blocks": 1}', b'{"dataset": "x", "runs": [[1, 2]]}']


def _run_result(data: bytes, scene: Scene) -> None:
    text = data.decode("utf-8", "surrogateescape")
    kinds = (Pull, Verify, Query, Trace, Diff, Search)
    run_each(*(lambda text, kind=kind: protocol.decode_result(text, kind) for kind in kinds))(text, scene)


def _run_proof(data: bytes, scene: Scene) -> None:
    run_each(
        lambda data: verify_proof(OwnershipProof.from_bytes(data), _ID, _HASH),
        lambda data: QueryProof.from_bytes(data).check_signature(),
    )(data, scene)


def _proofs(scene: Scene) -> list[bytes]:
    outcome = query_proof.ResultSummary([query_proof.ProofColumn("x", "BIGINT")], 1, str(_HASH), "query")
    table = query_proof.ProofTable(
        "a", "a", str(_ID), str(_HASH), 1, "2026-01-01T00:00:00Z", "changelog", None, ["x"]
    )
    found = QueryProof(
        query="SELECT 1", tables=[table], result=outcome, engine=query_proof.ProofEngine("a", "b", "c")
    )
    _, pem = generate_key()
    return [bytes(create_proof(pem, _HASH)), bytes(found), bytes(found.with_signature(pem))]


_JOBS: Final = ("jobs", "jobs --json", "logs 1")
_READS: Final = ("list", "show numbers", "log numbers", "tail numbers")

TARGETS: Final = (
    Target("block", _block_contents, _run_block),
    Target("engine-message", _engine_messages, _run_engine_message, (OdfError, ValueError)),
    Target("schema", fixed([encode_schema(_SCHEMA)]), lambda data, scene: str(decode_schema(data))),
    Target(
        "manifest",
        lambda scene: [text.encode() for text in MANIFESTS.values()],
        lambda data, scene: [
            to_yaml(event) for manifest in read_manifests(data, "f") for event in manifest.metadata
        ],
    ),
    Target("event", _event_texts, of_text(lambda text, scene: to_yaml(read_event(text, "f")))),
    Target("ddl", fixed(_DDL), of_text(_run_ddl)),
    Target("identity", fixed(_NAMES), of_text(_run_identity)),
    Target("url", fixed(_URLS), of_text(_run_url)),
    Target("time", fixed(_TIMES), of_text(_run_time)),
    Target("query", fixed(_QUERIES), of_text(_run_query), cost=5),
    Target("setting", fixed(_SETTINGS), of_text(_run_setting), cost=5),
    Target("terminal", fixed([*_NAMES, *_QUERIES]), of_text(_run_terminal)),
    Target("smart-message", fixed([smart.answer_text(each) for each in _MESSAGES]), _run_smart, cost=2),
    Target("block-archive", fixed([zlib.decompress(_ARCHIVE, 31)]), _run_archive),
    Target("command", fixed(_COMMANDS), _run_command, (ValueError,)),
    Target("result", fixed(_RESULTS), _run_result),
    Target("proof", _proofs, _run_proof),
    Target("parquet", files.parquet_files, files.run_parquet, cost=10),
    Target("arrow", files.arrow_files, files.run_arrow, cost=200),
    Target("shapefile", fixed([files.zipped(files.SHAPES)]), files.run_shapes, cost=5),
    Target("shapes", fixed([files.SHAPES["a.shp"]]), files.run_shape_file, cost=5),
    Target("dbase", fixed([files.SHAPES["a.dbf"]]), files.run_dbf),
    Target("zip", fixed([files.zipped({"a.csv": files.CSV[0] * 9})]), files.run_zip, cost=5),
    Target("gzip", fixed([gzip.compress(files.CSV[0] * 9)]), files.run_gzip, cost=5),
    Target("json", fixed(files.DOCUMENTS), files.run_json, cost=5),
    Target("csv", fixed(files.CSV), files.run_csv, cost=5),
    Target("data-file", files.data_files, files.run_data_file, cost=40),
    Target("emitted-rows", lambda scene: files.arrow_files(scene)[:1], files.run_emitted_rows, cost=5),
    Target("checkpoint", files.checkpoints, files.run_checkpoint, cost=5),
    Target("key-file", files.descriptions, files.run_key_file, (CorruptKeyFile,), cost=5),
    Target("settings", fixed(files.SETTINGS), files.run_settings, cost=20),
    Target("theme", files.theme_files, files.run_theme, cost=5),
    Target("session", files.sessions, files.run_session, cost=2),
    Target("chain", _block_contents, files.run_chain, cost=100),
    Target("http-answer", fixed(peers.HTTP_ANSWERS), peers.run_http_answer, cost=10),
    Target("list-answer", fixed(peers.LISTS), peers.run_list, cost=10),
    Target("s3-answer", fixed(peers.S3_LISTS), peers.run_s3_list, cost=40),
    Target("ftp-answer", fixed(peers.FTP_ANSWERS), peers.run_ftp_answer, peers.FTP_ERRORS, cost=50),
    Target("http-request", peers.requests, peers.run_request, cost=20),
    Target("worker-socket", fixed(peers.COMMANDS), peers.run_command, cost=20),
    files.workspace_file("version", "list"),
    files.workspace_file("config.yaml", "config list", "list"),
    files.workspace_file("repositories.json", "repo list", "list"),
    files.workspace_file("remotes/*.json", "list", "show numbers"),
    files.workspace_file("trust/*.json", "trust", "show foreign"),
    files.workspace_file("keys/push-tokens.json", "keys token list", "list"),
    files.workspace_file("keys/logins.json", "repo list"),
    files.workspace_file("keys/*.pem", "keys list", "list"),
    files.workspace_file("jobs.sqlite", *_JOBS),
    files.workspace_file("index.sqlite", *_READS),
    files.workspace_file("datasets/*/info/alias", *_READS),
    files.workspace_file("datasets/*/info/origin", "show foreign", "trust"),
    files.workspace_file("datasets/*/refs/head", *_READS, "fsck"),
    files.workspace_file("datasets/*/blocks/*", *_READS, "fsck"),
    files.workspace_file("datasets/*/data/*", *_READS, "fsck"),
    files.workspace_file("datasets/*/proofs/*", "show numbers", "log numbers", "fsck"),
)  # fmt: skip
