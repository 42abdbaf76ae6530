"""The methods of a Flight SQL server."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyarrow import flight

from odf_engine.errors import OdfError
from odf_engine.net.protobuf import encode_bytes, encode_number
from odf_engine.sql.query_text import one_line_summary
from odf_engine.sync.server.flight import catalog
from odf_engine.sync.server.flight.authentication import ENGINE_HEADER, CallHeaders, OpenHandshake, TokenCheck
from odf_engine.sync.server.flight.clients import Client, remove_oldest
from odf_engine.sync.server.flight.messages import CANCELLED, NOT_CANCELLABLE, Message, wrap
from odf_engine.sync.server.flight.queries import Queries, RunningQuery, SparkQuery
from odf_engine.sync.server.flight.status import InvalidArgument, NotSupported, StatusError, flight_error
from odf_engine.sync.server.service import DatasetService

_SPARK: Final = "spark"
_ENGINES: Final = ("duckdb", _SPARK)
_STATEMENT: Final = "CommandStatementQuery"
_PREPARED: Final = "CommandPreparedStatementQuery"
_TICKET: Final = "TicketStatementQuery"
_ACTIONS: Final = {
    "CreatePreparedStatement": "Prepare a query.",
    "ClosePreparedStatement": "Forget a prepared query.",
    "CancelFlightInfo": "Cancel a query.",
}
_WRITES: Final = (
    "CommandStatementUpdate", "CommandPreparedStatementUpdate", "CommandStatementIngest", "BeginTransaction",
    "EndTransaction", "BeginSavepoint", "EndSavepoint",
)  # fmt: skip
_MAX_PREPARED: Final = 1024
_MAX_AHEAD_SECONDS: Final = 1.0
"""Maximum age in seconds of a run that began with the preparation. Later runs read newer rows."""
_MAX_MESSAGE_BYTES: Final = (16 << 20) - (64 << 10)
"""ADBC's clients accept messages of 16 MiB, with the header of Arrow."""
_MAX_PARAMETER_BYTES: Final = 1 << 20
_MAX_LOGGED: Final = 200
_GRACE_SECONDS: Final = 2.0


class _Prepared(NamedTuple):
    """A prepared query.

    Attributes:
        client: the name of the client that has prepared it.
        parameters: the values of its parameters as an Arrow IPC stream, or None if none are bound.
        started: the handle of its first run, which began with the preparation, or b"".
    """

    sql: str
    client: str = ""
    parameters: bytes | None = None
    started: bytes = b""


class FlightSqlServer(flight.FlightServerBase):
    """Serves datasets by Flight SQL. It accepts connections from its creation on.

    Args:
        service: the datasets and limits.
        run_spark: runs queries with Spark, or None if clients cannot request Spark.
        location: the URL to listen at, as ``grpc://HOST:PORT``.
        tls: the certificate chain and the key in PEM, or None.
        require_token: whether clients need a token.
        is_verbose: whether queries are logged.
    """

    def __init__(
        self,
        service: DatasetService,
        run_spark: SparkQuery | None,
        location: str,
        tls: tuple[bytes, bytes] | None,
        *,
        require_token: bool = False,
        is_verbose: bool = False,
    ) -> None:
        self._service = service
        self._queries = Queries(service, run_spark)
        self._prepared: OrderedDict[bytes, _Prepared] = OrderedDict()
        self._lock = threading.Lock()
        self._is_verbose = is_verbose
        super().__init__(
            location,
            auth_handler=OpenHandshake(),
            tls_certificates=None if tls is None else [tls],
            middleware={"headers": TokenCheck(service.tokens if require_token else None)},
        )

    def stop(self) -> None:
        """End all queries, then the server, or give up if calls do not end."""
        self._queries.close()
        stopping = threading.Thread(target=self.shutdown, daemon=True)
        stopping.start()
        stopping.join(_GRACE_SECONDS)

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        """Return nothing: clients list tables."""
        return iter(())

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Return the actions."""
        return list(_ACTIONS.items())

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Start a query, or describe the answer to another command."""
        with _errors():
            command = Message.unwrap(descriptor.command or b"")
            schema, rows, ticket = catalog.answer_schema(command), -1, descriptor.command
            if schema is None:
                prepared = self._query(command, self._client(context))
                handle, query = prepared.started, self._queries.keep(prepared.started)
                if query is None:
                    handle, query = self._start(prepared, context)
                schema, rows = query.schema, query.row_count
                ticket = wrap(_TICKET, encode_bytes(1, handle))
            endpoint = flight.FlightEndpoint(flight.Ticket(ticket), [])
            return flight.FlightInfo(schema, descriptor, [endpoint], rows, -1)

    def get_schema(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.SchemaResult:
        """Return the schema of the rows of a query, or of the answer to another command."""
        with _errors():
            command = Message.unwrap(descriptor.command or b"")
            schema = catalog.answer_schema(command)
            if schema is None:
                client = self._client(context)
                schema, _ = self._queries.describe(self._query(command, client).sql, client, context)
            return flight.SchemaResult(schema)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """Return the rows of a started query, or the answer to another command."""
        with _errors():
            command = Message.unwrap(ticket.ticket)
            if command.name == _TICKET:
                query = self._queries.claim(command.data(1), self._client(context))
                batches = self._read(query, context)
                next(batches)  # from now on, the end of the call closes the query
                return flight.GeneratorStream(query.schema, batches)
            if catalog.answer_schema(command) is None:
                raise _unknown(command.name)
            return flight.RecordBatchStream(catalog.answer(self._client(context), command))

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Bind the parameters of a prepared query, and refuse to write."""
        with _errors():
            command = Message.unwrap(descriptor.command or b"")
            if command.name != _PREPARED:
                raise _unknown(command.name)
            handle, query = command.data(1), self._query(command, self._client(context))
            parameters = _read_row(reader)
            with self._lock:
                if handle in self._prepared:  # otherwise it was closed in the meantime
                    self._prepared[handle] = query._replace(parameters=parameters)
            writer.write(encode_bytes(1, handle))

    def do_exchange(
        self, context: flight.ServerCallContext, descriptor: Any, reader: Any, writer: Any
    ) -> None:
        """Refuse the call."""
        raise _unknown("DoExchange")

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        """Prepare, close or cancel a query."""
        with _errors():
            body = action.body.to_pybytes()
            match action.type:
                case "CreatePreparedStatement":
                    return [self._prepare(Message.unwrap(body), context)]
                case "ClosePreparedStatement":
                    self._close(Message.unwrap(body).data(1), self._client(context))
                    return []
                case "CancelFlightInfo":
                    return [self._cancel(Message(body), self._client(context))]
            raise _unknown(action.type)

    def _client(self, context: flight.ServerCallContext) -> Client:
        headers: CallHeaders = context.get_middleware("headers")
        if headers.engine.lower() not in ("", *_ENGINES):
            problem = f"unknown engine '{one_line_summary(headers.engine, _MAX_LOGGED)}'"
            raise InvalidArgument(f"{problem} (hint: the header {ENGINE_HEADER} is duckdb or spark)")
        token = headers.token
        name = context.peer().rpartition(":")[0] if token is None else token.hash
        return Client(self._service, name, token, uses_spark=headers.engine.lower() == _SPARK)

    def _query(self, command: Message, client: Client) -> _Prepared:
        if command.name == _STATEMENT:
            return _Prepared(command.text(1) or "")
        if command.name != _PREPARED:
            raise _unknown(command.name)
        with self._lock:
            query = self._prepared.get(command.data(1))
        if query is None or not client.can_use(query):
            raise flight.FlightServerError("the prepared statement was closed (hint: prepare it again)")
        return query

    def _start(self, query: _Prepared, context: flight.ServerCallContext) -> tuple[bytes, RunningQuery]:
        began, text = time.monotonic(), one_line_summary(query.sql, _MAX_LOGGED)
        try:
            started = self._queries.start(query.sql, self._client(context), context, query.parameters)
        except (flight.FlightError, StatusError) as error:
            self._log(f"failed query from {context.peer()}: {text}: {error}")
            raise
        self._log(f"query from {context.peer()}, {time.monotonic() - began:.3f} s: {text}")
        return started

    def _read(self, query: RunningQuery, context: flight.ServerCallContext) -> Iterator[Any]:
        try:
            yield None
            while True:
                with query.served_by(context):
                    batch = query.read()
                if batch is None:
                    return
                yield from _messages(batch)
        finally:
            self._queries.end(query)

    def _prepare(self, request: Message, context: flight.ServerCallContext) -> bytes:
        sql, handle = request.text(1) or "", secrets.token_bytes(16)
        client = self._client(context)
        prepared, parameters = _Prepared(sql, client.name), pa.schema([]).serialize().to_pybytes()
        if not client.uses_spark and ("?" in sql or "$" in sql):
            schema, parameters = self._queries.describe(sql, client, context)
        else:  # clients run it next
            started, query = self._start(prepared, context)
            query.max_idle, schema = _MAX_AHEAD_SECONDS, query.schema
            prepared = prepared._replace(started=started)
        with self._lock:
            self._prepared[handle] = prepared
            remove_oldest(self._prepared, client.name, _MAX_PREPARED)
        fields = [handle, schema.serialize().to_pybytes(), parameters]
        message = b"".join(encode_bytes(number, field) for number, field in enumerate(fields, start=1))
        return wrap("ActionCreatePreparedStatementResult", message)

    def _close(self, handle: bytes, client: Client) -> None:
        """Close a prepared statement, and end its query."""
        with self._lock:
            query = self._prepared.get(handle)
            if query is None or not client.can_use(query):
                return
            del self._prepared[handle]
        self._queries.cancel(query.started, client)

    def _cancel(self, request: Message, client: Client) -> bytes:
        """Cancel the query of a FlightInfo, whose field 3 has the endpoints."""
        tickets = [
            ticket.data(1)
            for info in request.messages(1)
            for endpoint in info.messages(3)
            for ticket in endpoint.messages(1)
        ]
        commands = [Message.unwrap(ticket) for ticket in tickets]
        handles = [command.data(1) for command in commands if command.name == _TICKET]
        cancelled = [self._queries.cancel(handle, client) for handle in handles]
        return encode_number(1, CANCELLED if any(cancelled) else NOT_CANCELLABLE)

    def _log(self, line: str) -> None:
        if self._is_verbose:
            with suppress(OSError, ValueError):
                sys.stderr.write(line + "\n")
                sys.stderr.flush()


@contextmanager
def _errors() -> Iterator[None]:
    """Convert errors for the client."""
    try:
        yield
    except (flight.FlightError, StatusError):
        raise
    except OdfError as error:
        raise flight_error(error) from None
    except ValueError:  # also texts that are not UTF-8
        raise flight.FlightServerError("the message is malformed") from None
    except Exception as error:
        raise flight.FlightInternalError(f"the server failed: {type(error).__name__}") from None


def _messages(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split rows into messages that clients accept.

    Raises:
        InvalidArgument: a row is too large.
    """
    if batch.nbytes <= _MAX_MESSAGE_BYTES:
        yield batch
    elif batch.num_rows == 1:
        sizes = {name: column.nbytes for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        name = max(sizes, key=sizes.__getitem__)
        problem = f"a row has {batch.nbytes:,} bytes, and the limit is {_MAX_MESSAGE_BYTES:,}"
        raise InvalidArgument(f"{problem} (hint: select a part of column '{name}', or omit it)")
    else:
        half = batch.num_rows // 2
        yield from _messages(batch.slice(0, half))
        yield from _messages(batch.slice(half))


def _read_row(reader: flight.MetadataRecordBatchReader) -> bytes:
    """Return one row of parameters as an Arrow IPC stream."""
    rows, sink = 0, pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for chunk in reader:
            rows += chunk.data.num_rows
            if chunk.data.nbytes > _MAX_PARAMETER_BYTES:
                problem = f"the parameters have more than {_MAX_PARAMETER_BYTES:,} bytes"
                raise InvalidArgument(f"{problem} (hint: bind shorter values)")
            if rows > 1:
                break
            writer.write_batch(chunk.data)
    if rows != 1:
        raise InvalidArgument(
            "only one row of parameters can be bound (hint: bind the rows one after the other)"
        )
    return sink.getvalue().to_pybytes()


def _unknown(name: str) -> flight.FlightError | StatusError:
    if name in _WRITES:
        return flight.FlightUnauthorizedError("the datasets are read-only: clients can only query them")
    return NotSupported(f"this server does not support {name or 'this command'}")
