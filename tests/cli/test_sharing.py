"""Exchange with folders and real servers on the command line, with a real worker that never starts Spark."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import os
import pty
import shutil
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from odf_engine.api.plans.pull_plan import PullSelection, plan_pull
from odf_engine.errors import OdfError
from odf_engine.jobs.pull import Pull
from odf_engine.jobs.remotes import FoundDataset
from odf_engine.metadata.model import AddData, DataSlice, OffsetInterval
from odf_engine.worker.client import Client, run_jobs
from odf_engine.worker.job_log import read_journal
from odf_engine.worker.protocol import JobState
from odf_engine.workspace.remotes import Remotes
from odf_engine.workspace.tokens import Tokens
from odf_engine.workspace.workspace import Workspace
from odf_tui.cli.search import _pull_command
from tests.cli.conftest import Odf, Ran, call_odf
from tests.sync.builders import (
    add_blocks,
    add_slices,
    as_repository,
    copy_into,
    describe,
    forge,
    make_derivative,
    make_root,
)
from tests.sync.file_server import serving
from tests.sync.in_process_server import served

SECRET = "tok-5b0c2f7e91"


@pytest.fixture
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with datasets in it: ``numbers`` and ``joe/cities``."""
    return tmp_path_factory.mktemp("shop")


@pytest.fixture
def there(tmp_path_factory: pytest.TempPathFactory, shop: Path) -> Iterator[Odf]:
    """Runs ``odf`` in the workspace that the datasets of the shop come from."""
    folder = tmp_path_factory.mktemp("there")
    workspace = Workspace.init(folder)
    for name in ("numbers", "joe/cities"):
        as_repository(make_root(workspace, name, slices=1).dataset.folder, shop / name)
    yield partial(call_odf, cwd=folder)
    call_odf("worker", "stop", cwd=folder)


def here(odf: Odf, name: str = "numbers") -> Any:
    return next(each for each in odf("list", "--json").json if each["name"] == name)


def test_two_workspaces_exchange_datasets_through_a_folder(
    fresh: Odf, there: Odf, shop: Path, tmp_path: Path
) -> None:
    for odf in (fresh, there):
        assert odf("repo", "add", "shop", str(shop)).code == 0
    ran = fresh("pull", "shop/numbers", "shop/joe/cities", "--json")
    assert ran.code == 0, ran.err
    assert [(each["name"], each["status"], each["blocks"]) for each in ran.json] == [
        ("numbers", "updated", 3), ("cities", "updated", 3),
    ]  # fmt: skip
    assert here(fresh)["status"] == "current"
    assert fresh("pull", "shop/numbers", "shop/joe/cities").out == (
        "cities: up to date with shop/joe/cities\nnumbers: up to date with shop/numbers\n"
    )
    ran = there("push", "numbers", "--json")
    assert ran.json[0]["status"] == "up-to-date"
    mine = Workspace(tmp_path).resolve("numbers")
    theirs = Workspace(Path(there("path", "numbers").out.strip()).parents[2]).resolve("numbers")
    add_slices(theirs, 2)
    assert there("push", "numbers").out.startswith("numbers: 2 blocks, ")
    ran = fresh("repo", "status", "numbers", "--json")
    assert [(each["relation"], each["theirs"], each["pull"]) for each in ran.json] == [("behind", 2, True)]
    assert here(fresh)["status"] == "stale"
    assert fresh("list").out.splitlines()[2].split()[-1] == "shop/numbers"
    assert "from shop/numbers: 2 blocks behind, compared " in fresh("show", "numbers").out
    assert fresh("show", "numbers", "--json").json["remotes"][0]["theirs"] == 2
    ran = fresh("pull", "--all")
    assert ran.out.startswith("cities: up to date with shop/joe/cities\nnumbers: 6 rows in 2 blocks, ")
    assert ran.out.endswith(", from shop/numbers\n")
    diverged(fresh, there, theirs, mine)
    assert fresh("worker", "status").out.splitlines()[1].strip() == "Spark: off"
    assert fresh("jobs").out.splitlines()[-1].split()[:4] == ["1", "pull", "shop/numbers", "done"]
    assert f"from file://{shop}/numbers/" in fresh("logs", "1").out


def diverged(fresh: Odf, there: Odf, theirs: Any, mine: Any) -> None:
    """Two histories of ``numbers``, which are equal before."""
    describe(theirs, "there")
    describe(mine, "here")
    add_blocks(mine)
    assert there("push", "numbers").code == 0
    ran = fresh("pull", "numbers")
    assert ran.code == 4
    assert "2 blocks ahead, 1 behind" in ran.err
    assert "--force" in ran.err
    assert here(fresh)["status"] == "diverged"
    assert fresh("push", "numbers", "--json").json[0]["error"]["hint"].startswith("use --force")
    assert fresh("push", "numbers").code == 4
    assert fresh("pull", "numbers", "--force").code == 0
    assert here(fresh)["status"] == "current"
    assert here(fresh)["head"] == str(theirs.dataset.head())
    describe(mine, "more")
    ran = fresh("pull", "numbers")
    assert ran.out == "numbers: up to date (1 block ahead of shop/numbers)\n"


@pytest.mark.complete
def test_a_damaged_copy_is_fetched_again(fresh: Odf, there: Odf, shop: Path, tmp_path: Path) -> None:
    assert fresh("pull", str(shop / "numbers")).code == 0
    folder = Workspace(tmp_path).resolve("numbers").dataset.folder
    block = folder / "blocks" / (folder / "refs" / "head").read_text()
    whole = block.read_bytes()
    block.write_bytes(whole[:-1])
    assert fresh("verify", "numbers").code == 3
    ran = fresh("pull", "numbers")
    assert (ran.code, ran.out) == (1, "")
    assert "the block is damaged" in ran.err
    assert "use --force" in ran.err
    ran = fresh("pull", "numbers", "--force")
    assert (ran.code, block.read_bytes()) == (0, whole), ran.err
    assert ran.out.startswith("numbers: 0 rows in 1 block, from ")
    assert fresh("verify", "numbers").code == 0


@pytest.mark.complete
def test_unreadable_dataset_does_not_stop_others(fresh: Odf, there: Odf, shop: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert fresh("pull", *map(str, map(shop.joinpath, ("numbers", "joe/cities")))).code == 0
    damaged = workspace.resolve("cities")
    state = damaged.dataset.state()
    assert state.last_offset is not None
    known = damaged.dataset.slices()[0]
    interval = OffsetInterval(state.last_offset + 1, 2**64 - 1)
    data = DataSlice(known.logical_hash, known.physical_hash, interval, known.size)
    forge(
        damaged.dataset, AddData(prev_offset=state.last_offset, new_data=data, new_watermark=state.watermark)
    )

    ran = fresh("list")
    assert [line.split()[:3] for line in ran.out.splitlines()[1:]] == [
        ["cities", "Root", "failed"], ["numbers", "Root", "current"],
    ]  # fmt: skip
    assert "cities: last offset 18446744073709551615 is larger than 2^63 - 1" in ran.err
    assert fresh("graph").out == "◇ cities\n◇ numbers\n"
    assert fresh("show", "numbers").code == fresh("tail", "numbers").code == 0
    for command in ("show", "log", "tail"):
        ran = fresh(command, "cities")
        assert (ran.code, ran.out) == (1, "")
        assert "(rule number-range)" in ran.err
    ran = fresh("verify", "--all")
    assert ran.code == 3
    assert "numbers: valid" in ran.out
    assert "number-range: block " in ran.out
    ran = fresh("fsck")
    assert ran.code == 3
    assert [line.split()[1:3] for line in ran.out.splitlines()[:1]] == [["chain-damaged", "cities:"]]
    ran = fresh("pull", "--all")
    assert ran.code == 1
    assert ran.out.startswith("numbers: up to date")
    assert "cities: block " in ran.err
    assert fresh("delete", "--yes", "cities").code == 0
    assert [each["name"] for each in fresh("list", "--json").json] == ["numbers"]


def test_pull_with_as_names_the_dataset_and_rejects_conflicts(
    fresh: Odf, there: Odf, shop: Path, tmp_path: Path
) -> None:
    url = f"file://{shop}/numbers/"
    assert fresh("pull", url, "--as", "lab/mine").out.startswith("lab/mine: new, 3 rows in 3 blocks, ")
    ran = fresh("pull", "--from", str(shop / "numbers"), "--as", "lab/mine")  # again, as scripts do
    assert ran.out == f"lab/mine: up to date with {url}\n"
    ran = fresh("pull", url, "--as", "other")
    assert (ran.code, ran.out) == (1, "")
    assert "the dataset already exists as lab/mine" in ran.err
    make_root(Workspace(tmp_path), "cities")
    ran = fresh("pull", f"{shop}/joe/cities")
    assert ran.code == 1
    assert "a dataset with this name already exists" in ran.err
    assert "--as NAME" in ran.err
    ran = fresh("pull", "cities", "--from", f"{shop}/joe/cities")
    assert ran.code == 4
    assert "a different dataset" in ran.err
    assert len(read_journal(tmp_path).jobs()) == 3  # nothing was asked of anybody for what cannot be
    for arguments, code, said in (
        (["shop/joe/cities"], 1, "repository 'shop' not found"),
        (["citys"], 1, "did you mean 'cities'?"),
        (["nothing", "--from", url], 1, "to create it, use odf pull --from"),
        ([url, f"{shop}/x", "--as", "y"], 2, "--as y applies to exactly one new dataset"),
        (["--all", "--as", "y"], 2, "--as applies to exactly one new dataset"),
        (["--from", "cities"], 2, "--from cities: not a remote"),
        (["cities", "--all"], 2, "specify either datasets or --all"),
        (["https://joe:geheim@h.org/x"], 2, "run odf repo login URL"),
        (["gopher://h.org/x"], 2, "unsupported URL: gopher:"),
        (["lab/mine", "--set-watermark", "2024-01-01T00:00:00Z"], 2, "its watermark is set there"),
    ):
        ran = fresh("pull", *arguments)
        assert (ran.code, said in ran.err, "geheim" in ran.err) == (code, True, False), ran.err


def test_pull_from_missing_source_fails(fresh: Odf, tmp_path: Path) -> None:
    ran = fresh("pull", f"{tmp_path}/nowhere/numbers", "--json")
    assert ran.code == 1
    (entry,) = ran.json
    assert (entry["name"], entry["status"]) == ("numbers", "failed")
    assert entry["error"]["message"] == "no dataset found"
    assert fresh("list", "--json").json == []


def test_push_and_pull_remotes_are_remembered_and_removed(
    fresh: Odf, there: Odf, shop: Path, tmp_path: Path
) -> None:
    make_root(Workspace(tmp_path), "tides")
    ran = fresh("push", "tides")
    assert (ran.code, "tides has no push remote" in ran.err) == (2, True)
    fresh("repo", "add", "shop", str(shop))
    fresh("repo", "add", "attic", str(tmp_path / "attic"))
    ran = fresh("push", "tides")
    assert "--to REPO, one of attic, shop" in ran.err
    assert fresh("push", "%", "--to", f"{shop}/x").code == 0  # one dataset, one address
    assert fresh("push", "tides", "--to", "shop", "-q").code == 0
    assert (shop / "tides" / "refs" / "head").is_file()
    ran = fresh("push", "tides")
    assert (
        ran.code,
        f"tides has several push remotes: file://{shop}/x/, file://{shop}/tides/" in ran.err,
    ) == (2, True)
    ran = fresh("repo", "alias", "remove", "tides", f"{shop}/x", "--pull")
    assert (ran.code, "has no such remote" in ran.err) == (1, True)
    assert fresh("repo", "alias", "remove", "tides", f"{shop}/x").err == (
        f"tides is no longer pushed to file://{shop}/x/\n"
    )
    assert fresh("push", "tides").out == "tides: shop/tides is up to date\n"
    assert fresh("repo", "alias", "add", "tides", "attic", "--pull").code == 0
    assert fresh("repo", "alias", "list", "--json").json == [
        {"name": "tides", "pull": [f"file://{tmp_path}/attic/tides/"], "push": [f"file://{shop}/tides/"]}
    ]
    ran = fresh("repo", "status")
    assert ran.code == 0, ran.err
    assert [line.split()[1:4] for line in ran.out.splitlines()[1:]] == [
        ["from", "attic/tides", "remote"], ["to", "shop/tides", "up"],
    ]  # fmt: skip
    fresh("repo", "alias", "remove", "tides")
    assert fresh("repo", "alias", "list", "--json").json[0]["push"] == []
    assert fresh("push", "tides", "numbers").code == 1
    make_root(Workspace(tmp_path), "other")
    ran = fresh("push", "tides", "other", "--to", f"{shop}/x")
    assert (ran.code, "is the location of a single dataset" in ran.err) == (2, True)
    assert f"odf repo add NAME {shop}/x" in ran.err
    fresh("repo", "remove", "attic")
    ran = fresh("push", "--all", "--json")
    assert {each["url"]: each["status"] for each in ran.json} == {
        f"file://{shop}/other/": "updated", f"file://{shop}/tides/": "up-to-date",
    }  # fmt: skip


def test_push_recursive_pushes_inputs_first(fresh: Odf, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    root = make_root(workspace, "tides")
    make_root(workspace, "other")
    make_derivative(workspace, root, "days")
    fresh("repo", "add", "lab", str(tmp_path / "lab"))
    ran = fresh("push", "-r", "days", "--to", "lab", "--json")
    assert [(row["name"], row["status"], row["error"]) for row in ran.json] == [
        ("tides", "updated", None), ("days", "updated", None),
    ]  # fmt: skip
    assert fresh("push", "-r", "days", "--branch", "x").code == 2


def test_push_fails_if_push_of_an_input_failed(fresh: Odf, tmp_path: Path) -> None:
    workspace, lab = Workspace(tmp_path), tmp_path / "lab"
    root = make_root(workspace, "tides")
    days = make_derivative(workspace, root, "days")
    weeks = make_derivative(workspace, days, "weeks")
    fresh("repo", "add", "lab", str(lab))
    assert fresh("push", "-r", "weeks", "--to", "lab").code == 0
    describe(weeks, "new")
    pushed = {row["name"]: row["status"] for row in fresh("push", "-r", "weeks", "--json").json}
    assert pushed == {"tides": "up-to-date", "days": "up-to-date", "weeks": "updated"}
    shutil.rmtree(lab / "tides")
    other = make_root(Workspace.init(tmp_path / "other"), "tides")
    as_repository(other.dataset.folder, lab / "tides")
    describe(weeks, "newer")
    describe(days, "new")
    add_slices(root, 1)
    ran = fresh("push", "-r", "weeks", "--json")
    assert [(row["name"], row["status"]) for row in ran.json] == [
        ("tides", "failed"), ("days", "failed"), ("weeks", "failed"),
    ]  # fmt: skip
    assert ran.json[2]["error"]["message"] == "input tides was not pushed to lab/tides"
    assert f"or push without inputs: odf push weeks --to file://{lab}/weeks/" in ran.json[2]["error"]["hint"]
    assert ran.code == 4
    assert [row["status"] for row in fresh("push", "days", "--json").json] == ["updated"]
    fresh("repo", "remove", "lab")
    ran = fresh("push", "-r", "weeks", "--to", f"{lab}/weeks")
    assert ran.code == 2 and "the inputs of weeks have no address" in ran.err


def test_recursive_pull_of_a_copy_pulls_its_inputs_from_the_repository(
    fresh: Odf, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    workspace, lab = Workspace(tmp_path), tmp_path_factory.mktemp("lab")
    root = make_root(workspace, "joe/tides")
    days = make_derivative(workspace, root, "days")
    make_derivative(workspace, days, "weeks")
    fresh("repo", "add", "lab", str(lab))
    fresh("push", "--all", "--to", "lab")
    reader = partial(call_odf, cwd=tmp_path_factory.mktemp("reader"))
    reader("init")
    assert reader("pull", str(lab / "weeks")).code == 0
    refused = reader("pull", "-r", str(lab / "weeks"))
    assert refused.code == 1 and f"input {days.id} is not in the workspace" in refused.err
    reader("repo", "add", "lab", str(lab))
    # A pull by its own name does not fetch what the copy is made of.
    assert [row["name"] for row in reader("pull", "-r", "weeks", "--json").json] == ["weeks"]
    pulled = reader("pull", "-r", "lab/weeks", "--verify", "--json")
    assert [(row["name"], row["status"]) for row in pulled.json] == [
        ("weeks", "up-to-date"), ("days", "updated"), ("joe/tides", "updated"),
    ]  # fmt: skip
    # No engine made the rows of the derivative datasets.
    assert pulled.code == 3 and [row["verification"]["valid"] for row in pulled.json] == [False, False, True]
    assert [row["name"] for row in reader("list", "--json").json] == ["days", "joe/tides", "weeks"]
    again = reader("pull", "-r", "lab/weeks", "--json")
    assert [row["status"] for row in again.json] == ["up-to-date"] * 3 and "verification" not in again.json[0]
    shutil.rmtree(lab / "joe" / "tides")
    assert reader("delete", "joe/tides", "days", "weeks", "-y").code == 0
    lost = reader("pull", "-r", "lab/weeks")
    assert lost.code == 1 and f"lab lists no dataset {root.id}" in lost.err
    assert [line.partition(":")[0] for line in lost.out.splitlines()] == ["weeks", "days"]
    reader("worker", "stop")


def test_pull_all_pulls_every_dataset_of_a_repository(
    fresh: Odf, there: Odf, shop: Path, tmp_path: Path
) -> None:
    fresh("repo", "add", "shop", str(shop))
    ran = fresh("pull", "--all", "--from", "shop", "--json")
    assert [(each["name"], each["status"]) for each in ran.json] == [
        ("joe/cities", "updated"), ("numbers", "updated"),
    ]  # fmt: skip
    make_root(Workspace(tmp_path), "tides")
    ran = fresh("pull", "--all", "--from", "shop", "--json")
    assert [(each["name"], each["status"]) for each in ran.json] == [
        ("joe/cities", "up-to-date"), ("numbers", "up-to-date"),
    ]  # fmt: skip
    fresh("repo", "add", "attic", str(tmp_path / "attic"))
    ran = fresh("pull", "--all", "--from", "attic")
    assert (ran.code, "attic not found" in ran.err) == (1, True)
    (tmp_path / "attic").mkdir()
    assert fresh("pull", "--all", "--from", "attic", "--json").json == []
    assert fresh("pull", "--all", "--from", "lab").code == 1


def test_index_of_a_folder_lists_its_datasets_over_any_web_server(
    fresh: Odf, shop: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entry = make_root(Workspace(tmp_path), "tides", slices=2)
    store = tmp_path_factory.mktemp("store")
    fresh("repo", "add", "store", str(store))
    fresh("push", "tides", "--to", "store/joe/tides")
    describe(entry, "of the harbour")
    fresh("push", "tides", "--to", "store")
    make_root(Workspace(tmp_path), "gone")
    fresh("push", "gone", "--to", "store")
    shutil.rmtree(store / "gone")
    # An older program has pushed this one, without the index.
    old = make_root(Workspace(tmp_path), "old")
    shutil.copytree(old.dataset.folder, store / "old")
    fresh("push", "tides", "--to", "store")
    (here,) = [row for row in fresh("search", "--json").json["datasets"] if row["name"] == "tides"]
    state = entry.dataset.state()
    assert (here["id"], here["kind"], here["head"], here["records"]) == (
        str(entry.id), "Root", str(state.head), state.records,
    )  # fmt: skip
    reader = tmp_path_factory.mktemp("reader")
    with asking(store, "") as (url, _):
        read = partial(call_odf, cwd=reader)
        read("init")
        read("repo", "add", "web", url)
        rows = read("search", "harbour", "--json").json["datasets"]
        assert rows == [{**here, "url": f"{url}tides/", "repository": "web", "pull": "odf pull web/tides"}]
        assert [row["name"] for row in read("search", "--json").json["datasets"]] == [
            "joe/tides",
            "old",
            "tides",
        ]
        missing = read("pull", "web/did:odf:fed01" + "ab" * 32)
        assert (missing.code, "web lists no dataset" in missing.err) == (1, True)
        assert read("pull", f"web/{entry.id}", "--json").json[0]["name"] == "joe/tides"
        (store / "index.json").unlink()
        ran = read("pull", "--all", "--from", "web")
        assert (ran.code, "does not list its datasets" in ran.err) == (1, True)
        read("worker", "stop")


def test_suggested_pull_command_quotes_untrusted_names() -> None:
    url = "https://h.org/x y/;rm/"
    assert _pull_command(FoundDataset("lab", "joe/x", url)) == "odf pull lab/joe/x"
    for name in ("../x", "x; rm -r", "$(id)", "\x1b[2J", "a/b/c", ""):
        assert _pull_command(FoundDataset("lab", name, url)) == "odf pull 'https://h.org/x y/;rm/'"


def test_search_finds_datasets_and_reports_unreachable_repositories(
    fresh: Odf, there: Odf, shop: Path, tmp_path: Path
) -> None:
    assert "odf repo add NAME URL" in fresh("search", "x").err
    fresh("repo", "add", "shop", str(shop))
    fresh("repo", "add", "attic", str(tmp_path / "attic"))
    ran = fresh("search", "cit", "--repo", "shop")
    assert ran.code == 0
    assert [line.split() for line in ran.out.splitlines()[1:]] == [
        ["shop/joe/cities", "odf", "pull", "shop/joe/cities"]
    ]
    ran = fresh("search", "--json")
    assert (ran.code, "no answer from attic" in ran.err) == (0, True)  # one repository answered
    assert [each["pull"] for each in ran.json["datasets"]] == [
        "odf pull shop/joe/cities", "odf pull shop/numbers",
    ]  # fmt: skip
    assert [each["repository"] for each in ran.json["problems"]] == ["attic"]
    ran = fresh("search", "--repo", "attic", "-q")
    assert (ran.code, "no repository answered: attic" in ran.err) == (1, True)


class _Asking(http.server.SimpleHTTPRequestHandler):
    """Gives files to whoever has the right login."""

    accepts = ""
    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization", ""))
        if self.seen[-1] == self.accepts:
            super().do_GET()
        else:
            self.send_error(401)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Says nothing."""


@contextmanager
def asking(folder: Path, accepts: str) -> Iterator[tuple[str, list[str]]]:
    """A server that asks for a login: its address, and the ``Authorization`` of every request."""
    seen: list[str] = []
    handler = type("Handler", (_Asking,), {"accepts": accepts, "seen": seen})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", seen
        server.shutdown()
        thread.join()


@pytest.mark.net
def test_stored_credentials_are_used_and_never_shown(
    fresh: Odf, there: Odf, shop: Path, tmp_path: Path
) -> None:
    said: list[Ran] = []

    def run(*arguments: str, input: str | None = None) -> Ran:
        said.append(fresh(*arguments, input=input))
        return said[-1]

    with asking(shop, f"Bearer {SECRET}") as (url, seen):
        run("repo", "add", "shop", url)
        assert run("pull", "shop/numbers").code == 1
        assert "odf repo login" in said[-1].err
        assert set(seen) == {""}
        assert run("repo", "login", "shop", "--stdin", input="wrong\n").code == 0
        assert run("pull", "shop/numbers").code == 1
        assert run("repo", "login", "shop", "--stdin", input=f"{SECRET}\n").code == 0
        assert "unencrypted" not in said[-1].err  # it does not leave this machine
        assert run("pull", "shop/numbers", "-v").code == 0, said[-1].err
        assert run("repo", "list", "--json").json == [{"name": "shop", "url": url, "login": True}]
        run("repo", "list")
        run("repo", "status")
        run("show", "numbers", "--json")
        run("jobs", "--json")
        for job in range(1, 5):
            run("logs", str(job), "-v")
        assert_nowhere(SECRET, tmp_path)
        assert run("repo", "logout", "shop").code == 0
        assert run("pull", "numbers").code == 1
    assert not [ran for ran in said if SECRET in ran.out + ran.err]
    assert SECRET not in (tmp_path / ".odf" / "keys" / "logins.json").read_text()


def assert_nowhere(secret: str, folder: Path) -> None:
    """The secret is in no file but that of logins, and in no process's command line or environment."""
    keeps = folder / ".odf" / "keys" / "logins.json"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if secret.encode() in path.read_bytes()] == [keeps]
    pid = json.loads(call_odf("worker", "status", "--json", cwd=folder).out)["status"]["pid"]
    for name in ("cmdline", "environ"):
        assert secret.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_login_stores_credentials_per_server(fresh: Odf, tmp_path: Path) -> None:
    def kept() -> Any:
        return json.loads((tmp_path / ".odf" / "keys" / "logins.json").read_text())

    fresh("repo", "add", "lab", "https://H.org:443/x")
    assert fresh("repo", "login", "lab", "--user", "joe", "--stdin", input="pw \n").code == 0
    assert fresh("repo", "login", "s3://bucket/x", "--user", "KEY", "--stdin", input="s1\nt1\n").code == 0
    ran = fresh("repo", "login", "http://h.org/", "--stdin", input="t2")
    assert "unencrypted" in ran.err
    assert kept() == {
        "http://h.org": {"token": "t2"},
        "https://h.org": {"user": "joe", "secret": "pw "},
        "s3://bucket": {"user": "KEY", "secret": "s1", "token": "t1"},
    }
    for arguments, input, said in (
        (["lab"], "secret", "--stdin"),
        (["lab", "--stdin"], "", "no secret on stdin"),
        (["s3://bucket/", "--stdin"], "x", "missing access key"),
        (["/mnt", "--stdin"], "x", "repository '/mnt' not found"),
        (["file:///mnt", "--stdin"], "x", "no credentials can be used for"),
        (["https://joe:x@h.org/", "--stdin"], "x", "it contains a user or password"),
    ):
        ran = fresh("repo", "login", *arguments, input=input)
        assert ran.code in (1, 2)
        assert said in ran.err
    assert len(kept()) == 3
    assert fresh("repo", "logout", "https://h.org/elsewhere").err == "removed credentials for https://h.org\n"
    assert "no credentials stored" in fresh("repo", "logout", "lab").err


def test_typed_password_is_not_echoed(fresh: Odf, tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execv(
            sys.executable,
            [sys.executable, "-m", "odf_tui", "repo", "login", "https://h.org", "--user", "joe"],
        )
    shown = b""
    while b"password of joe" not in shown:
        shown += os.read(terminal, 1000)
    # A terminal that still echoes would show it: wait until it does not.
    while termios.tcgetattr(terminal)[3] & termios.ECHO:
        pass
    os.write(terminal, f"{SECRET}\n".encode())
    with contextlib.suppress(OSError):  # the terminal is gone
        while more := os.read(terminal, 1000):
            shown += more
    assert os.waitpid(pid, 0)[1] == 0, shown
    assert SECRET.encode() not in shown
    assert SECRET in (tmp_path / ".odf" / "keys" / "logins.json").read_text()


def test_server_supports_search_pull_and_authenticated_push(
    fresh: Odf, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Workspace.init(tmp_path_factory.mktemp("other"))
    numbers = make_root(other, "numbers", slices=2)
    mine = make_root(Workspace(tmp_path), "joe/mine", slices=1)
    _, made = Tokens(other.odf).create("me")
    with served(other, allow_push=True) as server:
        for name, scheme in (("web", ""), ("smart", "odf+")):
            fresh("repo", "add", name, scheme + server.url)
        found = fresh("search", "NUMB", "--json").json["datasets"]
        assert [(each["pull"], each["records"]) for each in found] == [
            ("odf pull smart/numbers", 6), ("odf pull web/numbers", 6),
        ]  # fmt: skip
        assert fresh("pull", "smart/numbers").out.startswith("numbers: new, 6 rows in 4 blocks, ")
        add_blocks(numbers, 2)
        ran = fresh("pull", "numbers", "--from", "web", "--json")
        assert [(each["blocks"], each["url"]) for each in ran.json] == [(2, f"{server.url}numbers/")]
        ran = fresh("push", "joe/mine", "--to", "smart")
        assert (ran.code, "odf repo login" in ran.err) == (1, True)
        fresh("repo", "login", "smart", "--stdin", input=made)
        assert fresh("push", "joe/mine", "--to", "smart").out.startswith(
            "joe/mine: new at the remote, 3 blocks, "
        )
        ran = fresh("push", "joe/mine", "--to", "web")
        assert (ran.code, "cannot push to" in ran.err) == (1, True)
        assert_nowhere(made, tmp_path)
    assert other.resolve("joe/mine").dataset.head() == mine.dataset.head()


def test_concurrent_pulls_of_one_dataset_create_it_once(
    fresh: Odf, there: Odf, shop: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = as_repository(shop / "numbers", tmp_path_factory.mktemp("copies") / "copy")
    url = f"file://{shop}/numbers/"
    asked = [
        (Pull(dataset=each, url=each, alias=name), each)
        for name, each in zip("abc", (url, copy, url), strict=True)
    ]
    jobs = run_jobs(tmp_path, asked)
    assert [job.error for job in jobs] == [None] * 3
    names = {json.loads(job.result or "")["name"] for job in jobs}
    assert {each["name"] for each in fresh("list", "--json").json} == names
    assert len(names) == 1


@pytest.mark.net
def test_pull_from_silent_server_can_be_cancelled_and_retried(
    fresh: Odf, there: Odf, shop: Path, tmp_path: Path
) -> None:
    go_on, silent = threading.Event(), threading.Event()

    def wait(path: str, data: bytes) -> bytes:
        if "data/" in path:
            silent.set()
            go_on.wait(30)
        return data

    async def cancel(url: str) -> str:
        client = await Client.connect(tmp_path, warm=False)
        job = await client.submit(Pull(dataset=url, url=url, alias="numbers"), url)
        await asyncio.to_thread(silent.wait, 30)
        await client.close()
        assert "cancelled" in (await asyncio.to_thread(fresh, "cancel", job)).err
        return job

    with serving(shop) as server:
        server.fault = wait
        job = asyncio.run(cancel(f"{server.url}numbers/"))
        assert fresh("list", "--json").json == []
        go_on.set()
        request = read_journal(tmp_path).request(job)
        assert request is not None
        (again,) = run_jobs(tmp_path, [(request, "again")])
        assert again.state is JobState.done, again.error
    assert [each["name"] for each in fresh("list", "--json").json] == ["numbers"]


def test_recursive_pull_stops_at_datasets_with_a_pull_remote(tmp_path: Path) -> None:
    # e comes from elsewhere, and is made of far there; f of e and a; g of f
    workspace, other = Workspace.init(tmp_path / "here"), Workspace.init(tmp_path / "other")
    far = make_root(other, "far")
    e = copy_into(workspace, make_derivative(other, far, "e"))
    copy_into(workspace, far)
    f = make_derivative(workspace, e, "f")
    g = make_derivative(workspace, f, "g")
    Remotes(workspace.odf).attach(e.id, "file:///shop/e/", "pull")

    def order(*names: str, **more: Any) -> list[tuple[str, str | None, set[str]]]:
        ids = {str(entry.id): str(entry.alias) for entry in workspace.datasets()}
        return [
            (target.name, target.url, {ids.get(dataset, dataset) for dataset in target.after})
            for target in plan_pull(workspace, PullSelection(names, **more)).targets
        ]

    assert order("g") == [("g", None, {"f", "e"})]
    assert order("g", recursive=True) == [
        ("e", "file:///shop/e/", set()), ("f", None, {"e"}), ("g", None, {"f", "e"}),
    ]  # fmt: skip
    assert order("e", recursive=True) == [("e", "file:///shop/e/", set())]
    assert order("file:///shop/e", "f") == [("e", "file:///shop/e/", set()), ("f", None, {"e"})]
    assert order("file:///new/h", "g", "e")[0] == ("file:///new/h/", "file:///new/h/", set())
    assert [name for name, _, _ in order(everything=True)] == ["e", "far", "f", "g"]
    assert order("g", source="file:///shop/g") == [("g", "file:///shop/g/", set())]
    Remotes(workspace.odf).attach(e.id, "file:///b/", "pull")
    assert order("e") == [("e", None, set())]  # its job says that there are two
    with pytest.raises(OdfError, match="h: several datasets have this name"):
        order("file:///new/h", "file:///other/h")
    assert g
