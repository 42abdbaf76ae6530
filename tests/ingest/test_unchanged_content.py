"""Pulls of equal content and of rows that repeat; pulls with inferred manifests of messy files."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.ingest.inference.file_inference import FileChoices
from odf_engine.ingest.inference.file_manifest import manifest_text
from odf_engine.ingest.inference.file_sample import infer_file, load_sample
from odf_engine.metadata.yaml import read_manifests
from tests.ingest.conftest import WebServer, reply
from tests.ingest.pulling import Pulled

SOURCE = """
fetch: {kind: Url, url: "file:rows.csv"}
read: {kind: Csv, header: true, schema: ["id BIGINT", "price DOUBLE"]}
merge: {kind: Append}
"""
ROWS = "id,price\n1,1.5\n2,\n"


def test_equal_content_with_another_time_is_appended(pulled: Pulled) -> None:
    path = pulled.write("rows.csv", ROWS)
    pulled.add(SOURCE)
    assert pulled.pull().records == 2
    assert pulled.pull().status == "up-to-date"
    os.utime(path, (1_000_000_000, 1_000_000_000))
    update = pulled.pull()
    assert (update.records, update.repeated) == (2, 2)
    assert any("all 2 rows repeat earlier rows" in text for text in pulled.reporter.warnings)
    assert pulled.newest().new_source_state.value.startswith("2001-09-09")  # type: ignore[union-attr]
    assert pulled.pull().status == "up-to-date"

    pulled.write("rows.csv", ROWS + "3,2.5\n")
    update = pulled.pull()
    assert (update.records, update.repeated) == (3, 0)
    pulled.write("rows.csv", ROWS)  # earlier content is new content
    assert pulled.pull().repeated == 2
    assert pulled.pull(force=True).records == 2


@pytest.mark.net
def test_equal_content_with_another_etag_is_appended(pulled: Pulled, web: WebServer) -> None:
    pulled.add(SOURCE.replace("file:rows.csv", f"{web.url}/rows.csv"))
    web.answer = lambda request: reply(request, 200, ROWS.encode(), ETag='"one"')
    assert pulled.pull().records == 2
    assert pulled.pull().status == "up-to-date"  # an equal ETag, although the server does not answer 304
    web.answer = lambda request: reply(request, 200, ROWS.encode(), ETag='"two"')
    assert pulled.pull().records == 2


def test_equal_content_is_no_change_of_a_ledger(pulled: Pulled) -> None:
    path = pulled.write("rows.csv", ROWS)
    pulled.add(SOURCE.replace("{kind: Append}", "{kind: Ledger, primaryKey: [id]}"))
    assert pulled.pull().records == 2
    os.utime(path, (1_000_000_000, 1_000_000_000))
    update = pulled.pull()
    assert (update.records, update.blocks) == (0, 1)  # the state of the source
    assert pulled.pull().status == "up-to-date"


MESSY = """\
Datum;Zeit;Name;Betrag;Menge;Stand;ts
31/01/2024;31.01.2024 10:00;a;1.234,50;1 000,5;n/a;1700000000
01/02/2024;01.02.2024 23:30;b;-7,25;22 000;2024-02-03;1700000060
02/02/2024;02.02.2024 00:00;c;;3;-;1700000120
"""


def test_a_messy_file_is_pulled_with_its_inferred_manifest(pulled: Pulled) -> None:
    pulled.write("messy.csv", MESSY.encode("latin-1"))
    reporter = Reporter()
    sample = load_sample("messy.csv", pulled.workspace.folder, reporter)
    found = infer_file(sample, FileChoices(time="Zeit"), reporter)
    assert (found.key, found.merge) == (("Datum",), "Ledger")
    text = manifest_text("messy.csv", "messy", found)
    (pulled.entry,) = pulled.workspace.add(read_manifests(text, "messy.yaml"))
    assert pulled.pull().records == 3
    assert pulled.rows("event_time", "Datum", "Name", "Betrag", "Menge", "Stand", "ts") == [
        (datetime(2024, 1, 31, 10, tzinfo=UTC), date(2024, 1, 31), "a", 1234.5, 1000.5, None,
         datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (datetime(2024, 2, 1, 23, 30, tzinfo=UTC), date(2024, 2, 1), "b", -7.25, 22000.0, date(2024, 2, 3),
         datetime(2023, 11, 14, 22, 14, 20, tzinfo=UTC)),
        (datetime(2024, 2, 2, tzinfo=UTC), date(2024, 2, 2), "c", None, 3.0, None,
         datetime(2023, 11, 14, 22, 15, 20, tzinfo=UTC)),
    ]  # fmt: skip
    pulled.write("messy.csv", (MESSY + "03/02/2024;03.02.2024 00:00;d;1;1;-;1700000180\n").encode("latin-1"))
    assert pulled.pull().records == 1  # the key of the inferred ledger


PUBLISHED = """\
Statistics of the regions;;;
Published: 1 March 2024;;;

;;Cases;;Deaths;
Region;Date;new;total;new;total
;;(n);(n);(n);(n)
Göttingen;31/01/2024;5;1.005;1;11
Lüneburg;01/02/2024;7;1.012;0;11

Source: the register of the regions
"""


def test_a_published_file_is_pulled_with_its_inferred_manifest(pulled: Pulled) -> None:
    pulled.write("published.csv", PUBLISHED.encode("latin-1"))
    reporter = Reporter()
    sample = load_sample("published.csv", pulled.workspace.folder, reporter)
    text = manifest_text("published.csv", "published", infer_file(sample, FileChoices(), reporter))
    options = '"--encoding", "ISO-8859-1", "--separator", ";", "--skip", "3", "--header-rows", "3"'
    assert f'- kind: Pipe\n          command: [odf, filter, "csv", {options}, "--stop-at-blank"]\n' in text
    assert "header: true\n        dateFormat:" in text
    assert "# The header is in lines 4 to 6." in text
    (pulled.entry,) = pulled.workspace.add(read_manifests(text, "published.yaml"))
    assert pulled.pull().records == 2
    assert pulled.rows("Region", "Date", "Cases new (n)", "Cases total (n)", "Deaths total (n)") == [
        ("Göttingen", date(2024, 1, 31), 5, 1005, 11),
        ("Lüneburg", date(2024, 2, 1), 7, 1012, 11),
    ]
