"""An engine elsewhere, asked by gRPC; what it writes is checked before anybody relies on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import grpc
import pyarrow as pa
import pyarrow.parquet as pq

from odf_engine.data.digest import digest_file, physical_hash
from odf_engine.data.kernels import pc
from odf_engine.data.slices import WrittenSlice, read_batches
from odf_engine.errors import BadData, Cancelled, InvalidManifest, InvalidQuery, OdfError, SourceUnavailable
from odf_engine.metadata.flatbuffers import decode_table, encode_table
from odf_engine.metadata.model import (
    Checkpoint,
    OffsetInterval,
    TransformInternalError,
    TransformInvalidQuery,
    TransformRequest,
    TransformResponse,
    TransformSuccess,
)
from odf_engine.progress import Reporter
from odf_engine.transform.contract import Result
from odf_engine.transform.grpc_wire import LARGEST_MESSAGE, SERVICE, TRANSFORM, unwrap, wrap

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE),
    ("grpc.max_send_message_length", LARGEST_MESSAGE),
]
_CONNECT_SECONDS: Final = 30


class GrpcEngine:
    """The engine at an address such as ``grpc://127.0.0.1:2884``; it sees the same files.

    Raises:
        InvalidManifest: this is no such address.
    """

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme != "grpc" or not parts.hostname or not parts.port:
            raise InvalidManifest(
                f"'{address}' is no address of an engine",
                where="engines",
                hint="such as grpc://127.0.0.1:2884",
            )
        self._address = address
        self._target = parts.netloc

    def execute(self, request: TransformRequest, declared: pa.Schema | None, reporter: Reporter) -> Result:
        """See :class:`odf_engine.transform.contract.Engine`.

        Raises:
            SourceUnavailable: the engine cannot be reached, or broke off.
            BadData: what it wrote is not what the contract asks for.
        """
        success = self._ask(encode_table(request), reporter)
        path = Path(request.new_data_path)
        if success.new_offset_interval is None:
            if path.exists() and pq.read_metadata(path).num_rows:
                raise self._broken("it wrote rows, and says that there are none")
            schema = declared if declared is not None else pa.schema([])
            return Result(None, schema, self._checkpoint(request))
        if path.is_symlink() or not path.is_file():
            raise self._broken("it says that there are rows, and wrote no file")
        return self._checked(path, request, success.new_offset_interval, declared)

    def _ask(self, request: bytes, reporter: Reporter) -> TransformSuccess:
        with grpc.insecure_channel(self._target, options=_OPTIONS) as channel:
            method = channel.unary_stream(
                f"/{SERVICE}/{TRANSFORM}", request_serializer=wrap, response_deserializer=unwrap
            )
            try:
                grpc.channel_ready_future(channel).result(timeout=_CONNECT_SECONDS)
                call: Any = method(request)
                with reporter.on_cancel(call.cancel):
                    for message in call:
                        if (answer := self._answer(decode_table(message, TransformResponse))) is not None:
                            return answer
            except grpc.FutureTimeoutError:
                raise SourceUnavailable(
                    "the engine does not answer", where=self._address, hint="is it running?"
                ) from None
            except grpc.RpcError as error:
                if reporter.cancelled:
                    raise Cancelled from None
                details = error.details() if isinstance(error, grpc.Call) else str(error)
                raise SourceUnavailable(f"the engine broke off: {details}", where=self._address) from None
        reporter.check()
        raise self._broken("it ended without an answer")

    def _answer(self, response: object) -> TransformSuccess | None:
        match response:
            case TransformSuccess():
                return response
            case TransformInvalidQuery():
                raise InvalidQuery(response.message, where="query")
            case TransformInternalError():
                raise OdfError(f"the engine failed: {response.message}", where=self._address)
        return None

    def _checked(
        self, path: Path, request: TransformRequest, said: OffsetInterval, declared: pa.Schema | None
    ) -> Result:
        """The slice, if it has the columns and offsets that it should have."""
        vocab = request.vocab
        schema = pq.read_schema(path).remove_metadata()
        system = [vocab.offset_column, vocab.operation_type_column, vocab.system_time_column]
        system.append(vocab.event_time_column)
        if schema.names[: len(system)] != system:
            there, wanted = ", ".join(schema.names[: len(system)]), ", ".join(system)
            raise self._broken(f"its columns begin with {there}, not {wanted}")
        if declared is not None and [(each.name, each.type) for each in schema] != [
            (each.name, each.type) for each in declared
        ]:
            raise self._broken(f"its columns are not those of the dataset: {', '.join(schema.names)}")
        expected = request.next_offset
        for batch in read_batches(path, [vocab.offset_column]):
            offsets = batch.column(0).cast(pa.int64())
            wanted = pa.array(range(expected, expected + batch.num_rows), pa.int64())
            if not pc.all(pc.equal(offsets, wanted)).as_py():
                raise self._broken("its offsets do not go on from those of the dataset")
            expected += batch.num_rows
        if (said.start, said.end) != (request.next_offset, expected - 1):
            raise self._broken(f"it says offsets {said.start} to {said.end}, and wrote others")
        found = digest_file(path)
        written = WrittenSlice(
            path, found.logical_hash, found.physical_hash, found.size, found.rows, said, None, None
        )
        return Result(written, schema if declared is None else declared, self._checkpoint(request))

    def _checkpoint(self, request: TransformRequest) -> Checkpoint | None:
        """What the engine left of its state, if anything."""
        path = Path(request.new_checkpoint_path)
        if not path.exists() and not path.is_symlink():
            return None
        if path.is_symlink() or not path.is_file():
            raise self._broken("its checkpoint is no file")
        found, size = physical_hash(path)
        return Checkpoint(physical_hash=found, size=size)

    def _broken(self, what: str) -> BadData:
        return BadData(f"the engine does not keep the contract: {what}", where=self._address)
