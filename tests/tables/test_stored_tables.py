"""Tables whose metadata are in the store of a workspace, as programs on other machines read them."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from odf_engine.base.progress import Reporter
from odf_engine.chain.compaction import CompactionPolicy, compact
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import SourceUnavailable, Unsupported
from odf_engine.mirror.heads_list import finish_all
from odf_engine.tables import TABLE_FORMATS, TableFormat
from odf_engine.tables.dataset_tables import outdated_tables, update_tables, write_table
from odf_engine.workspace.fsck import check_workspace, collect_garbage
from odf_engine.workspace.workspace import Workspace
from tests.cli.conftest import call_odf
from tests.cloud_stub import cloud_stub
from tests.s3_server import S3Server, refuse
from tests.sync.builders import add_blocks, add_slices, make_root
from tests.tables.conftest import as_values, opened

FOLDERS = {"delta": "_delta_log/", "iceberg": "iceberg/metadata/"}


@pytest.fixture
def stored(tmp_path: Path, s3: S3Server) -> Workspace:
    return Workspace.init(tmp_path / "a", f"s3+{s3.endpoint}/bucket/some/prefix")


def other_machine(workspace: Workspace, tmp_path: Path) -> Workspace:
    assert workspace.store is not None
    finish_all()
    return Workspace.init(tmp_path / "b", workspace.store.url)


def write(dataset: Dataset, format: TableFormat) -> None:
    write_table(dataset, format, lambda done, total: None)


def update(dataset: Dataset, format: TableFormat) -> None:
    update_tables(dataset)


def check(dataset: Dataset, format: TableFormat) -> None:
    assert outdated_tables(dataset) == []


def read_delta(s3: S3Server, url: str, version: int | None = None) -> list[str]:
    table = open_delta(s3, url, version)
    return as_values(table.to_pyarrow_table())


def open_delta(s3: S3Server, url: str, version: int | None = None) -> DeltaTable:
    options = {
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
    }
    return DeltaTable(url, version=version, storage_options=options)


def open_iceberg(s3: S3Server, url: str) -> StaticTable:
    properties = {
        "s3.endpoint": s3.endpoint,
        "s3.region": "us-east-1",
        "s3.access-key-id": "a",
        "s3.secret-access-key": "b",
    }
    return StaticTable.from_metadata(url, properties)


def check_tables(workspace: Workspace, s3: S3Server) -> None:
    """Compare the rows of the newest versions of both tables with the rows of the dataset."""
    dataset = opened(workspace)
    expected = as_values(dataset.scan().to_arrow())
    delta = open_delta(s3, dataset.table_path("delta"))
    assert delta.version() == len(dataset.list_blocks()) - 1
    assert as_values(delta.to_pyarrow_table()) == expected
    iceberg = open_iceberg(s3, dataset.table_path("iceberg"))
    assert as_values(iceberg.scan().to_arrow()) == expected
    assert iceberg.metadata.properties["odf.head"] == dataset.head


def metadata_names(s3: S3Server, format: str) -> list[str]:
    return sorted(path for path in s3.objects if f"/{FOLDERS[format]}" in path)


def test_other_programs_read_the_tables_in_the_store(s3: S3Server, stored: Workspace, tmp_path: Path) -> None:
    entry = make_root(stored, slices=2, blocks=1)
    add_slices(entry, 2)
    machine = other_machine(stored, tmp_path)  # it fetches no slice that it only describes
    dataset = opened(machine)
    delta, iceberg = dataset.write_table("delta"), dataset.write_table("iceberg")
    assert delta.path == f"s3://bucket/some/prefix/{entry.id.multibase}"
    assert iceberg.path == f"{delta.path}/iceberg"
    check_tables(machine, s3)
    table = open_iceberg(s3, iceberg.path)
    assert [item.snapshot_id for item in table.snapshots()] == [2, 3, 5, 6]
    for number in range(delta.version + 1):
        expected = dataset.scan(as_at=number).to_arrow() if number > 1 else None
        rows = [] if expected is None else as_values(expected)
        assert read_delta(s3, delta.path, number) == rows
        if table.snapshot_by_id(number) is not None:
            assert as_values(table.scan(snapshot_id=number).to_arrow()) == rows


def test_commits_and_resets_keep_the_tables_current(s3: S3Server, stored: Workspace) -> None:
    entry = make_root(stored, slices=2)
    for format in TABLE_FORMATS:
        opened(stored).write_table(format)
    add_slices(entry, 2)
    add_blocks(entry, 1)
    check_tables(stored, s3)
    dataset = opened(stored)
    dataset.reset(dataset.version("3"))
    check_tables(stored, s3)
    add_slices(entry, city="Chur")
    check_tables(stored, s3)


def test_commits_without_a_table_send_no_more_requests(s3: S3Server, stored: Workspace) -> None:
    entry = make_root(stored, slices=1)
    s3.forget()
    add_slices(entry)
    finish_all()
    without = requests(s3)
    assert [command for command, _ in without][:3] == ["PUT"] * 3
    assert not [path for _, path in without if "_delta_log" in path or "iceberg" in path]
    opened(stored).write_table("delta")
    finish_all()
    s3.forget()
    add_slices(entry)
    finish_all()
    log = [(command, path.rpartition("/")[2]) for command, path in requests(s3) if "_delta_log" in path]
    assert [command for command, _ in log] == ["GET", "GET", "GET", "PUT"]  # version 0, list, last version
    assert log[-1][1] == f"{4:020}.json"


def requests(s3: S3Server) -> list[tuple[str, str]]:
    return [(request.command, unquote(request.path)) for request in s3.forget()]


def test_an_unchanged_table_is_not_written_again(s3: S3Server, stored: Workspace) -> None:
    make_root(stored, slices=2)
    for format in TABLE_FORMATS:
        written = opened(stored).write_table(format)
        s3.forget()
        assert opened(stored).write_table(format) == written
        names = [path for command, path in requests(s3) if command == "PUT"]
        assert [
            path for path in names if FOLDERS[format] in path and "v" not in path.rpartition("/")[2]
        ] == []


@pytest.mark.parametrize("format", TABLE_FORMATS)
def test_a_removed_table_is_removed_for_all_machines(
    s3: S3Server, stored: Workspace, tmp_path: Path, format: TableFormat
) -> None:
    here = make_root(stored, slices=2)
    assert not opened(stored).remove_table(format)
    opened(stored).write_table(format)
    machine = other_machine(stored, tmp_path)
    assert metadata_names(s3, format)
    assert opened(machine).remove_table(format)  # the other machine has not written it
    assert metadata_names(s3, format) == []
    assert not opened(machine).remove_table(format)
    assert kinds(stored) == []
    add_slices(here)
    assert metadata_names(s3, format) == []


@pytest.mark.parametrize("late", [write, update, check])
@pytest.mark.parametrize("format", TABLE_FORMATS)
def test_late_change_keeps_the_newer_version_of_another_machine(
    s3: S3Server,
    stored: Workspace,
    tmp_path: Path,
    format: TableFormat,
    late: Callable[[Dataset, TableFormat], None],
) -> None:
    here = make_root(stored, slices=2)
    machine = other_machine(stored, tmp_path)
    opened(stored).write_table(format)
    opened(machine).write_table(format)
    add_slices(machine.resolve("numbers"))
    finish_all()
    newest = metadata_names(s3, format)
    late(here.dataset, format)  # which has not seen the commit
    assert set(newest) <= set(metadata_names(s3, format))
    opened(machine).write_table(format)
    assert kinds(machine) == []


@pytest.mark.parametrize(
    ("format", "pattern"),
    [
        ("delta", "00000000000000000002.json"),
        ("delta", "00000000000000000000.json"),
        ("iceberg", "version-hint.text"),
        ("iceberg", ".metadata.json"),
        ("iceberg", ".avro"),
    ],
)
@pytest.mark.parametrize("is_deleted", [True, False])
def test_fsck_repairs_damaged_metadata(
    s3: S3Server, stored: Workspace, format: TableFormat, pattern: str, is_deleted: bool
) -> None:
    make_root(stored, slices=3)
    for name in TABLE_FORMATS:
        opened(stored).write_table(name)
    assert kinds(stored) == []
    name = next(name for name in metadata_names(s3, format) if name.endswith(pattern))
    if is_deleted:
        del s3.objects[name]
    else:
        s3.objects[name] = b"damaged"
    assert kinds(stored) == ["table-outdated"]
    assert kinds(stored, repair=True) == []
    assert kinds(stored) == []
    check_tables(stored, s3)


def kinds(workspace: Workspace, *, repair: bool = False) -> list[str]:
    report = check_workspace(workspace, Reporter(), repair=repair)
    return sorted(finding.kind for finding in report.left)


def test_a_failed_update_is_logged_and_made_up_for(
    s3: S3Server, stored: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    entry = make_root(stored, slices=1)
    for format in TABLE_FORMATS:
        opened(stored).write_table(format)

    def refuse_metadata(request: BaseHTTPRequestHandler) -> bool:
        is_metadata = any(f"/{folder}" in request.path for folder in FOLDERS.values())
        return request.command == "PUT" and is_metadata and refuse(request, 403, "AccessDenied")

    s3.before = refuse_metadata
    add_slices(entry)
    warnings = [record.getMessage() for record in caplog.records if "was not updated" in record.message]
    assert len(warnings) == 2 and all("access to" in warning for warning in warnings)
    with pytest.raises(SourceUnavailable, match="denied") as caught:
        opened(stored).write_table("delta")
    assert caught.value.hint is not None
    s3.before = lambda request: False
    assert kinds(stored) == ["table-outdated", "table-outdated"]
    add_slices(entry)
    check_tables(stored, s3)


@pytest.mark.parametrize("format", TABLE_FORMATS)
def test_the_table_is_readable_before_each_write(
    s3: S3Server, stored: Workspace, format: TableFormat
) -> None:
    entry = make_root(stored, slices=3)
    dataset = opened(stored)
    url = dataset.write_table(format).path
    counts: list[int] = []
    is_busy = False

    def read(request: BaseHTTPRequestHandler) -> bool:
        nonlocal is_busy
        is_change = request.command in ("DELETE", "POST") or FOLDERS[format] in request.path
        if request.command != "GET" and is_change and not is_busy:
            is_busy = True
            if format == "delta":
                counts.append(len(read_delta(s3, url)))
            else:
                counts.append(len(open_iceberg(s3, url).scan().to_arrow()))
            is_busy = False
        return False

    s3.before = read
    add_slices(entry)
    dataset.reset(dataset.version("2"))
    add_slices(entry, 2, city="Chur")
    s3.before = lambda request: False
    assert {3, 6, 9, 12} >= {*counts} >= {3, 9, 12}
    if format == "delta":
        assert as_values(dataset.scan().to_arrow()) == read_delta(s3, url)


def test_a_deleted_dataset_leaves_no_table(s3: S3Server, stored: Workspace) -> None:
    make_root(stored, slices=1)
    for format in TABLE_FORMATS:
        opened(stored).write_table(format)
    finish_all()
    ran = call_odf("delete", "numbers", "--yes", cwd=stored.folder)
    assert ran.code == 0, ran.err
    assert [path for path in s3.objects if "/odf-" not in path] == []


def test_pulls_do_not_copy_the_metadata(s3: S3Server, stored: Workspace, tmp_path: Path) -> None:
    entry = make_root(stored, slices=2)
    for format in TABLE_FORMATS:
        opened(stored).write_table(format)
    assert stored.store is not None
    local = tmp_path / "local"
    Workspace.init(local)
    url = f"{stored.store.url}{entry.id.multibase}"
    finish_all()
    ran = call_odf("pull", url, "--as", "numbers", cwd=local)
    assert ran.code == 0, ran.err
    names = {path.name for path in local.rglob("*")}
    assert str(entry.dataset.head()) in names and not names & {"_delta_log", "iceberg", "version-hint.text"}


@pytest.mark.parametrize("format", TABLE_FORMATS)
def test_a_store_in_a_folder_has_tables(tmp_path: Path, format: TableFormat) -> None:
    (tmp_path / "a store").mkdir()
    workspace = Workspace.init(tmp_path / "work", (tmp_path / "a store").as_uri())
    entry = make_root(workspace, slices=2)
    written = opened(workspace).write_table(format)
    folder = tmp_path / "a store" / entry.id.multibase
    assert written.path == str(folder if format == "delta" else folder / "iceberg")
    add_slices(entry)
    if format == "delta":
        rows = DeltaTable(written.path).to_pyarrow_table()
    else:
        rows = StaticTable.from_metadata(written.path).scan().to_arrow()
    assert as_values(rows) == as_values(opened(workspace).scan().to_arrow())
    assert opened(workspace).remove_table(format)
    assert not (folder / FOLDERS[format]).exists() or not any((folder / FOLDERS[format]).iterdir())


def test_the_command_prints_the_url(s3: S3Server, stored: Workspace) -> None:
    entry = make_root(stored, slices=1)
    finish_all()
    url = f"s3://bucket/some/prefix/{entry.id.multibase}/iceberg"
    assert call_odf("view", "numbers", "--format", "iceberg", cwd=stored.folder).out.strip() == url
    (table,) = call_odf("view", "numbers", "--format", "iceberg", "--json", cwd=stored.folder).json
    assert table == {"name": "numbers", "format": "iceberg", "path": url, "version": 2}
    (table,) = call_odf(
        "view", "numbers", "--format", "iceberg", "--remove", "--json", cwd=stored.folder
    ).json[:1]
    assert table == {"name": "numbers", "format": "iceberg", "path": url, "removed": True}
    assert metadata_names(s3, "iceberg") == []


def test_large_slices_are_described_without_a_download(
    s3: S3Server, stored: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odf_engine.mirror.dataset_mirror.MIN_RANGED_BYTES", 1)
    monkeypatch.setattr("odf_engine.tables.table_files.MIN_RANGED_BYTES", 1)
    make_root(stored, slices=3)
    machine = other_machine(stored, tmp_path)
    dataset = opened(machine)
    for format in TABLE_FORMATS:
        dataset.write_table(format)
    assert kinds(machine) == []
    assert not list(dataset.folder.glob("data/f1620*"))
    check_tables(stored, s3)


def test_compaction_and_garbage_collection_keep_the_tables(s3: S3Server, stored: Workspace) -> None:
    entry = make_root(stored, slices=4)
    for format in TABLE_FORMATS:
        opened(stored).write_table(format)
    compact(entry.dataset, CompactionPolicy(1000, 1 << 20), Reporter())
    check_tables(stored, s3)
    assert entry.dataset.state().blocks < 6
    for _ in range(2):
        collect_garbage(stored, stored.datasets(), Reporter(), dry_run=False, now=True)
    check_tables(stored, s3)
    assert kinds(stored) == []


def test_iceberg_is_refused_if_no_reader_opens_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    with cloud_stub() as stub:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", stub.endpoint)
        workspace = Workspace.init(tmp_path / "work", "az://box/store")
        entry = make_root(workspace, slices=2)
        with pytest.raises(Unsupported, match="cannot open az: URLs") as caught:
            opened(workspace).write_table("iceberg")
        assert caught.value.hint == "write the table with --format delta"
        written = opened(workspace).write_table("delta")
        assert written.version == 3 and written.path == f"az://box/store/{entry.id.multibase}"
        finish_all()


def test_a_version_is_not_written_before_the_earlier_ones(s3: S3Server, stored: Workspace) -> None:
    entry = make_root(stored, slices=1)
    opened(stored).write_table("delta")
    before = metadata_names(s3, "delta")

    def refuse_below(prefix: str) -> None:
        s3.before = lambda request: (
            request.command == "PUT" and prefix in request.path and refuse(request, 403, "AccessDenied")
        )

    refuse_below("/_delta_log/")
    add_slices(entry, 3)
    refuse_below(f"/_delta_log/{3:020}.json")
    add_slices(entry)
    assert metadata_names(s3, "delta") == before
    refuse_below("no such path")
    add_slices(entry)
    assert len(metadata_names(s3, "delta")) == len(before) + 5
