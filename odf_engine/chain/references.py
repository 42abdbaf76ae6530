"""References of a dataset other than its head: branches, tags, and old heads with their expiry rules.

A branch is a reference to the newest block of a chain that has a common beginning with the head's chain.
Commits to it follow the same rules, and do not change the head until the branch is promoted. A tag is a
branch that cannot move.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from odf_engine.base.files import translate_os_errors
from odf_engine.base.progress import count_of
from odf_engine.chain.dataset import Dataset
from odf_engine.errors import AlreadyExists, Conflict, NotFound, OdfError, UsageError
from odf_engine.identity.multiformats import Multihash
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.storage.refs import COMPACTED_PREFIX, OLD_HEAD_PREFIXES, TAG_PREFIX, is_branch_name

DEFAULT_DAYS: Final = 7.0
_DAY: Final = 86_400.0


class RetentionRule(msgspec.Struct, frozen=True):
    """The expiry rule of old heads.

    Attributes:
        days: age in days when they expire.
        last: number of the newest ones that never expire.
        compacted_only: only old heads of compactions expire. Their rows are in the new chain.
    """

    days: float = DEFAULT_DAYS
    last: int = 0
    compacted_only: bool = True


class OldHead(msgspec.Struct, frozen=True):
    """A reference to an old head; ``created`` is in seconds since 1970."""

    name: str
    block: Multihash
    created: float


def list_old_heads(dataset: Dataset) -> list[OldHead]:
    """Return the references to old heads, newest first."""
    heads = [
        OldHead(name, block, dataset.reference_time(name))
        for name, block in dataset.references().items()
        if name.startswith(OLD_HEAD_PREFIXES)
    ]
    return sorted(heads, key=lambda head: (-head.created, head.name))


def select_expired(heads: Sequence[OldHead], rule: RetentionRule, now: float | None = None) -> list[OldHead]:
    """Return the old heads that have expired by a rule, newest first."""
    oldest = (time.time() if now is None else now) - rule.days * _DAY
    subject = [head for head in heads if not rule.compacted_only or head.name.startswith(COMPACTED_PREFIX)]
    return [candidate for candidate in subject[rule.last :] if candidate.created <= oldest]


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch or a tag of a dataset.

    Attributes:
        name: its name; the reference is ``refs/<name>``, or ``refs/tag-<name>`` of a tag.
        is_tag: whether it is a tag.
        head: its newest block, or None if the reference cannot be read.
        blocks, records: totals of its chain.
        system_time: the system time of its newest block.
        fork: sequence number of the newest block that it has in common with the head.
        ahead: number of its blocks that the head does not have. Those are promoted.
        behind: number of blocks of the head that it does not have. If there are any, it cannot be promoted.
        rows_ahead, rows_behind: numbers of rows in these blocks.
        problem: why it cannot be read.
    """

    name: str
    is_tag: bool = False
    head: Multihash | None = None
    blocks: int = 0
    records: int = 0
    system_time: Timestamp | None = None
    fork: int | None = None
    ahead: int = 0
    behind: int = 0
    rows_ahead: int = 0
    rows_behind: int = 0
    problem: str | None = None


class Promotion(msgspec.Struct, frozen=True):
    """The result of :func:`promote_branch`: the heads before and after it, and what was added."""

    old_head: Multihash
    new_head: Multihash
    blocks: int
    records: int


def list_branches(dataset: Dataset) -> list[Branch]:
    """Return the branches, sorted by name."""
    dataset.refresh_branches()
    return [read_branch(dataset, name) for name in dataset.branch_names()]


def list_tags(dataset: Dataset) -> list[Branch]:
    """Return the tags, sorted by name."""
    dataset.refresh_branches()
    return [read_branch(dataset, name) for name in dataset.tag_names()]


def read_branch(dataset: Dataset, name: str) -> Branch:
    """Return a branch or a tag, compared with the head.

    Raises:
        NotFound: there is no such branch. Other errors are in ``problem``.
    """
    branch = dataset.branch(name)
    try:
        state, head = branch.state(), dataset.state()
        fork = _find_fork(dataset, branch, min(state.sequence_number, head.sequence_number))
        common = _count_rows(dataset, fork)
    except OdfError as error:
        return Branch(name=name, is_tag=branch.is_tag, problem=error.message)
    return Branch(
        name=name,
        is_tag=branch.is_tag,
        head=state.head,
        blocks=state.blocks,
        records=state.records,
        system_time=state.system_time,
        fork=fork,
        ahead=state.sequence_number - fork,
        behind=head.sequence_number - fork,
        rows_ahead=state.records - common,
        rows_behind=head.records - common,
    )


def _count_rows(dataset: Dataset, number: int) -> int:
    """Return the number of rows in the blocks up to a sequence number. Offsets have no gaps."""
    newest = dataset.list_blocks(1, before=number + 1, kinds=("AddData", "ExecuteTransform"))
    if not newest:
        return 0
    event: Any = dataset.block(newest[0].hash).block.event
    last = event.prev_offset if event.new_data is None else event.new_data.offset_interval.end
    return 0 if last is None else last + 1


def _find_fork(one: Dataset, other: Dataset, last: int) -> int:
    """Return the sequence number of the newest block that both chains have, or -1."""
    first, common = 0, -1
    while first <= last:
        middle = (first + last) // 2
        if one.block_hash(middle) == other.block_hash(middle):
            first, common = middle + 1, middle
        else:
            last = middle - 1
    return common


def create_branch(dataset: Dataset, name: str, block: Multihash, *, replace: bool = False) -> None:
    """Create a branch at a stored block, or move an existing one to it.

    Args:
        dataset: the dataset.
        name: the name of the branch.
        block: a block of the dataset's chain or of an earlier history.
        replace: move an existing branch. Blocks that only it has are then no longer referenced.

    Raises:
        UsageError: invalid name.
        AlreadyExists: the branch exists, or a branch or a tag whose name differs only in case.
        NotFound, MalformedBlock: a block of the chain that ends there is missing or damaged.
    """
    _check_name(name)
    dataset.refresh_branches()
    same = [branch for branch in dataset.branch_names() if branch.lower() == name.lower()]
    if same and not (replace and same == [name]):
        raise AlreadyExists(
            f"branch '{same[0]}' already exists",
            hint="use another name" if same != [name] else "use another name, or --force to move it",
        )
    _check_tags(dataset, name)
    _set_reference(dataset, name, block)


def create_tag(dataset: Dataset, name: str, block: Multihash) -> None:
    """Create a tag of a stored block: a branch that cannot move.

    Raises:
        UsageError: invalid name.
        AlreadyExists: a branch or a tag has the name, or one that differs only in case.
        NotFound, MalformedBlock: a block of the chain that ends there is missing or damaged.
    """
    _check_name(name)
    dataset.refresh_branches()
    _check_tags(dataset, name)
    for branch in dataset.branch_names():
        if branch.lower() == name.lower():
            raise AlreadyExists(f"branch '{branch}' already exists", hint="use another name")
    _set_reference(dataset, f"{TAG_PREFIX}{name}", block)


def _check_tags(dataset: Dataset, name: str) -> None:
    """Check that no tag has a name."""
    for tag in dataset.tag_names():
        if tag.lower() == name.lower():
            raise AlreadyExists(f"'{tag}' is a tag, which cannot move", hint="use another name")


def _set_reference(dataset: Dataset, reference: str, block: Multihash) -> None:
    history = dataset.at(block)
    history.state()  # all of its blocks can be read
    expected = dataset.references().get(reference)
    if history is dataset and expected is None:
        with suppress(OdfError):
            dataset.copy_index(reference, block)
    dataset.move_branch(reference, expected, block)


def follow_head(dataset: Dataset, name: str) -> None:
    """Create a branch at the head, or move it there, unless it has blocks that the head lacks.

    Raises:
        UsageError: invalid name.
        NotFound, MalformedBlock: as :func:`create_branch`.
    """
    dataset.refresh_branches()
    is_new = name not in dataset.branch_names()
    if is_new or dataset.contains_block(dataset.branch(name).state().head):
        create_branch(dataset, name, dataset.state().head, replace=not is_new)


def delete_branch(dataset: Dataset, name: str, *, force: bool = False) -> Multihash:
    """Delete a branch; return the block that it referred to. No blocks are removed.

    Raises:
        NotFound: there is no such branch.
        Conflict: it is a tag; or only the branch has some blocks, or it cannot be read, and ``force`` is not
            set.
    """
    dataset.refresh_branches()
    branch = dataset.branch(name)
    branch.require_movable()
    head = branch.head()
    if head is None:
        raise NotFound(f"branch '{name}' not found in this dataset")
    if not force:
        own = read_branch(dataset, name)
        if own.problem is not None:
            raise Conflict(
                f"branch '{name}' cannot be compared with the head: {own.problem}",
                hint="use --force to delete it nevertheless",
            )
        if own.ahead:
            raise Conflict(
                f"branch '{name}' has {count_of(own.ahead, 'block')} that the head does not have",
                hint="promote it first, or use --force to discard them",
            )
    _remove_reference(dataset, name, head)
    return head


def delete_tag(dataset: Dataset, name: str) -> Multihash:
    """Delete a tag; return the block that it referred to. No blocks are removed.

    Raises:
        NotFound: there is no such tag.
    """
    dataset.refresh_branches()
    reference = f"{TAG_PREFIX}{name}"
    head = dataset.references().get(reference)
    if name not in dataset.tag_names() or head is None:
        raise NotFound(f"tag '{name}' not found in this dataset", hint="to list tags, run odf tag NAME")
    _remove_reference(dataset, reference, head)
    return head


def _remove_reference(dataset: Dataset, reference: str, head: Multihash) -> None:
    with translate_os_errors(dataset.folder):
        dataset.remove_reference(reference, head)
    dataset.remove_branch_caches(reference)


def rename_branch(dataset: Dataset, name: str, new_name: str) -> None:
    """Rename a branch. A kill in between leaves it under both names.

    Raises:
        NotFound: there is no such branch.
        UsageError: invalid name.
        AlreadyExists: the new name exists.
        Conflict: it is a tag; or another process has committed to the branch, and both names then exist.
    """
    dataset.refresh_branches()
    branch = dataset.branch(name)
    branch.require_movable()
    head = branch.head()
    if head is None:
        raise NotFound(f"branch '{name}' not found in this dataset")
    create_branch(dataset, new_name, head)
    _remove_reference(dataset, name, head)


def promote_branch(dataset: Dataset, name: str, expected: Multihash | None = None) -> Promotion:
    """Move the head to the newest block of a branch, if that follows the head. Atomic, also on a crash.

    The branch remains. Nothing is changed if the head already has all of its blocks.

    Args:
        dataset: the dataset.
        name: the name of the branch.
        expected: the newest block of the branch when it was reviewed, or None for any block.

    Raises:
        NotFound: there is no such branch.
        Conflict: the branch has moved since, or the head has blocks that the branch does not have.
    """
    dataset.refresh_branches()
    branch = dataset.branch(name)
    new, old = branch.state(), dataset.state()
    if expected is not None and new.head != expected:
        raise Conflict(
            f"branch '{name}' has moved since it was read", hint="check the new blocks, then promote it"
        )
    if dataset.contains_block(new.head):
        return Promotion(old.head, old.head, 0, 0)
    if not branch.contains_block(old.head):
        info = read_branch(dataset, name)
        raise Conflict(
            f"branch '{name}' cannot be promoted: the head has blocks that it does not have"
            f" ({info.behind} behind, {info.ahead} ahead)",
            hint=f"compare them with odf diff NAME --to {name}; odf branch NAME {name} --force moves the"
            " branch to the head, then pull into it again",
        )
    dataset.move_head(new, None, None, expected_head=old.head, backup_ref=None, before_move=lambda: None)
    return Promotion(old.head, new.head, new.blocks - old.blocks, new.records - old.records)


def _check_name(name: str) -> None:
    if not is_branch_name(name):
        raise UsageError(
            f"'{name}' is not a valid name of a branch or a tag",
            hint="begin with a letter, then use letters, digits, '.', '-' and '_'; head, compaction,"
            " before-…, compacted-… and tag-… are reserved",
        )
