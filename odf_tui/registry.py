"""Binds each action to a method of a controller, and defines how that controller is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from odf_tui.panes.blocks.controller import BlocksController
from odf_tui.panes.data.controller import DataController
from odf_tui.panes.datasets.controller import DatasetsController
from odf_tui.panes.jobs.controller import JobsController
from odf_tui.panes.pane_layout import PaneLayout
from odf_tui.services.controller import Context, Controller

# The first action of a feature imports it, to keep the first paint fast.
if TYPE_CHECKING:
    from odf_tui.features.administration.credentials import CredentialsController
    from odf_tui.features.administration.dataset_changes import DatasetChangesController
    from odf_tui.features.administration.dataset_remotes import DatasetRemotesController
    from odf_tui.features.administration.file_check import FileCheckController
    from odf_tui.features.administration.private_keys import PrivateKeysController
    from odf_tui.features.administration.push_tokens import PushTokensController
    from odf_tui.features.administration.server import ServerController
    from odf_tui.features.administration.settings import SettingsController
    from odf_tui.features.administration.trust_details import TrustDetailsController
    from odf_tui.features.column_lineage import ColumnLineageController
    from odf_tui.features.copy_command import CopyCommandController
    from odf_tui.features.dataset_actions import DatasetActionsController
    from odf_tui.features.dataset_diff import DatasetDiffController
    from odf_tui.features.definitions.controller import DefinitionsController
    from odf_tui.features.export import ExportController
    from odf_tui.features.flows import FlowsController
    from odf_tui.features.help_topics import HelpTopicsController
    from odf_tui.features.job_options import JobOptionsController
    from odf_tui.features.menus import MenuController
    from odf_tui.features.palette import PaletteController
    from odf_tui.features.proofs import ProofsController
    from odf_tui.features.provenance.controller import ProvenanceController
    from odf_tui.features.sharing.controller import SharingController
    from odf_tui.features.sql.controller import SqlController
    from odf_tui.features.statistics import StatisticsController
    from odf_tui.features.time_travel.controller import TimeTravelController

C = TypeVar("C", bound=Controller)


class Feature(Generic[C]):
    """A controller, the function that loads it, and the methods that run its actions.

    Args:
        load: creates the controller.
        actions: the methods by action id. Ids are as in :mod:`odf_tui.actions.table`.
        early: whether the controller is loaded at the start; otherwise its first action loads it.
    """

    def __init__(
        self,
        load: Callable[[Context], C],
        actions: Mapping[str, Callable[[C], object]],
        *,
        early: bool = False,
    ) -> None:
        self.load, self.actions, self.early = load, actions, early


def _column_lineage(context: Context) -> ColumnLineageController:
    from odf_tui.features.column_lineage import ColumnLineageController

    return ColumnLineageController(context)


def _copy_command(context: Context) -> CopyCommandController:
    from odf_tui.features.copy_command import CopyCommandController

    return CopyCommandController(context)


def _dataset_actions(context: Context) -> DatasetActionsController:
    from odf_tui.features.dataset_actions import DatasetActionsController

    return DatasetActionsController(context)


def _dataset_diff(context: Context) -> DatasetDiffController:
    from odf_tui.features.dataset_diff import DatasetDiffController

    return DatasetDiffController(context)


def _definitions(context: Context) -> DefinitionsController:
    from odf_tui.features.definitions.controller import DefinitionsController

    return DefinitionsController(context)


def _export(context: Context) -> ExportController:
    from odf_tui.features.export import ExportController

    return ExportController(context)


def _flows(context: Context) -> FlowsController:
    from odf_tui.features.flows import FlowsController

    return FlowsController(context)


def _help_topics(context: Context) -> HelpTopicsController:
    from odf_tui.features.help_topics import HelpTopicsController

    return HelpTopicsController(context)


def _palette(context: Context) -> PaletteController:
    from odf_tui.features.palette import PaletteController

    return PaletteController(context)


def _provenance(context: Context) -> ProvenanceController:
    from odf_tui.features.provenance.controller import ProvenanceController

    return ProvenanceController(context)


def _sharing(context: Context) -> SharingController:
    from odf_tui.features.sharing.controller import SharingController

    return SharingController(context)


def _sql(context: Context) -> SqlController:
    from odf_tui.features.sql.controller import SqlController

    return SqlController(context)


def _statistics(context: Context) -> StatisticsController:
    from odf_tui.features.statistics import StatisticsController

    return StatisticsController(context)


def _time_travel(context: Context) -> TimeTravelController:
    from odf_tui.features.time_travel.controller import TimeTravelController

    return TimeTravelController(context)


def _credentials(context: Context) -> CredentialsController:
    from odf_tui.features.administration.credentials import CredentialsController

    return CredentialsController(context)


def _dataset_changes(context: Context) -> DatasetChangesController:
    from odf_tui.features.administration.dataset_changes import DatasetChangesController

    return DatasetChangesController(context)


def _dataset_remotes(context: Context) -> DatasetRemotesController:
    from odf_tui.features.administration.dataset_remotes import DatasetRemotesController

    return DatasetRemotesController(context)


def _file_check(context: Context) -> FileCheckController:
    from odf_tui.features.administration.file_check import FileCheckController

    return FileCheckController(context)


def _private_keys(context: Context) -> PrivateKeysController:
    from odf_tui.features.administration.private_keys import PrivateKeysController

    return PrivateKeysController(context)


def _push_tokens(context: Context) -> PushTokensController:
    from odf_tui.features.administration.push_tokens import PushTokensController

    return PushTokensController(context)


def _server(context: Context) -> ServerController:
    from odf_tui.features.administration.server import ServerController

    return ServerController(context)


def _settings(context: Context) -> SettingsController:
    from odf_tui.features.administration.settings import SettingsController

    return SettingsController(context)


def _trust_details(context: Context) -> TrustDetailsController:
    from odf_tui.features.administration.trust_details import TrustDetailsController

    return TrustDetailsController(context)


def _job_options(context: Context) -> JobOptionsController:
    from odf_tui.features.job_options import JobOptionsController

    return JobOptionsController(context)


def _menus(context: Context) -> MenuController:
    from odf_tui.features.menus import MenuController

    return MenuController(context)


def _proofs(context: Context) -> ProofsController:
    from odf_tui.features.proofs import ProofsController

    return ProofsController(context)


FEATURES: Final = (  # without an annotation, so that pyright checks the methods of each controller
    Feature(
        PaneLayout,
        {
            "down": lambda c: c.host.front.move("down"),
            "above": lambda c: c.host.front.move("above"),
            "left": lambda c: c.host.front.move("left"),
            "right": lambda c: c.host.front.move("right"),
            "first": lambda c: c.host.front.move("first"),
            "last": lambda c: c.host.front.move("last"),
            "page_down": lambda c: c.host.front.move("page_down"),
            "page_up": lambda c: c.host.front.move("page_up"),
            "pane_1": lambda c: c.state.focus_pane("datasets"),
            "pane_2": lambda c: c.state.focus_pane("blocks"),
            "pane_3": lambda c: c.state.focus_pane("data"),
            "pane_4": lambda c: c.state.focus_pane("jobs"),
            "next_pane": PaneLayout.next_pane,
            "previous_pane": PaneLayout.previous_pane,
            "up": lambda c: c.host.up(),
            "leave_blocks": lambda c: c.host.up(),
            "filter": PaneLayout.open_filter,
            "zoom": PaneLayout.toggle_zoom,
            "grow": PaneLayout.grow,
            "shrink": PaneLayout.shrink,
            "usual_sizes": PaneLayout.reset_sizes,
            "back": lambda c: c.navigator.back(),
            "quit": PaneLayout.quit,
        },
        early=True,
    ),
    Feature(
        DatasetsController,
        {
            "refresh": DatasetsController.refresh,
            "list": DatasetsController.toggle_list,
            "sort": DatasetsController.sort,
            "sort_back": DatasetsController.reverse_sort,
            "narrow": DatasetsController.choose_filter,
        },
        early=True,
    ),
    Feature(
        BlocksController,
        {
            "open_block": BlocksController.open_block,
            "diff_block": BlocksController.open_revision,
            "block_bytes": BlocksController.open_bytes,
            "prove_block": BlocksController.sign_block,
            "block_kinds": BlocksController.choose_kinds,
            "next_history": BlocksController.next_history,
            "choose_branch": BlocksController.choose_branch,
            "jump_block": BlocksController.jump,
            "next_finding": BlocksController.next_finding,
            "previous_finding": BlocksController.previous_finding,
        },
        early=True,
    ),
    Feature(
        DataController,
        {
            "open_row": DataController.open_row,
            "jump": DataController.jump,
            "find_rows": DataController.find_rows,
            "next_match": DataController.next_match,
            "previous_match": DataController.previous_match,
            "next_slice": DataController.next_slice,
            "previous_slice": DataController.previous_slice,
            "sort_up": lambda c: c.pane.sort(down=False),
            "sort_down": lambda c: c.pane.sort(down=True),
            "keep_rows": DataController.filter_by_value,
            "row_among_all": DataController.reveal_in_all_rows,
            "columns": DataController.choose_columns,
            "hide_column": DataController.hide_column,
            "freeze_columns": DataController.freeze_columns,
            "mark_row": DataController.mark_row,
            "copy": DataController.copy,
            "copy_rows": DataController.copy_rows,
        },
        early=True,
    ),
    Feature(
        JobsController,
        {
            "cancel": JobsController.cancel,
            "open_job": JobsController.open_log,
            "retry": JobsController.retry,
            "job_block": JobsController.show_block,
            "job_dataset": JobsController.select_dataset,
            "job_details": JobsController.toggle_details,
            "wrap_log": JobsController.toggle_wrap,
            "save_log": JobsController.save_log,
            "restart": JobsController.restart_worker,
        },
        early=True,
    ),
    Feature(
        _palette,
        {
            "help": lambda c: c.show_keys(),
            "palette": lambda c: c.find(),
            "themes": lambda c: c.choose_theme(),
        },
    ),
    Feature(
        _dataset_actions,
        {
            "pull": lambda c: c.pull(),
            "pull_all": lambda c: c.pull_all(),
            "verify": lambda c: c.verify(),
            "open_dataset": lambda c: c.open_dataset(),
            "trust": lambda c: c.trust(),
            "untrust": lambda c: c.revoke_trust(),
            "begin_anew": lambda c: c.rebuild(),
        },
    ),
    Feature(
        _definitions,
        {
            "add": lambda c: c.add_dataset(),
            "add_file": lambda c: c.add_from_manifest(),
            "edit": lambda c: c.edit_definition(),
            "take_columns": lambda c: c.add_new_columns(),
            "make_demo": lambda c: c.make_demo(),
        },
    ),
    Feature(
        _sharing,
        {
            "look": lambda c: c.compare(),
            "look_all": lambda c: c.compare_all(),
            "push": lambda c: c.push(),
            "push_to": lambda c: c.push_to_address(),
            "branches": lambda c: c.show_branches(),
            "browse": lambda c: c.browse(),
            "detach": lambda c: c.detach(),
        },
    ),
    Feature(_provenance, {"trace": lambda c: c.trace_row()}),
    Feature(_column_lineage, {"column_lineage": lambda c: c.show_column_lineage()}),
    Feature(_dataset_diff, {"differences": lambda c: c.show_differences()}),
    Feature(_statistics, {"statistics": lambda c: c.show_statistics()}),
    Feature(_copy_command, {"copy_command": lambda c: c.copy()}),
    Feature(_help_topics, {"help_topics": lambda c: c.show_topics()}),
    Feature(
        _flows,
        {
            "flows": lambda c: c.show_flows(),
            "checks": lambda c: c.show_checks(),
            "alerts": lambda c: c.show_alerts(),
        },
    ),
    Feature(_export, {"export": lambda c: c.export_rows()}),
    Feature(
        _time_travel,
        {
            "travel": lambda c: c.open_slider(),
            "current_state": lambda c: c.toggle_current_state(),
            "current_state_by": lambda c: c.choose_state_key(),
        },
    ),
    Feature(
        _menus,
        {
            "dataset_menu": lambda c: c.open_dataset_menu(),
            "workspace_menu": lambda c: c.open_workspace_menu(),
        },
    ),
    Feature(
        _job_options,
        {
            "pull_options": lambda c: c.pull(),
            "ingest": lambda c: c.ingest(),
            "verify_options": lambda c: c.verify(),
            "compact": lambda c: c.compact(),
        },
    ),
    Feature(
        _dataset_changes,
        {
            "rename": lambda c: c.rename(),
            "duplicate": lambda c: c.duplicate(),
            "delete": lambda c: c.delete(),
        },
    ),
    Feature(_dataset_remotes, {"remotes": lambda c: c.show_remotes()}),
    Feature(
        _trust_details,
        {"trust_details": lambda c: c.show_details(), "variables": lambda c: c.change_variables()},
    ),
    Feature(_settings, {"settings": lambda c: c.show_settings()}),
    Feature(_credentials, {"credentials": lambda c: c.show_credentials()}),
    Feature(_private_keys, {"private_keys": lambda c: c.show_keys()}),
    Feature(_server, {"server": lambda c: c.show_server()}),
    Feature(_push_tokens, {"tokens": lambda c: c.show_tokens()}),
    Feature(_proofs, {"prove_answer": lambda c: c.write_proof(), "check_proof": lambda c: c.check_proof()}),
    Feature(_file_check, {"check_workspace": lambda c: c.check()}),
    Feature(_sql, {"sql": lambda c: c.open_query()}),
)
