"""The metadata model of ODF 0.34.1: every event, step, fragment, manifest and engine message.

Class and field names are as in the specification's schemas. Parts of newer specifications are marked with
their version.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, ClassVar, Final, dataclass_transform

import msgspec
from msgspec import Meta

from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.timestamp import Timestamp

U64 = Annotated[int, Meta(ge=0, extra={"wire": "u64"})]
I64 = Annotated[int, Meta(extra={"wire": "i64"})]
U32 = Annotated[int, Meta(ge=0, extra={"wire": "u32"})]
I32 = Annotated[int, Meta(extra={"wire": "i32"})]
JsonText = Annotated[dict[str, Any], Meta(extra={"wire": "json"})]
DatasetRefText = Annotated[str, Meta(extra={"wire": "ref"})]


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Model(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Base class of tables, fragments and manifests. Absent optional fields are None.

    Attributes:
        NEWER_NAMES: keys that a newer specification renamed or added: old to new.
        NEEDS_ONE_OF: fields that need at least one present.
        AT_MOST_ONE_OF: fields that exclude each other.
        TEXT_ONLY: fields that only exist in the text of definitions, with their keys.
    """

    NEWER_NAMES: ClassVar[dict[str, str]] = {}
    NEEDS_ONE_OF: ClassVar[tuple[str, ...]] = ()
    AT_MOST_ONE_OF: ClassVar[tuple[str, ...]] = ()
    TEXT_ONLY: ClassVar[dict[str, str]] = {}


class DatasetKind(Enum):
    """Type of the dataset."""

    Root = "Root"
    Derivative = "Derivative"


class SourceOrdering(Enum):
    """Order of the files of a source."""

    ByEventTime = "ByEventTime"
    ByName = "ByName"


class CompressionFormat(Enum):
    """Compression of a fetched file."""

    Gzip = "Gzip"
    Zip = "Zip"


class MqttQos(Enum):
    """Quality of service of an MQTT subscription (since 0.35)."""

    AtMostOnce = "AtMostOnce"
    AtLeastOnce = "AtLeastOnce"
    ExactlyOnce = "ExactlyOnce"


class TimeUnit(Enum):
    """Unit of a time, timestamp or duration (since 0.37)."""

    Second = "Second"
    Millisecond = "Millisecond"
    Microsecond = "Microsecond"
    Nanosecond = "Nanosecond"


TimeUnit16 = Annotated[TimeUnit, Meta(extra={"wire": "i16"})]


class OffsetInterval(Model):
    """A closed interval of row offsets."""

    start: U64
    end: U64


class DataSlice(Model):
    """A slice of data added to a dataset: hashes, offsets, and size in bytes."""

    logical_hash: Multihash
    physical_hash: Multihash
    offset_interval: OffsetInterval
    size: U64


class Checkpoint(Model):
    """A checkpoint file of an engine: hash, and size in bytes."""

    physical_hash: Multihash
    size: U64


class SourceState(Model):
    """State of a source, where the next pull resumes; ``kind`` such as ``odf/etag``."""

    source_name: str
    kind: str
    value: str


class ExtraAttributes(Model):
    """Custom attributes that are not part of the specification (since 0.37). YAML has only the entries.

    Attributes:
        KEY: regular expression of the keys, which definitions must follow: ``domain/name``.
    """

    KEY: ClassVar[str] = r"[a-zA-Z0-9.-]+/[a-zA-Z0-9_-]+"

    entries: JsonText


class RequestHeader(Model):
    """A header to pass with a request."""

    name: str
    value: str


class EnvVar(Model):
    """An environment variable; without a value it is inherited from the caller's environment."""

    name: str
    value: str | None = None


class MqttTopicSubscription(Model):
    """An MQTT topic (since 0.35)."""

    path: str
    qos: MqttQos | None = None


class SqlQueryStep(Model, kw_only=True):
    """A step of a multi-step query; the step without an alias is the result."""

    alias: str | None = None
    query: str


class TemporalTable(Model):
    """A stream that is treated as a temporal table with this primary key."""

    name: str
    primary_key: list[str]


class TransformInput(Model):
    """An input of a derivative dataset; ``dataset_ref`` is an id once committed."""

    dataset_ref: DatasetRefText
    alias: str | None = None


class ExecuteTransformInput(Model):
    """The intervals of an input's blocks and offsets that a transaction processed; starts are exclusive."""

    dataset_id: DatasetId
    prev_block_hash: Multihash | None = None
    new_block_hash: Multihash | None = None
    prev_offset: U64 | None = None
    new_offset: U64 | None = None

    @property
    def last_block(self) -> Multihash | None:
        """The last block of the input that is processed after the transaction."""
        return self.new_block_hash or self.prev_block_hash

    @property
    def last_offset(self) -> int | None:
        """The last offset of the input that is processed after the transaction."""
        return self.prev_offset if self.new_offset is None else self.new_offset


class AttachmentEmbedded(Model):
    """A file whose content is stored in the chain."""

    path: str
    content: str


class DatasetVocabulary(Model):
    """Names of the system columns."""

    offset_column: str
    operation_type_column: str
    system_time_column: str
    event_time_column: str


class Watermark(Model):
    """A watermark and the system time of its setting."""

    system_time: Timestamp
    event_time: Timestamp


class Binary(Model, tag_field="kind", tag="Binary"):
    """Bytes."""

    fixed_length: U64 | None = None


class Bool(Model, tag_field="kind", tag="Bool"):
    """A boolean."""


class Date(Model, tag_field="kind", tag="Date"):
    """A date."""


class Decimal(Model, tag_field="kind", tag="Decimal"):
    """A decimal number."""

    precision: U32
    scale: I32


class Duration(Model, tag_field="kind", tag="Duration"):
    """A duration."""

    unit: TimeUnit16 | None = None


class Float16(Model, tag_field="kind", tag="Float16"):
    """A half precision number."""


class Float32(Model, tag_field="kind", tag="Float32"):
    """A single precision number."""


class Float64(Model, tag_field="kind", tag="Float64"):
    """A double precision number."""


class Int8(Model, tag_field="kind", tag="Int8"):
    """A signed integer."""


class Int16(Model, tag_field="kind", tag="Int16"):
    """A signed integer."""


class Int32(Model, tag_field="kind", tag="Int32"):
    """A signed integer."""


class Int64(Model, tag_field="kind", tag="Int64"):
    """A signed integer."""


class UInt8(Model, tag_field="kind", tag="UInt8"):
    """An unsigned integer."""


class UInt16(Model, tag_field="kind", tag="UInt16"):
    """An unsigned integer."""


class UInt32(Model, tag_field="kind", tag="UInt32"):
    """An unsigned integer."""


class UInt64(Model, tag_field="kind", tag="UInt64"):
    """An unsigned integer."""


class List(Model, tag_field="kind", tag="List"):
    """A list of values of one type."""

    item_type: DataType
    fixed_length: U64 | None = None


class Map(Model, tag_field="kind", tag="Map"):
    """A map."""

    key_type: DataType
    value_type: DataType
    keys_sorted: bool | None = None


class Null(Model, tag_field="kind", tag="Null"):
    """Null."""


class Option(Model, tag_field="kind", tag="Option"):
    """A value that may be absent."""

    inner: DataType


class DataField(Model):
    """A named column or member."""

    name: str
    type: DataType
    extra: ExtraAttributes | None = None


class Struct(Model, tag_field="kind", tag="Struct"):
    """A record of named members."""

    fields: list[DataField]


class Time(Model, tag_field="kind", tag="Time"):
    """A time of day."""

    unit: TimeUnit16 | None = None


class TimestampType(Model, tag_field="kind", tag="Timestamp"):
    """A point in time."""

    unit: TimeUnit16 | None = None
    timezone: str | None = None


class String(Model, tag_field="kind", tag="String"):
    """Text."""


DataType = (
    Binary | Bool | Date | Decimal | Duration | Float16 | Float32 | Float64
    | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64
    | List | Map | Null | Option | Struct | Time | TimestampType | String
)  # fmt: skip


class DataSchema(Model):
    """A schema in terms of the specification (since 0.37)."""

    fields: list[DataField]
    extra: ExtraAttributes | None = None


class FromMetadata(Model, tag_field="kind", tag="FromMetadata"):
    """Event time from the source's metadata, such as Last-Modified."""


class FromPath(Model, tag_field="kind", tag="FromPath"):
    """Event time from the first group of a regular expression that matches the path."""

    pattern: str
    timestamp_format: str | None = None


class FromSystemTime(Model, tag_field="kind", tag="FromSystemTime"):
    """Event time is the time of ingestion."""


EventTimeSource = FromMetadata | FromPath | FromSystemTime


class Forever(Model, tag_field="kind", tag="Forever"):
    """The source is fetched once and never again."""


SourceCaching = Forever


class Url(Model, tag_field="kind", tag="Url"):
    """Data at a URL."""

    url: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    headers: list[RequestHeader] | None = None


class FilesGlob(Model, tag_field="kind", tag="FilesGlob"):
    """Files of the local file system that match a pattern."""

    path: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    order: SourceOrdering | None = None


class Container(Model, tag_field="kind", tag="Container"):
    """Data that an OCI container writes to standard output."""

    image: str
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[EnvVar] | None = None


class Mqtt(Model, kw_only=True, tag_field="kind", tag="Mqtt"):
    """Messages of an MQTT broker (since 0.35)."""

    host: str
    port: I32
    username: str | None = None
    password: str | None = None
    topics: list[MqttTopicSubscription]


class EthereumLogs(Model, tag_field="kind", tag="EthereumLogs"):
    """Logs of an Ethereum chain (since 0.36)."""

    chain_id: U64 | None = None
    node_url: str | None = None
    filter: str | None = None
    signature: str | None = None


FetchStep = Url | FilesGlob | Container | Mqtt | EthereumLogs


class Decompress(Model, tag_field="kind", tag="Decompress"):
    """Extracts an archive."""

    format: CompressionFormat
    sub_path: str | None = None


class Pipe(Model, tag_field="kind", tag="Pipe"):
    """Pipes data through a command."""

    command: list[str]


PrepStep = Decompress | Pipe


class _Reader(Model):
    """Base class of read steps. Since 0.38 they have a DataSchema or DDL."""

    NEWER_NAMES: ClassVar[dict[str, str]] = {"schema": "ddlSchema", "odfSchema": "schema"}
    AT_MOST_ONE_OF: ClassVar[tuple[str, ...]] = ("schema", "odf_schema")


class Csv(_Reader, tag_field="kind", tag="Csv"):
    """Reader of comma-separated files."""

    schema: list[str] | None = None
    separator: str | None = None
    encoding: str | None = None
    quote: str | None = None
    escape: str | None = None
    header: bool | None = None
    infer_schema: bool | None = None
    null_value: str | None = None
    date_format: str | None = None
    timestamp_format: str | None = None
    odf_schema: DataSchema | None = None


class GeoJson(_Reader, tag_field="kind", tag="GeoJson"):
    """Reader of a GeoJSON FeatureCollection."""

    schema: list[str] | None = None
    odf_schema: DataSchema | None = None


class EsriShapefile(_Reader, tag_field="kind", tag="EsriShapefile"):
    """Reader of a zipped ESRI shapefile."""

    schema: list[str] | None = None
    sub_path: str | None = None
    odf_schema: DataSchema | None = None


class Parquet(_Reader, tag_field="kind", tag="Parquet"):
    """Reader of Apache Parquet."""

    schema: list[str] | None = None
    odf_schema: DataSchema | None = None


class Json(_Reader, tag_field="kind", tag="Json"):
    """Reader of JSON that contains an array of objects."""

    sub_path: str | None = None
    schema: list[str] | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    odf_schema: DataSchema | None = None


class NdJson(_Reader, tag_field="kind", tag="NdJson"):
    """Reader of newline-delimited JSON objects."""

    schema: list[str] | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    odf_schema: DataSchema | None = None


class NdGeoJson(_Reader, tag_field="kind", tag="NdGeoJson"):
    """Reader of newline-delimited GeoJSON features."""

    schema: list[str] | None = None
    odf_schema: DataSchema | None = None


ReadStep = Csv | GeoJson | EsriShapefile | Parquet | Json | NdJson | NdGeoJson


class Sql(Model, tag_field="kind", tag="Sql"):
    """A query in an engine's dialect of SQL; committed blocks use ``queries`` only."""

    engine: str
    version: str | None = None
    query: str | None = None
    queries: list[SqlQueryStep] | None = None
    temporal_tables: list[TemporalTable] | None = None


Transform = Sql


class Append(Model, tag_field="kind", tag="Append"):
    """Appends all new rows."""


class Ledger(Model, tag_field="kind", tag="Ledger"):
    """Appends rows whose primary key is new."""

    primary_key: list[str]


class Snapshot(Model, tag_field="kind", tag="Snapshot"):
    """Appends the difference to the previous state as a changelog."""

    primary_key: list[str]
    compare_columns: list[str] | None = None


class ChangelogStream(Model, tag_field="kind", tag="ChangelogStream"):
    """Rows that already are a changelog (since 0.37)."""

    primary_key: list[str]


class UpsertStream(Model, tag_field="kind", tag="UpsertStream"):
    """Rows that are upserts and retractions (since 0.37)."""

    primary_key: list[str]


MergeStrategy = Append | Ledger | Snapshot | ChangelogStream | UpsertStream


class Embedded(Model, tag_field="kind", tag="Embedded"):
    """Attachments that are stored in the chain."""

    items: list[AttachmentEmbedded]


Attachments = Embedded


class AddData(Model, tag_field="kind", tag="AddData"):
    """Ingestion of data into a root dataset."""

    prev_checkpoint: Multihash | None = None
    prev_offset: U64 | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Timestamp | None = None
    new_source_state: SourceState | None = None
    extra: ExtraAttributes | None = None


class ExecuteTransform(Model, tag_field="kind", tag="ExecuteTransform"):
    """A transaction of a derivative dataset."""

    query_inputs: list[ExecuteTransformInput]
    prev_checkpoint: Multihash | None = None
    prev_offset: U64 | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Timestamp | None = None


class Seed(Model, tag_field="kind", tag="Seed"):
    """The identity of the dataset: always the first event."""

    dataset_id: DatasetId
    dataset_kind: DatasetKind


class SetPollingSource(Model, kw_only=True, tag_field="kind", tag="SetPollingSource"):
    """How polled data are ingested into a root dataset."""

    fetch: FetchStep
    prepare: list[PrepStep] | None = None
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


class SetTransform(Model, tag_field="kind", tag="SetTransform"):
    """The query that produces a derivative dataset."""

    inputs: list[TransformInput]
    transform: Transform


class SetVocab(Model, tag_field="kind", tag="SetVocab"):
    """Names of the system columns; omitted names have their default."""

    offset_column: str | None = None
    operation_type_column: str | None = None
    system_time_column: str | None = None
    event_time_column: str | None = None


class SetAttachments(Model, tag_field="kind", tag="SetAttachments"):
    """Files that accompany the dataset."""

    attachments: Attachments


class SetInfo(Model, tag_field="kind", tag="SetInfo"):
    """Description and keywords."""

    description: str | None = None
    keywords: list[str] | None = None


class SetLicense(Model, kw_only=True, tag_field="kind", tag="SetLicense"):
    """The licence of the data."""

    short_name: str
    name: str
    spdx_id: str | None = None
    website_url: str


class SetDataSchema(Model, tag_field="kind", tag="SetDataSchema"):
    """The schema of all following slices: a bare Arrow schema in FlatBuffers.

    A definition may list the data columns as DDL instead; the schema is generated from it.
    """

    NEWER_NAMES: ClassVar[dict[str, str]] = {"schema": "rawArrowSchema", "odfSchema": "schema"}
    NEEDS_ONE_OF: ClassVar[tuple[str, ...]] = ("schema", "odf_schema", "ddl")
    TEXT_ONLY: ClassVar[dict[str, str]] = {"ddl": "schema"}

    # Required by 0.34.1; since 0.37 optional if odf_schema is present.
    schema: bytes | None = None
    odf_schema: DataSchema | None = None
    ddl: list[str] | None = None


class AddPushSource(Model, kw_only=True, tag_field="kind", tag="AddPushSource"):
    """How pushed data are ingested into a root dataset."""

    source_name: str
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


class DisablePushSource(Model, tag_field="kind", tag="DisablePushSource"):
    """Removal of a push source."""

    source_name: str


class DisablePollingSource(Model, tag_field="kind", tag="DisablePollingSource"):
    """Removal of the polling source."""


MetadataEvent = (
    AddData | ExecuteTransform | Seed | SetPollingSource | SetTransform | SetVocab | SetAttachments
    | SetInfo | SetLicense | SetDataSchema | AddPushSource | DisablePushSource | DisablePollingSource
)  # fmt: skip


class Opaque(Model, tag_field="kind", tag="Opaque"):
    """A union member from a newer specification: preserved in the bytes of its block, but not interpreted."""

    union: str
    discriminant: U32


class MetadataBlock(Model, kw_only=True):
    """A block of the metadata chain."""

    system_time: Timestamp
    prev_block_hash: Multihash | None = None
    sequence_number: U64
    event: MetadataEvent


class DatasetSnapshot(Model):
    """Definition of a dataset: alias, kind, and the initial events of its chain."""

    name: str
    kind: DatasetKind
    metadata: list[MetadataEvent]


class Manifest(Model):
    """The wrapper of stored objects: kind as a multicodec code, version, content."""

    kind: I64
    version: I32
    content: bytes


class RawQueryRequest(Model):
    """A query over raw input files."""

    input_data_paths: list[str]
    transform: Transform
    output_data_path: str


class RawQueryProgress(Model, tag_field="kind", tag="Progress"):
    """The query is running."""


class RawQuerySuccess(Model, tag_field="kind", tag="Success"):
    """The query has succeeded."""

    num_records: U64


class RawQueryInvalidQuery(Model, tag_field="kind", tag="InvalidQuery"):
    """The query is invalid."""

    message: str


class RawQueryInternalError(Model, tag_field="kind", tag="InternalError"):
    """The engine has failed."""

    message: str
    backtrace: str | None = None


RawQueryResponse = RawQueryProgress | RawQuerySuccess | RawQueryInvalidQuery | RawQueryInternalError


class TransformRequestInput(Model, kw_only=True):
    """An input of a transform request."""

    dataset_id: DatasetId
    dataset_alias: str
    query_alias: str
    vocab: DatasetVocabulary
    offset_interval: OffsetInterval | None = None
    data_paths: list[str]
    schema_file: str
    explicit_watermarks: list[Watermark]
    earlier_paths: list[str] | None = None
    """Files with all rows before the interval, if known. This field is not part of the specification."""


class TransformRequest(Model, kw_only=True):
    """The next step of a derivative transformation."""

    dataset_id: DatasetId
    dataset_alias: str
    system_time: Timestamp
    vocab: DatasetVocabulary
    transform: Transform
    query_inputs: list[TransformRequestInput]
    next_offset: U64
    prev_checkpoint_path: str | None = None
    new_checkpoint_path: str
    new_data_path: str


class TransformProgress(Model, tag_field="kind", tag="Progress"):
    """The transformation is running."""


class TransformSuccess(Model, tag_field="kind", tag="Success"):
    """The transformation has succeeded."""

    new_offset_interval: OffsetInterval | None = None
    new_watermark: Timestamp | None = None


class TransformInvalidQuery(Model, tag_field="kind", tag="InvalidQuery"):
    """The query is invalid."""

    message: str


class TransformInternalError(Model, tag_field="kind", tag="InternalError"):
    """The engine has failed."""

    message: str
    backtrace: str | None = None


TransformResponse = TransformProgress | TransformSuccess | TransformInvalidQuery | TransformInternalError


DEFAULT_VOCABULARY: Final = DatasetVocabulary(
    offset_column="offset",
    operation_type_column="op",
    system_time_column="system_time",
    event_time_column="event_time",
)


def kind_of(event: MetadataEvent | Opaque) -> str:
    """Return the name of the event, such as ``AddData``; ``Opaque`` for one from a newer specification."""
    return type(event).__name__


def encode_hook(value: object) -> str:
    """Hook for msgspec encoders: hashes, ids and times as text."""
    if isinstance(value, Multihash | DatasetId | Timestamp):
        return str(value)
    raise NotImplementedError(type(value))


def decode_hook(kind: type, value: Any) -> Any:
    """Hook for msgspec decoders: hashes, ids and times from text."""
    if kind in (Multihash, DatasetId, Timestamp):
        return kind.parse(value)
    raise NotImplementedError(kind)
