"""Query: run SQL over datasets, and check the proofs of query results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from odf_engine.base.progress import count_of
from odf_engine.jobs.base import JobRequest, JobSummary
from odf_engine.jobs.views import PinnedBlock
from odf_engine.verify.finding_kinds import ProofFinding


class ResultColumn(msgspec.Struct, frozen=True):
    """A column of a query result; its type as DDL."""

    name: str = ""
    type: str = ""


class QueryResult(msgspec.Struct, frozen=True):
    """Result of a query.

    Attributes:
        sql: the query.
        pins: the blocks that it was answered from.
        columns: the columns of its rows.
        proof: the query proof, see :mod:`odf_engine.query.query_proof`, or None if none was requested.
        seconds: duration of the job.
        path: the Parquet file of the rows, relative to the workspace's folder; evicted when newer results
            need the space. Empty with ``output``.
        output: the file that the rows were written to, if one was requested.
        rows: number of rows.
        truncated: whether the query has more rows than the limit.
    """

    sql: str = ""
    pins: list[PinnedBlock] = []
    columns: list[ResultColumn] = []
    proof: dict[str, Any] | None = None
    seconds: float = 0.0
    path: str = ""
    output: str | None = None
    rows: int = 0
    truncated: bool = False


class Query(JobRequest[QueryResult], frozen=True, tag="sql"):
    """Run a query over datasets by name; nothing is changed.

    Attributes:
        sql: the query.
        limit: maximum number of rows of the result, or None for all of them.
        dataset: empty.
        as_at, as_of: default version and state of the datasets of the query.
        pins: blocks of single datasets, by name or id.
        output: absolute path to write the rows to; by default a Parquet file in the workspace's cache.
        format: format of that file.
        proof: create a query proof.
        sign: the dataset whose key signs the proof.
        engine: runs the query; only Spark can create proofs.
    """

    read_only = True
    has_screen = True
    is_silent = True

    sql: str
    limit: int | None = 1_000_000
    dataset: str = ""
    as_at: str | None = None
    as_of: str | None = None
    pins: dict[str, str] = {}
    output: str | None = None
    format: Literal["csv", "json", "ndjson", "parquet"] = "parquet"
    proof: bool = False
    sign: str | None = None
    engine: Literal["spark", "datafusion"] = "spark"

    @property
    def needs_spark(self) -> bool:
        return self.engine == "spark"

    @classmethod
    def summarize(cls, result: QueryResult) -> JobSummary:
        return JobSummary(count_of(result.rows, "row") + (", truncated" if result.truncated else ""))

    def command(self, name_of: Callable[[str], str]) -> list[str]:
        engine = [] if self.engine == "spark" else ["--engine", self.engine]
        return ["sql", self.sql, *engine]


class CheckProofResult(msgspec.Struct, frozen=True):
    """Result of the check of a query proof: the document of ``odf verify --proof --json``.

    Attributes:
        valid: whether the same query over the same blocks returned the same rows, and the signature is valid.
        checked: False when the query was not run because blocks are missing.
        findings: the reasons why the proof is not valid.
        query: the query.
        rows, hash: number and hash of the rows according to the proof.
        signed_by: id of the dataset whose key signed the proof, if it is signed.
        seconds: duration of the job.
    """

    valid: bool = False
    checked: bool = True
    findings: list[ProofFinding] = []
    query: str = ""
    rows: int = 0
    hash: str = ""
    signed_by: str | None = None
    seconds: float = 0.0


class CheckProof(JobRequest[CheckProofResult], frozen=True, tag="check-proof"):
    """Check a query proof and run its query again; ``proof`` is its text, ``dataset`` is empty."""

    read_only = True
    has_screen = True
    is_silent = True

    proof: str
    dataset: str = ""

    @classmethod
    def summarize(cls, result: CheckProofResult) -> JobSummary:
        if not result.checked:
            return JobSummary("a dataset or block is missing")
        return JobSummary("proof valid" if result.valid else "proof invalid")
