"""Looking at a query without data: whether it can be run, what it makes, and what its state depends on."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from odf_engine.metadata.model import DatasetVocabulary, Sql
from odf_engine.spark.errors import translated
from odf_engine.spark.fingerprint import fingerprint
from odf_engine.spark.origins import OPERATION, POSITION, NeedsState, check_repeatable, follow
from odf_engine.spark.query import run_query
from odf_engine.spark.slices import plain_schema, slices_frame
from odf_engine.spark.stateful import Stateful, stateful
from odf_engine.spark.streams import Streams
from odf_engine.spark.temporal import has_clause, tables_of
from odf_engine.spark.types import arrow_schema
from odf_engine.transform.as_of_query import fingerprint_as_of, prepared
from odf_engine.transform.changes import Emitted
from odf_engine.transform.contract import QueryInput, Validated
from odf_engine.transform.output import Contract

if TYPE_CHECKING:
    from odf_engine.spark.frames import DataFrame
    from odf_engine.spark.session import SparkSession

_HIDDEN = (POSITION, OPERATION)


def validated(
    session: SparkSession,
    transform: Sql,
    inputs: Sequence[QueryInput],
    vocab: DatasetVocabulary,
    declared: pa.Schema | None,
) -> Validated:
    """See :meth:`odf_engine.transform.contract.Engine.validate`; ``session`` is of no more use then."""
    if has_clause(transform.queries or []):
        with tempfile.TemporaryDirectory(prefix="odf-validate-") as folder:
            streams = Streams(session, Path(folder, "state"), Path(folder))
            made = prepared(session, streams, transform, inputs, vocab.event_time_column, set())
            text = fingerprint_as_of(session, streams, made, inputs)
        return _checked(made.query, vocab, declared, text, inputs)
    # No join asks for them, but what they name has to be there.
    tables_of(
        transform.temporal_tables or [], {each.alias: (each.schema.names, each.vocab) for each in inputs}
    )
    vocabs = {each.alias: each.vocab for each in inputs}
    views = {each.alias: slices_frame(session, [], each.schema, each.vocab) for each in inputs}
    frame = run_query(session, views, transform.queries or [])
    check_repeatable(frame, "query")
    try:
        followed = follow(session, frame, vocabs)
    except NeedsState:
        with tempfile.TemporaryDirectory(prefix="odf-validate-") as folder:
            return _with_state(session, transform, inputs, vocab, declared, Path(folder))
    return Validated(Contract(_own(followed.frame), vocab, declared).schema, None)


def _with_state(
    session: SparkSession,
    transform: Sql,
    inputs: Sequence[QueryInput],
    vocab: DatasetVocabulary,
    declared: pa.Schema | None,
    folder: Path,
) -> Validated:
    streams = Streams(session, folder / "state", folder)
    views = {
        each.alias: streams.view(at, plain_schema(each.schema, each.vocab), each.vocab)
        for at, each in enumerate(inputs)
    }
    frame = run_query(session, views, transform.queries or [])
    vocabs = {each.alias: each.vocab for each in inputs}
    query = stateful(session, frame, vocabs, vocab.event_time_column, set())
    with translated():
        text = fingerprint(session, frame, whole=query.mode == "update")
    return _checked(query, vocab, declared, text, inputs)


def _checked(
    query: Stateful,
    vocab: DatasetVocabulary,
    declared: pa.Schema | None,
    text: str,
    inputs: Sequence[QueryInput],
) -> Validated:
    columns = arrow_schema(query.frame.schema)
    own = pa.schema([columns.field(name) for name in query.own(columns.names)])
    contract = Contract(own, vocab, declared)
    if query.mode == "update":
        Emitted(own, query.keys, contract.event_time)
    return Validated(contract.schema, _hash([text, *(each.alias for each in inputs)]))


def state_of(fingerprint: str, datasets: Sequence[str]) -> str:
    """What the state of a query depends on, its very inputs included.

    Args:
        fingerprint: of the query (:attr:`Validated.state`).
        datasets: the ids of the inputs, in the order of declaration.
    """
    return _hash([fingerprint, *datasets])


def _own(frame: DataFrame) -> pa.Schema:
    return pa.schema([field for field in arrow_schema(frame.schema) if field.name not in _HIDDEN])


def _hash(parts: Sequence[str]) -> str:
    return hashlib.sha3_256("\n".join(parts).encode()).hexdigest()
