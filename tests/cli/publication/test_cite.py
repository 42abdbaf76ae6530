"""odf cite: texts, metadata, provenance."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import prov.model
from rocrate.rocrate import ROCrate

from odf_engine.workspace.dataset_summary import DatasetEntry
from tests.cli.conftest import Odf
from tests.cli.publication.conftest import LICENSE


def test_citation_names_authors_title_date_and_block(odf: Odf, root: DatasetEntry) -> None:
    head = root.dataset.head()
    ran = odf("cite", "numbers")
    assert ran.code == 0, ran.err
    apa, _, bibtex = ran.out.partition("\n\n")
    assert apa == (
        f"Doe, J. R., & Statistics & Co. (2024, May 1). City numbers (Version at block {head}) [Data set]. "
        f"{root.id}"
    )
    assert bibtex.splitlines()[1:5] == [
        r"  author = {Doe, Jane Rae and {Statistics \& Co}},",
        "  title = {{City numbers}},",
        "  year = {2024},",
        "  month = may,",
    ]
    assert odf("cite", "numbers", "--format", "apa").out == apa + "\n"
    assert odf("cite", "derived").out.startswith("derived (Version at block f1620")


def test_citation_of_a_block_and_of_a_tag(odf: Odf, root: DatasetEntry) -> None:
    third = root.dataset.block(3).hash
    cited = odf("cite", "numbers", "--at", str(third)[:16], "--json").json
    assert (cited["block"], cited["sequence_number"], cited["authors"]) == (str(third), 3, [])
    assert odf("tag", "numbers", "report-2024", "--at", "3").code == 0
    by_tag = odf("cite", "numbers@report-2024", "--json").json
    assert (by_tag["version"], by_tag["block"]) == ("report-2024", str(third))
    assert f"(Version report-2024, block {third})" in by_tag["apa"]
    assert odf("cite", "numbers", "--at", "3", "--json").json == by_tag
    assert odf("cite", "numbers", "--json").json["version"] == str(root.dataset.head())
    assert odf("cite", "numbers@report-2024", "--at", "3").code == 2
    assert odf("cite", "numbers", "--at", "none").code == 1


def test_crate_is_read_by_rocrate_and_prov(odf: Odf, root: DatasetEntry, tmp_path: Path) -> None:
    target = tmp_path / "numbers.zip"
    ran = odf("cite", "numbers", "-o", str(target))
    assert ran.code == 0, ran.err
    crate = ROCrate(target)
    described = crate.root_dataset
    assert described["name"] == "City numbers"
    assert described["description"] == "Numbers of cities."
    assert described["license"].id == LICENSE.website_url
    assert described["identifier"] == str(root.id)
    assert described["version"] == str(root.dataset.head())
    assert described["datePublished"] == str(root.dataset.state().system_time)
    assert [author["name"] for author in described["author"]] == ["Jane Rae Doe", "Statistics & Co"]
    assert {"prov.json", "manifest.yaml", "attachments/README.md"} <= {
        part.id for part in described["hasPart"]
    }
    with zipfile.ZipFile(target) as archive:
        hashes = json.loads(archive.read("version.json"))
        lineage = prov.model.ProvDocument.deserialize(content=archive.read("prov.json").decode())
        assert "pull URL --as numbers" in archive.read("README.md").decode()
    physical = [str(row.physical_hash) for row in root.dataset.slices()]
    assert [row["physicalHash"] for row in hashes["slices"]] == physical
    assert (hashes["head"], hashes["blocks"]) == (str(root.dataset.head()), root.dataset.state().blocks)
    places = {str(place) for entity in lineage.get_records(prov.model.ProvEntity)
              for place in entity.get_attribute("prov:location")}  # fmt: skip
    assert places == {"https://example.com/n.csv"}


def test_lineage_of_a_derivative_has_the_transactions_of_its_inputs(
    odf: Odf, root: DatasetEntry, tmp_path: Path
) -> None:
    assert odf("cite", "derived", "-o", str(tmp_path / "crate")).code == 0
    crate = ROCrate(tmp_path / "crate")
    (source,) = crate.root_dataset["isBasedOn"]
    assert (source["name"], source["version"]) == ("numbers", str(root.dataset.head()))
    lineage = prov.model.ProvDocument.deserialize(tmp_path / "crate" / "prov.json")
    kinds = [str(kind) for activity in lineage.get_records(prov.model.ProvActivity)
             for kind in activity.get_attribute("prov:type")]  # fmt: skip
    assert sorted(kinds) == ["odf:Ingest", "odf:Ingest", "odf:Transform"]
    used = [str(usage.args[1]) for usage in lineage.get_records(prov.model.ProvUsage)]
    assert f"block:{root.dataset.head()}" in used
    (engine,) = lineage.get_records(prov.model.ProvAgent)
    assert str(next(iter(engine.get_attribute("prov:label")))) == "spark"


def test_crate_has_the_last_verification_of_the_version(odf: Odf, tmp_path: Path) -> None:
    def read(name: str) -> Any:
        assert odf("cite", "numbers", "-o", str(tmp_path / name)).code == 0
        return json.loads((tmp_path / name / "version.json").read_text())["verification"]

    assert read("unverified") is None
    assert odf("verify", "numbers", "--integrity").code == 0
    verified = read("verified")
    assert (verified["valid"], verified["findings"]) == (True, 0)
    assert odf("tag", "numbers", "earlier", "--at", "3").code == 0
    assert odf("cite", "numbers@earlier", "-o", str(tmp_path / "earlier")).code == 0
    assert json.loads((tmp_path / "earlier" / "version.json").read_text())["verification"] is None
