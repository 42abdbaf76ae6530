"""Settings of the workspace and of the user; settings that start programs are stored for the user only."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.base import settings
from odf_engine.worker import process as worker
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import Odf, call_odf

DANGEROUS = {
    "spark.conf.spark.plugins": ("spark:\n  conf:\n    a: b\n    spark.plugins: evil.Plugin\n", 3),
    "spark.master": ("worker: {maxJobs: 1}\nspark:\n  master: spark://evil:7077\n", 3),
    "fetch.containerRuntime": ("fetch: {containerRuntime: ./evil}\n", 1),
    "sandbox.allowWithout": ("\nsandbox:\n  minutes: 5\n  allowWithout: true\n", 4),
    "engines.spark": ("engines:\n  spark: grpc://evil:1\n", 2),
    "safeDirectories": ("safeDirectories: ['*']\n", 1),
}


@pytest.fixture(autouse=True)
def configuration(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's own configuration."""
    home = tmp_path_factory.mktemp("configuration")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    return home / "odf"


@pytest.mark.parametrize("key", DANGEROUS)
def test_a_workspace_cannot_start_programs(
    key: str, fresh: Odf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever owns it: it may have been unpacked from an archive."""
    text, line = DANGEROUS[key]
    path = tmp_path / ".odf" / "config.yaml"
    path.write_text(text)
    shown = "spark.conf.a" if key.startswith("spark.conf") else key
    for ran in (fresh("config", "list"), fresh("config", "get", key)):
        assert ran.code == 1 and f"{path}:{line}: {shown} is not read" in ran.err, ran.err
        assert f"odf config set {shown} VALUE" in ran.err
    assert worker.main([str(tmp_path)]) == 1  # and with it no Spark is started
    assert f"{shown} is not read" in capsys.readouterr().err
    assert fresh("config", "set", shown).code == 0
    if shown != key:
        assert key in fresh("config", "list").err
        assert fresh("config", "set", key).code == 0
    assert fresh("config", "list").code == 0


def test_harmless_values_stay_in_the_workspace(fresh: Odf, tmp_path: Path) -> None:
    (tmp_path / ".odf" / "config.yaml").write_text(
        "spark: {master: 'local[2]', driverMemory: 2g, conf: {}}\n"
        "fetch: {containerRuntime: podman}\nsandbox: {allowWithout: false}\nengines: {}\n"
    )
    listed = fresh("config", "list", "--json").json
    assert (listed["spark.master"], listed["fetch.containerRuntime"]) == ("local[2]", "podman")


def test_settings_that_start_programs_are_set_for_one_workspace(fresh: Odf, tmp_path: Path) -> None:
    path = tmp_path / ".odf" / "config.yaml"
    path.write_text("spark: {conf: {spark.plugins: old.Plugin}}\nworker: {maxJobs: 3}\n")
    ran = fresh("config", "set", "spark.conf.spark.plugins", "my.Plugin")
    own = settings.workspace_user_file(tmp_path / ".odf")
    assert ran.code == 0 and str(own) in ran.err
    assert fresh("config", "set", "spark.master", "spark://mine:7077").code == 0
    listed = fresh("config", "list", "--json").json
    assert listed["spark.conf.spark.plugins"] == "my.Plugin"
    assert (listed["spark.master"], listed["worker.maxJobs"]) == ("spark://mine:7077", 3)
    assert "Plugin" not in path.read_text() and "mine" not in path.read_text()
    assert str(tmp_path) in own.read_text() and own.stat().st_mode & 0o077 == 0
    other = Workspace.init(tmp_path / "other")
    assert call_odf("config", "get", "spark.master", cwd=other.folder).out == "local[*]\n"
    assert fresh("config", "set", "spark.master").code == 0
    assert fresh("config", "get", "spark.master").out == "local[*]\n"


def test_the_workspace_overrides_the_user(fresh: Odf, tmp_path: Path, configuration: Path) -> None:
    assert call_odf("config", "set", "--user", "worker.maxJobs", "4", cwd=Path("/")).code == 0
    assert call_odf("config", "set", "--user", "spark.conf.a", "1", cwd=Path("/")).code == 0
    assert (configuration / "config.yaml").is_file()
    assert fresh("config", "get", "worker.maxJobs").out == "4\n"
    assert fresh("config", "set", "worker.maxJobs", "2").code == 0  # the default, and said all the same
    assert fresh("config", "get", "worker.maxJobs").out == "2\n"
    assert fresh("config", "set", "spark.conf.b", "2").code == 0
    assert fresh("config", "list", "--json").json["spark.conf"] == {"a": "1", "b": "2"}
    assert call_odf("config", "get", "--user", "worker.maxJobs", cwd=Path("/")).out == "4\n"
    assert fresh("config", "set", "worker.maxJobs").code == 0
    assert fresh("config", "get", "worker.maxJobs").out == "4\n"
    wrong = fresh("config", "set", "safeDirectories", "/elsewhere")
    assert wrong.code == 2 and "--user" in wrong.err
