"""PrivateKeysController: exports, imports and deletes private keys of datasets."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from odf_engine.api.operations.key_files import PrivateKey
from odf_engine.api.text import printable
from odf_tui.services.controller import Controller, task
from odf_tui.text.format import Span
from odf_tui.widgets.choice_list import Choice
from odf_tui.widgets.dialogs import PickerDialog, TypedConfirmation
from odf_tui.widgets.form import DescribedPicker, Field, FormDialog, FormValues, existing_file, required

_IMPORT: Final = "+"
_TYPED_CHARACTERS: Final = 8


class PrivateKeysController(Controller):
    """Lists the private keys in the workspace, exports, imports and deletes them."""

    @task
    async def show_keys(self) -> None:
        """List the private keys, with the cursor on the selected dataset's."""
        at = self.state.row.id if self.state.row is not None else ""
        while True:
            keys = await asyncio.to_thread(self.workspace.private_keys)
            by_id = {str(private_key.id): private_key for private_key in keys}
            choices = [Choice(key_id, _label(key), remark=_remark(key)) for key_id, key in by_id.items()]
            choices.append(Choice(_IMPORT, "import a key from a file", ("plus",), "+"))
            about = {key_id: key_lines(key) for key_id, key in by_id.items()}
            dialog = DescribedPicker("Private keys", choices, about)
            dialog.cursor = list(by_id).index(at) if at in by_id else 0
            picked = await self.host.ask(dialog)
            if picked is None:
                return
            if picked == _IMPORT:
                await self._import()
                continue
            at = picked
            actions = [
                Choice("export", "export to a file", ("e",), "e"),
                Choice("delete", "delete", ("d",), "d", "ownership can no longer be proven"),
            ]
            key = by_id[picked]
            answer = await self.host.ask(PickerDialog(f"Key of {_label(key)}", actions, typing=False))
            if answer == "export":
                await self._export(key)
            elif answer == "delete":
                await self._delete(key)

    async def _export(self, key: PrivateKey) -> None:
        def check(form: FormValues) -> str:
            path = _path(form)
            if path.exists():
                return f"{path.name} already exists: enter another name"
            if not path.parent.is_dir():
                return f"folder {path.parent} not found"
            same = form.text("passphrase") == form.text("repeated")
            return "" if same else "the passphrases differ"

        name = key.name.rpartition("/")[2] or key.id.multibase[-_TYPED_CHARACTERS:]
        fields = [
            Field("file", "file", "A new file, which only you can read.", f"{name}.pem",
                  check=required("enter the path of a file"), is_path=True),
            Field("passphrase", "passphrase", "Encrypts the key. Empty: the key is not encrypted.",
                  secret=True),
            Field("repeated", "repeated", "The same passphrase again.", secret=True),
        ]  # fmt: skip
        form = await self.host.ask(
            FormDialog(f"Export the private key of {_label(key)}", fields, "exports", check=check)
        )
        if form is not None:
            path, secret = _path(form), form.text("passphrase") or None
            await asyncio.to_thread(self.workspace.export_private_key, key, path, secret)
            remark = "" if secret else ", not encrypted: protect it like a password"
            self.host.notice(f"exported to {path.name}{remark}")

    async def _import(self) -> None:
        fields = [
            Field("file", "file", "A PEM file with the private key of a dataset. → completes.",
                  check=existing_file, is_path=True, example="dataset.pem"),
            Field("passphrase", "passphrase", "The passphrase of the file, if it is encrypted.", secret=True),
        ]  # fmt: skip
        form = await self.host.ask(FormDialog("Import a private key", fields, "imports"))
        if form is None:
            return
        secret = form.text("passphrase") or None
        dataset, status = await asyncio.to_thread(self.workspace.import_private_key, _path(form), secret)
        self.state.datasets_outdated.send(None)
        name = self.state.name_of(str(dataset)) or str(dataset)
        done = "is already in this workspace" if status == "known" else "was imported"
        self.host.notice(f"the private key of {name} {done}")

    async def _delete(self, key: PrivateKey) -> None:
        expected = key.name or str(key.id)[-_TYPED_CHARACTERS:]
        dialog = TypedConfirmation(
            f"Delete the private key of {_label(key)}?",
            key_deletion_lines(key),
            [expected],
            f"type {expected} to delete the key",
        )
        if not await self.host.ask(dialog):
            self.host.notice("the key is unchanged", "warn")
            return
        await asyncio.to_thread(self.workspace.delete_private_key, key.id)
        self.state.datasets_outdated.send(None)
        self.host.notice(f"deleted the private key of {_label(key)}")


def _path(form: FormValues) -> Path:
    return Path(form.text("file")).expanduser().absolute()


def _label(key: PrivateKey) -> str:
    return key.name or f"…{str(key.id)[-_TYPED_CHARACTERS:]}"


def _remark(key: PrivateKey) -> str:
    return "" if key.name else "dataset not in this workspace"


def key_lines(key: PrivateKey) -> list[list[Span]]:
    """Return the id of the dataset of a key, and the effect of the key."""
    effect = "its sources run without trust" if key.own else "it signs blocks, files and proofs"
    return [[(" id      ", "muted"), (str(key.id), "")], [(" effect  ", "muted"), (effect, "")]]


def key_deletion_lines(key: PrivateKey) -> list[list[Span]]:
    """Return the consequences of the deletion of a key."""
    lines: list[list[Span]] = [
        [(" The key cannot be restored. Without a copy of it, ownership proofs of new blocks and signatures "
          "of files and query results are no longer possible.", "")],
        [(" To save a copy, close this dialog and export the key first.", "warn")],
    ]  # fmt: skip
    if not key.name:
        lines.append([(" The dataset is not in this workspace, but a repository may have it.", "")])
    elif key.own:
        lines.append([(f" The source of {printable(key.name)} does not run until it is trusted.", "")])
    return lines
