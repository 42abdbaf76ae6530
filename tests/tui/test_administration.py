"""Changes of a real workspace from the screen: datasets, settings, keys, credentials, server, file check."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from odf_engine.api.operations.server_process import ServerProcess
from odf_engine.api.workspace import Workspace as OpenWorkspace
from odf_engine.base import settings
from odf_engine.errors import OdfError
from odf_engine.metadata.yaml import read_manifests
from odf_engine.net.credentials import Credentials
from odf_engine.workspace.dataset_folders import ORIGIN_FILE
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.tokens import Tokens
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from odf_tui.features.administration.credentials import CredentialsController
from odf_tui.features.administration.dataset_changes import DatasetChangesController
from odf_tui.features.administration.dataset_remotes import DatasetRemotesController
from odf_tui.features.administration.file_check import FileCheckController
from odf_tui.features.administration.private_keys import PrivateKeysController
from odf_tui.features.administration.push_tokens import PushTokensController
from odf_tui.features.administration.server import ServerController
from odf_tui.features.administration.settings import SettingsController
from odf_tui.features.administration.trust_details import TrustDetailsController
from odf_tui.services.controller import Controller
from odf_tui.widgets.dialogs import TextDialog, TypedConfirmation
from tests.sync.builders import make_derivative, make_root
from tests.tui.context import Fakes
from tests.tui.form_steps import fill

POLLED = """
kind: DatasetSnapshot
version: 1
content:
  name: polled
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {kind: Url, url: "https://data.example/x.csv?key=${{ env.API_TOKEN }}"}
      read: {kind: Csv, header: true, schema: [city STRING]}
      merge: {kind: Append}
"""


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A workspace, with the configuration of the user and the current folder next to it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    made = Workspace.init(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    return made


class Screen:
    """Runs actions of controllers on a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        opened: Any = OpenWorkspace(workspace)
        self.fakes = Fakes(opened)
        self.host = self.fakes.host

    async def run(self, kind: type[Controller], action: str, *answers: Any, name: str = "") -> str:
        """Run an action with answers of dialogs. Returns the last notice."""
        if name:
            self.fakes.select(name)
        self.host.answers.extend(answers)
        getattr(kind(self.fakes.context), action)()
        await self.host.stories()
        assert not self.host.answers
        return self.host.last_notice

    @property
    def names(self) -> list[str]:
        """The names of the datasets."""
        return [row.name for row in self.fakes.state.datasets]


def dialog_text(dialog: Any) -> str:
    """Return the text of a dialog."""
    return "\n".join("".join(text for text, _ in line) for line in dialog._lines)


async def test_datasets_are_renamed_duplicated_and_deleted(workspace: Workspace) -> None:
    source = make_root(workspace, "numbers", slices=1)
    make_derivative(workspace, source, "derived")
    settings.write({"onConflict": {"Numbers": "fail"}}, workspace.config_path, workspace.odf)
    screen, changes = Screen(workspace), DatasetChangesController
    notice = await screen.run(changes, "rename", "cities", name="numbers")
    assert notice == "renamed numbers to cities; settings by the old name: onConflict.Numbers"
    assert screen.names == ["cities", "derived"]
    await screen.run(changes, "rename", None)
    assert await screen.run(changes, "delete") == "cities has downstream datasets: delete derived first"

    def name(dialog: Any) -> str:
        assert dialog._check("derived") == "a dataset named derived already exists"
        return str(dialog._value)

    assert "created derived-copy" in await screen.run(changes, "duplicate", name, name="derived")
    copy = workspace.resolve("derived-copy")
    assert copy.dataset.state().inputs() == workspace.resolve("derived").dataset.state().inputs()
    assert Trust(workspace).is_own(copy)

    def confirm(dialog: TypedConfirmation) -> bool:
        assert "this may be the only copy" in dialog_text(dialog)
        return dialog._accepted == ["derived"]

    assert await screen.run(changes, "delete", False) == "derived is unchanged"
    notice = await screen.run(changes, "delete", confirm, name="derived")
    assert notice == "deleted derived; its private key remains: press ; p"
    assert "derived" not in screen.names


async def test_a_copy_of_an_untrusted_definition_is_untrusted(workspace: Workspace) -> None:
    workspace.add(read_manifests(POLLED, "test"), {"polled": "https://elsewhere.example/x.yaml"})
    screen = Screen(workspace)
    notice = await screen.run(DatasetChangesController, "duplicate", "copy", name="polled")
    assert "it requires trust" in notice
    copy = workspace.resolve("copy")
    assert Trust(workspace).describe_status(copy) == "not trusted"
    assert (copy.dataset.folder / ORIGIN_FILE).read_text() == "https://elsewhere.example/x.yaml"


def test_block_ranges_accept_numbers_and_hashes(workspace: Workspace) -> None:
    entry = make_root(workspace, "numbers", blocks=4)
    administration = OpenWorkspace(workspace)
    head = str(entry.dataset.head())
    assert administration.find_blocks(str(entry.id), f"1..{head}") == (
        1,
        entry.dataset.state().sequence_number,
    )
    assert administration.find_blocks(str(entry.id), "2..") == (2, None)
    for wrong in ("2", "2..nothing"):
        with pytest.raises(OdfError):
            administration.find_blocks(str(entry.id), wrong)


async def test_settings_are_changed_in_the_file_that_may_contain_them(workspace: Workspace) -> None:
    screen = Screen(workspace)

    async def change(key: str, *forms: Any) -> str:
        return await screen.run(SettingsController, "show_settings", key, *forms, None)

    assert await change("worker.maxJobs", fill("invalid value", value="many")) == ""
    assert "set worker.maxJobs to 3; effective after" in await change("worker.maxJobs", fill(value="3"))
    assert settings.load_config(workspace.config_path).worker.max_jobs == 3
    assert "removed worker.maxJobs" in await change("worker.maxJobs", fill(remove=True))
    assert settings.load_config(workspace.config_path).worker.max_jobs == 2
    await change("fetch.s3Anonymous", fill(value="true", scope="user"))
    assert settings.load_config(settings.user_file()).fetch.s3_anonymous
    notice = await change("spark.conf", fill(name="spark.ui.enabled", value="false"))
    assert str(settings.workspace_user_file(workspace.odf)) in notice
    assert settings.load_workspace(workspace.odf).spark.conf == {"spark.ui.enabled": "false"}
    about = screen.host.dialogs[0]._about
    assert "maximum number of concurrent jobs" in "".join(text for text, _ in about["worker.maxJobs"][0])
    assert "pull: v is already used by verify" in await change("ui.keys", fill(name="pull", value="v"))


async def test_trust_shows_executions_and_allows_variables(workspace: Workspace) -> None:
    workspace.add(read_manifests(POLLED, "test"), {"polled": "https://elsewhere.example/x.yaml"})
    entry, trust = workspace.resolve("polled"), Trust(workspace)
    screen, details = Screen(workspace), TrustDetailsController

    def answer(dialog: Any) -> str:
        text = dialog_text(dialog)
        assert "untrusted: its sources do not run" in text and "API_TOKEN  not allowed" in text
        assert "https://data.example/x.csv" in text
        return "variables"

    form = fill(names="API_TOKEN, OTHER")
    notice = await screen.run(details, "show_details", answer, form, name="polled")
    assert notice == "polled may read API_TOKEN, OTHER"
    await screen.run(details, "change_variables", fill("use letters", names="a-b"))
    assert (
        await screen.run(details, "change_variables", fill(names=""))
        == "polled may read no environment variables"
    )
    await screen.run(details, "show_details", "network", False)
    assert not trust.is_trusted(entry)
    await screen.run(details, "show_details", "network", True)
    assert trust.allows_private_network(entry)
    await screen.run(details, "show_details", "revoke")
    assert screen.host.performed == ["untrust"]


async def test_remotes_are_added_and_detached(workspace: Workspace) -> None:
    entry = make_root(workspace, "numbers")
    Remotes(workspace.odf).add("hub", "file:///srv/hub/")
    screen, remotes = Screen(workspace), DatasetRemotesController
    await screen.run(remotes, "show_remotes", "+", fill("not found", address="lab/numbers"), name="numbers")
    await screen.run(remotes, "show_remotes", "+", fill("read-only", address="https://a.example/numbers/"))
    await screen.run(remotes, "show_remotes", "+", fill(address="hub/numbers", kind="both"))
    url = "file:///srv/hub/numbers/"
    known = Remotes(workspace.odf).get(entry.id)
    assert (known.pull, known.push) == ([url], [url])
    assert await screen.run(remotes, "show_remotes", url, "pull") == "numbers has no pulls with hub/numbers"
    known = Remotes(workspace.odf).get(entry.id)
    assert (known.pull, known.push) == ([], [url])
    await screen.run(remotes, "show_remotes", url, "all")
    assert Remotes(workspace.odf).get(entry.id).push == []


async def test_credentials_are_stored_and_removed(workspace: Workspace) -> None:
    for name, url in (("hub", "file:///srv/hub/"), ("lab", "http://lab.example/"), ("s3", "s3://bucket/")):
        Remotes(workspace.odf).add(name, url)
    screen, credentials = Screen(workspace), CredentialsController
    notice = await screen.run(credentials, "show_credentials", "file:///srv/hub/", None)
    assert notice == "no credentials can be used for file:///srv/hub/"

    def form(dialog: Any) -> Any:
        assert "sent unencrypted over http" in dialog_text(dialog)
        return fill(secret="s e c r e t")(dialog)

    lab = "http://lab.example/"
    await screen.run(credentials, "show_credentials", lab, form, None)
    stored = Credentials(workspace.odf)
    login = stored.of(lab)
    assert login is not None and (login.user, login.token) == ("", "s e c r e t")
    await screen.run(credentials, "show_credentials", lab, "replace", fill(user="jane", secret="x"), None)
    assert (login := stored.of(lab)) and (login.user, login.secret) == ("jane", "x")
    await screen.run(
        credentials, "show_credentials", "s3://bucket/", fill("enter the secret key", user="k"), None
    )
    await screen.run(credentials, "show_credentials", "+", "https://other.example/x", fill(secret="t"), None)
    assert "https://other.example" in stored.origins()
    await screen.run(credentials, "show_credentials", lab, "remove", True, None)
    assert stored.of(lab) is None


async def test_keys_are_exported_deleted_and_imported(workspace: Workspace, tmp_path: Path) -> None:
    entry = make_root(workspace, "numbers")
    dataset, screen, keys = str(entry.id), Screen(workspace), PrivateKeysController
    screen.fakes.select("numbers")
    await screen.run(keys, "show_keys", dataset, "export", fill("differ", passphrase="a"), None)
    form = fill(passphrase=" pass ", repeated=" pass ")
    await screen.run(keys, "show_keys", dataset, "export", form, None)
    file = tmp_path / "numbers.pem"
    assert "ENCRYPTED" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    await screen.run(keys, "show_keys", dataset, "export", fill("already exists"), None)
    notice = await screen.run(keys, "show_keys", dataset, "export", fill(file="plain.pem"), None)
    assert "not encrypted" in notice

    await screen.run(keys, "show_keys", dataset, "delete", False, None)
    assert workspace.keys.has_key(entry.id)

    def confirm(dialog: TypedConfirmation) -> bool:
        assert "cannot be restored" in dialog_text(dialog) and "until it is trusted" in dialog_text(dialog)
        return dialog._accepted == ["numbers"]

    await screen.run(keys, "show_keys", dataset, "delete", confirm, None)
    assert not workspace.keys.has_key(entry.id)
    with pytest.raises(AssertionError):  # the list is closed by the error: its last answer is left
        await screen.run(keys, "show_keys", "+", fill(file="numbers.pem", passphrase="wrong"), None)
    assert "enter the passphrase" in screen.host.last_notice
    screen.host.answers.clear()
    form = fill(file="numbers.pem", passphrase=" pass ")
    assert "numbers was imported" in await screen.run(keys, "show_keys", "+", form, None)
    assert "already in this" in await screen.run(keys, "show_keys", "+", fill(file="plain.pem"), None)
    assert workspace.keys.has_key(entry.id)


async def test_tokens_are_created_shown_once_and_revoked(workspace: Workspace) -> None:
    screen, tokens = Screen(workspace), PushTokensController
    form = fill(name="nightly", datasets="weather.%, cases", days="30")
    await screen.run(tokens, "show_tokens", "+", form, None, None)
    (token,) = Tokens(workspace.odf).list_tokens()
    assert token.datasets == ("weather.%", "cases") and token.expires is not None
    dialog = next(each for each in screen.host.dialogs if isinstance(each, TextDialog))
    dialog._copy("")
    (text,) = screen.host.terminal.copied
    assert Tokens(workspace.odf).find(text) == token and text in dialog_text(dialog)
    for problem, values in (
        ("already exists", {"name": "Nightly"}),
        ("invalid name", {"name": "a b"}),
        ("number of days", {"name": "x", "days": "-1"}),
    ):
        await screen.run(tokens, "show_tokens", "+", fill(problem, **values), None)
    await screen.run(tokens, "show_tokens", "nightly", True, None)
    assert Tokens(workspace.odf).list_tokens() == []


async def test_a_server_is_started_and_stopped(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(workspace)
    controller = ServerController(screen.fakes.context)

    async def run(*answers: Any) -> str:
        screen.host.answers.extend(answers)
        controller.show_server()
        await screen.host.stories()
        return screen.host.last_notice

    await run(fill("TLS requires both", certificate="x.pem"))
    await run(fill("is not a host name", names="https://data.example"))
    await run(fill(host="0.0.0.0"), False)
    assert "serving at http://127.0.0.1:" in await run(fill(port="0", names="data.example"))
    server = controller._server
    assert server is not None and server.is_running
    await run("refresh", "leave")
    assert server.url in dialog_text(screen.host.dialogs[-1])
    assert await run("stop") == "the server is stopped"
    assert not server.is_running
    assert "serving at grpc://127.0.0.1:" in await run(fill(port="0", protocol="flight", tokens=True))
    assert await run("stop") == "the server is stopped"
    assert "--allow-push does not apply to --flight" in await run(fill(protocol="flight", push=True))
    with pytest.raises(OdfError, match="no dataset matches"):
        ServerProcess.start(workspace.folder, ["--port", "0", "--dataset=none"])


async def test_files_are_checked_and_repaired(workspace: Workspace) -> None:
    entry = make_root(workspace, "numbers", slices=1)
    orphan = entry.dataset.folder / "data" / f"f1620{'0' * 64}"
    orphan.write_bytes(b"orphan")
    screen = Screen(workspace)

    def first(dialog: Any) -> str:
        assert "1 finding" in screen.host.last_notice and "numbers" in dialog_text(dialog)
        return "now"

    notice = await screen.run(FileCheckController, "check", first, True, "leave")
    assert notice == "1 repaired, 0 not repaired"
    assert not orphan.exists()
    assert await screen.run(FileCheckController, "check", "leave") == "files of 1 dataset are clean"
