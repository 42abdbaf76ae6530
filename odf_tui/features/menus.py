"""MenuController: the menus of a dataset and of the workspace, each with its actions on one key."""

from __future__ import annotations

from odf_engine.api.text import printable
from odf_tui.actions.model import key_name
from odf_tui.services.controller import Controller
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.form import DescribedPicker


class MenuController(Controller):
    """Opens the menus. Unavailable actions are listed with the reason."""

    def open_dataset_menu(self) -> None:
        """List more actions for the selected dataset."""
        row = self.state.row
        if row is not None:
            self._open("dataset_menu", row.name)

    def open_workspace_menu(self) -> None:
        """List the actions for the workspace."""
        self._open("workspace_menu", f"Workspace {self.workspace.folder.name}")

    def _open(self, menu: str, title: str) -> None:
        situation = self.host.situation()
        actions = [action for action in self.host.keys.actions if action.menu == menu]
        refusals = {action.id: action.guard(situation) for action in actions}
        choices = [
            Choice(
                action.id,
                action.title,
                (action.menu_key,),
                key_name(action.menu_key),
                "unavailable" if refusals[action.id] else "",
                disabled=bool(refusals[action.id]),
            )
            for action in actions
        ]
        about = {name: [[(f" {printable(text)}", "warn")]] for name, text in refusals.items() if text}
        self.host.open(DescribedPicker(title, choices, about), self._perform)

    def _perform(self, action: str | None) -> None:
        if action is not None:
            self.host.perform(action)
