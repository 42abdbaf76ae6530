"""Adding manifests, and finding with few letters."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_tui.features.definitions.manifest_dialogs import AddManifestDialog, find_manifest_files
from odf_tui.text.highlight import yaml_spans
from odf_tui.widgets.choice_list import fuzzy_rank, fuzzy_score
from tests.tui.conftest import driven
from tests.tui.fake import FakeSource


@pytest.mark.app
async def test_adding_the_manifest_of_a_file(source: FakeSource) -> None:
    folder = source.folder / "manifests"
    (folder / "bad.yaml").write_text("kind: DatasetSnapshot\ncontent:\n    mrge: Append\n")
    (folder / "boats.yaml").write_text("kind: DatasetSnapshot\n")
    (source.folder / "notes.txt").write_text("no manifest\n")
    async with driven(source) as drive:
        await drive.press("A")
        assert "manifests/boats.yaml" in drive.text()
        assert "notes.txt" not in drive.text()
        # What is wrong in it is shown where it is.
        await drive.press("=manifests/bad.yaml", "enter")
        text = drive.text()
        assert "unknown field 'mrge'" in text
        assert "bad.yaml:3:5" in text
        assert "did you mean 'merge'?" in text
        lines = text.splitlines()
        at = next(index for index, line in enumerate(lines) if "mrge: Append" in line)
        assert lines[at + 1].index("^") == lines[at].index("mrge")
        await drive.press("backspace")
        assert "unknown field" not in drive.text()
        await drive.press("=nowhere.yaml", "enter")
        assert "there is no such file" in drive.text()
        await drive.press("escape")
        assert drive.app.screen is drive.bench
        # Some letters are enough; tab takes the file from the list.
        await drive.press("A", "=boa", "tab")
        assert "manifests/boats.yaml" in drive.text()
        await drive.press("enter")
        assert not isinstance(drive.app.screen, AddManifestDialog)
        await drive.until(lambda: drive.graph.row and drive.graph.row.name == "boats")
        assert "added boats: p pulls" in drive.hint()
        source.rows_.pop()
        await drive.press("a", "m", *"boat", "enter")
        await drive.until(lambda: drive.graph.row and drive.graph.row.name == "boats")


def test_manifest_files_leave_out_what_is_hidden_and_deep(tmp_path: Path) -> None:
    for name in ("a.yaml", "m/b.yml", "m/c.txt", ".odf/config.yaml", "1/2/3/4/5/deep.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [str(path) for path in find_manifest_files(tmp_path)] == ["a.yaml", "m/b.yml"]


def test_scores_prefer_whole_parts_and_beginnings() -> None:
    names = ["weather.hourly", "covid.weather", "where", "a-we-b"]
    assert fuzzy_rank("weather", ((name, name) for name in names)) == ["weather.hourly", "covid.weather"]
    assert fuzzy_rank("we", ((name, name) for name in names))[0] == "weather.hourly"
    assert fuzzy_rank("", ((name, name) for name in names)) == names
    assert fuzzy_score("xyz", "weather") is None
    assert fuzzy_score("cw", "covid.weather") is not None


def test_yaml_shows_keys_and_nothing_that_drives_the_terminal() -> None:
    lines = yaml_spans("# a block\nkey: value\n  - kind: \x1b[31mred\n    |\n")
    assert lines[0] == [("# a block", "muted")]
    assert lines[1] == [("", ""), ("key:", "name"), (" value", "")]
    assert lines[2] == [("  - ", ""), ("kind:", "name"), (" ␛[31mred", "")]
