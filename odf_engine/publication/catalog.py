"""Catalogs of datasets as JSON-LD, in the terms of DCAT 3 and of schema.org."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import msgspec

from odf_engine.chain.state import ChainState
from odf_engine.errors import OdfError
from odf_engine.identity.did import DatasetId
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.publication.citation import CitedVersion, cite
from odf_engine.rows.scan import Scan
from odf_engine.workspace.dataset_summary import DatasetEntry

MEDIA_TYPE: Final = "application/ld+json"
_CONTEXT: Final = {
    "dcat": "http://www.w3.org/ns/dcat#",
    "dct": "http://purl.org/dc/terms/",
    "foaf": "http://xmlns.com/foaf/0.1/",
    "prov": "http://www.w3.org/ns/prov#",
    "schema": "https://schema.org/",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
}
_PARQUET: Final = "application/vnd.apache.parquet"
_IANA: Final = "https://www.iana.org/assignments/media-types/"
_WEB_ADDRESS: Final = re.compile(r"https?://[^\s<>\"{}|\\^`\x00-\x20\x7f]{1,2000}")
_MAX_SLICES: Final = 1000
"""Maximum number of slices of a dataset whose event times are read."""
Node = dict[str, Any]


class CatalogBuilder:
    """Builds catalogs. The description of a dataset is kept until its head or its name changes."""

    def __init__(self) -> None:
        self._known: dict[DatasetId, tuple[object, Node]] = {}

    def catalog(self, entries: Sequence[DatasetEntry], base: str = "") -> bytes:
        """Return the catalog of datasets as JSON. Datasets that cannot be read are left out.

        Args:
            entries: the datasets.
            base: the address of a server or a repository with the datasets, with a slash at its end, or "".
        """
        nodes = [node for entry in entries if (node := self._describe(entry)) is not None]
        listed = {node["@id"] for node in nodes}
        datasets = [_with_address(_with_inputs(node, listed), base) for node in nodes]
        document = {
            "@context": _CONTEXT,
            "@id": f"{base}catalog.jsonld" if base else "urn:odf-workstation:catalog",
            "@type": ["dcat:Catalog", "schema:DataCatalog"],
            "dct:title": "Datasets of Open Data Fabric",
            "schema:name": "Datasets of Open Data Fabric",
            "dcat:dataset": datasets,
            "schema:dataset": [{"@id": node["@id"]} for node in nodes],
        }
        return _encode(document)

    def dataset(self, entry: DatasetEntry, base: str = "") -> bytes:
        """Return the description of one dataset as JSON, or b"" if it cannot be read."""
        node = self._describe(entry)
        if node is None:
            return b""
        return _encode({"@context": _CONTEXT, **_with_address(_with_inputs(node, ()), base)})

    def _describe(self, entry: DatasetEntry) -> Node | None:
        with suppress(OdfError):
            key = (entry.dataset.head(), str(entry.alias))
            known = self._known.get(entry.id)
            if known is None or known[0] != key:
                known = self._known[entry.id] = (key, _describe(entry))
            return known[1]
        return None


def _encode(document: Node) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def _describe(entry: DatasetEntry) -> Node:
    """Return the description of a dataset, without addresses."""
    state = entry.dataset.state()
    citation = cite(CitedVersion(entry, state, ""))
    description = (state.info and state.info.description) or f"{state.kind.value} dataset of Open Data Fabric"
    issued = entry.dataset.block(0).block.system_time
    modified = state.system_time
    node: Node = {
        "@id": citation.id,
        "@type": ["dcat:Dataset", "schema:Dataset"],
        "dct:identifier": citation.id,
        "schema:identifier": citation.id,
        "schema:alternateName": citation.name,
        "dct:bibliographicCitation": citation.apa,
        "dcat:version": citation.block,
        "schema:version": citation.block,
        **_both("dct:title", "schema:name", citation.title),
        **_both("dct:description", "schema:description", description),
        "dct:issued": _time(issued),
        "dct:modified": _time(modified),
        "schema:datePublished": str(issued),
        "schema:dateModified": str(modified),
    }
    if state.info and state.info.keywords:
        node |= _both("dcat:keyword", "schema:keywords", list(state.info.keywords))
    if state.license is not None:
        license = {
            "@id": _address(state.license.website_url) or f"{citation.id}#license",
            "@type": ["dct:LicenseDocument", "schema:CreativeWork"],
            **_both("dct:title", "schema:name", state.license.name),
        }
        node |= _both("dct:license", "schema:license", license)
    if citation.authors:
        creators = [
            {
                "@id": _address(author.url) or f"{citation.id}#author-{number}",
                "@type": ["foaf:Agent", "schema:Person" if author.family else "schema:Organization"],
                **_both("foaf:name", "schema:name", author.name),
            }
            for number, author in enumerate(citation.authors, 1)
        ]
        node |= _both("dct:creator", "schema:creator", creators)
    if inputs := [{"@id": str(dataset)} for dataset in state.inputs()]:
        node |= _both("prov:wasDerivedFrom", "schema:isBasedOn", inputs)
    return node | _describe_time(entry, state) | _describe_files(state)


def _address(text: str) -> str:
    """Return the address of a web page in third-party metadata, or "" for other texts."""
    return text if _WEB_ADDRESS.fullmatch(text) else ""


def _both(first: str, second: str, value: Any) -> Node:
    return {first: value, second: value}


def _time(moment: Timestamp) -> Node:
    return {"@type": "xsd:dateTime", "@value": str(moment)}


def _describe_time(entry: DatasetEntry, state: ChainState) -> Node:
    """Return the period of the event times. It ends with the watermark if that is later."""
    times: list[Timestamp] = []
    if entry.dataset.origin is None and 0 < state.slices <= _MAX_SLICES:
        with suppress(OdfError):  # a missing slice
            times += Scan.of_dataset(entry.dataset).event_time_range() or ()
    start = times[0] if times else None
    ends: list[Timestamp] = times[1:] + ([] if state.watermark is None else [state.watermark])
    end = max(ends, default=None)
    if start is None and end is None:
        return {}
    period = {"@type": "dct:PeriodOfTime"}
    period |= {} if start is None else {"dcat:startDate": _time(start)}
    period |= {} if end is None else {"dcat:endDate": _time(end)}
    return {"dct:temporal": period, "schema:temporalCoverage": f"{start or '..'}/{end or '..'}"}


def _describe_files(state: ChainState) -> Node:
    if not state.slices:
        return {}
    distribution = {
        "@id": f"{state.dataset_id}#data",
        "@type": ["dcat:Distribution", "schema:DataDownload"],
        "dcat:mediaType": {"@id": f"{_IANA}{_PARQUET}"},
        "schema:encodingFormat": _PARQUET,
        "dcat:byteSize": {"@type": "xsd:nonNegativeInteger", "@value": str(state.data_size)},
        "schema:contentSize": f"{state.data_size} B",
    }
    return _both("dcat:distribution", "schema:distribution", distribution)


def _with_inputs(node: Node, listed: Any) -> Node:
    """Return a description that names only the inputs that are in the catalog."""
    inputs = [item for item in node.get("schema:isBasedOn", ()) if item["@id"] in listed]
    rest = {
        key: value for key, value in node.items() if key not in ("prov:wasDerivedFrom", "schema:isBasedOn")
    }
    return rest | (_both("prov:wasDerivedFrom", "schema:isBasedOn", inputs) if inputs else {})


def _with_address(node: Node, base: str) -> Node:
    """Return a description with the address of the dataset, which is in the repository ``base``."""
    if not base:
        return node
    url = f"{base}{quote(node['schema:alternateName'])}/"
    node = node | {"dcat:landingPage": {"@id": url}, "schema:url": {"@id": url}}
    if (distribution := node.get("dcat:distribution")) is None:
        return node
    distribution = distribution | _both("dcat:accessURL", "schema:contentUrl", {"@id": url})
    return node | _both("dcat:distribution", "schema:distribution", distribution)
