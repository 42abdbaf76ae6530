"""odf catalog, and the catalog of a server."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest
import rdflib
from rdflib.namespace import DCAT, DCTERMS, RDF, SDO, XSD

from odf_engine.metadata.model import (
    SetInfo,
)
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Odf
from tests.cli.publication.conftest import LICENSE
from tests.sync.builders import commit
from tests.sync.in_process_server import served


def test_catalog_has_the_terms_of_dcat_and_schema_org(odf: Odf, root: DatasetEntry, tmp_path: Path) -> None:
    file = tmp_path / "catalog.jsonld"
    ran = odf("catalog", "-o", str(file), "--url", "https://data.example.com")
    assert ran.code == 0, ran.err
    graph = rdflib.Graph().parse(file, format="json-ld")
    (catalog,) = graph.subjects(RDF.type, DCAT.Catalog)
    assert str(catalog) == "https://data.example.com/catalog.jsonld"
    assert len(set(graph.objects(catalog, DCAT.dataset))) == 2
    dataset, state = rdflib.URIRef(str(root.id)), root.dataset.state()
    assert (dataset, RDF.type, SDO.Dataset) in graph
    for predicate, value in (
        (DCTERMS.identifier, str(root.id)),
        (DCTERMS.title, "City numbers"),
        (SDO.name, "City numbers"),
        (DCTERMS.description, "Numbers of cities."),
        (DCAT.keyword, "city"),
    ):
        assert [str(found) for found in graph.objects(dataset, predicate)] == [value]
    assert (dataset, DCTERMS.license, rdflib.URIRef(LICENSE.website_url)) in graph
    modified = rdflib.Literal(str(state.system_time), datatype=XSD.dateTime)
    assert (dataset, DCTERMS.modified, modified) in graph
    (period,) = graph.objects(dataset, DCTERMS.temporal)
    times = [graph.value(period, bound).toPython() for bound in (DCAT.startDate, DCAT.endDate)]
    event_times = [row.system_time for row in root.dataset.slices()]  # the rows have no other event time
    assert times == [moment.to_datetime() for moment in (event_times[0], event_times[-1])]
    (distribution,) = graph.objects(dataset, DCAT.distribution)
    assert graph.value(distribution, DCAT.byteSize).toPython() == state.data_size
    assert str(graph.value(distribution, DCAT.accessURL)) == "https://data.example.com/numbers/"
    (derived,) = graph.subjects(DCTERMS.title, rdflib.Literal("derived"))
    assert (derived, rdflib.PROV.wasDerivedFrom, dataset) in graph


def test_catalog_of_selected_datasets(odf: Odf) -> None:
    graph = rdflib.Graph().parse(data=odf("catalog", "--dataset", "der%").out, format="json-ld")
    assert [str(title) for title in graph.objects(None, SDO.alternateName)] == ["derived"]
    assert not list(graph.objects(None, rdflib.PROV.wasDerivedFrom))
    assert not list(graph.objects(None, DCAT.accessURL))
    assert odf("catalog", "--dataset", "none").code == 1
    assert odf("catalog", "--url", "data").code == 2


@pytest.mark.net
def test_server_has_a_catalog_of_the_served_datasets(root: DatasetEntry, tmp_path: Path) -> None:
    commit(root, [SetInfo("</script><script>alert(1)</script>")])
    with served(Workspace(tmp_path / "here"), patterns=("numbers",)) as running:

        def read(path: str) -> str:
            with urllib.request.urlopen(running.url + path) as answer:
                return answer.read().decode()

        graph = rdflib.Graph().parse(data=read("catalog.jsonld"), format="json-ld")
        assert list(graph.subjects(RDF.type, DCAT.Dataset)) == [rdflib.URIRef(str(root.id))]
        assert str(next(graph.objects(None, DCAT.accessURL))) == f"{running.url}numbers/"
        link = f'<link rel="alternate" type="application/ld+json" href="{running.url}catalog.jsonld">'
        assert link in read("")
        page = read("numbers/")
        assert link in page and "alert(1)</script><" not in page
        embedded = page.partition('<script type="application/ld+json">')[2].partition("</script>")[0]
        assert json.loads(embedded)["dct:description"] == "</script><script>alert(1)</script>"
