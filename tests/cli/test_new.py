"""`odf new --from`: manifests for the tables of a collection."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import call_odf


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty workspace with an archive of two tables."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "ws"
    folder.mkdir()
    assert call_odf("init", cwd=folder).code == 0
    with zipfile.ZipFile(folder / "feed.zip", "w") as archive:
        archive.writestr("stops.txt", "stop_id,stop_name\n1,A\n2,B\n")
        archive.writestr("routes.txt", "route_id,route_type\n10,3\n11,tram\n")
    yield folder
    call_odf("worker", "stop", cwd=folder)


def test_the_manifests_of_a_collection_are_added_together(folder: Path) -> None:
    printed = call_odf("new", "my.feed", "--from", "feed.zip", cwd=folder)
    assert printed.code == 0 and printed.out.count("\n---\n") == 1
    assert printed.err == (
        "warning: routes.txt, column 'route_type': declared as BIGINT, but has 'tram'\n"
    )  # fmt: skip
    added = call_odf("add", "-", cwd=folder, input=printed.out)
    assert added.err == "added my.feed.stops\nadded my.feed.routes\n"


def test_a_member_is_one_table_of_a_collection(folder: Path) -> None:
    printed = call_odf("new", "my.stops", "--from", "feed.zip", "--member", "stops.txt", cwd=folder)
    assert call_odf("add", "-", cwd=folder, input=printed.out).err == "added my.stops\n"
    missing = call_odf("new", "my.stops", "--from", "feed.zip", "--member", "trips.txt", cwd=folder)
    assert missing.code == 1 and "use one of stops.txt, routes.txt" in missing.err
    assert call_odf("new", "my.stops", "--push", "--member", "stops.txt", cwd=folder).code == 2
