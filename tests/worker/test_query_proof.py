"""The query of a proof runs in the sandbox, whoever signed the proof."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from odf_engine.base.progress import Reporter
from odf_engine.errors import NotTrusted
from odf_engine.identity.did import KeyStore
from odf_engine.isolation.namespaces import PROGRAMS, MountSandbox, unavailable_reason
from odf_engine.jobs.base import JobContext, WorkerHost
from odf_engine.jobs.query import CheckProof, Query
from odf_engine.rows.query_proof import QueryProof
from odf_engine.spark.runtime.session import SparkRuntime
from odf_engine.workspace.workspace import Workspace
from tests.derive.test_sandbox import plain_walls
from tests.log_lines import LogLines
from tests.sync.builders import make_root
from tests.worker.conftest import run_request


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path / "home")


@pytest.fixture
def context(workspace: Workspace, runtime: SparkRuntime) -> JobContext:
    return JobContext(
        cast("WorkerHost", SimpleNamespace(folder=workspace.folder, spark=lambda reporter: runtime))
    )


@pytest.fixture
def proof(workspace: Workspace, context: JobContext) -> QueryProof:
    """The proof of a query over a dataset, signed with its key."""
    make_root(workspace, "numbers", slices=2)
    sql = "SELECT count(*) AS n, max(offset) AS last FROM current(numbers, offset)"
    result = run_request(Query(sql=sql, proof=True, sign="numbers"), context, Reporter())
    return QueryProof.from_bytes(msgspec.json.encode(result["proof"]))


def checked(proof: QueryProof, context: JobContext) -> tuple[dict[str, Any], list[str]]:
    """The result of a check, and the lines of its log."""
    reporter = LogLines()
    result = run_request(CheckProof(proof=bytes(proof).decode()), context, reporter)
    return result, [line for line in reporter.lines if "sandbox" in line]


@pytest.mark.complete
def test_proofs_are_checked_in_the_sandbox(proof: QueryProof, context: JobContext) -> None:
    if all(unavailable_reason(each, plain_walls()) for each in PROGRAMS):
        pytest.skip("no sandbox program works on this machine")
    result, lines = checked(proof, context)
    assert (result["valid"], result["rows"]) == (True, 1)
    assert len(lines) == 1 and lines[0].startswith("the proof is untrusted: its query runs in a sandbox")
    wrong = replace(proof, signature=None, query=proof.query.replace("max", "min"))
    assert [each["kind"] for each in checked(wrong, context)[0]["findings"]] == ["hash"]
    assert list((Path(context.host.folder) / ".odf" / "cache").glob("sandbox-*")) == []


def test_proofs_are_refused_without_a_sandbox(
    proof: QueryProof, context: JobContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(program: str, walls: MountSandbox) -> str:
        return "not permitted"

    monkeypatch.setattr("odf_engine.isolation.sandbox_process.unavailable_reason", missing)
    stranger = KeyStore(tmp_path / "keys")
    foreign = proof.with_signature(stranger.private_key_pem(stranger.generate()))
    for each in (proof, replace(proof, signature=None), foreign):
        with pytest.raises(NotTrusted, match="the proof is untrusted, and no sandbox is available") as caught:
            checked(each, context)
        assert "install bubblewrap" in str(caught.value.hint) and "odf trust" not in str(caught.value.hint)
