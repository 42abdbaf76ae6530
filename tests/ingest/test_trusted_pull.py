"""Whole pulls of what somebody else wrote: nothing of it runs before it is trusted, nor after it changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from odf_engine.errors import BadData, NotTrusted, SourceUnavailable
from odf_engine.metadata.model import Append, Csv, Pipe, SetPollingSource, SourceState, Url
from odf_engine.metadata.timestamp import Timestamp
from odf_engine.metadata.yaml import read_manifests
from odf_engine.workspace.trust import Trust
from odf_engine.workspace.workspace import Workspace
from tests.ingest.fake_podman import StandIn
from tests.ingest.pulling import MANIFEST, Pulled

FOREIGN = """
      fetch: {{kind: Url, url: "{url}"}}
      prepare:
        - kind: Pipe
          command: [sh, -c, "touch {ran}; cat; echo remark >&2"]
      read: {{kind: Csv, schema: [id BIGINT]}}
      merge: {{kind: Append}}
"""


def copy_in(pulled: Pulled, url: str, ran: Path) -> None:
    """Copies a dataset's folder from another workspace."""
    other = Workspace.init(pulled.workspace.folder.parent / f"other-{ran.name}")
    text = MANIFEST.format(name=ran.name, source=FOREIGN.format(url=url, ran=ran))
    (made,) = other.add(read_manifests(text, "test.yaml"))
    shutil.copytree(made.dataset.folder, pulled.workspace.odf / "datasets" / made.dataset.folder.name)
    pulled.entry = pulled.workspace.resolve(ran.name)


def test_copied_dataset_is_pulled_only_after_it_is_trusted(pulled: Pulled, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    pulled.write("data.csv", "1\n2\n")
    copy_in(pulled, "data.csv", ran)
    trust, entry = Trust(pulled.workspace), pulled.entry
    error = pulled.fails(
        NotTrusted,
        "ran is untrusted (not created by you): it would run file",
        "pipe `sh -c",
        "odf trust ran",
        force=True,
    )
    assert error.exit_code == 1 and not ran.exists()

    trust.grant(entry)
    assert pulled.pull().records == 2 and ran.exists()
    assert ("info", "sh: remark") in pulled.reporter.lines

    ran.unlink()
    event = SetPollingSource(
        fetch=Url("data.csv"),
        prepare=[Pipe(["touch", str(ran)])],
        read=Csv(schema=["id BIGINT"]),
        merge=Append(),
    )
    entry.dataset.commit([event], system_time=Timestamp.now(), expected_head=entry.dataset.head())
    pulled.write("data.csv", "3\n")
    pulled.fails(
        NotTrusted, "after it was trusted: new: pipe `touch", "removed: pipe `sh -c", "odf trust ran"
    )
    assert not ran.exists()
    trust.revoke(entry)
    pulled.fails(NotTrusted, "not created by you")


def test_trusted_dataset_reads_only_allowed_variables(
    pulled: Pulled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODF_TEST_TOKEN", "s3cr3t")
    copy_in(pulled, "http://127.0.0.1:1/${{ env.ODF_TEST_TOKEN }}", tmp_path / "asks")
    pulled.fails(NotTrusted, "variable `ODF_TEST_TOKEN`")
    Trust(pulled.workspace).grant(pulled.entry, private_network=True)
    error = pulled.fails(
        SourceUnavailable,
        "asks is not allowed to read the environment variable ODF_TEST_TOKEN",
        "allowedEnv.asks",
    )
    assert "s3cr3t" not in f"{error} {error.hint} {pulled.reporter.lines}"


def test_a_step_that_fails_leaves_the_head(pulled: Pulled) -> None:
    pulled.write("data.csv", "1\n")
    pulled.add("""
fetch: {kind: Url, url: data.csv}
prepare: [{kind: Pipe, command: [sh, -c, "cat; echo no luck >&2; exit 9"]}]
read: {kind: Csv, schema: [id BIGINT]}
merge: {kind: Append}
""")
    pulled.fails(BadData, "data.csv: command sh -c", "exited with code 9: no luck")


def test_container_is_run_until_it_has_no_more_data(
    pulled: Pulled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    StandIn(tmp_path / "bin", monkeypatch).script("""
        [ "$ODF_ETAG" = 2 ] && exec cp /dev/null $ODF_NEW_ETAG_PATH
        next=$((${ODF_ETAG:-0} + 1)); echo $next; echo $next > $ODF_NEW_ETAG_PATH
        [ $next = 2 ] || touch $ODF_NEW_HAS_MORE_DATA_PATH
    """)
    pulled.add("""
fetch: {kind: Container, image: host/fetcher}
read: {kind: Csv, schema: [id BIGINT]}
merge: {kind: Append}
""")
    assert pulled.pull().records == 2
    assert pulled.kinds()[-2:] == ["AddData", "AddData"] and pulled.rows("id") == [(1,), (2,)]
    assert pulled.newest().new_source_state == SourceState("default", "odf/etag", "2")
    assert pulled.pull().status == "up-to-date"
