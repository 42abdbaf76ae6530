"""MenuController: the menus of a dataset and of the workspace, each with its actions on one key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from odf_engine.api.text import printable
from odf_tui.actions.model import key_name
from odf_tui.services.controller import Controller
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.form import DescribedPicker

DESCRIPTIONS: Final[Mapping[str, str]] = {
    "pull_options": "Pulls even if nothing has changed, pulls the inputs too, or only sets the watermark.",
    "preview": "Runs the next pull without committing it: its new, changed and rejected rows.",
    "adapt_source": "Reads the file again, and proposes a definition for its new columns, types or format.",
    "ingest": "Adds the rows of CSV, JSON or Parquet files through a push source.",
    "verify_options": "Verifies blocks and data, replays transactions, or verifies upstream datasets too.",
    "compact": "Merges many small slices into a few large ones. Rows and offsets do not change.",
    "checks": "Rules that the rows must satisfy, such as no null in a key. A pull reports violations.",
    "choose_branch": "Tries changes on a branch of the dataset, and promotes it when the rows are right.",
    "rename": "Changes the name in this workspace. The identity and the data do not change.",
    "duplicate": "Creates an empty dataset with the same source or query, and its own identity.",
    "copy_citation": "A text in APA style with the hash of the newest block. See odf help cite.",
    "delete": "Asks for the name first. Datasets that others read cannot be deleted.",
    "remotes": "The repositories that the dataset is pulled from and pushed to.",
    "trust_details": "The queries, commands and filters that a pull would run, and whether they are trusted.",
    "variables": "The source can read only the environment variables that are allowed here.",
    "settings": "The settings of this workspace, of the user, and their default values.",
    "credentials": "Tokens and passwords, for repositories and sources that require them.",
    "private_keys": "A private key signs a dataset, so that others can verify who published it.",
    "server": "Serves the datasets over HTTP, so that other people can pull and query them.",
    "tokens": "A token allows other people to push to the server of this workspace.",
    "prove_answer": "Writes the query, its inputs and their hashes to a file that anyone can verify.",
    "check_proof": "Runs the query of a proof again, and compares the result.",
    "warnings": "What recent jobs reported although they succeeded. Enter goes to the job.",
    "alerts": "Messages to a person or a program, when a pull fails or a check is violated.",
    "check_workspace": "Looks for damaged, missing and unused files, and repairs what it can.",
}
"""What the actions of the menus do, by id."""


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
        about = {action.id: [[(f" {DESCRIPTIONS[action.id]}", "muted")]] for action in actions}
        for name, text in refusals.items():
            if text:
                about[name] = [[(f" {printable(text)}", "warn")], *about[name]]
        self.host.open(DescribedPicker(title, choices, about), self._perform)

    def _perform(self, action: str | None) -> None:
        if action is not None:
            self.host.perform(action)
