"""Settings: read, changed, written; every mistake says what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from odf_engine.base.config import Config
from odf_engine.base.settings import get_value, list_settings, load_config, render, save, set_value
from odf_engine.errors import InvalidManifest, UsageError


def test_a_missing_file_means_all_defaults(tmp_path: Path) -> None:
    config = load_config(tmp_path / "config.yaml")
    assert config == Config()
    assert (config.block_version, config.spark.master, config.worker.max_jobs) == (3, "local[*]", 2)


def test_a_written_file_reads_back_and_shows_defaults_as_comments(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    config = set_value(Config(), "spark.driverMemory", "4g")
    config = set_value(config, "spark.conf.spark.sql.shuffle.partitions", "8")
    save(config, path)
    assert load_config(path) == config
    text = path.read_text()
    assert '\n  driverMemory: "4g"  # ' in text
    assert '\n  # master: "local[*]"  # ' in text
    assert "\n# blockVersion: 3  # " in text
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.yaml"]


def test_the_comments_of_the_default_file_are_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(render(Config()))
    assert load_config(path) == Config()
    lines = render(Config()).splitlines()
    settings = [line.replace("# ", "", 1) for line in lines if ": " in line and "  # " in line]
    groups = [line for line in lines if line.endswith(":")]
    assert len(settings) == len(list_settings(Config()))
    ordered = [line for line in (raw.replace("# ", "", 1) for raw in lines) if line in (*settings, *groups)]
    path.write_text("\n".join(ordered))
    assert load_config(path) == Config()


def test_values_are_found_and_changed_by_dotted_keys() -> None:
    config = set_value(Config(), "worker.idleMinutes", "0.5")
    assert get_value(config, "worker.idleMinutes") == 0.5
    config = set_value(config, "spark.conf.spark.ui.enabled", "true")
    assert get_value(config, "spark.conf.spark.ui.enabled") == "true"
    assert get_value(set_value(config, "worker.idleMinutes", None), "worker.idleMinutes") == 30
    assert get_value(set_value(config, "spark.conf.spark.ui.enabled", None), "spark.conf") == {}


def test_the_list_has_every_setting_with_its_meaning() -> None:
    config = set_value(Config(), "spark.conf.a.b", "1")
    listed = {setting.key: setting for setting in list_settings(config)}
    assert listed["blockVersion"].value == 3 and listed["spark.conf.a.b"].value == "1"
    assert all(setting.description for key, setting in listed.items() if key != "spark.conf.a.b")
    assert listed["ui.theme"].default == "auto"


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("blockVersion", "1", ">= 2"),
        ("worker.maxJobs", "many", "int"),
        ("spark.driverMemory", "lots", "match"),
        ("spark.conf", "x", "mapping"),
        ("ui.timezone", "Mars/Base", "unknown time zone"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(key: str, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        set_value(Config(), key, text)
    assert key in str(caught.value) and said in str(caught.value)


def test_unknown_key_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        get_value(Config(), "spark.drivermemory")
    assert caught.value.hint == "did you mean 'spark.driverMemory'?"
    with pytest.raises(UsageError, match="is not set"):
        get_value(Config(), "spark.conf.nothing")


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("spark:\n  masterr: x\n", "spark.masterr", "spark.master"),
        ("blokVersion: 2\n", "blokVersion", "blockVersion"),
        ("blockVersion: [\n", "not valid YAML", None),
        ("blockVersion: two\n", "blockVersion", None),
        ("spark: 3\n", "spark", None),
        ("- a\n", "mapping", None),
        pytest.param("spark: " + "[" * 5000, "nested too deeply", None, id="deep"),
        ("blockVersion: 2024-99-99\n", "not valid YAML", None),
        pytest.param("blockVersion: " + "9" * 5000, "not valid YAML", None, id="digits"),
        ('spark:\n  master: "\\ud800"\n', "not Unicode text: '\\ud800'", None),
    ],
)
def test_invalid_file_is_reported_with_its_path_and_mistake(
    tmp_path: Path, text: str, said: str, hint: str | None
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InvalidManifest) as caught:
        load_config(path)
    assert str(path) in str(caught.value) and said in str(caught.value)
    assert hint is None or (caught.value.hint is not None and hint in caught.value.hint)


def test_a_group_with_only_comments_is_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("spark:\n  # master: x\nblockVersion: 2\n")
    assert load_config(path) == Config(block_version=2)


def test_variables_are_allowed_by_name_or_id_of_a_dataset(tmp_path: Path) -> None:
    config = set_value(Config(), "allowedEnv.com.example", "TOKEN, KEY")
    config = set_value(config, "allowedEnv.did:odf:fed01", '["ID"]')
    config = set_value(config, "allowedEnv.other", "OTHER")
    save(config, tmp_path / "config.yaml")
    config = load_config(tmp_path / "config.yaml")
    assert config.allowed_for("Com.Example", "did:odf:fed01") == ["TOKEN", "KEY", "ID"]
    assert config.allowed_for("com") == []
    assert get_value(config, "allowedEnv.com.example") == ["TOKEN", "KEY"]
    assert set_value(config, "allowedEnv.com.example", None).allowed_for("com.example") == []
    for text in ("NOT-A-NAME", "[1", "[1]", "A=B"):
        with pytest.raises(UsageError):
            set_value(config, "allowedEnv.x", text)


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.symlink_to(path)
    with pytest.raises(InvalidManifest, match="the settings cannot be read"):
        load_config(path)


def test_watermark_settings_match_dataset_patterns() -> None:
    config = set_value(Config(), "watermark.maxAhead.%", "1h")
    config = set_value(config, "watermark.maxAhead.port.%", "2d")
    config = set_value(config, "watermark.maxAhead.port.forecast", "none")
    of = config.watermark.max_ahead_of
    assert [of("x", "did:odf:1"), of("Port.waves", ""), of("PORT.forecast", "")] == [3600, 2 * 86_400, None]
    assert Config().watermark.max_ahead_of("x") == Config().watermark.delay_of("x") == 0
    assert set_value(Config(), "watermark.delay.did:odf:1", "5m").watermark.delay_of("x", "did:odf:1") == 300
    config = set_value(set_value(Config(), "watermark.static.%", "true"), "watermark.static.live", "false")
    assert [config.watermark.is_static(name) for name in ("x", "Live")] == [True, False]
    assert not config.watermark.lists_as_static("x") and not Config().watermark.is_static("x")
    for key, text in (("maxAhead", "1 hour"), ("delay", "none"), ("delay", "-1d")):
        with pytest.raises(UsageError, match="not a duration such as 0s, 30m, 12h or 1d"):
            set_value(Config(), f"watermark.{key}.x", text)
