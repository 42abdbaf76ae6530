"""An engine elsewhere, asked by gRPC; what it writes is checked before anybody relies on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, Final, Literal, TypeVar
from urllib.parse import parse_qs, urlsplit

import grpc
import msgspec
import pyarrow as pa

from odf_engine.data.arrow_schema import decode_schema, encode_schema
from odf_engine.data.parquet_reader import UNREADABLE
from odf_engine.errors import (
    BadData,
    Cancelled,
    InvalidManifest,
    InvalidQuery,
    InvalidSchema,
    OdfError,
    SourceUnavailable,
    Unsupported,
)
from odf_engine.metadata.flatbuffers import decode_table, encode_table
from odf_engine.metadata.model import (
    DatasetVocabulary,
    OffsetInterval,
    Sql,
    TransformInternalError,
    TransformInvalidQuery,
    TransformProgress,
    TransformRequest,
    TransformResponse,
    TransformSuccess,
)
from odf_engine.progress import Reporter
from odf_engine.transform.accepted import accepted
from odf_engine.transform.contract import Computed, Derived, QueryInput, Result, TableFiles, Validated
from odf_engine.transform.exchange import Exchange
from odf_engine.transform.grpc_documents import (
    Answer,
    ComputedOutcome,
    ComputeOutcome,
    Derivation,
    DeriveProvenance,
    Failed,
    Further,
    InputSchema,
    Migrated,
    MigrateQuery,
    NotYet,
    QueryTable,
    Told,
    Valid,
    ValidateQuery,
    Wire,
    decode,
    encode,
    plain,
    raised,
)
from odf_engine.transform.grpc_wire import (
    FURTHER,
    LARGEST_MESSAGE,
    MIGRATE,
    OUTCOME,
    OWN_SERVICE,
    PROVENANCE,
    SERVICE,
    TRANSFORM,
    VALIDATE,
    unwrap,
    wrap,
)

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
]
_CONNECT_SECONDS: Final = 30
_AMOUNTS: Final = frozenset(("rows", "bytes", "files", "total_rows", "total_bytes", "total_files"))

T = TypeVar("T")
Rows = OffsetInterval | None


class TookTooLong(OdfError):
    """The engine did not answer within the time that it has."""


class GrpcEngine:
    """An engine at an address.

    Args:
        address: such as ``grpc://127.0.0.1:2884`` or ``unix:/run/engine.sock``. The engine sees the same
            files under the same paths. One that sees only a folder has it after a question mark, and what
            it calls it: ``grpc://127.0.0.1:2884?folder=/srv/exchange&as=/opt/engine``.
        name: what errors call it; by default its address.
        seconds: how long a request may take; by default as long as it takes.
        exchange: the folder that it sees, in place of the one of the address.

    Raises:
        InvalidManifest: this is no such address.
    """

    def __init__(
        self,
        address: str,
        *,
        name: str | None = None,
        seconds: float | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self._address = name or address.partition("?")[0]
        self._target, given = _target(address)
        self._seconds = seconds
        self._exchange = exchange or given
        # One request at a time goes through a folder.
        self._turn: Any = nullcontext() if self._exchange is None else Lock()

    def execute(self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter) -> Result:
        """See :class:`odf_engine.transform.contract.Engine`.

        Raises:
            SourceUnavailable: the engine cannot be reached, or broke off.
            BadData: what it wrote is not what the contract asks for.
        """

        def ask(inner: TransformRequest) -> Rows:
            message = wrap(encode_table(inner), encode(Further(_schema(declared))))
            return self._ask(f"/{SERVICE}/{TRANSFORM}", message, self._transformed, reporter)[0]

        return self._run(request, declared, ask)

    def finish(self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter) -> Result:
        """See :class:`odf_engine.transform.contract.Engine`; the errors of :meth:`execute` besides."""
        return self._migrate("finish", request, declared, reporter)

    def rebuild(self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter) -> Result:
        """See :class:`odf_engine.transform.contract.Engine`; the errors of :meth:`execute` besides."""
        return self._migrate("rebuild", request, declared, reporter)

    def validate(
        self,
        transform: Sql,
        inputs: Sequence[QueryInput],
        vocab: DatasetVocabulary,
        declared: pa.Schema | None,
    ) -> Validated:
        """See :class:`odf_engine.transform.contract.Engine`.

        Raises:
            SourceUnavailable: the engine cannot be reached, or broke off.
        """
        shown = [InputSchema(each.alias, encode_schema(each.schema), each.vocab) for each in inputs]
        query = ValidateQuery(transform, shown, vocab, _schema(declared))
        valid = self._ask_own(VALIDATE, query, Valid, Reporter())
        return Validated(decode_schema(valid.schema), valid.state)

    def provenance(
        self, request: TransformRequest, rows: Sequence[OffsetInterval], reporter: Reporter
    ) -> Derived:
        """See :class:`odf_engine.transform.contract.Engine`; the errors of :meth:`execute` besides."""
        exchange = self._exchange
        with self._turn, nullcontext(request) if exchange is None else exchange.handed(request) as inner:
            query = DeriveProvenance(encode_table(inner), list(rows))
            found = self._ask_own(PROVENANCE, query, Derivation, reporter)
        read = {each.query_alias: each.offset_interval for each in request.query_inputs}
        for feed in found.feeds:
            known = read.get(feed.alias)
            inside = (known and known.start <= each.start <= each.end <= known.end for each in feed.rows)
            if not all(inside):
                raise self._broken(f"it names rows of '{plain(feed.alias)}' that it was not given")
        reason = None if found.reason is None else plain(found.reason)
        return Derived([(each.alias, each.rows) for each in found.feeds], found.exact, reason)

    def compute_outcome(self, sql: str, tables: Sequence[TableFiles], reporter: Reporter) -> Computed:
        """See :class:`odf_engine.transform.contract.Engine`; the errors of :meth:`execute` besides."""
        exchange = self._exchange
        with self._turn, nullcontext(tables) if exchange is None else exchange.lend(tables) as inner:
            shown = [
                QueryTable(each.name, list(map(str, each.paths)), encode_schema(each.schema), each.vocab)
                for each in inner
            ]
            found = self._ask_own(OUTCOME, ComputeOutcome(sql, shown), ComputedOutcome, reporter)
        return Computed(found.outcome, found.read, found.spark)

    # --- Transactions ---------------------------------------------------------------------------

    def _migrate(
        self,
        how: Literal["finish", "rebuild"],
        request: TransformRequest,
        declared: pa.Schema | None,
        reporter: Reporter,
    ) -> Result:
        def ask(inner: TransformRequest) -> Rows:
            query = MigrateQuery(how, encode_table(inner), _schema(declared))
            return self._ask_own(MIGRATE, query, Migrated, reporter).new_offset_interval

        return self._run(request, declared, ask)

    def _run(
        self, request: TransformRequest, declared: pa.Schema | None, ask: Callable[[TransformRequest], Rows]
    ) -> Result:
        exchange = self._exchange
        with self._turn, nullcontext(request) if exchange is None else exchange.handed(request) as inner:
            interval = ask(inner)
            try:
                if exchange is not None:
                    exchange.fetch(request)
                return accepted(request, interval, declared)
            except (BadData, InvalidSchema) as error:
                raise self._broken(error.message) from None
            except UNREADABLE as error:
                raise self._broken(f"its data cannot be read: {error}") from None

    # --- Messages -------------------------------------------------------------------------------

    def _ask(
        self, method: str, message: bytes, answer: Callable[[bytes, Reporter], T | None], reporter: Reporter
    ) -> T:
        """Sends a request and listens until ``answer`` makes something of a message."""
        with grpc.insecure_channel(self._target, options=_OPTIONS) as channel:
            stream: Any = channel.unary_stream(method)
            try:
                grpc.channel_ready_future(channel).result(timeout=_CONNECT_SECONDS)
                call = stream(message, timeout=self._seconds)
                with reporter.on_cancel(call.cancel):
                    for each in call:
                        if (found := answer(each, reporter)) is not None:
                            return found
            except grpc.FutureTimeoutError:
                raise SourceUnavailable(
                    "the engine does not answer", where=self._address, hint="is it running?"
                ) from None
            except grpc.RpcError as error:
                raise self._failure(error, reporter) from None
            except (ValueError, msgspec.MsgspecError) as error:
                raise self._broken(f"its answer cannot be read: {error}") from None
        reporter.check()
        raise self._broken("it ended without an answer")

    def _ask_own(self, method: str, query: Wire, kind: type[T], reporter: Reporter) -> T:
        """Asks our own service, which other engines do not have."""

        def answer(message: bytes, reporter: Reporter) -> T | None:
            found = decode(unwrap(message), Answer)
            if isinstance(found, Told):
                return _tell(found, reporter)
            if isinstance(found, Failed):
                raise raised(found)
            if isinstance(found, NotYet):
                raise Unsupported(found.message, where=self._address)
            if not isinstance(found, kind):
                raise self._broken(f"it answered with {type(found).__name__}")
            return found

        return self._ask(f"/{OWN_SERVICE}/{method}", wrap(encode(query)), answer, reporter)

    def _transformed(self, message: bytes, reporter: Reporter) -> tuple[Rows] | None:
        """What a message of ExecuteTransform says; the interval within a tuple, since it may be None."""
        response = decode_table(unwrap(message), TransformResponse)
        further = unwrap(message, FURTHER)
        match response:
            case TransformSuccess():
                return (response.new_offset_interval,)
            case TransformProgress():
                return _tell(decode(further, Told), reporter) if further else None
            case TransformInvalidQuery() | TransformInternalError() if further:
                raise raised(decode(further, Failed))
            case TransformInvalidQuery():
                raise InvalidQuery(response.message, where="query")
            case TransformInternalError():
                raise OdfError(f"the engine failed: {response.message}", where=self._address)
        return None

    def _failure(self, error: grpc.RpcError, reporter: Reporter) -> OdfError:
        if reporter.cancelled:
            return Cancelled()
        code = error.code() if isinstance(error, grpc.Call) else None
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return Unsupported("the engine cannot do this: it can only run queries", where=self._address)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return TookTooLong(f"the query ran longer than {self._seconds:,g} s", where=self._address)
        details = error.details() if isinstance(error, grpc.Call) else str(error)
        return SourceUnavailable(f"the engine broke off: {details}", where=self._address)

    def _broken(self, what: str) -> BadData:
        return BadData(f"the engine does not keep the contract: {what}", where=self._address)


def _target(address: str) -> tuple[str, Exchange | None]:
    """What gRPC calls the address, and the folder that it names."""
    if address.startswith("unix:"):
        return address, None
    parts = urlsplit(address)
    try:
        whole = parts.scheme == "grpc" and parts.hostname and parts.port
        named = {
            name: values[-1]
            for name, values in parse_qs(parts.query, strict_parsing=bool(parts.query)).items()
        }
    except ValueError:
        whole, named = False, {}
    if not whole or not named.keys() <= {"folder", "as"} or ("as" in named and "folder" not in named):
        raise InvalidManifest(
            f"'{address}' is no address of an engine",
            where="engines",
            hint="such as grpc://127.0.0.1:2884, or grpc://127.0.0.1:2884?folder=/srv/exchange&as=/opt/engine",
        )
    if "folder" not in named:
        return parts.netloc, None
    folder = Path(named["folder"])
    return parts.netloc, Exchange(folder, PurePosixPath(named.get("as", folder)))


def _tell(told: Told, reporter: Reporter) -> None:
    if told.phase is not None:
        reporter.phase(plain(told.phase))
    if amounts := {name: value for name, value in told.amounts.items() if name in _AMOUNTS}:
        reporter.amount(**amounts)
    for line in told.lines:
        reporter.line(plain(line.text), line.level)


def _schema(schema: pa.Schema | None) -> bytes | None:
    return None if schema is None else encode_schema(schema)
