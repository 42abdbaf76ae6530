"""Reports of checks, stored with their dataset; rejected rows, stored in the cache of the workspace.

A report is the file ``checks/HASH`` in the folder of the dataset. HASH is the physical hash of the last
examined slice, which its block contains. It is written before the head moves, so a block never lacks its
report. After an interrupted commit, a report without a block can remain. It is ignored. Pulls and pushes
transfer reports (:mod:`odf_engine.sync.check_reports`).

The file is JSON with the report as text in ``statement``. ``signature`` is an ed25519 signature of the UTF-8
bytes of the statement with the private key of the dataset; it is absent if the workspace does not have the
key. Readers of other versions ignore the folder.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import msgspec

from odf_engine.base.atomic_files import evict_oldest, read_small_file, replace_file
from odf_engine.base.files import ensure_folder, translate_os_errors
from odf_engine.errors import BadData, InvalidIdentity
from odf_engine.identity.did import DatasetId
from odf_engine.identity.multiformats import Multihash, multibase_decode, multibase_encode
from odf_engine.identity.ownership_proof import dataset_id_of_key, load_private_key, sign, verify_signature
from odf_engine.storage.object_store import CHECKS_FOLDER

if TYPE_CHECKING:  # deferred: the first paint of the workstation does not read chains
    from odf_engine.chain.block_summary import SliceSummary

MAX_REPORT_BYTES: Final = 1 << 20
"""Limit of the size of a report. Most have less than 10 kB."""
REJECTED: Final = "rejected"
"""Folder of rejected rows, within the cache of the workspace."""
_MAX_REJECTED: Final = 20
_MAX_REJECTED_BYTES: Final = 1 << 30
_KIND: Final = "CheckReport"
_VERSION: Final = 1
_NAME: Final = re.compile(r"f[0-9a-f]{8,136}")


class RuleResult(msgspec.Struct, frozen=True, rename="camel"):
    """The result of a rule.

    Attributes:
        check: name of the check.
        version: beginning of the SHA-256 of its file.
        rule: name of the rule.
        kind: kind of the rule.
        on_failure: ``block`` or ``warn``.
        examined: number of examined rows.
        failing: number of rows that violate the rule; 1 for a rule about all rows.
        message: the problem, or "".
        sample: first failing rows as text, by column; ``offset`` is the offset of the row.
    """

    check: str
    version: str
    rule: str
    kind: str
    on_failure: Literal["block", "warn"]
    examined: int
    failing: int = 0
    message: str = ""
    sample: list[dict[str, str | None]] = []

    @property
    def outcome(self) -> Literal["passed", "warning", "failed"]:
        """The outcome."""
        if not self.failing:
            return "passed"
        return "failed" if self.on_failure == "block" else "warning"

    @property
    def text(self) -> str:
        """The rule and its problem as one line."""
        return f"{self.check}: {self.rule}: {self.message or 'passed'}"


class CheckReport(msgspec.Struct, frozen=True, rename="camel"):
    """The results of all rules for the rows of a commit.

    Attributes:
        dataset_id: id of the dataset.
        slice: physical hash of the slice, or of the last one.
        first_offset, last_offset: offsets of the rows.
        system_time: system time of the rows, RFC 3339.
        results: results of the rules, in the order of their files.
    """

    dataset_id: str
    slice: str
    first_offset: int
    last_offset: int
    system_time: str
    results: list[RuleResult]

    @property
    def failed(self) -> list[RuleResult]:
        """The results that block a commit."""
        return [result for result in self.results if result.outcome == "failed"]

    @property
    def warnings(self) -> list[RuleResult]:
        """The results that are warnings."""
        return [result for result in self.results if result.outcome == "warning"]

    @property
    def summary(self) -> str:
        """The numbers of the results as text, such as ``3 passed, 1 warning``."""
        passed = len(self.results) - len(self.failed) - len(self.warnings)
        counts = {"failed": len(self.failed), "passed": passed}
        parts = [f"{count} {word}" for word, count in counts.items() if count]
        if warnings := len(self.warnings):
            parts.append(f"{warnings} warning" + ("s" if warnings > 1 else ""))
        return ", ".join(parts)


class StoredReport(NamedTuple):
    """A report as read.

    Attributes:
        report: the report.
        signed: whether it has a valid signature with the key of the dataset.
    """

    report: CheckReport
    signed: bool


class _Signature(msgspec.Struct, omit_defaults=True):
    key: str
    value: str


class _File(msgspec.Struct, omit_defaults=True):
    kind: str
    version: int
    statement: str
    signature: _Signature | None = None


def encode_report(report: CheckReport, private_key_pem: str | None) -> bytes:
    """Return the file of a report, signed if there is a key."""
    statement = msgspec.json.encode(report)
    signature: _Signature | None = None
    if private_key_pem is not None:
        key = load_private_key(private_key_pem)
        signature = _Signature(str(dataset_id_of_key(key)), multibase_encode(sign(key, statement)))
    return msgspec.json.encode(_File(_KIND, _VERSION, statement.decode(), signature)) + b"\n"


def decode_report(data: bytes, dataset_id: DatasetId, slice_hash: Multihash) -> StoredReport:
    """Read and verify the file of a report.

    Args:
        data: the file.
        dataset_id: the expected dataset.
        slice_hash: the expected slice.

    Raises:
        BadData: it is not a report, belongs to another dataset or slice, or has an invalid signature.
    """
    try:
        if len(data) > MAX_REPORT_BYTES:
            raise BadData(f"invalid report of checks: more than {MAX_REPORT_BYTES:,} bytes")
        file = msgspec.json.decode(data, type=_File)
        if (file.kind, file.version) != (_KIND, _VERSION):
            raise BadData(f"unsupported report of checks: kind '{file.kind[:40]}', version {file.version}")
        report = msgspec.json.decode(file.statement, type=CheckReport)
        about = DatasetId.parse(report.dataset_id), Multihash.parse(report.slice)
        signature = None if file.signature is None else multibase_decode(file.signature.value)
    except (msgspec.MsgspecError, InvalidIdentity, UnicodeError, RecursionError) as error:
        raise BadData(f"invalid report of checks: {error}") from None
    if about != (dataset_id, slice_hash):
        raise BadData("the report of checks belongs to another dataset or slice")
    if signature is None:
        return StoredReport(report, signed=False)
    if len(signature) != 64 or not verify_signature(dataset_id, file.statement.encode(), signature):
        raise BadData("invalid report of checks: not signed with the key of the dataset")
    return StoredReport(report, signed=True)


def report_path(folder: Path, slice_hash: Multihash) -> Path:
    """Return the path of a report in the folder of its dataset, whether or not it exists."""
    return folder / CHECKS_FOLDER / str(slice_hash)


def store_report(folder: Path, slice_hash: Multihash, data: bytes) -> None:
    """Store the file of a report, atomically and durably.

    Raises:
        OdfError: it cannot be written.
    """
    path = report_path(folder, slice_hash)
    ensure_folder(path.parent)
    replace_file(path, data)


def read_report(folder: Path, dataset_id: DatasetId, slice_hash: Multihash) -> StoredReport | None:
    """Return the report of a slice, or None if it has none.

    Raises:
        BadData: the file is damaged or has an invalid signature.
    """
    try:
        data = read_report_bytes(folder, slice_hash)
    except FileNotFoundError:
        return None
    try:
        return decode_report(data, dataset_id, slice_hash)
    except BadData as error:
        error.where, error.hint = str(report_path(folder, slice_hash)), "delete the file"
        raise


def read_report_bytes(folder: Path, slice_hash: Multihash) -> bytes:
    """Return the file of a report.

    Raises:
        FileNotFoundError: the slice has none.
        BadData: it cannot be read.
    """
    path = report_path(folder, slice_hash)
    try:
        return read_small_file(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise BadData(f"the report of checks cannot be read: {error.strerror}", where=str(path)) from None


def read_summaries(folder: Path, dataset_id: DatasetId, slices: Sequence[SliceSummary]) -> dict[int, str]:
    """Return the summaries of the reports of slices by the numbers of their blocks."""
    names = set(list_reports(folder))
    summaries: dict[int, str] = {}
    for data_slice in slices if names else ():
        try:
            stored = read_report(folder, dataset_id, data_slice.physical_hash)
        except BadData:
            summaries[data_slice.sequence_number] = "damaged report"
        else:
            if stored is not None:
                summaries[data_slice.sequence_number] = stored.report.summary
    return summaries


def list_reports(folder: Path) -> list[str]:
    """Return the names of the files of all reports of a dataset."""
    try:
        return sorted(path.name for path in (folder / CHECKS_FOLDER).iterdir() if _NAME.fullmatch(path.name))
    except OSError:
        return []


class RejectedBatch(NamedTuple):
    """Rows that were not committed.

    Attributes:
        path: Parquet file with the rows.
        rows: number of rows.
        report: the results of the rules.
    """

    path: Path
    rows: int
    report: CheckReport


def store_rejected(odf: Path, staged: Path, report: CheckReport) -> Path:
    """Move a slice that was not committed into the cache; return its path. Evict the oldest ones.

    Args:
        odf: the ``.odf`` folder of the workspace.
        staged: the slice.
        report: the results with the violated rules.

    Raises:
        OdfError: the file cannot be written.
    """
    folder = odf / "cache" / REJECTED / DatasetId.parse(report.dataset_id).multibase
    stamp = report.system_time.replace(":", "").replace(".", "-")
    path = folder / f"{stamp}-{report.slice[-8:]}.parquet"
    ensure_folder(folder)
    replace_file(path.with_suffix(".json"), msgspec.json.encode(report))
    with translate_os_errors(path, "the rows are not stored"):
        shutil.move(staged, path)
    evict_oldest(folder, _MAX_REJECTED * 2, _MAX_REJECTED_BYTES)
    return path


def list_rejected(odf: Path, datasets: Sequence[DatasetId]) -> list[RejectedBatch]:
    """Return the stored rejected rows of datasets, newest first for each."""
    rejected_batches: list[RejectedBatch] = []
    for dataset in datasets:
        folder = odf / "cache" / REJECTED / dataset.multibase
        for path in sorted(folder.glob("*.parquet"), reverse=True):
            with suppress(OSError, msgspec.MsgspecError):
                report = msgspec.json.decode(read_small_file(path.with_suffix(".json")), type=CheckReport)
                rejected_batches.append(
                    RejectedBatch(path, report.last_offset - report.first_offset + 1, report)
                )
    return rejected_batches


def result_json(result: RuleResult) -> dict[str, Any]:
    """Return a result for ``--json`` and the API."""
    return {
        "check": result.check,
        "rule": result.rule,
        "kind": result.kind,
        "version": result.version,
        "outcome": result.outcome,
        "on_failure": result.on_failure,
        "examined": result.examined,
        "failing": result.failing,
        "message": result.message or None,
        "sample": result.sample,
    }


def report_json(stored: StoredReport) -> dict[str, Any]:
    """Return a report for ``--json`` and the API."""
    report = stored.report
    return {
        "system_time": report.system_time,
        "first_offset": report.first_offset,
        "last_offset": report.last_offset,
        "signed": stored.signed,
        "results": [result_json(result) for result in report.results],
    }
