"""Pulling from folders: every way that two histories can stand to each other, and every damage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odf_engine.base.progress import Reporter
from odf_engine.derive.verify.integrity import verify
from odf_engine.errors import (
    AlreadyExists,
    BadData,
    ChainRuleViolated,
    Conflict,
    MalformedBlock,
    NotFound,
    OdfError,
)
from odf_engine.identity import ownership_proof as proofs
from odf_engine.identity.multiformats import MULTIBASE_PREFIXES, Multihash
from odf_engine.identity.names import DatasetAlias
from odf_engine.metadata.model import (
    AddData,
    AddPushSource,
    Append,
    Csv,
    DataSlice,
    GeoJson,
    NdJson,
    OffsetInterval,
    Seed,
    SetInfo,
)
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.sync.history import HistoriesDiverged, Relation
from odf_engine.sync.pull import ChainPull, DatasetAlreadyHere, clone_dataset, pull_dataset
from odf_engine.sync.remotes.folder_remote import FolderRemote
from odf_engine.workspace.dataset_summary import DatasetEntry
from odf_engine.workspace.definitions.definition import current_definition
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from tests.sync import builders

ALIAS = DatasetAlias(None, "pulled")


def new(
    here: Workspace, url: str | FolderRemote, alias: DatasetAlias = ALIAS
) -> tuple[DatasetEntry, ChainPull]:
    remote = FolderRemote(url) if isinstance(url, str) else url
    return clone_dataset(here, alias, remote, Reporter(), parallel=3)


def into(entry: DatasetEntry, url: str, force: bool = False) -> ChainPull:
    return pull_dataset(entry, FolderRemote(url), Reporter(), force=force, parallel=3)


def url_of(entry: DatasetEntry) -> str:
    return f"file://{entry.dataset.folder}/"


def chain(folder: Path) -> dict[str, int]:
    """The objects of a dataset, without references to older heads."""
    return {name: size for name, size in builders.objects(folder).items() if "before" not in name}


def test_a_push_source_without_a_schema_is_pulled(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=1)
    for number, read in enumerate((Csv(), NdJson(schema=[]), GeoJson())):
        event = AddPushSource(source_name=f"s{number}", read=read, merge=Append())
        builders.commit(source, [event])
    entry, pulled = new(here, url_of(source))
    assert pulled.status == "updated" and verify(entry.dataset, Reporter()).valid
    assert list(entry.dataset.state().push_sources) == ["s0", "s1", "s2"]
    assert current_definition(entry, {}).metadata  # it can be shown and updated
    assert Trust(here).list_executions(entry)


def test_a_new_dataset_is_the_same_byte_by_byte(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=3, blocks=2)
    entry, pulled = new(here, url_of(source))
    assert chain(entry.dataset.folder) == chain(source.dataset.folder)
    for name in chain(source.dataset.folder):
        assert (entry.dataset.folder / name).read_bytes() == (source.dataset.folder / name).read_bytes()
    head = source.dataset.head()
    assert (pulled.status, pulled.old_head, pulled.new_head, pulled.their_head) == (
        "updated",
        None,
        head,
        head,
    )
    assert (pulled.blocks, pulled.records) == (7, 9)
    assert pulled.bytes == source.dataset.state().data_size
    assert pulled.relation == Relation("equal", 0, 0, head)
    assert entry.dataset.state() == source.dataset.state()
    assert [str(dataset.alias) for dataset in here.datasets()] == ["pulled"]
    assert Trust(here).read_origin(entry) == url_of(source)
    assert Trust(here).describe_status(entry) == "not trusted"
    assert not here.keys.has_key(entry.id)
    assert not list((here.odf / "incoming").iterdir())
    assert not (entry.dataset.folder / "info" / "arriving").exists()


def test_derivatives_bring_their_checkpoints(here: Workspace, there: Workspace) -> None:
    source = builders.make_derivative(there, builders.make_root(there, slices=1))
    entry, _ = new(here, url_of(source))
    checkpoint = entry.dataset.state().last_checkpoint
    assert checkpoint is not None
    assert entry.dataset.checkpoint_path(checkpoint.physical_hash).read_bytes() == b"state of derived"


def test_pull_handles_up_to_date_behind_and_ahead_histories(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=1)
    entry = builders.copy_into(here, source)
    first = source.dataset.head()
    pulled = into(entry, url_of(source))
    assert (pulled.status, pulled.relation) == ("up-to-date", Relation("equal", 0, 0, first))
    assert Trust(here).read_origin(entry) is None

    builders.add_slices(source, 2)
    builders.add_blocks(source, 3)
    pulled = into(entry, url_of(source))
    assert (pulled.status, pulled.blocks, pulled.records) == ("updated", 5, 6)
    assert (pulled.old_head, pulled.new_head) == (first, source.dataset.head())
    assert entry.dataset.state() == source.dataset.state()
    assert len(entry.dataset.list_blocks(100)) == 8
    assert Trust(here).read_origin(entry) == url_of(source)

    builders.add_blocks(entry, 2)
    head = entry.dataset.head()
    pulled = into(entry, url_of(source))
    assert (pulled.status, pulled.new_head) == ("up-to-date", head)
    assert pulled.relation == Relation("ahead", 2, 0, source.dataset.head())


@pytest.mark.parametrize("indexed", [True, False])
def test_force_fetches_damaged_objects_again(here: Workspace, there: Workspace, indexed: bool) -> None:
    source = builders.make_root(there, slices=2, blocks=2)
    entry, _ = new(here, url_of(source))
    folder = entry.dataset.folder
    numbers = [str(stored.hash) for stored in entry.dataset.blocks(newest_first=False)]
    damaged = [
        folder / "blocks" / numbers[1],
        folder / "blocks" / numbers[-1],
        next((folder / "data").iterdir()),
    ]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-10])
    (folder / "blocks" / numbers[2]).unlink()
    if not indexed:
        here.index.reset()
    entry = Workspace(here.folder).resolve("pulled")

    for _ in range(2):
        with pytest.raises(MalformedBlock, match="damaged") as found:
            into(entry, url_of(source))
        assert found.value.hint is not None
        assert "--force" in found.value.hint
        builders.add_blocks(source, 1)  # the next time, there is also something new

    pulled = into(entry, url_of(source), force=True)
    assert pulled.new_head == source.dataset.head()
    assert pulled.status == "updated"
    assert chain(folder) == chain(source.dataset.folder)
    for path in (*damaged, folder / "blocks" / numbers[2]):
        right = source.dataset.folder / path.relative_to(folder)
        assert path.read_bytes() == right.read_bytes()
    assert into(entry, url_of(source), force=True).status == "up-to-date"
    assert not (folder / "info" / "arriving").exists()


def test_divergence_is_a_conflict_with_numbers(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=1)
    entry = builders.copy_into(here, source)
    common = source.dataset.head()
    builders.add_slices(source, 3)
    builders.add_blocks(entry, 2)
    before = builders.objects(entry.dataset.folder)
    with pytest.raises(HistoriesDiverged, match="2 blocks ahead, 3 behind") as found:
        into(entry, url_of(source))
    assert found.value.exit_code == 4
    assert found.value.relation == Relation("diverged", 2, 3, common)
    assert builders.objects(entry.dataset.folder) == before
    assert Trust(here).read_origin(entry) is None
    assert not (entry.dataset.folder / "info" / "arriving").exists()


def test_force_takes_the_other_history_and_keeps_the_old_head(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=1)
    entry = builders.copy_into(here, source)
    builders.add_slices(source, 3)
    builders.add_blocks(entry, 2)
    old = entry.dataset.head()
    pulled = into(entry, url_of(source), force=True)
    assert (pulled.old_head, pulled.new_head, pulled.blocks) == (old, source.dataset.head(), 3)
    assert entry.dataset.state() == source.dataset.state()
    assert [row.hash for row in entry.dataset.list_blocks(9)] == [
        row.hash for row in source.dataset.list_blocks(9)
    ]
    (kept,) = (entry.dataset.folder / "refs").glob("before-pull-*")
    assert kept.read_text() == str(old)
    assert entry.dataset.block(old or 0).hash == old  # nothing is lost

    # Less is a history too.
    shorter = builders.copy_into(Workspace.init(here.folder / "third"), source)
    builders.add_blocks(entry, 2)
    ahead = entry.dataset.head()
    assert into(entry, url_of(shorter)).relation.kind == "ahead"
    pulled = into(entry, url_of(shorter), force=True)
    assert (pulled.status, pulled.blocks, pulled.new_head) == ("updated", 0, source.dataset.head())
    assert entry.dataset.state() == source.dataset.state()
    assert (entry.dataset.folder / "refs" / f"before-pull-{ahead and ahead.abbreviated}").is_file()


@pytest.mark.parametrize("force", [False, True])
def test_another_dataset_is_never_taken(here: Workspace, there: Workspace, force: bool) -> None:
    source, entry = builders.make_root(there, slices=1), builders.make_root(here, slices=1)
    before = builders.objects(entry.dataset.folder)
    with pytest.raises(Conflict, match="a different dataset"):
        into(entry, url_of(source), force=force)
    assert builders.objects(entry.dataset.folder) == before


def test_existing_name_or_dataset_is_rejected(here: Workspace, there: Workspace) -> None:
    source, taken = builders.make_root(there, slices=1), builders.make_root(here, "taken")
    with pytest.raises(AlreadyExists, match="taken"):
        new(here, url_of(source), DatasetAlias(None, "Taken"))
    entry = builders.copy_into(here, source, "known")
    builders.add_slices(source, 2)
    for blocks in (0, 3):  # also when its newest blocks are not here
        builders.add_blocks(source, blocks)
        with pytest.raises(DatasetAlreadyHere, match="as known") as found:
            new(here, url_of(source))
        assert found.value.dataset == entry.id
    assert {dataset.id for dataset in here.datasets()} == {entry.id, taken.id}
    assert not list((here.odf / "incoming").iterdir())


def test_pull_without_remote_dataset_raises_not_found(here: Workspace, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no dataset"):
        new(here, f"file://{tmp_path}/nowhere/")
    entry = builders.make_root(here)
    with pytest.raises(NotFound, match="no dataset"):
        into(entry, f"file://{tmp_path}/nowhere/")


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("prefix", MULTIBASE_PREFIXES)
def test_names_in_every_encoding_become_canonical_ones(
    here: Workspace, there: Workspace, tmp_path: Path, prefix: str, head: bool
) -> None:
    source = builders.make_derivative(there, builders.make_root(there, slices=2))
    url = builders.as_old_repository(source.dataset.folder, tmp_path / "old", prefix, head=head)
    entry, _ = new(here, url)
    assert chain(entry.dataset.folder) == chain(source.dataset.folder)
    old = builders.copy_into(here, builders.make_root(there, "other", slices=2))
    more = there.resolve("other")
    builders.add_slices(more, 1)
    url = builders.as_old_repository(more.dataset.folder, tmp_path / "older")
    assert into(old, url).blocks == 1
    assert chain(old.dataset.folder) == chain(more.dataset.folder)


def test_local_objects_with_base58_names_are_not_fetched(
    here: Workspace, there: Workspace, tmp_path: Path
) -> None:
    source = builders.make_root(there, slices=2)
    entry = builders.copy_into(here, source)
    for path in (entry.dataset.folder / "data").iterdir():
        path.rename(path.with_name(builders.encode_name(path.name)))
    builders.forge(source.dataset, SetInfo("more"))
    assert into(entry, url_of(source)).bytes == 0


def test_blocks_of_version_two_stay_what_they_are(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=1)
    for text in ("first", "second"):
        builders.forge(source.dataset, SetInfo(text), version=2)
    entry, _ = new(here, url_of(source))
    head = source.dataset.head()
    assert head is not None
    assert entry.dataset.block(head).version == 2
    assert entry.dataset.block_bytes(head) == source.dataset.block_bytes(head)


def damage(kind: str, change: Callable[[bytes], bytes | None]) -> Callable[[DatasetEntry], None]:
    """Changes, or removes, one object of a kind."""

    def work(source: DatasetEntry) -> None:
        path = sorted((source.dataset.folder / kind).iterdir())[0]
        changed = change(path.read_bytes())
        path.unlink() if changed is None else path.write_bytes(changed)

    return work


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


DAMAGES: dict[str, tuple[Callable[[DatasetEntry], None], type[OdfError], str]] = {
    "block": (damage("blocks", flipped), BadData, "do not match the hash"),
    "block that is none": (damage("blocks", lambda data: b"<html>"), BadData, "do not match the hash"),
    "huge block": (damage("blocks", lambda data: bytes(2 << 20)), BadData, "more than"),
    "missing block": (damage("blocks", lambda data: None), NotFound, "block f.* is missing"),
    "slice": (damage("data", flipped), BadData, "do not match the hash"),
    "short slice": (damage("data", lambda data: data[:-5]), BadData, "ends after"),
    "empty slice": (damage("data", lambda data: b""), BadData, "ends after 0 of"),
    "long slice": (damage("data", lambda data: data + b"more"), BadData, "more than"),
    "missing slice": (damage("data", lambda data: None), NotFound, "is missing"),
    "checkpoint": (damage("checkpoints", flipped), BadData, "do not match the hash"),
    "missing checkpoint": (damage("checkpoints", lambda data: None), NotFound, "is missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.complete(after=4)
def test_damaged_remote_changes_nothing_locally(here: Workspace, there: Workspace, name: str) -> None:
    work, kind, text = DAMAGES[name]
    source = builders.make_derivative(there, builders.make_root(there, slices=1))
    right = builders.as_repository(source.dataset.folder, there.folder / "copy")
    work(source)
    with pytest.raises(kind, match=text) as found:
        new(here, url_of(source))
    assert url_of(source) in str(found.value) or str(source.dataset.folder) in str(found.value)
    assert here.datasets() == []
    # A right source under the same address mends it.
    (there.folder / "copy").rename(there.folder / "moved")
    source.dataset.folder.rename(there.folder / "damaged")
    (there.folder / "moved").rename(source.dataset.folder)
    entry, _ = new(here, url_of(source))
    assert entry.dataset.state() == source.dataset.state()
    assert right


def test_invalid_remote_head_is_rejected(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there)
    builders.set_head(source.dataset.folder, "<html>")
    with pytest.raises(BadData, match="hash"):
        new(here, url_of(source))


VIOLATIONS: dict[str, tuple[str, Callable[[DatasetEntry], Any]]] = {
    "time goes back": (
        "system-time",
        lambda entry: builders.forge(entry.dataset, SetInfo("x"), system_time=Timestamp(0)),
    ),
    "a second Seed": (
        "seed-once",
        lambda entry: builders.forge(entry.dataset, Seed(entry.id, entry.dataset.state().kind)),
    ),
    "the watermark goes back": (
        "watermark",
        lambda entry: builders.forge(entry.dataset, AddData(prev_offset=7, new_watermark=builders.START)),
    ),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_remote_chain_that_violates_rules_is_rejected(here: Workspace, there: Workspace, name: str) -> None:
    rule, violate = VIOLATIONS[name]
    source = builders.make_root(there, slices=1)
    entry = builders.copy_into(here, source)
    violate(source)
    builders.forge(source.dataset, SetInfo("more"))
    before = builders.objects(entry.dataset.folder)
    with pytest.raises(ChainRuleViolated) as found:
        into(entry, url_of(source))
    assert found.value.rule == rule
    assert builders.objects(entry.dataset.folder) == before
    here.delete(entry)
    with pytest.raises(ChainRuleViolated):
        new(here, url_of(source))


def test_wrong_sequence_number_is_rejected(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=1)
    entry = builders.copy_into(here, source)
    builders.forge(source.dataset, SetInfo("x"), sequence_number=1000)
    with pytest.raises(ChainRuleViolated) as found:
        into(entry, url_of(source))
    assert found.value.rule == "sequence-number"
    builders.forge(source.dataset, SetInfo("x"), sequence_number=5)
    with pytest.raises(BadData, match="number"):
        into(entry, url_of(source))


def test_slice_with_logical_hash_as_physical_hash_is_rejected(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=1)
    state = source.dataset.state()
    (row,) = source.dataset.slices()
    data = DataSlice(row.logical_hash, row.logical_hash, OffsetInterval(3, 3), 5)
    event = AddData(prev_offset=state.last_offset, new_data=data, new_watermark=state.watermark)
    builders.forge(source.dataset, event)
    with pytest.raises(BadData, match="unsupported hash algorithm"):
        new(here, url_of(source))


def test_a_damaged_slice_here_is_fetched_again(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=2)
    entry = builders.copy_into(here, source)
    builders.add_slices(source, 1)
    later = source.dataset.slices()[-1]
    (entry.dataset.folder / "data" / str(later.physical_hash)).write_bytes(b"half")
    into(entry, url_of(source))
    assert entry.dataset.slice_path(later).read_bytes() == source.dataset.slice_path(later).read_bytes()


def test_a_commit_meanwhile_is_a_conflict(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=1)
    entry = builders.copy_into(here, source)
    builders.add_slices(source, 1)

    class Beside(FolderRemote):
        def chunks(self, *arguments: Any) -> Any:
            builders.add_blocks(entry, 1)
            return super().chunks(*arguments)

    with pytest.raises(Conflict, match="another process has committed"):
        pull_dataset(entry, Beside(url_of(source)), Reporter(), force=False, parallel=1)
    assert entry.dataset.state().blocks == 4
    assert Trust(here).read_origin(entry) is None
    with pytest.raises(HistoriesDiverged):
        into(entry, url_of(source))


def test_concurrent_pulls_of_one_dataset_are_a_conflict(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=1)
    entry = builders.copy_into(here, source)
    builders.add_slices(source, 1)
    seen: list[str] = []

    class Twice(FolderRemote):
        def chunks(self, *arguments: Any) -> Any:
            for pull in (
                lambda: into(entry, url_of(source)),
                lambda: new(here, self.url, DatasetAlias(None, "b")),
            ):
                with pytest.raises(Conflict) as found:
                    pull()
                seen.append(found.value.message)
            return super().chunks(*arguments)

    pull_dataset(entry, Twice(url_of(source)), Reporter(), force=False, parallel=1)
    assert "adding blocks" in seen[0]
    here.delete(entry)
    seen.clear()

    class Again(FolderRemote):
        def chunks(self, *arguments: Any) -> Any:
            with pytest.raises(Conflict) as found:
                new(here, self.url, DatasetAlias(None, "b"))
            seen.append(found.value.message)
            return super().chunks(*arguments)

    new(here, Again(url_of(source)))
    assert "already being transferred" in seen[0]


def test_name_taken_during_a_pull_is_rejected(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=1)

    class Beside(FolderRemote):
        def chunks(self, *arguments: Any) -> Any:
            builders.make_root(here, "pulled")
            return super().chunks(*arguments)

    with pytest.raises(AlreadyExists):
        clone_dataset(here, ALIAS, Beside(url_of(source)), Reporter(), parallel=1)
    assert [dataset.id for dataset in here.datasets()] != [source.id]


def test_own_dataset_with_pulled_third_party_blocks_is_not_own(here: Workspace, tmp_path: Path) -> None:
    entry = builders.make_root(here, slices=1)
    other = builders.copy_into(Workspace.init(tmp_path / "other"), entry)
    builders.describe(other, "more")
    assert Trust(here).is_own(entry)
    into(entry, url_of(other))
    assert not Trust(here).is_own(entry)


def proven(there: Workspace, source: DatasetEntry) -> Multihash:
    head = source.dataset.head()
    assert head is not None
    proofs.create_and_store_proof(
        source.dataset.folder, source.id, there.keys.private_key_pem(source.id), head
    )
    return head


def test_pull_includes_ownership_proofs(here: Workspace, there: Workspace) -> None:
    source = builders.make_root(there, slices=1)
    head = proven(there, source)
    entry, _ = new(here, url_of(source))
    assert proofs.read_proof(entry.dataset.folder, head) is not None
    builders.add_blocks(source, 1)
    into(entry, url_of(source))
    later = proven(there, source)
    into(entry, url_of(source))  # nothing else is new
    assert proofs.read_proof(entry.dataset.folder, later) is not None


def test_invalid_proof_is_not_pulled(here: Workspace, there: Workspace) -> None:
    source, other = builders.make_root(there, slices=1), builders.make_root(there, "other")
    proven(there, other)
    (proof,) = (other.dataset.folder / "proofs").iterdir()
    head = source.dataset.head()
    (source.dataset.folder / "proofs").mkdir()
    (source.dataset.folder / "proofs" / str(head)).write_bytes(proof.read_bytes())
    told: list[str] = []

    class Telling(Reporter):
        def log(self, text: str, level: str = "info") -> None:
            told.append(level)

    entry, _ = clone_dataset(here, ALIAS, FolderRemote(url_of(source)), Telling(), parallel=1)
    assert told == ["warning"]
    assert not (entry.dataset.folder / "proofs").exists()
