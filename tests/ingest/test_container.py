"""Container sources, with a stand-in for podman that runs a script, and with the real one where it works."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from odf_engine.base.config import FetchConfig
from odf_engine.errors import (
    BadData,
    Cancelled,
    InvalidManifest,
    OdfError,
    SourceUnavailable,
    Unsupported,
)
from odf_engine.ingest.fetch.fetch_step import fetch
from odf_engine.ingest.fetch.model import FetchContext
from odf_engine.metadata.model import Container, EnvVar, SourceState
from odf_engine.workspace.workspace import Workspace
from tests.ingest.fake_podman import StandIn
from tests.ingest.recorder import Recorder
from tests.waiting import is_running, wait_until


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return StandIn(tmp_path / "bin", monkeypatch)


@pytest.fixture
def context(workspace: Workspace, reporter: Recorder) -> FetchContext:
    (workspace.odf / "cache" / "job").mkdir(parents=True)
    return FetchContext(
        resolve=workspace.resolve_path,
        root=workspace.folder,
        dataset=None,  # type: ignore[arg-type]
        state=None,
        job=workspace.odf / "cache" / "job",
        config=FetchConfig(),
        reporter=reporter,
        name="com.example",
    )


def etag(value: str) -> SourceState:
    return SourceState("default", "odf/etag", value)


def batches(context: FetchContext, step: Container | None = None) -> Iterator[tuple[str, SourceState | None]]:
    for payload in fetch(step or Container("host/fetcher:1"), context):
        assert payload.event_time is None
        yield payload.path.read_text(), payload.state


def test_container_output_and_etag_become_payload_and_state(
    podman: StandIn, context: FetchContext, reporter: Recorder
) -> None:
    podman.script(
        'echo "after ${ODF_ETAG-nothing}, $ODF_BATCH_SIZE"; echo doing >&2; echo e1 > $ODF_NEW_ETAG_PATH'
    )
    assert list(batches(context)) == [("after nothing, 10000\n", etag("e1"))]
    assert list(batches(replace(context, state=etag("e0")))) == [("after e0, 10000\n", etag("e1"))]
    assert ("info", "podman: doing") in reporter.lines
    assert ("info", "image host/fetcher:1, sha256:feed") in reporter.lines
    assert reporter.amounts["bytes"] == len("after e0, 10000\n")
    assert podman.calls("pull") == []
    assert [each.name for each in context.job.iterdir()] == ["image"]


def test_container_last_modified_time_becomes_source_state(podman: StandIn, context: FetchContext) -> None:
    podman.script('echo "$ODF_LAST_MODIFIED"; echo 2026-01-02T03:04:05+01:00 > $ODF_NEW_LAST_MODIFIED_PATH')
    ((_, state),) = batches(context)
    assert state == SourceState("default", "odf/last-modified", "2026-01-02T02:04:05Z")
    assert list(batches(replace(context, state=state))) == [("2026-01-02T02:04:05Z\n", state)]
    podman.script(
        "echo 2026-01-02T03:04:05Z > $ODF_NEW_LAST_MODIFIED_PATH; echo e > $ODF_NEW_ETAG_PATH; echo x"
    )
    assert list(batches(context)) == [("x\n", etag("e"))]


def test_container_without_output_and_new_state_yields_nothing(
    podman: StandIn, context: FetchContext
) -> None:
    podman.script("true")
    assert list(batches(context)) == []
    podman.script("echo e1 > $ODF_NEW_ETAG_PATH")
    assert list(batches(replace(context, state=etag("e1")))) == []
    assert list(batches(replace(context, state=etag("e0")))) == [("", etag("e1"))]
    podman.script("echo e1 > $ODF_NEW_ETAG_PATH; echo x")
    assert list(batches(replace(context, state=etag("e1")))) == [("x\n", etag("e1"))]


def test_container_runs_until_it_has_no_more_data(podman: StandIn, context: FetchContext) -> None:
    podman.script("""
        next=$((${ODF_ETAG:-0} + 1)); echo row $next; echo $next > $ODF_NEW_ETAG_PATH
        [ $next = 3 ] || touch $ODF_NEW_HAS_MORE_DATA_PATH
    """)
    assert list(batches(context)) == [(f"row {at}\n", etag(str(at))) for at in (1, 2, 3)]
    assert list(batches(replace(context, state=etag("1")))) == [
        (f"row {at}\n", etag(str(at))) for at in (2, 3)
    ]
    first = next(batches(context))  # and no more is asked for
    assert first == ("row 1\n", etag("1"))


def test_more_data_without_new_state_is_rejected(podman: StandIn, context: FetchContext) -> None:
    for script in ("echo x", "echo e0 > $ODF_NEW_ETAG_PATH"):
        podman.script(f"{script}; touch $ODF_NEW_HAS_MORE_DATA_PATH")
        with pytest.raises(BadData, match="wrote no new state"):
            list(batches(replace(context, state=etag("e0"))))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("ln -s /etc/hostname $ODF_NEW_ETAG_PATH", "new-etag cannot be read"),
        ("mkfifo $ODF_NEW_ETAG_PATH", "new-etag is not a regular file"),
        ("mkdir $ODF_NEW_HAS_MORE_DATA_PATH", "new-has-more-data is not a regular file"),
        ("head -c 9999 /dev/zero > $ODF_NEW_ETAG_PATH", "more than 4,096 bytes"),
        ("printf '\\377' > $ODF_NEW_ETAG_PATH", "not UTF-8"),
        ("echo monday > $ODF_NEW_LAST_MODIFIED_PATH", "invalid modification time: 'monday'"),
    ],
)
def test_invalid_state_files_are_rejected(
    podman: StandIn, context: FetchContext, script: str, said: str
) -> None:
    podman.script(script)
    with pytest.raises(BadData, match=said):
        list(batches(context))


def test_container_runs_without_shell_and_with_limits(podman: StandIn, context: FetchContext) -> None:
    podman.script('printf "%s;" "$@"')
    step = Container(
        "host:5000/a/b@sha256:" + "0" * 64, command=["run it", "-c"], args=["--privileged", "$HOME"]
    )
    assert list(batches(context, step)) == [("run it;-c;--privileged;$HOME;", None)]
    (options,) = podman.calls("run")
    before = options[: options.index("--")]
    assert "--privileged" not in before and "--security-opt=no-new-privileges" in before
    assert {"--rm", "--memory=2g", "--pids-limit=512", "--log-driver=none"} <= set(before)
    free = replace(context, config=FetchConfig(container_memory=""))
    list(batches(free, Container("a")))
    assert not any(option.startswith("--memory") for option in podman.calls("run")[1])


def test_container_gets_only_allowed_variables(
    podman: StandIn, context: FetchContext, reporter: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OWN", 'own=1 # "two"')
    podman.script('echo "$A|$OWN|$TOKEN|$HOME|$ODF_BATCH_SIZE"; echo "token $TOKEN" >&2')
    env = [EnvVar("A", "a ${{ env.TOKEN }}"), EnvVar("OWN"), EnvVar("TOKEN"), EnvVar("ODF_BATCH_SIZE", "5")]
    step = Container("fetcher", env=env)
    allowed = replace(context, environment={"TOKEN": "s3cr3t"}, allowed=["OWN", "TOKEN"])
    ((text, _),) = batches(allowed, step)
    assert text == 'a s3cr3t|own=1 # "two"|s3cr3t||5\n'
    assert "s3cr3t" not in str(podman.calls("run")) + str(reporter.lines)
    assert ("info", "podman: token ***") in reporter.lines

    with pytest.raises(
        SourceUnavailable, match=r"com.example is not allowed to read the environment variable TOKEN"
    ) as caught:
        list(batches(replace(allowed, allowed=["OWN"]), step))
    assert "odf config set allowedEnv.com.example OWN,TOKEN" in (caught.value.hint or "")
    podman.script('echo "wrong: $TOKEN" >&2; exit 1')
    with pytest.raises(SourceUnavailable, match=r"wrong: \*\*\*$"):
        list(batches(allowed, step))
    podman.script('echo x; echo "$TOKEN-1" > $ODF_NEW_ETAG_PATH')
    with pytest.raises(BadData, match="contains the value of a variable"):
        list(batches(allowed, step))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (Container("--privileged"), "invalid name of a container image"),
        (Container("dir:/etc"), "invalid name of a container image"),
        (Container(""), "invalid name of a container image"),
        (Container("a", env=[EnvVar("A=B", "x")]), "invalid name of a variable"),
        (Container("a", env=[EnvVar("A*", "x")]), "invalid name of a variable"),
        (Container("a", env=[EnvVar("A", "x\nB=y")]), "line break"),
    ],
)
def test_invalid_container_definition_is_rejected_before_it_runs(
    podman: StandIn, context: FetchContext, step: Container, said: str
) -> None:
    with pytest.raises(InvalidManifest, match=said):
        list(batches(context, step))
    assert not (podman.folder / "calls").exists()


def test_an_image_is_pulled_once(podman: StandIn, context: FetchContext, reporter: Recorder) -> None:
    (podman.folder / "image").unlink()
    podman.script("echo x")
    podman.has("no-registry")
    with pytest.raises(SourceUnavailable, match=r"host/fetcher:1: cannot pull the image: .*refused"):
        list(batches(context))
    (podman.folder / "no-registry").unlink()
    assert list(batches(context)) == list(batches(context)) == [("x\n", None)]
    assert ("info", "podman: Trying to pull host/fetcher:1...") in reporter.lines
    assert len(podman.calls("pull")) == 2


def test_container_failure_reports_exit_code_and_last_lines(podman: StandIn, context: FetchContext) -> None:
    podman.script("echo some rows; seq 9 >&2; exit 42")
    with pytest.raises(SourceUnavailable) as caught:
        list(batches(context))
    said = "host/fetcher:1: container exited with code 42: 5 / 6 / 7 / 8 / 9"
    assert str(caught.value) == said
    assert [each.name for each in context.job.iterdir()] == ["image"]


def test_cancelling_kills_the_container(podman: StandIn, context: FetchContext, reporter: Recorder) -> None:
    podman.script(f"echo $$ > {context.job}/pid; echo row; exec sleep 60")
    noted = context.job / "pid"

    def cancel_when_it_works() -> None:
        wait_until(lambda: noted.exists() and noted.read_text().endswith("\n"))
        reporter.cancel()

    threading.Thread(target=cancel_when_it_works, daemon=True).start()
    with pytest.raises(Cancelled):
        list(batches(context))
    pid = int(noted.read_text())
    wait_until(lambda: not is_running(pid))
    ((name,),) = podman.calls("kill")
    assert podman.calls("rm") == [["-f", name]]


def test_missing_container_runtime_is_reported(
    context: FetchContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unsupported, match="neither podman nor docker") as caught:
        list(batches(context))
    assert "install podman" in (caught.value.hint or "")
    named = replace(context, config=FetchConfig(container_runtime="nerdctl"))
    with pytest.raises(Unsupported, match="its runtime 'nerdctl' is not installed"):
        list(batches(named))


def test_stopped_container_service_is_reported(podman: StandIn, context: FetchContext) -> None:
    podman.has("no-service")
    with pytest.raises(
        OdfError, match=r"podman cannot run containers: Cannot connect .* Is the daemon"
    ) as caught:
        list(batches(context))
    assert "start its service" in (caught.value.hint or "")


@pytest.fixture
def real_image(tmp_path: Path) -> Iterator[str]:
    """An image of nothing but a statically linked shell, where podman and such a shell are here."""
    podman, busybox = shutil.which("podman"), shutil.which("busybox")
    if podman is None or busybox is None:
        pytest.skip("there is no podman, or no busybox to make an image of")
    image = f"localhost/odf-test:{os.getpid()}"
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        for name in ("sh", "sleep"):
            tar.add(Path(busybox).resolve(), f"bin/{name}")
    made = subprocess.run([podman, "import", tmp_path / "root.tar", image], capture_output=True)
    ran = subprocess.run([podman, "run", "--rm", image, "sh", "-c", "true"], capture_output=True)
    try:
        if made.returncode or ran.returncode:
            pytest.skip(f"podman does not work here: {(made.stderr + ran.stderr).decode()[-200:]}")
        yield image
    finally:
        subprocess.run([podman, "rmi", "-f", image], capture_output=True)


def test_real_podman_fetches_batches_and_can_be_cancelled(
    real_image: str, context: FetchContext, reporter: Recorder
) -> None:
    script = """
        echo $((${ODF_ETAG:-0} + 1)) > $ODF_NEW_ETAG_PATH; echo "$A $0 $1"; echo remark >&2
        [ "$ODF_ETAG" ] || : > $ODF_NEW_HAS_MORE_DATA_PATH
    """
    step = Container(
        real_image, command=["sh", "-c", script], args=["zero", "$HOME"], env=[EnvVar("A", "it is # 1")]
    )
    assert list(batches(context, step)) == [("it is # 1 zero $HOME\n", etag(at)) for at in ("1", "2")]
    assert ("info", "podman: remark") in reporter.lines
    with pytest.raises(SourceUnavailable, match="exited with code 3: bad"):
        list(batches(context, Container(real_image, command=["sh", "-c", "echo bad >&2; exit 3"])))

    reporter.on_line = lambda text: reporter.cancel() if text == "podman: ready" else None
    script = "trap '' TERM; echo x; echo ready >&2; sleep 600"
    with pytest.raises(Cancelled):
        list(batches(context, Container(real_image, command=["sh", "-c", script])))
    listed = subprocess.run(["podman", "ps", "-aq", "--filter", "name=odf-"], capture_output=True, text=True)
    assert listed.stdout == ""
