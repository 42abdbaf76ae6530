"""Untrusted text never controls the terminal: names, descriptions, errors and responses are escaped."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from unittest import mock

import pyarrow as pa
import pytest
import yaml

from odf_engine.data.arrow_schema import encode_schema
from odf_engine.data.parquet.slices import slice_schema
from odf_engine.identity.names import DatasetAlias
from odf_engine.jobs.pull import Pull
from odf_engine.metadata.model import (
    Append,
    AttachmentEmbedded,
    Csv,
    DatasetKind,
    Embedded,
    Pipe,
    RequestHeader,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SourceState,
    Sql,
    SqlQueryStep,
    TransformInput,
    Url,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.rows.query_proof import ProofColumn, ProofEngine, ProofTable, QueryProof, ResultSummary
from odf_engine.worker.job_log import JobLog
from odf_engine.worker.protocol import Failure, JobState
from odf_engine.workspace.dataset_folders import ORIGIN_FILE
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from odf_tui.main import main
from tests.cli.conftest import Odf, Ran, _environment, call_odf
from tests.slices import stage_slice

HOSTILE = "a\x1b[8mb\x1b]52;c;aGk=\x07c\x9b31md\re\u202ef\u2066g\u2028h\x7f"
"""Conceals text, writes the clipboard, moves to the left, reverses the text, ends a line."""
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
OWN = re.compile(r"\r?\n|\r?\x1b\[\d*[AK]|\r(?=\x1b)|\x1b\[\?25[lh]|\x1b\[(?!8m)[0-9;]*m")
"""Colours, and what redraws the lines of running jobs."""


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def on_terminal(*arguments: str, cwd: Path) -> Ran:
    """Runs ``odf`` as if its output were a terminal with colours."""
    streams = [Terminal(io.BytesIO(), write_through=True, encoding="utf-8", newline="") for _ in range(2)]
    variables = _environment(TERM="xterm-256color", COLUMNS="200", LINES="50")
    variables.pop("NO_COLOR", None)
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, variables, clear=True),
        mock.patch.object(sys, "argv", ["odf", *arguments]),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(b""))),
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
    return Ran(int(ended.value.code or 0), out, err)


def assert_harmless(text: str, command: object) -> None:
    found = FORBIDDEN.search(OWN.sub("", text))
    assert found is None, (command, text[max(0, text.find(found[0]) - 40) :][:120])


def rows_of(workspace: Workspace, name: str) -> DatasetEntry:
    """A root dataset whose every text is hostile, with two commits of rows."""
    entry = workspace.create_dataset(DatasetAlias.parse(name), DatasetKind.Root)
    vocab = entry.dataset.state().vocabulary
    schema = slice_schema(
        pa.schema([("event_time", pa.timestamp("ms", "UTC")), (HOSTILE, pa.string()), ("n", pa.int64())]),
        vocab,
    )
    step = Sql(engine="spark", queries=[SqlQueryStep(query=f"SELECT '{HOSTILE}' AS x, * FROM input")])
    events = [
        SetInfo(description=HOSTILE, keywords=[HOSTILE]),
        SetAttachments(Embedded([AttachmentEmbedded(path=HOSTILE, content=HOSTILE)])),
        SetLicense(short_name=HOSTILE, name=HOSTILE, spdx_id=HOSTILE, website_url=f"http://x/{HOSTILE}"),
        SetPollingSource(
            fetch=Url(url=f"file:{HOSTILE}.csv", headers=[RequestHeader(HOSTILE, HOSTILE)]),
            prepare=[Pipe(command=["cat", HOSTILE])],
            read=Csv(schema=["n BIGINT"], null_value=HOSTILE),
            preprocess=step,
            merge=Append(),
        ),
        SetDataSchema(schema=encode_schema(schema)),
    ]
    commit(entry, events)
    for number in range(2):
        table = pa.table(
            {
                "op": pa.array([0], pa.int32()),
                "event_time": pa.array([number], pa.timestamp("ms", "UTC")),
                HOSTILE: [HOSTILE],
                "n": pa.array([number], pa.int64()),
            }
        )
        source = SourceState(source_name=HOSTILE, kind="odf/etag", value=HOSTILE)
        attributes = {"new_watermark": None, "new_source_state": source}
        event, path = stage_slice(entry.dataset, table, schema, Timestamp.now(), **attributes)
        commit(entry, [event], data=path)
    return entry


def commit(entry, events, **more) -> None:
    state = entry.dataset.state()
    entry.dataset.commit(events, system_time=Timestamp.now(), expected_head=state.head, **more)


class Hostile(BaseHTTPRequestHandler):
    """Answers every request with a hostile error."""

    def do_GET(self) -> None:
        self.send_response(418, HOSTILE.replace("\r", "").encode("utf-8").decode("latin-1"))
        self.end_headers()
        self.wfile.write(HOSTILE.encode())

    do_POST = do_PUT = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def folder(demo: tuple[Path, Ran]) -> Iterator[Path]:
    """The demo's workspace, with datasets of somebody who means harm."""
    folder, _ = demo
    workspace = Workspace.find(explicit=folder)
    hostile = rows_of(workspace, "hostile")
    foreign = rows_of(workspace, "hostile-foreign")
    (foreign.dataset.folder / ORIGIN_FILE).write_text(f"https://x/{HOSTILE}", newline="")
    derived = workspace.create_dataset(DatasetAlias.parse("hostile-derived"), DatasetKind.Derivative)
    commit(
        derived,
        [
            SetTransform(
                inputs=[TransformInput(dataset_ref=str(hostile.id), alias="input")],
                transform=Sql(engine=HOSTILE, queries=[SqlQueryStep(query=f"SELECT '{HOSTILE}' FROM input")]),
            )
        ],
    )
    yield folder
    call_odf("delete", "-y", "hostile%", cwd=folder)


def proof_of_what_is_not_here() -> QueryProof:
    block, dataset = "f1620" + "0" * 64, f"did:odf:fed01{'0' * 64}"
    table = ProofTable(
        HOSTILE, HOSTILE, dataset, block, 1, "2026-01-01T00:00:00Z", "changelog", None, [HOSTILE]
    )
    outcome = ResultSummary([ProofColumn(HOSTILE, HOSTILE)], 1, block, "query")
    engine = ProofEngine(HOSTILE, HOSTILE, HOSTILE)
    return QueryProof(query=HOSTILE, tables=[table], result=outcome, engine=engine)


def commands(folder: Path, server: str) -> list[list[str]]:
    hostile = Workspace.find(explicit=folder).resolve("hostile").dataset
    slices = [str(hostile.slice_path(row)) for row in hostile.slices()]
    blocks = [str(hostile.folder / "blocks" / str(block.hash)) for block in hostile.blocks()]
    proof, manifest, wrong = folder / "proof.json", folder / "manifest.yaml", folder / "wrong.yaml"
    wrong.write_text(json.dumps({"kind": HOSTILE, "version": 1, "content": {HOSTILE: HOSTILE}}))
    manifest.write_text(
        json.dumps({"kind": "DatasetSnapshot", "version": 1, "content": {
            "name": "x", "kind": "Root", "metadata": [{"kind": "SetInfo", HOSTILE: HOSTILE}]}})
    )  # fmt: skip
    proof.write_bytes(bytes(proof_of_what_is_not_here()))
    one, two = "hostile", "hostile-derived"
    return [
        ["list"], ["list", "--json"], ["graph"], ["graph", "--dot"], ["graph", "--columns", one, two],
        *([command, name, *more] for name in (one, two) for command, *more in (
            ["show"], ["show", "--json"], ["show", "--manifest"], ["log"], ["log", "--json"], ["schema"],
            ["tail"], ["tail", "--json"], ["trust"], ["verify"], ["verify", "--json"], ["pull", "-v"],
            ["pull", "--json"], ["provenance", "0"], ["path"],
        )),
        *([command, "hostile-foreign", *more] for command, *more in (
            ["trust"], ["trust", "--json"], ["pull", "-v"], ["pull", "--json"], ["show"], ["verify"],
        )),
        *(["schema", one, "--format", form] for form in ("ddl", "arrow", "parquet", "json")),
        *(["sql", f"SELECT * FROM {one}", *more] for more in ([], ["--json"])),
        ["sql", f"SELECT '{HOSTILE}' FROM nothing"], ["sql", f"SELECT CAST('{HOSTILE}' AS INT)"],
        ["sql", f"SELECT FROM `{HOSTILE}`"], ["diff", one], ["diff", one, "--json"],
        ["diff", one, "--key", HOSTILE], *(["block", "decode", block] for block in blocks),
        *(["block", "decode", block, "--json"] for block in blocks), ["digest", *slices[:1]],
        ["verify", "--proof", str(proof)], ["add", str(manifest)], ["add", str(wrong)], ["add", HOSTILE],
        ["add", server], ["add", "--update", server], ["pull", "--from", f"{server}x", "--as", "x"],
        ["push", one, "--to", f"{server}x"], ["repo", "add", "r", server], ["search", "x"],
        ["jobs"], ["jobs", "--json"], ["fsck"], ["keys", "list"], ["config", "get", HOSTILE],
        ["show", HOSTILE], ["rename", one, HOSTILE], [HOSTILE], ["log", one, "--kind", HOSTILE],
        ["list", f"--{HOSTILE}"], ["cancel", HOSTILE], ["-w", HOSTILE, "list"], ["repo", "list"],
    ]  # fmt: skip


@pytest.mark.net
@pytest.mark.complete
def test_no_command_writes_control_characters(folder: Path, server: str, odf: Odf) -> None:
    seen = ""
    for command in commands(folder, server):
        for ran in (call_odf(*command, cwd=folder), on_terminal(*command, cwd=folder)):
            assert "Traceback" not in ran.err, (command, ran.err)
            assert_harmless(ran.out, command)
            assert_harmless(ran.err, command)
            seen += ran.out + ran.err
    call_odf("repo", "remove", "r", cwd=folder)
    for escape in (r"\x1b[8m", r"\u202e", "\\u001b"):
        assert escape in seen


def test_job_logs_contain_no_control_characters(tmp_path: Path) -> None:
    Workspace.init(tmp_path)
    journal = JobLog(tmp_path / ".odf" / "jobs.sqlite")
    job = journal.create(Pull("x"), HOSTILE)
    journal.transition(job.id, JobState.running)
    journal.append_lines(job.id, HOSTILE)
    failure = Failure(HOSTILE, HOSTILE, HOSTILE, excerpt=[HOSTILE])
    journal.transition(job.id, JobState.failed, error=failure)
    journal.close()
    for command in (["logs", job.id], ["logs", "-v", job.id], ["jobs"], ["jobs", "--json"]):
        for ran in (call_odf(*command, cwd=tmp_path), on_terminal(*command, cwd=tmp_path)):
            assert ran.code == 0
            assert_harmless(ran.out + ran.err, command)
    assert call_odf("jobs", "--json", cwd=tmp_path).json[0]["error"]["message"] == HOSTILE


def test_machine_readable_output_keeps_the_exact_text(folder: Path, odf: Odf) -> None:
    assert odf("show", "hostile", "--json").json["info"]["description"] == HOSTILE
    assert odf("schema", "hostile", "--format", "json").json["fields"][4]["name"] == HOSTILE
    assert odf("sql", "SELECT * FROM hostile", "--json").json[0][HOSTILE] == HOSTILE
    for command in (["sql", "SELECT * FROM hostile", "--csv"], ["diff", "hostile", "--csv"]):
        assert HOSTILE in odf(*command).out
        ran = on_terminal(*command, cwd=folder)
        assert r"a\x1b[8mb" in ran.out
        assert_harmless(ran.out, command)
    dataset = Workspace.find(explicit=folder).resolve("hostile").dataset
    (block,) = (each for each in dataset.blocks() if isinstance(each.block.event, SetAttachments))
    shown = odf("block", "decode", str(dataset.folder / "blocks" / str(block.hash))).out
    assert yaml.safe_load(shown)["content"]["event"]["attachments"]["items"][0]["content"] == HOSTILE
