"""Alerts of a worker to real receivers: order, retries, dead letters, a killed worker."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from odf_engine.automation.alerts.webhook import hmac_signer, kamu_signature_headers, signature_headers
from odf_engine.identity.did import DatasetId
from odf_engine.identity.ownership_proof import verify_signature
from odf_engine.worker.endpoint import WorkerEndpoint
from tests.alerts.conftest import Odf
from tests.alerts.receivers import HttpReceiver, Received
from tests.waiting import wait_until

SECRET = "s3cret-" * 5


def write_alert(folder: Path, name: str, events: str, sink: str, more: str = "") -> None:
    (folder / f"{name}.yaml").write_text(
        f"headers: {{name: {name}}}\nspec:\n  events: [{events}]\n  sink: {sink}\n{more}"
    )


def signature_base(received: Received, parameters: str) -> bytes:
    """The signed text, built from the request as RFC 9421 says, by another program than the sender's."""
    names = re.findall(r'"([^"]+)"', parameters.partition(")")[0])
    path, _, query = received.path.partition("?")
    derived = {
        "@method": "POST",
        "@path": path,
        "@query": "?" + query,
        "@authority": received.headers["host"],
    }
    lines = [f'"{name}": {derived.get(name) or received.headers[name]}' for name in names]
    return "\n".join([*lines, f'"@signature-params": {parameters}']).encode()


def parts_of_signature(received: Received) -> tuple[str, bytes]:
    parameters = received.headers["signature-input"].removeprefix("sig1=")
    return parameters, base64.b64decode(
        received.headers["signature"].removeprefix("sig1=:").removesuffix(":")
    )


def test_signatures_match_the_rfc_and_kamu_examples() -> None:
    # RFC 9421, B.2.5: the same components in the same order as in the example.
    key = base64.b64decode(
        "uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ=="
    )
    base = (
        b'"date": Tue, 20 Apr 2021 02:07:55 GMT\n"@authority": example.com\n'
        b'"content-type": application/json\n'
        b'"@signature-params": ("date" "@authority" "content-type");created=1618884473'
        b';keyid="test-shared-secret"'
    )
    expected = "pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8="
    assert base64.b64encode(hmac.digest(key, base, hashlib.sha256)).decode() == expected
    # The same bytes go through the signer.
    signer = hmac_signer("x", "k")
    assert signer.sign(base) == hmac.digest(b"x", base, hashlib.sha256)
    headers = signature_headers("https://Example.com:443/a?b=c", {"Content-Type": "text/plain"}, signer, 7)
    assert headers["Signature-Input"] == (
        'sig1=("@method" "@authority" "@path" "@query" "content-type");created=7;keyid="k";alg="hmac-sha256"'
    )
    # The example in the tests of kamu.
    digest = "sha-256=:BA2bN3rMDmEBxxu0hmTrkJjzPOVTtU1Co6fM1L+8tDg=:"
    signer = hmac_signer("test_secret", "default")
    found = kamu_signature_headers("https://example.com/webhook", digest, signer, 1747176960)
    assert found["signature"] == "sig1=:coS90CuAAmr2mVsp2/k9rm8q2D8KCPT2uJmlKcYTgZE=:"


def test_new_heads_go_to_webhooks_with_both_signatures(
    folder: Path, odf: Odf, receiver: HttpReceiver
) -> None:
    url = f"{receiver.url}/hooks/abc?token=t0p"
    write_alert(folder, "a", "DatasetUpdated", f"{{kind: Webhook, url: '{url}', signature: hmac-sha256}}")
    write_alert(
        folder, "b", "DatasetUpdated", f"{{kind: Webhook, url: '{receiver.url}/b', signature: ed25519}}"
    )
    kamu = f"{{kind: Webhook, url: '{receiver.url}/kamu', signature: hmac-sha256, format: kamu}}"
    write_alert(folder, "k", "DatasetUpdated", kamu)
    ran = odf("alert", "add", "a.yaml", "b.yaml", "k.yaml")
    assert (ran.code, "it has no secret" in ran.err) == (0, True), ran.err
    for name in ("a", "k"):
        assert odf("alert", "secret", name, "--stdin", input=SECRET + "\n").code == 0
    assert odf("alert", "test", "a").code == 0 and odf("alert", "test", "k").code == 0
    test_messages = [request.headers.get("x-webhook-event-type") for request in receiver.requests]
    assert test_messages == [None, "TEST"]
    (dataset,) = odf("list", "--json").json
    assert odf("ingest", "my.rows", "-", "--format", "ndjson", input='{"id": 1, "name": "x"}\n').code == 0
    wait_until(lambda: len(receiver.requests) == 5)
    (after,) = odf("list", "--json").json
    by_path = {request.path: request for request in receiver.requests[2:]}
    signed = by_path["/hooks/abc?token=t0p"]
    event = json.loads(signed.body)
    assert (event["type"], event["subject"]) == ("odf.DatasetUpdated", "my.rows")
    assert (event["data"]["old_head"], event["data"]["new_head"]) == (dataset["head"], after["head"])
    assert event["data"]["breaking"] is False
    parameters, signature = parts_of_signature(signed)
    assert '"content-digest"' in parameters and '"idempotency-key"' in parameters
    assert signature == hmac.digest(SECRET.encode(), signature_base(signed, parameters), hashlib.sha256)
    digest = base64.b64encode(hashlib.sha256(signed.body).digest()).decode()
    assert signed.headers["content-digest"] == f"sha-256=:{digest}:"
    parameters, signature = parts_of_signature(by_path["/b"])
    assert f'keyid="{dataset["id"]}"' in parameters
    assert verify_signature(
        DatasetId.parse(dataset["id"]), signature_base(by_path["/b"], parameters), signature
    )
    body = json.loads(by_path["/kamu"].body)
    assert (body["dataset_id"], body["new_hash"], body["block_ref"]) == (dataset["id"], after["head"], "head")
    assert by_path["/kamu"].headers["x-webhook-event-type"] == "DATASET.REF.UPDATED"
    # Secrets show nowhere: neither in lists, nor in logs, nor in files for all users.
    shown = "".join(
        odf(*arguments).out
        for arguments in (["alert", "list"], ["alert", "list", "--json"], ["alert", "history", "--json"])
    )
    shown += (folder / ".odf" / "worker.log").read_text()
    assert SECRET not in shown and "t0p" not in shown and "/hooks" not in shown
    assert odf("alert", "remove", "a").code == 0
    assert SECRET in (folder / ".odf" / "keys" / "logins.json").read_text()  # that of k
    assert odf("alert", "remove", "k").code == 0
    assert SECRET not in (folder / ".odf" / "keys" / "logins.json").read_text()


def dead(odf: Odf) -> list[Any]:
    return odf("alert", "dead", "list", "--json").json


@pytest.mark.complete
def test_failed_deliveries_are_retried_and_become_dead_letters(
    folder: Path, odf: Odf, receiver: HttpReceiver
) -> None:
    receiver.status = 503
    retry = "  retry: {maxAttempts: 1, minDelay: 100ms}\n"
    write_alert(folder, "ops", "JobFailed", f"{{kind: Webhook, url: '{receiver.url}/x'}}", retry)
    write_alert(folder, "moved", "JobFailed", f"{{kind: Webhook, url: '{receiver.url}/y'}}", retry)
    assert odf("alert", "add", "ops.yaml").code == 0
    bad = odf("ingest", "my.rows", "-", "--format", "ndjson", input="{bad\n")
    assert bad.code == 1
    wait_until(lambda: dead(odf))
    assert len(receiver.requests) == 2
    assert len({request.headers["idempotency-key"] for request in receiver.requests}) == 1
    (letter,) = dead(odf)
    assert (letter["event"], letter["attempts"], letter["state"]) == ("JobFailed", 2, "dead")
    assert letter["error"] == "the server returned 503"
    assert odf("alert", "dead", "retry", "99").code == 1 and odf("alert", "dead", "retry").code == 2
    receiver.status = 200
    assert odf("alert", "dead", "retry", str(letter["number"])).code == 0
    wait_until(lambda: len(receiver.requests) == 3)
    wait_until(lambda: odf("alert", "history", "ops", "--json").json[0]["state"] == "sent")
    assert odf("alert", "history", "ops", "--json").json[0]["attempts"] == 1  # since it was queued again
    event = json.loads(receiver.requests[2].body)
    assert event["data"]["message"].startswith("ingest my.rows failed: ")
    assert receiver.requests[2].headers["idempotency-key"] == receiver.requests[0].headers["idempotency-key"]
    # A redirect would invalidate the signature, and could send the message elsewhere.
    receiver.status, receiver.location = 302, f"{receiver.url}/elsewhere"
    ran = odf("alert", "test", "ops")
    assert (ran.code, "redirect" in ran.err) == (1, True), ran.err
    assert [request.path for request in receiver.requests].count("/elsewhere") == 0


@pytest.mark.complete
def test_killed_worker_delivers_each_alert_at_least_once(
    folder: Path, odf: Odf, receiver: HttpReceiver
) -> None:
    receiver.status = 500
    write_alert(
        folder,
        "ops",
        "JobSucceeded",
        f"{{kind: Webhook, url: '{receiver.url}/'}}",
        "  retry: {minDelay: 2s}\n",
    )
    assert odf("alert", "add", "ops.yaml").code == 0
    for number in range(3):
        ran = odf("ingest", "my.rows", "-", "--format", "ndjson", input=f'{{"id": {number}, "name": null}}\n')
        assert ran.code == 0, ran.err
    wait_until(lambda: len(receiver.requests) >= 3)  # sent, but not confirmed
    pid = WorkerEndpoint(folder).worker_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not WorkerEndpoint(folder).worker_alive())
    receiver.requests.clear()
    receiver.status = 200
    assert odf("worker", "start").code == 0
    wait_until(lambda: [each["state"] for each in odf("alert", "history", "--json").json] == ["sent"] * 3)
    ids = [json.loads(request.body)["id"] for request in receiver.requests]
    assert len(set(ids)) == 3 and len(ids) <= 4  # at least once, each with the same id


def test_invalid_definitions_are_rejected_with_line_and_column(folder: Path, odf: Odf) -> None:
    good = "{kind: Webhook, url: 'https://h.example/'}"
    cases = [
        ("JobFaild", good, "a.yaml:3:12", "Invalid enum value 'JobFaild'"),
        ("JobFailed", "{kind: Webhook, url: 'https://u:p@h.example/'}", "a.yaml:4:9", "user or password"),
        ("JobFailed", "{kind: Webhook, url: 'ftp://h.example/'}", "a.yaml:4:9", "http:// or https://"),
        ("JobFailed", "{kind: Webhook, uri: 'https://h.example/'}", "a.yaml:4:25", "unknown field `uri`"),
        ("JobFailed", "{kind: Webhook, url: 'https://h/', format: kamu}", "a.yaml:4:9", "hmac-sha256"),
        (
            "FlowFailed",
            "{kind: Webhook, url: 'https://h/', signature: ed25519}",
            "a.yaml:3:3",
            "requires key",
        ),
        (
            "JobFailed",
            "{kind: Email, server: 'smtp://h', from: a@b.c, to: ['x, y@z']}",
            "a.yaml:4:9",
            "mail address",
        ),
        ("JobFailed", "{kind: OpenLineage, file: x}", "a.yaml:3:3", "no events"),
    ]
    for events, sink, where, problem in cases:
        write_alert(folder, "a", events, sink)
        ran = odf("alert", "add", "a.yaml")
        assert (ran.code, where in ran.err, problem.lower() in ran.err.lower()) == (1, True, True), ran.err
        assert "u:p" not in ran.err
    assert odf("alert", "list", "--json").json == []
    stored = folder / ".odf" / "alerts"
    stored.mkdir(exist_ok=True)
    write_alert(folder, "a", "JobFailed", good)
    (folder / "a.yaml").rename(stored / "a.yaml")  # as from an archive by another author
    assert odf("alert", "list", "--json").json[0]["state"] == "new"
    assert "odf alert accept" in odf("alert", "test", "a").err
