"""Writes a version of a dataset as an RO-Crate: metadata, manifest, citation, lineage and hashes."""

from __future__ import annotations

import io
import shutil
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from odf_engine.base.atomic_files import atomic_file
from odf_engine.base.files import translate_os_errors
from odf_engine.base.progress import Reporter
from odf_engine.checks.reports import read_summaries
from odf_engine.data.zip_archive import ZipArchive
from odf_engine.errors import AlreadyExists, BadData, NotFound, Unsupported, UsageError
from odf_engine.identity.did import DatasetId
from odf_engine.metadata.attachments import attachment_path
from odf_engine.metadata.yaml import snapshot_to_yaml
from odf_engine.publication.citation import Author, Citation, CitedVersion, cite
from odf_engine.publication.crate_data import DATA_FOLDER, METADATA_FILE, CopiedBytes, pack_datasets
from odf_engine.publication.lineage import Upstream, find_upstream, write_prov
from odf_engine.workspace.definitions.definition import published_definition
from odf_engine.workspace.trust import list_proven_blocks
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from rocrate.rocrate import ROCrate

_PROFILE_VERSION: Final = "1.1"
_JSON: Final = "application/json"


class CrateResult(msgspec.Struct, frozen=True):
    """A crate that was written.

    Attributes:
        path: the file or the folder.
        citation: the citation of the version.
        datasets: names of the datasets whose data are in the crate.
        missing: ids of upstream datasets that are not in the workspace.
    """

    path: str
    citation: Citation
    datasets: list[str]
    missing: list[str]


def write_crate(
    workspace: Workspace,
    version: CitedVersion,
    target: Path,
    reporter: Reporter,
    *,
    with_data: bool = False,
    verification: Mapping[str, Any] | None = None,
) -> CrateResult:
    """Write a version of a dataset to a crate.

    Args:
        workspace: the workspace.
        version: the version.
        target: a ``.zip`` file, which is replaced; or a new or empty folder.
        reporter: receives the progress.
        with_data: whether the blocks and data of the dataset, and of everything upstream, are included.
        verification: the result of the last verification of the version, if there was one.

    Raises:
        Unsupported: the optional packages are not installed.
        AlreadyExists: the folder is not empty.
        NotFound: data or an upstream dataset are missing, with ``with_data``.
        OdfError: the crate cannot be written.
        Cancelled: the operation was cancelled.
    """
    _require_packages()
    upstream = find_upstream(workspace, version, reporter)
    if with_data and upstream.missing:
        raise _missing_input(workspace, version.name, upstream.missing[0])
    packed = [*upstream.versions.values(), version.entry] if with_data else []
    with _new_folder(target, reporter) as folder:
        pack_datasets(packed, folder, reporter)
        files = _Crate(workspace, version, upstream, verification, is_packed=with_data)
        files.build(reporter).write(folder)
    names = [str(entry.alias) for entry in packed]
    return CrateResult(str(target), files.citation, names, list(map(str, upstream.missing)))


def _missing_input(workspace: Workspace, name: str, dataset: DatasetId) -> NotFound:
    problem = f"{name} cannot be packed with its data"
    for entry in workspace.datasets():
        if entry.id == dataset:
            return NotFound(
                f"{problem}: input {entry.alias} lacks the version that was read: it is older, or was reset",
                hint=f"run odf pull {entry.alias}; if it was reset, omit --with-data, or rebuild {name}",
            )
    return NotFound(
        f"{problem}: the version of input {dataset} that was read is not in the workspace",
        hint=f"pull the inputs with odf pull -r {name}, or omit --with-data",
    )


def _require_packages() -> None:
    from importlib.util import find_spec  # deferred: only crates require it

    if find_spec("rocrate") is None or find_spec("prov") is None:
        raise Unsupported(
            "crates require the packages rocrate and prov, which are not installed",
            hint="install them: pip install 'odf-workstation[publication]'",
        )


@contextmanager
def _new_folder(target: Path, reporter: Reporter) -> Iterator[Path]:
    """Yield a temporary folder beside the target, and move or zip it to the target at the end."""
    is_zip = target.suffix.lower() == ".zip"
    if is_zip and target.is_dir():
        raise UsageError(f"{target} is a folder", hint="choose another name")
    with translate_os_errors(target):
        if not is_zip and target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise AlreadyExists(f"{target} already exists", hint="choose a new folder")
        folder = target.parent / f".{target.name}-{uuid.uuid4().hex}"
        folder.mkdir()
        try:
            yield folder
            if is_zip:
                with atomic_file(target, 0o666) as temporary:
                    _zip_folder(folder, temporary, reporter)
            else:
                folder.replace(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _zip_folder(folder: Path, target: Path, reporter: Reporter) -> None:
    """Write a folder to an archive. Data are stored as they are: Parquet files are compressed."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    reporter.phase("archive")
    copied = CopiedBytes(reporter, sum(path.stat().st_size for path in paths))
    with zipfile.ZipFile(target, "w") as archive:
        for path in paths:
            entry = zipfile.ZipInfo.from_file(path, path.relative_to(folder))
            is_data = entry.filename.startswith(f"{DATA_FOLDER}/")
            entry.compress_type = zipfile.ZIP_STORED if is_data else zipfile.ZIP_DEFLATED
            with path.open("rb") as source, archive.open(entry, "w") as file:
                copied.copy(source, file)
    try:
        ZipArchive(target).close()
    except BadData:
        raise UsageError(
            "the crate has too many files for a zip archive", hint="write a folder: -o FOLDER"
        ) from None


class _Crate:
    """Builds the files and the metadata of a crate."""

    def __init__(
        self,
        workspace: Workspace,
        version: CitedVersion,
        upstream: Upstream,
        verification: Mapping[str, Any] | None,
        *,
        is_packed: bool,
    ) -> None:
        self._workspace, self._version, self._upstream = workspace, version, upstream
        self._verification, self._is_packed = verification, is_packed
        self.citation = cite(version)
        self._names = {entry.id: str(entry.alias) for entry in workspace.datasets()}

    def build(self, reporter: Reporter) -> ROCrate:
        """Return the crate; :meth:`ROCrate.write` writes its files."""
        from rocrate.rocrate import ROCrate  # an optional package

        crate = ROCrate(version=_PROFILE_VERSION)
        self._describe_root(crate)
        self._add_files(crate, reporter)
        self._add_upstream(crate)
        if self._is_packed:
            self._add_packed(crate)
        return crate

    def _describe_root(self, crate: ROCrate) -> None:
        citation, state = self.citation, self._version.state
        root = crate.root_dataset
        root["name"] = citation.title
        description = state.info.description if state.info else None
        root["description"] = description or f"{state.kind.value} dataset of Open Data Fabric"
        if state.info and state.info.keywords:
            root["keywords"] = list(state.info.keywords)
        root["version"] = citation.version
        root["datePublished"] = citation.published
        root["creativeWorkStatus"] = "Published"
        root["identifier"] = citation.id
        root["citation"] = citation.apa
        if authors := [self._add_author(crate, author) for author in citation.authors]:
            root["author"] = authors
        if state.license is not None:
            root["license"] = self._add_license(crate)
        facts = {
            "head": citation.block,
            "blocks": state.blocks,
            "rows": state.records,
            "bytes": state.data_size,
            "watermark": None if state.watermark is None else str(state.watermark),
        }
        root["additionalProperty"] = [
            self._add_context(crate, f"#{name}", {"@type": "PropertyValue", "name": name, "value": value})
            for name, value in facts.items()
            if value is not None
        ]

    def _add_context(self, crate: ROCrate, identifier: str, properties: Mapping[str, Any]) -> Any:
        from rocrate.model import ContextEntity

        return crate.add(ContextEntity(crate, identifier, properties=dict(properties)))

    def _add_author(self, crate: ROCrate, author: Author) -> Any:
        identifier = author.url or f"#author-{self.citation.authors.index(author) + 1}"
        properties = {"@type": "Person" if author.family else "Organization", "name": author.name}
        if author.family and author.given:
            properties |= {"familyName": author.family, "givenName": author.given}
        return self._add_context(crate, identifier, properties)

    def _add_license(self, crate: ROCrate) -> Any:
        license = self._version.state.license
        assert license is not None
        is_url = license.website_url.startswith(("https://", "http://"))
        properties = {"@type": "CreativeWork", "name": license.name, "alternateName": license.short_name}
        if license.spdx_id:
            properties["identifier"] = f"https://spdx.org/licenses/{license.spdx_id}"
        return self._add_context(crate, license.website_url if is_url else "#license", properties)

    def _add_files(self, crate: ROCrate, reporter: Reporter) -> None:
        definition = published_definition(self._version.entry, self._workspace.datasets())
        prov = write_prov(self._version, self._upstream, reporter)
        files = {
            "README.md": (self._readme(), "text/markdown", "How to verify the dataset"),
            "citation.bib": (self.citation.bibtex + "\n", "application/x-bibtex", "The citation in BibTeX"),
            "manifest.yaml": (
                snapshot_to_yaml(definition),
                "application/yaml",
                "The definition of the dataset",
            ),
            "version.json": (self._hashes(), _JSON, "The hashes of the version"),
            "prov.json": (prov, _JSON, "The lineage in PROV-JSON"),
        }
        for path, (text, media_type, title) in files.items():
            properties = {"name": title, "encodingFormat": media_type}
            crate.add_file(io.StringIO(text), path, properties=properties)
        attachments = self._version.state.attachments
        for item in attachments.items if attachments is not None else ():
            path = f"attachments/{attachment_path(item)}"
            crate.add_file(io.StringIO(item.content), path, properties={"name": item.path})

    def _hashes(self) -> str:
        """Return the hashes of the version, and what is known about its checks, as JSON."""
        entry, state = self._version.entry, self._version.state
        slices = [
            {
                "block": row.sequence_number,
                "systemTime": str(row.system_time),
                "firstOffset": row.start,
                "lastOffset": row.end,
                "size": row.size,
                "logicalHash": str(row.logical_hash),
                "physicalHash": str(row.physical_hash),
            }
            for row in entry.dataset.slices()
        ]
        proven = next(iter(list_proven_blocks(entry)), None)
        document = {
            "dataset": str(state.dataset_id),
            "name": self._version.name,
            "kind": state.kind.value,
            "head": str(state.head),
            "tag": self._version.tag or None,
            "blocks": state.blocks,
            "rows": state.records,
            "slices": slices,
            "checks": {
                str(block): text
                for block, text in read_summaries(
                    entry.dataset.folder, entry.id, entry.dataset.slices()
                ).items()
            },
            "proof": proven and {"block": str(proven.hash), "actor": proven.actor or None},
            "verification": self._verification,
        }
        return msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"

    def _add_upstream(self, crate: ROCrate) -> None:
        """Add the inputs of the dataset, as far as they are known."""
        inputs: Sequence[Any] = self._version.state.inputs()
        entities = []
        for dataset in inputs:
            entry = self._upstream.versions.get(dataset)
            properties = {"@type": "CreativeWork", "name": self._names.get(dataset, str(dataset))}
            if entry is not None:
                properties["version"] = str(entry.dataset.head())
            entities.append(self._add_context(crate, str(dataset), properties))
        if entities:
            crate.root_dataset["isBasedOn"] = entities

    def _add_packed(self, crate: ROCrate) -> None:
        """Add the folders of the data. A pull reads their names, ids and heads."""
        for entry in (*self._upstream.versions.values(), self._version.entry):
            properties = {
                "name": str(entry.alias),
                "identifier": str(entry.id),
                "version": str(entry.dataset.head()),
            }
            packed = crate.add_dataset(dest_path=f"{DATA_FOLDER}/{entry.alias}/", properties=properties)
            if entry.id == self._version.entry.id:
                crate.root_dataset["mainEntity"] = packed

    def _readme(self) -> str:
        citation, name = self.citation, self._version.name
        text = f"# {citation.title}\n\n{citation.apa}\n\n"
        if self._is_packed:
            return text + (
                "The folder `odf/` has all blocks and data of the dataset and of everything that it is\n"
                "derived from. To verify them without a network connection:\n\n"
                f"```sh\nodf init\nodf pull CRATE.zip\nodf verify -r {name}\n```\n\n"
                f"`odf log {name} -n 1` shows the newest block, {citation.block}.\n"
            )
        return text + (
            f"`{METADATA_FILE}` describes the dataset, `prov.json` its lineage, `version.json` the hashes.\n"
            "The crate has no data. To verify the data, pull the dataset from its publisher:\n\n"
            f"```sh\nodf init\nodf pull URL --as {name}\nodf verify -r {name}\n"
            f"odf log {name} --as-at {citation.block} -n 1\n```\n"
        )
