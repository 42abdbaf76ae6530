"""Binds each action to a method of a controller, by name: the first action of a feature imports it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

PANE_CONTROLLERS: Final[Mapping[str, Mapping[str, str]]] = {
    "panes.pane_layout.PaneLayout": {
        "down": "move down",
        "above": "move above",
        "left": "move left",
        "right": "move right",
        "first": "move first",
        "last": "move last",
        "page_down": "move page_down",
        "page_up": "move page_up",
        "pane_1": "focus datasets",
        "pane_2": "focus blocks",
        "pane_3": "focus data",
        "pane_4": "focus jobs",
        "next_pane": "next_pane",
        "previous_pane": "previous_pane",
        "up": "go_up",
        "leave_blocks": "go_up",
        "filter": "open_filter",
        "zoom": "toggle_zoom",
        "grow": "grow",
        "shrink": "shrink",
        "usual_sizes": "reset_sizes",
        "back": "go_back",
        "quit": "quit",
    },
    "panes.datasets.controller.DatasetsController": {
        "refresh": "refresh",
        "list": "toggle_list",
        "sort": "sort",
        "sort_back": "reverse_sort",
        "narrow": "choose_filter",
    },
    "panes.blocks.controller.BlocksController": {
        "open_block": "open_block",
        "diff_block": "open_revision",
        "block_bytes": "open_bytes",
        "prove_block": "sign_block",
        "block_kinds": "choose_kinds",
        "next_history": "next_history",
        "jump_block": "jump",
        "next_finding": "next_finding",
        "previous_finding": "previous_finding",
    },
    "panes.data.controller.DataController": {
        "open_row": "open_row",
        "jump": "jump",
        "find_rows": "find_rows",
        "next_match": "next_match",
        "previous_match": "previous_match",
        "next_slice": "next_slice",
        "previous_slice": "previous_slice",
        "sort_up": "sort ascending",
        "sort_down": "sort descending",
        "keep_rows": "filter_by_value",
        "row_among_all": "reveal_in_all_rows",
        "columns": "choose_columns",
        "hide_column": "hide_column",
        "freeze_columns": "freeze_columns",
        "mark_row": "mark_row",
        "copy": "copy",
        "copy_rows": "copy_rows",
    },
    "panes.jobs.controller.JobsController": {
        "cancel": "cancel",
        "open_job": "open_log",
        "retry": "retry",
        "job_block": "show_block",
        "job_dataset": "select_dataset",
        "job_details": "toggle_details",
        "wrap_log": "toggle_wrap",
        "save_log": "save_log",
        "restart": "restart_worker",
    },
}
"""Methods of the controllers that the first paint needs, by action. An argument may follow the method."""

FEATURES: Final[Mapping[str, Mapping[str, str]]] = {
    "features.palette.PaletteController": {
        "help": "show_keys",
        "palette": "find",
        "themes": "choose_theme",
    },
    "features.dataset_actions.DatasetActionsController": {
        "pull": "pull",
        "pull_all": "pull_all",
        "verify": "verify",
        "open_dataset": "open_dataset",
        "trust": "trust",
        "untrust": "revoke_trust",
        "begin_anew": "rebuild",
    },
    "features.definitions.controller.DefinitionsController": {
        "add": "add_dataset",
        "add_file": "add_from_manifest",
        "edit": "edit_definition",
        "take_columns": "add_new_columns",
        "adapt_source": "adapt_source",
        "make_demo": "make_demo",
    },
    "features.sharing.controller.SharingController": {
        "look": "compare",
        "look_all": "compare_all",
        "push": "push",
        "push_to": "push_to_address",
        "branches": "show_branches",
        "browse": "browse",
        "detach": "detach",
    },
    "features.provenance.controller.ProvenanceController": {"trace": "trace_row"},
    "features.branches.BranchesController": {"choose_branch": "show_branches"},
    "features.column_lineage.ColumnLineageController": {"column_lineage": "show_column_lineage"},
    "features.dataset_diff.DatasetDiffController": {"differences": "show_differences"},
    "features.preview.PreviewController": {"preview": "show_preview"},
    "features.statistics.StatisticsController": {"statistics": "show_statistics"},
    "features.copy_command.CopyCommandController": {
        "copy_command": "copy",
        "copy_citation": "copy_citation",
    },
    "features.help_topics.HelpTopicsController": {"help_topics": "show_topics"},
    "features.automation.controller.AutomationController": {
        "flows": "show_flows",
        "checks": "show_checks",
        "alerts": "show_alerts",
    },
    "features.messages.MessagesController": {"messages": "show_messages", "warnings": "show_warnings"},
    "features.export.ExportController": {"export": "export_rows"},
    "features.time_travel.controller.TimeTravelController": {
        "travel": "open_slider",
        "current_state": "toggle_current_state",
        "current_state_by": "choose_state_key",
    },
    "features.menus.MenuController": {
        "dataset_menu": "open_dataset_menu",
        "workspace_menu": "open_workspace_menu",
    },
    "features.job_options.JobOptionsController": {
        "pull_options": "pull",
        "ingest": "ingest",
        "verify_options": "verify",
        "compact": "compact",
    },
    "features.administration.dataset_changes.DatasetChangesController": {
        "rename": "rename",
        "duplicate": "duplicate",
        "delete": "delete",
    },
    "features.administration.dataset_remotes.DatasetRemotesController": {"remotes": "show_remotes"},
    "features.administration.trust_details.TrustDetailsController": {
        "trust_details": "show_details",
        "variables": "change_variables",
    },
    "features.administration.settings.SettingsController": {"settings": "show_settings"},
    "features.administration.credentials.CredentialsController": {"credentials": "show_credentials"},
    "features.administration.private_keys.PrivateKeysController": {"private_keys": "show_keys"},
    "features.administration.server.ServerController": {"server": "show_server"},
    "features.administration.push_tokens.PushTokensController": {"tokens": "show_tokens"},
    "features.proofs.ProofsController": {"prove_answer": "write_proof", "check_proof": "check_proof"},
    "features.administration.file_check.FileCheckController": {"check_workspace": "check"},
    "features.sql.controller.SqlController": {"sql": "open_query"},
    "features.tour.TourController": {},
}
"""Methods of the controllers that their first action loads, by action."""

CONTROLLERS: Final = {**PANE_CONTROLLERS, **FEATURES}
CONTROLLER_OF: Final = {action: name for name, methods in CONTROLLERS.items() for action in methods}


def import_controller(name: str) -> type[Any]:
    """Import a class by its name in :data:`CONTROLLERS`."""
    module, _, kind = name.rpartition(".")
    return getattr(import_module(f"odf_tui.{module}"), kind)


def run(controller: object, action: str) -> object:
    """Call the method that runs an action."""
    method, *arguments = CONTROLLERS[CONTROLLER_OF[action]][action].split()
    return getattr(controller, method)(*arguments)
