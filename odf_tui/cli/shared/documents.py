"""The commands that all kinds of documents have: add, show, accept, remove."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import click

from odf_engine.api import Document, DocumentEntry, Unreadable
from odf_engine.api.workspace import Workspace
from odf_engine.errors import OdfError
from odf_tui.cli.shared.input import read_documents
from odf_tui.cli.shared.options import CommandGroup, define_command
from odf_tui.cli.shared.output import print_note, select_fields
from odf_tui.cli.shared.workspace import open_workspace

D = TypeVar("D", bound=Document[Any])


class DocumentCommands(Generic[D]):
    """The commands of a kind of documents. A subclass overrides what the kind does besides.

    Attributes:
        kind: the kind.
        example: name of a document, for the examples of the help.
        help: the help of ``add``, ``accept`` and ``remove``.
        accepted: the past tense of the command that accepts documents.
    """

    kind: type[D]
    example: ClassVar[str]
    help: ClassVar[Mapping[str, str]]
    accepted: ClassVar[str] = "accepted"

    def open(self) -> Workspace:
        """Open the workspace of a command."""
        return open_workspace()

    def accept(self, workspace: Workspace, document: D) -> str:
        """Accept a document; return the end of the note about it."""
        workspace.documents(self.kind).accept(document)
        return ""

    def describe_added(self, workspace: Workspace, document: D) -> str:
        """Return what follows the note about an added document."""
        return ""

    def remove(self, workspace: Workspace, name: str) -> None:
        """Remove a document."""
        workspace.documents(self.kind).remove(name)

    def finish(self, workspace: Workspace) -> None:
        """Do what follows when documents were added or accepted."""

    def define(self, group: CommandGroup) -> None:
        """Add the commands to a group."""
        word, names = self.kind.word, f"{self.kind.word.upper()}..."
        article = "an" if word[0] in "aeiou" else "a"
        replace_help = f"Replace {article} {word} of the same name."

        def define(name: str, help: str, example: str) -> Callable[[Callable[..., Any]], click.Command]:
            def decorate(function: Callable[..., Any]) -> click.Command:
                example_line = f"odf {word} {name} {example}"
                command = define_command(name, help=help, example=example_line)(function)
                group.add_command(command)
                return command

            return decorate

        @define("add", self.help["add"], f"{self.example}.yaml")
        @click.argument("files", nargs=-1, required=True, metavar="FILE...")
        @click.option("--replace", is_flag=True, help=replace_help)
        def add(files: Sequence[str], replace: bool) -> None:
            workspace = self.open()
            for text, source in read_documents(files):
                document = workspace.documents(self.kind).write(text, source, replace=replace)
                note = self.accept(workspace, document) + self.describe_added(workspace, document)
                print_note(f"added {word} {document.name}{note}{_describe_problem(workspace, document)}")
            self.finish(workspace)

        @define("show", f"Show the definition of {article} {word}.", self.example)
        @click.argument("name", metavar=word.upper())
        def show(name: str) -> None:
            text = open_workspace().documents(self.kind).text(name)
            sys.stdout.write(text.decode(errors="replace"))

        @define(self.kind.accept_command, self.help["accept"], self.example)
        @click.argument("document_names", nargs=-1, required=True, metavar=names)
        def accept(document_names: Sequence[str]) -> None:
            workspace = self.open()
            for name in document_names:
                document = workspace.documents(self.kind).read(name)
                print_note(f"{self.accepted} {word} {name}{self.accept(workspace, document)}")
            self.finish(workspace)

        @define("remove", self.help["remove"], self.example)
        @click.argument("document_names", nargs=-1, required=True, metavar=names)
        def remove(document_names: Sequence[str]) -> None:
            workspace = self.open()
            for name in document_names:
                self.remove(workspace, name)
                print_note(f"removed {word} {name}")


def _describe_problem(workspace: Workspace, document: Document[Any]) -> str:
    """Return why a document cannot work in this workspace yet, as a second line, or "" if it can."""
    try:
        workspace.check_document(document)
    except OdfError as error:
        return f"\n! {error.format_line}"
    return ""


def entry_json(entry: DocumentEntry[Any] | Unreadable) -> dict[str, Any]:
    """Return the first fields of a document for ``list --json``."""
    return {**select_fields(entry, "name", "state"), "reason": entry.reason or None}


def state_text(row: Mapping[str, Any]) -> str:
    """Return the state of a document for a table, with the reason if it is not active."""
    return row["state"] + (f": {row['reason']}" if row["reason"] else "")
