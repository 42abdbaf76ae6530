"""All actions with their default keys, in the order of help and hints."""

from __future__ import annotations

from typing import Final

from odf_engine.api import JobState
from odf_engine.api.model import REVISABLE_EVENTS
from odf_tui.actions.model import (
    Action,
    Guard,
    KeyMap,
    Situation,
    require_dataset,
    require_readable_dataset,
    requires,
)

_DATASET_MENU: Final = "dataset_menu"
_WORKSPACE_MENU: Final = "workspace_menu"
_REQUIRES_BLOCK: Final = requires("block", "no block is selected")
_REQUIRES_FINDINGS: Final = requires("findings", "no findings: press v to verify the dataset")
_REQUIRES_TRAIL: Final = requires("trail", "no link to go back from")


def _prove_block_guard(situation: Situation) -> str | None:
    if (block := situation.block) is None or not block.broken:
        return _REQUIRES_BLOCK(situation)
    return "this block cannot be read"


def _diff_block_guard(situation: Situation) -> str | None:
    if (block := situation.block) is None or block.event in REVISABLE_EVENTS:
        return _REQUIRES_BLOCK(situation)
    if block.broken:
        return "this block cannot be read: press b to show its bytes"
    what = f"block {block.sequence_number} is {block.event}"
    return f"{what}: only queries, sources, schemas and descriptions have diffs"


BLOCK_ACTIONS: Final = (
    Action("open_block", ("enter",), "show all fields of the block", "blocks", "block", _REQUIRES_BLOCK),
    Action(
        "diff_block",
        ("d",),
        "show the changes of a query, source or schema",
        "blocks",
        "diff",
        _diff_block_guard,
    ),
    Action(
        "block_bytes",
        ("b",),
        "show the bytes of the block and their fields",
        "blocks",
        "bytes",
        _REQUIRES_BLOCK,
    ),
    Action(
        "prove_block",
        ("S",),
        "sign the block with the dataset's private key",
        "blocks",
        "",
        _prove_block_guard,
    ),
    Action(
        "block_kinds",
        ("f",),
        "filter the blocks by kind of event",
        "blocks",
        "kinds",
        require_readable_dataset,
    ),
    Action(
        "jump_block",
        ("J",),
        "go to a block by number, hash, time or offset",
        "blocks",
        "jump",
        require_readable_dataset,
    ),
    Action(
        "next_history",
        ("H",),
        "show an earlier history, such as before a reset",
        "blocks",
        "",
        require_readable_dataset,
    ),
    Action(
        "choose_branch",
        ("B",),
        "show, create, pull, check, compare and promote branches",
        "blocks",
        "branches",
        require_readable_dataset,
        menu=_DATASET_MENU,
        menu_key="b",
    ),
    Action(
        "next_finding",
        ("n", "right_curly_bracket"),
        "go to the next finding",
        "blocks",
        "finding",
        _REQUIRES_FINDINGS,
    ),
    Action(
        "previous_finding",
        ("N", "left_curly_bracket"),
        "go to the previous finding",
        "blocks",
        guard=_REQUIRES_FINDINGS,
    ),
    Action("leave_blocks", ("escape",), "go one level up", "blocks", listed=False),
    Action("back", ("ctrl+o", "backspace"), "go back to the origin of the link", guard=_REQUIRES_TRAIL),
)


_REQUIRES_ROWS: Final = requires("has_rows", "there are no rows")


def _row_action(name: str, key: str, title: str, hint: str = "") -> Action:
    return Action(name, (key,), title, "data", hint, _REQUIRES_ROWS)


DATA_ACTIONS: Final = (
    _row_action("open_row", "enter", "show the row with all values in full", "row"),
    _row_action("jump", "J", "go to a row by offset, number or time", "go to"),
    _row_action("find_rows", "slash", "search all rows for a text", "search"),
    _row_action("next_match", "n", "go to the next match of the search"),
    _row_action("previous_match", "N", "go to the previous match of the search"),
    _row_action("next_slice", "right_square_bracket", "go to the next slice"),
    _row_action("previous_slice", "left_square_bracket", "go to the previous slice"),
    Action(
        "travel",
        ("at",),
        "show the rows as at a block, or as of an event time",
        "data",
        "time",
        require_readable_dataset,
    ),
    _row_action("trace", "w", "trace this row or value to its sources", "trace"),
    Action(
        "differences",
        ("d",),
        "compare with an earlier version or another dataset",
        "data",
        "",
        require_readable_dataset,
    ),
    _row_action("sort_up", "less_than_sign", "sort the loaded rows by this column, ascending"),
    _row_action("sort_down", "greater_than_sign", "sort the loaded rows by this column, descending"),
    _row_action("keep_rows", "f", "filter the loaded rows by the value of this cell", "filter"),
    _row_action("row_among_all", "o", "show this row of a sorted or filtered view among all rows"),
    _row_action("columns", "c", "show, hide, move and freeze columns", "columns"),
    _row_action("hide_column", "H", "hide this column"),
    _row_action("freeze_columns", "F", "freeze the columns up to this one, or unfreeze them"),
    _row_action("mark_row", "space", "mark the row, or the rows since the first mark"),
    Action(
        "statistics",
        ("i",),
        "show schema and statistics of all columns",
        "data",
        "statistics",
        require_readable_dataset,
    ),
    Action(
        "current_state",
        ("K",),
        "show the latest state (by key), or all rows again",
        "data",
        "",
        require_readable_dataset,
    ),
    Action(
        "current_state_by",
        ("B",),
        "show the latest state by selected columns",
        "data",
        "",
        require_readable_dataset,
    ),
    _row_action("export", "E", "export rows to a file: CSV, JSON or Parquet"),
    _row_action("copy_rows", "Y", "copy the marked rows, or this one"),
)


_TRUST_STATES: Final = {"own": "your own", "trusted": "trusted", "not trusted": "untrusted"}
_REQUIRES_DATASETS: Final = requires("datasets", "there are no datasets yet")


def _pull_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    if row.has_pull_remote:
        return _running_pull_guard(situation)
    if row.diverged:
        return f"input {row.diverged[0]} was reset or replaced: press D to rebuild {row.name}"
    if not (row.polls or row.derivative) and row.push_sources:
        return f"{row.name} has no polling source: press , i to push rows"
    if not (row.polls or row.derivative):
        return f"{row.name} has no source: press e to edit its definition"
    return _running_pull_guard(situation)


def _running_pull_guard(situation: Situation) -> str | None:
    if situation.dataset_job is not None and situation.dataset_job.kind == "pull":
        return f"{situation.dataset_job.target} is already being pulled"
    return None


def _rebuild_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    if row.has_pull_remote:
        return f"{row.name} is pulled from a remote: press V to compare histories"
    if not row.diverged:
        return f"{row.name} has not diverged from its inputs: nothing to rebuild"
    return f"{row.name} already has an active job" if situation.dataset_job else None


def _take_columns_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    origin = "query" if row.derivative else "source"
    return None if row.last_pulled else f"{row.name} has no data yet: its {origin} determines the columns"


def _trust_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    return None if row.untrusted else f"{row.name} is already {_TRUST_STATES[row.standing]}"


def _untrust_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_dataset(situation)) or row is None:
        return refusal
    return None if row.standing == "trusted" else f"{row.name} is {_TRUST_STATES[row.standing]}"


def _make_demo_guard(situation: Situation) -> str | None:
    return (
        "the workspace is not empty: use odf demo FOLDER for a separate demo" if situation.datasets else None
    )


def _verify_guard(situation: Situation) -> str | None:
    if refusal := require_dataset(situation):
        return refusal
    if situation.dataset_job is not None and situation.dataset_job.kind == "verify":
        return "a verification is already running"
    return None


DATASET_ACTIONS: Final = (
    Action("pull", ("p",), "pull new data into the dataset", hint="pull", guard=_pull_guard),
    Action(
        "pull_all",
        ("P",),
        "pull all datasets, upstream first",
        guard=requires("pullable", "there is nothing to pull"),
    ),
    Action("verify", ("v",), "verify the dataset: chain, slices, hashes", guard=_verify_guard),
    Action("add", ("n", "a"), "create a dataset from a file, a URL or a template", hint="new"),
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
        "add new columns of the query or source",
        guard=_take_columns_guard,
    ),
    Action("trust", ("t",), "review and trust a dataset by another author", guard=_trust_guard),
    Action("untrust", ("U",), "revoke trust in the dataset", guard=_untrust_guard),
    Action(
        "begin_anew",
        ("D",),
        "rebuild a diverged dataset from its inputs",
        hint="rebuild",
        guard=_rebuild_guard,
    ),
    Action(
        "make_demo",
        ("d",),
        "create the demo: sample sources, five datasets",
        hint="demo",
        guard=_make_demo_guard,
    ),
    Action(
        "column_lineage",
        ("number_sign",),
        "show the column lineage, upstream and downstream",
        guard=require_readable_dataset,
    ),
    Action(
        "open_dataset",
        ("enter",),
        "show all details of the dataset",
        "datasets",
        "details",
        require_dataset,
    ),
    Action(
        "list",
        ("L",),
        "show the datasets as a list or as a graph",
        "datasets",
        "list",
        _REQUIRES_DATASETS,
    ),
    Action("sort", ("o",), "sort the list by the next column", "datasets", guard=_REQUIRES_DATASETS),
    Action(
        "sort_back",
        ("O",),
        "reverse the order of the list",
        "datasets",
        guard=_REQUIRES_DATASETS,
    ),
    Action(
        "narrow",
        ("f",),
        "filter the datasets by kind or state",
        "datasets",
        guard=_REQUIRES_DATASETS,
    ),
)


def _move_action(name: str, keys: str, title: str) -> Action:
    return Action(name, tuple(keys.split()), title, listed=False)


GENERAL_ACTIONS: Final = (
    Action("filter", ("slash",), "filter this pane", hint="filter"),
    Action("copy", ("y",), "copy the selection: id, hash, cell or log"),
    Action("copy_command", ("dollar_sign",), "copy the odf command for the selected dataset, row or job"),
    Action("zoom", ("z",), "zoom this pane, or show all panes again", hint="zoom"),
    Action(
        "palette", ("colon", "ctrl+p"), "find any action, dataset, block, column, job or theme", hint="find"
    ),
    Action("help", ("question_mark", "f1"), "list the available keys, and run one", hint="keys"),
    Action("help_topics", ("0", "f2"), "show the help topics"),
    Action(
        "up",
        ("escape",),
        "go one level up: filter, zoom, pane",
        guard=requires("up", "already at the top level"),
    ),
    Action("pane_1", ("1",), "go to the datasets"),
    Action("pane_2", ("2",), "go to the blocks"),
    Action("pane_3", ("3",), "go to the rows"),
    Action("pane_4", ("4",), "go to the jobs"),
    Action("flows", ("5",), "create, edit and run flows: scheduled and triggered runs"),
    Action("messages", ("exclamation_mark",), "show the newest messages and errors"),
    Action("next_pane", ("tab",), "go to the next pane"),
    Action("previous_pane", ("shift+tab",), "go to the previous pane"),
    Action("refresh", ("r", "ctrl+r"), "reload everything"),
    Action("themes", ("T",), "choose a colour theme"),
    Action("grow", ("plus",), "enlarge this pane"),
    Action("shrink", ("minus",), "shrink this pane"),
    Action("usual_sizes", ("equals_sign",), "reset the sizes of all panes"),
    Action("quit", ("q", "ctrl+q", "ctrl+c"), "quit; running jobs continue", hint="quit"),
    _move_action("down", "j down", "down"),
    _move_action("above", "k up", "up"),
    _move_action("left", "h left", "left; in the graph: upstream"),
    _move_action("right", "l right", "right; in the graph: downstream"),
    _move_action("first", "g home", "first"),
    _move_action("last", "G end", "last"),
    _move_action("page_down", "pagedown ctrl+d ctrl+f", "page down"),
    _move_action("page_up", "pageup ctrl+u ctrl+b", "page up"),
)


_REQUIRES_JOB: Final = requires("job", "no job is selected")


def _cancel_guard(situation: Situation) -> str | None:
    if situation.pane == "jobs" and situation.job is not None and situation.job.state.final:
        return f"this job is already {situation.job.state.value}"
    if situation.pane == "jobs" and situation.job is not None:
        return None
    return None if situation.dataset_job else "no job is running for this dataset"


def _retry_guard(situation: Situation) -> str | None:
    job = situation.job
    if job is None:
        return "no job is selected"
    if not job.state.final:
        return "this job has not ended: press x to cancel it"
    return None


def _job_block_guard(situation: Situation) -> str | None:
    job = situation.job
    if job is None:
        return "no job is selected"
    return "this job has not started" if job.state is JobState.queued else None


def _restart_guard(situation: Situation) -> str | None:
    if situation.worker == "stalled":
        return "the worker does not respond: pane 4 shows how to continue or end it"
    return None if situation.worker == "gone" else "the worker is running"


JOB_ACTIONS: Final = (
    Action("cancel", ("x",), "cancel the job", hint="cancel", guard=_cancel_guard),
    Action("open_job", ("enter",), "show the complete log of the job", "jobs", "log", _REQUIRES_JOB),
    Action("retry", ("full_stop",), "run the job again", "jobs", "retry", _retry_guard),
    Action("job_block", ("b",), "go to the block that the job wrote", "jobs", "block", _job_block_guard),
    Action("job_dataset", ("o",), "go to the job's dataset", "jobs", "dataset", _REQUIRES_JOB),
    Action("job_details", ("i",), "show or hide debug lines", "jobs", guard=_REQUIRES_JOB),
    Action("wrap_log", ("w",), "wrap or truncate long lines of the log", "jobs", guard=_REQUIRES_JOB),
    Action("save_log", ("S",), "save the complete log of the job to a file", "jobs", guard=_REQUIRES_JOB),
    Action("restart", ("R",), "restart the worker", guard=_restart_guard),
)


_TRANSFERS: Final = ("pull", "push")


def _push_guard(situation: Situation) -> str | None:
    if refusal := require_readable_dataset(situation):
        return refusal
    if situation.dataset_job is not None and situation.dataset_job.kind == "push":
        return f"{situation.dataset_job.target} is already being pushed"
    return None


def _remotes_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    return None if row.remotes else f"{row.name} has no remote: press u to push it"


def _branches_guard(situation: Situation) -> str | None:
    job = situation.job
    if situation.pane == "jobs" and job is not None and job.kind in _TRANSFERS:
        return None
    return _remotes_guard(situation)


SHARING_ACTIONS: Final = (
    Action("push", ("u",), "push the dataset to its remote, or to a new one", guard=_push_guard),
    Action("push_to", ("W",), "push the dataset to another remote", guard=_push_guard),
    Action("look", ("m",), "check the dataset's remotes for changes", hint="remotes", guard=_remotes_guard),
    Action(
        "look_all",
        ("M",),
        "check the remotes of all datasets for changes",
        guard=requires("remotes", "no dataset has a remote"),
    ),
    Action(
        "branches",
        ("V",),
        "compare both histories of a dataset and its remote",
        guard=_branches_guard,
    ),
    Action("browse", ("I",), "import datasets from a repository or a URL"),
    Action("detach", ("X",), "detach the dataset from a remote", guard=_remotes_guard),
)


SQL_ACTIONS: Final = (
    Action("sql", ("s",), "run an SQL query; on a query job: reopen its query", hint="sql"),
)


def _unused_guard(situation: Situation) -> str | None:
    """Guard: a dataset is selected, and no job uses it."""
    if refusal := require_dataset(situation):
        return refusal
    job = situation.dataset_job
    return f"a {job.kind} of {job.target} is active: press x to cancel it" if job is not None else None


def _pull_options_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None or row.has_pull_remote:
        return refusal or _pull_guard(situation)
    if row.diverged or (row.push_sources and not row.polls):
        return _running_pull_guard(situation)  # the form can rebuild it, or set its watermark
    if row.untrusted and not row.derivative:
        return f"{row.name} is untrusted: press t to review it"
    return _pull_guard(situation)


def _preview_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    if not row.polls or row.has_pull_remote:
        return f"{row.name} has no source that a pull reads"
    return f"{row.name} is untrusted: press t to review it" if row.untrusted else None


def _ingest_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    if row.has_pull_remote:
        return f"{row.name} is pulled from a remote: rows are pushed there"
    if not row.push_sources:
        return f"{row.name} has no push source: press e to add one"
    if row.untrusted:
        return f"{row.name} is untrusted: press t to review it"
    return None


def _trust_details_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    if row.polls or row.push_sources or row.derivative:
        return None
    return f"{row.name} has no source and no query: it runs nothing"


def _variables_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    return None if row.polls else f"{row.name} has no polling source, which could read variables"


def _compact_guard(situation: Situation) -> str | None:
    row = situation.dataset
    if (refusal := require_readable_dataset(situation)) or row is None:
        return refusal
    return (
        f"{row.name} is a derivative dataset: only root datasets can be compacted" if row.derivative else None
    )


def _menu_action(menu: str, key: str, name: str, title: str, guard: Guard | None = None) -> Action:
    if guard is None:
        return Action(name, (), title, menu=menu, menu_key=key)
    return Action(name, (), title, guard=guard, menu=menu, menu_key=key)


DATASET_MENU_ACTIONS: Final = (
    Action(_DATASET_MENU, ("comma",), "more actions for the dataset", guard=require_dataset),
    _menu_action(_DATASET_MENU, "p", "pull_options", "pull with options", _pull_options_guard),
    _menu_action(
        _DATASET_MENU, "w", "preview", "show the rows that the next pull would commit", _preview_guard
    ),
    _menu_action(
        _DATASET_MENU, "f", "adapt_source", "adapt the source to the file that it gives now", _preview_guard
    ),
    _menu_action(_DATASET_MENU, "i", "ingest", "push rows from files into the dataset", _ingest_guard),
    _menu_action(_DATASET_MENU, "v", "verify_options", "verify with options", _verify_guard),
    _menu_action(_DATASET_MENU, "s", "compact", "merge small slices of the dataset", _compact_guard),
    _menu_action(
        _DATASET_MENU,
        "k",
        "checks",
        "create, edit and run checks; show their results",
        require_readable_dataset,
    ),
    _menu_action(_DATASET_MENU, "r", "rename", "rename the dataset", require_dataset),
    _menu_action(
        _DATASET_MENU, "c", "duplicate", "create a dataset with the same definition", require_readable_dataset
    ),
    _menu_action(
        _DATASET_MENU, "y", "copy_citation", "copy the citation of the dataset", require_readable_dataset
    ),
    _menu_action(_DATASET_MENU, "d", "delete", "delete the dataset and its data", _unused_guard),
    _menu_action(
        _DATASET_MENU, "m", "remotes", "show, add and detach remotes of the dataset", require_readable_dataset
    ),
    _menu_action(
        _DATASET_MENU, "t", "trust_details", "show trust and what the dataset runs", _trust_details_guard
    ),
    _menu_action(
        _DATASET_MENU, "e", "variables", "allow environment variables to its source", _variables_guard
    ),
)
WORKSPACE_MENU_ACTIONS: Final = (
    Action(_WORKSPACE_MENU, ("semicolon",), "settings, warnings, keys, tokens, server, proofs, file check"),
    _menu_action(_WORKSPACE_MENU, "s", "settings", "show and change settings"),
    _menu_action(_WORKSPACE_MENU, "c", "credentials", "store or remove credentials of repositories"),
    _menu_action(_WORKSPACE_MENU, "p", "private_keys", "export, import and delete private keys"),
    _menu_action(_WORKSPACE_MENU, "h", "server", "start or stop a server for the datasets"),
    _menu_action(_WORKSPACE_MENU, "t", "tokens", "create and revoke tokens for pushes"),
    _menu_action(_WORKSPACE_MENU, "a", "prove_answer", "write a proof of a query result"),
    _menu_action(_WORKSPACE_MENU, "v", "check_proof", "verify a proof of a query result"),
    _menu_action(_WORKSPACE_MENU, "w", "warnings", "show the warnings of recent jobs"),
    _menu_action(_WORKSPACE_MENU, "n", "alerts", "create, edit and test alerts; show their messages"),
    _menu_action(_WORKSPACE_MENU, "f", "check_workspace", "check and repair the files of the workspace"),
)


ACTIONS: Final[tuple[Action, ...]] = (
    *DATASET_ACTIONS, *SHARING_ACTIONS, *DATASET_MENU_ACTIONS, *JOB_ACTIONS, *BLOCK_ACTIONS, *DATA_ACTIONS,
    *SQL_ACTIONS, *WORKSPACE_MENU_ACTIONS, *GENERAL_ACTIONS,
)  # fmt: skip
DEFAULT_KEYMAP: Final = KeyMap(ACTIONS)
BY_ID: Final = DEFAULT_KEYMAP.by_id
all_keys, find, valid = DEFAULT_KEYMAP.all_keys, DEFAULT_KEYMAP.find, DEFAULT_KEYMAP.available_actions
