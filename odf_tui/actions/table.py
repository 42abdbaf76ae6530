"""All actions with their default keys, in the order of help and hints."""

from __future__ import annotations

from typing import Final

from odf_engine.coordinator.protocol import JobState
from odf_tui.actions.model import (
    Action,
    KeyMap,
    Situation,
    require_dataset,
    require_readable_dataset,
    requires,
)
from odf_tui.state.model import REVISABLE_EVENTS

_REQUIRES_BLOCK: Final = requires("block", "no block is selected")
_REQUIRES_FINDINGS: Final = requires("findings", "nothing was found on these blocks: v verifies the dataset")
_REQUIRES_TRAIL: Final = requires("trail", "no link was followed yet")


def _prove_block_guard(situation: Situation) -> str | None:
    if (block := situation.block) is None or not block.broken:
        return _REQUIRES_BLOCK(situation)
    return "this block cannot be read"


def _diff_block_guard(situation: Situation) -> str | None:
    if (block := situation.block) is None or block.event in REVISABLE_EVENTS:
        return _REQUIRES_BLOCK(situation)
    if block.broken:
        return "this block cannot be read: b shows its bytes"
    what = f"block {block.sequence_number} is {block.event}"
    return f"{what}: only queries, sources, schemas and descriptions change"


BLOCK_ACTIONS: Final = (
    Action("open_block", ("enter",), "show the block in full", "blocks", "block", _REQUIRES_BLOCK),
    Action(
        "diff_block",
        ("d",),
        "what the block changed of a query, source or schema",
        "blocks",
        "diff",
        _diff_block_guard,
    ),
    Action(
        "block_bytes",
        ("b",),
        "the bytes of the block, with the fields in them",
        "blocks",
        "bytes",
        _REQUIRES_BLOCK,
    ),
    Action(
        "prove_block",
        ("S",),
        "sign the block with the dataset's key, as its owner",
        "blocks",
        "",
        _prove_block_guard,
    ),
    Action(
        "block_kinds", ("f",), "show only some kinds of events", "blocks", "kinds", require_readable_dataset
    ),
    Action(
        "jump_block",
        ("J",),
        "go to a number, hash, time or offset",
        "blocks",
        "jump",
        require_readable_dataset,
    ),
    Action(
        "next_finding", ("n", "right_curly_bracket"), "next finding", "blocks", "finding", _REQUIRES_FINDINGS
    ),
    Action(
        "previous_finding",
        ("N", "left_curly_bracket"),
        "previous finding",
        "blocks",
        guard=_REQUIRES_FINDINGS,
    ),
    Action("leave_blocks", ("escape",), "one level up", "blocks", listed=False),
    Action("back", ("ctrl+o", "backspace"), "back to where a link was followed from", guard=_REQUIRES_TRAIL),
)


_REQUIRES_ROWS: Final = requires("has_rows", "there are no rows")


def _row_action(name: str, key: str, title: str, hint: str = "") -> Action:
    return Action(name, (key,), title, "data", hint, _REQUIRES_ROWS)


DATA_ACTIONS: Final = (
    _row_action("open_row", "enter", "show the row, every value in full", "row"),
    _row_action("jump", "J", "go to an offset, a row or a time", "go to"),
    _row_action("find_rows", "slash", "look for a text in all rows", "look for"),
    _row_action("next_match", "n", "next row that holds the text looked for with /"),
    _row_action("previous_match", "N", "row before that holds the text looked for with /"),
    _row_action("next_slice", "right_square_bracket", "next slice"),
    _row_action("previous_slice", "left_square_bracket", "previous slice"),
    Action(
        "travel",
        ("at",),
        "see the rows as at an earlier block, or as of an event time",
        "data",
        "time",
        require_readable_dataset,
    ),
    _row_action("trace", "w", "show where this row or value comes from, step by step", "where from"),
    Action(
        "differences",
        ("d",),
        "compare with an earlier version, or with another dataset",
        "data",
        "",
        require_readable_dataset,
    ),
    _row_action("sort_up", "less_than_sign", "sort what is loaded by this column, least first"),
    _row_action("sort_down", "greater_than_sign", "sort what is loaded by this column, greatest first"),
    _row_action("keep_rows", "f", "keep rows by the value of this cell, of what is loaded", "keep"),
    _row_action("row_among_all", "o", "show this row of a sorted or kept part among all rows"),
    _row_action("columns", "c", "show, hide, move and freeze columns", "columns"),
    _row_action("hide_column", "H", "hide this column"),
    _row_action("freeze_columns", "F", "keep the columns up to this one in sight, and back"),
    _row_action("mark_row", "space", "mark the row; a second time, the rows up to there"),
    Action(
        "statistics",
        ("i",),
        "schema and statistics of all columns",
        "data",
        "statistics",
        require_readable_dataset,
    ),
    Action(
        "current_state",
        ("K",),
        "current state by key instead of all rows, and back",
        "data",
        "",
        require_readable_dataset,
    ),
    Action(
        "current_state_by",
        ("B",),
        "current state by columns of your choice",
        "data",
        "",
        require_readable_dataset,
    ),
    _row_action("export", "E", "write rows to a file: CSV, JSON or Parquet"),
    _row_action("copy_rows", "Y", "copy the marked rows, or this one"),
)


_TRUST_STATES: Final = {"own": "your own", "trusted": "trusted", "not trusted": "not trusted"}
_REQUIRES_DATASETS: Final = requires("datasets", "there are no datasets yet")


def _pull_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    if row.has_pull_remote:
        return _running_pull_guard(situation)
    if row.diverged:
        return f"its input {row.diverged[0]} was reset or replaced: D makes {row.name} anew"
    if not (row.polls or row.derivative) and row.push_sources:
        return f"there is nothing to poll: data is pushed with odf ingest {row.name} FILE"
    if not (row.polls or row.derivative):
        return f"{row.name} has no source: e edits its definition"
    return _running_pull_guard(situation)


def _running_pull_guard(situation: Situation) -> str | None:
    if situation.dataset_job is not None and situation.dataset_job.kind == "pull":
        return f"{situation.dataset_job.target} is being pulled already"
    return None


def _rebuild_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    if row.has_pull_remote:
        return f"{row.name} comes from elsewhere: V shows how it stands to that"
    if not row.diverged:
        return f"{row.name} has not diverged from its inputs: nothing is to be made anew"
    return f"{row.name} is being worked on already" if situation.dataset_job else None


def _take_columns_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    if not row.derivative:
        return f"{row.name} has no query"
    return None if row.last_pulled else f"{row.name} has no data yet: its columns are those of its query"


def _trust_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    return None if row.untrusted else f"{row.name} is {_TRUST_STATES[row.standing]} already"


def _untrust_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_dataset(situation)) or row is None:
        return refusal
    return None if row.standing == "trusted" else f"{row.name} is {_TRUST_STATES[row.standing]}"


def _make_demo_guard(situation: Situation) -> str | None:
    return "the demo is for an empty workspace: odf demo makes one beside it" if situation.datasets else None


def _verify_guard(situation: Situation) -> str | None:
    if refusal := require_dataset(situation):
        return refusal
    if situation.dataset_job is not None and situation.dataset_job.kind == "verify":
        return "a verification runs already"
    return None


DATASET_ACTIONS: Final = (
    Action("pull", ("p",), "pull the dataset: take in what is new", hint="pull", guard=_pull_guard),
    Action(
        "pull_all",
        ("P",),
        "pull all datasets, inputs first",
        guard=requires("pullable", "there is nothing to pull"),
    ),
    Action("verify", ("v",), "verify the dataset: chain, slices and hashes", guard=_verify_guard),
    Action("add", ("n", "a"), "make a new dataset: from a file, a URL, a template", hint="new"),
    Action("add_file", ("A",), "add datasets from a manifest file"),
    Action(
        "edit",
        ("e",),
        "edit the dataset's definition in your editor",
        hint="edit",
        guard=require_readable_dataset,
    ),
    Action(
        "take_columns",
        ("C",),
        "take new columns that the dataset's query gives into it",
        guard=_take_columns_guard,
    ),
    Action("trust", ("t",), "show what somebody else's dataset would run, and trust it", guard=_trust_guard),
    Action("untrust", ("U",), "take back that the dataset is trusted", guard=_untrust_guard),
    Action(
        "begin_anew",
        ("D",),
        "make a diverged dataset anew from its inputs",
        hint="make anew",
        guard=_rebuild_guard,
    ),
    Action(
        "make_demo",
        ("d",),
        "make the demo here: sample sources, five datasets",
        hint="demo",
        guard=_make_demo_guard,
    ),
    Action(
        "column_lineage",
        ("number_sign",),
        "show which columns feed which, up and down the graph",
        guard=require_readable_dataset,
    ),
    Action(
        "open_dataset",
        ("enter",),
        "show everything about the dataset",
        "datasets",
        "details",
        require_dataset,
    ),
    Action(
        "list",
        ("L",),
        "show the datasets as a list, or as a graph again",
        "datasets",
        "list",
        _REQUIRES_DATASETS,
    ),
    Action("sort", ("o",), "sort the list by its next column", "datasets", guard=_REQUIRES_DATASETS),
    Action(
        "sort_back",
        ("O",),
        "sort the list the other way round",
        "datasets",
        guard=_REQUIRES_DATASETS,
    ),
    Action(
        "narrow",
        ("f",),
        "show only datasets of a kind, or in a state",
        "datasets",
        guard=_REQUIRES_DATASETS,
    ),
)


def _move_action(name: str, keys: str, title: str) -> Action:
    return Action(name, tuple(keys.split()), title, listed=False)


GENERAL_ACTIONS: Final = (
    Action("filter", ("slash",), "filter this pane", hint="filter"),
    Action("copy", ("y",), "copy what is selected: id, hash, cell or log"),
    Action("copy_command", ("dollar_sign",), "copy the odf command for the selected dataset, row or job"),
    Action("zoom", ("z",), "zoom this pane, and back", hint="zoom"),
    Action(
        "palette", ("colon", "ctrl+p"), "find any action, dataset, block, column, job or theme", hint="find"
    ),
    Action("help", ("question_mark", "f1"), "show the keys that are valid now, and run them", hint="keys"),
    Action("help_topics", ("0", "f2"), "show the help topics"),
    Action("up", ("escape",), "one level up: filter, zoom, pane", guard=requires("up", "this is the top")),
    Action("pane_1", ("1",), "go to the datasets"),
    Action("pane_2", ("2",), "go to the blocks"),
    Action("pane_3", ("3",), "go to the rows"),
    Action("pane_4", ("4",), "go to the jobs"),
    Action("next_pane", ("tab",), "next pane"),
    Action("previous_pane", ("shift+tab",), "previous pane"),
    Action("refresh", ("r", "ctrl+r"), "read everything again"),
    Action("themes", ("T",), "show the colour themes, and take one"),
    Action("grow", ("plus",), "more room for this pane"),
    Action("shrink", ("minus",), "less room for this pane"),
    Action("usual_sizes", ("equals_sign",), "all panes as large as usual"),
    Action("quit", ("q", "ctrl+q", "ctrl+c"), "leave; running jobs go on", hint="quit"),
    _move_action("down", "j down", "down"),
    _move_action("above", "k up", "up"),
    _move_action("left", "h left", "left; in the graph: to an input"),
    _move_action("right", "l right", "right; in the graph: to what is made of it"),
    _move_action("first", "g home", "first"),
    _move_action("last", "G end", "last"),
    _move_action("page_down", "pagedown ctrl+d ctrl+f", "page down"),
    _move_action("page_up", "pageup ctrl+u ctrl+b", "page up"),
)


_REQUIRES_JOB: Final = requires("job", "no job is selected")


def _cancel_guard(situation: Situation) -> str | None:
    if situation.pane == "jobs" and situation.job is not None and situation.job.state.final:
        return f"this job is {situation.job.state.value} already"
    if situation.pane == "jobs" and situation.job is not None:
        return None
    return None if situation.dataset_job else "no job runs for this dataset"


def _retry_guard(situation: Situation) -> str | None:
    job = situation.job
    if job is None:
        return "no job is selected"
    if not job.state.final:
        return "it has not ended: x cancels it"
    return None


def _job_block_guard(situation: Situation) -> str | None:
    job = situation.job
    if job is None:
        return "no job is selected"
    return "this job has not begun" if job.state is JobState.queued else None


def _restart_guard(situation: Situation) -> str | None:
    return None if situation.worker == "gone" else "the worker is there"


JOB_ACTIONS: Final = (
    Action("cancel", ("x",), "cancel the running job", hint="cancel", guard=_cancel_guard),
    Action("open_job", ("enter",), "show the job's whole log", "jobs", "log", _REQUIRES_JOB),
    Action("retry", ("full_stop",), "do the same again", "jobs", "again", _retry_guard),
    Action("job_block", ("b",), "go to the block that the job wrote", "jobs", "block", _job_block_guard),
    Action("job_dataset", ("o",), "go to the job's dataset", "jobs", "dataset", _REQUIRES_JOB),
    Action(
        "job_details", ("i",), "show lines for finding mistakes, and hide them", "jobs", guard=_REQUIRES_JOB
    ),
    Action("wrap_log", ("w",), "wrap long lines of the log, or cut them", "jobs", guard=_REQUIRES_JOB),
    Action("save_log", ("S",), "save the job's whole log to a file", "jobs", guard=_REQUIRES_JOB),
    Action("restart", ("R",), "start the worker again", guard=_restart_guard),
)


_TRANSFERS: Final = ("pull", "push")


def _push_guard(situation: Situation) -> str | None:
    if refusal := require_readable_dataset(situation):
        return refusal
    if situation.dataset_job is not None and situation.dataset_job.kind == "push":
        return f"{situation.dataset_job.target} is being pushed already"
    return None


def _remotes_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    return None if row.remotes else f"{row.name} has no remote yet: u pushes it"


def _branches_guard(situation: Situation) -> str | None:
    job = situation.job
    if situation.pane == "jobs" and job is not None and job.kind in _TRANSFERS:
        return None
    return _remotes_guard(situation)


SHARING_ACTIONS: Final = (
    Action("push", ("u",), "push the dataset: to where it goes, or ask where to", guard=_push_guard),
    Action("push_to", ("W",), "push the dataset to another place", guard=_push_guard),
    Action(
        "look", ("m",), "look how the dataset stands to its remotes now", hint="remotes", guard=_remotes_guard
    ),
    Action(
        "look_all",
        ("M",),
        "look how all datasets stand to their remotes",
        guard=requires("remotes", "no dataset comes from elsewhere or goes there yet"),
    ),
    Action(
        "branches",
        ("V",),
        "show both histories of a dataset that diverged from a remote, and choose",
        guard=_branches_guard,
    ),
    Action("browse", ("I",), "bring in datasets from elsewhere: repositories, or an address"),
    Action("detach", ("X",), "detach the dataset from a remote", guard=_remotes_guard),
)


SQL_ACTIONS: Final = (
    Action("sql", ("s",), "ask a query in SQL; on the job of one: that query and its result", hint="sql"),
)


ACTIONS: Final[tuple[Action, ...]] = (
    *DATASET_ACTIONS, *SHARING_ACTIONS, *JOB_ACTIONS, *BLOCK_ACTIONS, *DATA_ACTIONS, *SQL_ACTIONS,
    *GENERAL_ACTIONS,
)  # fmt: skip
DEFAULT_KEYMAP: Final = KeyMap(ACTIONS)
BY_ID: Final = DEFAULT_KEYMAP.by_id
all_keys, find, valid = DEFAULT_KEYMAP.all_keys, DEFAULT_KEYMAP.find, DEFAULT_KEYMAP.available_actions
