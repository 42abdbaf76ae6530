"""Webhooks: HTTP POST requests with message signatures (RFC 9421), or in the form of kamu."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from odf_engine.automation.alerts.events import stable_id
from odf_engine.automation.alerts.store import Delivery
from odf_engine.errors import OdfError, SourceUnavailable
from odf_engine.identity.ownership_proof import dataset_id_of_key, load_private_key, sign
from odf_engine.net.credentials import RemoteAccess
from odf_engine.net.http_client import HttpClient, RedirectProblem, RequestBody, Response
from odf_engine.net.urls import origin_of

_PORTS: Final = {"http": 80, "https": 443}
KAMU_EVENT: Final = "DATASET.REF.UPDATED"
_KAMU_TEST: Final = "TEST"
_KAMU_VERSION: Final = 2
_KAMU_COMPONENTS: Final = '@method @path @authority "x-webhook-timestamp" "content-digest"'


class Signer(NamedTuple):
    """A key that signs requests.

    Attributes:
        algorithm: its name in the registry of RFC 9421: ``hmac-sha256`` or ``ed25519``.
        key_id: identifies the key for the receiver.
        sign: returns the signature of bytes.
    """

    algorithm: str
    key_id: str
    sign: Callable[[bytes], bytes]

    def __repr__(self) -> str:
        return f"Signer({self.algorithm}, {self.key_id})"


def hmac_signer(secret: str, key_id: str) -> Signer:
    """Return the signer for a shared secret. The bytes of its text are the key."""
    return Signer("hmac-sha256", key_id, lambda data: hmac.digest(secret.encode(), data, hashlib.sha256))


def key_signer(pem: str) -> Signer:
    """Return the signer for an ed25519 private key; its key id is the id of the dataset, ``did:odf:…``.

    Raises:
        BadData: the text is not such a key.
    """
    key = load_private_key(pem)
    return Signer("ed25519", str(dataset_id_of_key(key)), lambda data: sign(key, data))


def content_digest(body: bytes) -> str:
    """Return the value of the header Content-Digest (RFC 9530)."""
    return f"sha-256=:{b64encode(hashlib.sha256(body).digest()).decode()}:"


def authority_of(url: str) -> str:
    """Return the host of a URL in lower case, with its port unless that is the default (RFC 9421, 2.2.3)."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    return host if parts.port in (None, _PORTS.get(parts.scheme)) else f"{host}:{parts.port}"


def signature_headers(
    url: str, headers: Mapping[str, str], signer: Signer, created: int, method: str = "POST"
) -> dict[str, str]:
    """Return the headers ``Signature-Input`` and ``Signature`` (RFC 9421) of a request.

    The signature covers method, authority, path, query, and all of ``headers``.

    Args:
        url: the address.
        headers: the headers to sign.
        signer: the key.
        created: the time in seconds since 1970.
        method: the method.
    """
    parts = urlsplit(url)
    components = {"@method": method, "@authority": authority_of(url), "@path": parts.path or "/"}
    if parts.query:
        components["@query"] = f"?{parts.query}"
    components |= {name.lower(): value.strip() for name, value in headers.items()}
    names = " ".join(f'"{name}"' for name in components)
    parameters = f'({names});created={created};keyid="{signer.key_id}";alg="{signer.algorithm}"'
    lines = [f'"{name}": {value}' for name, value in components.items()]
    base = "\n".join([*lines, f'"@signature-params": {parameters}'])
    signature = b64encode(signer.sign(base.encode())).decode()
    return {"Signature-Input": f"sig1={parameters}", "Signature": f"sig1=:{signature}:"}


def kamu_signature_headers(url: str, digest: str, signer: Signer, created: int) -> dict[str, str]:
    """Return the signature headers in the form of kamu, which is close to RFC 9421.

    Derived names have no quotes in the signed text, and the parameters have a line of their own.
    """
    parameters = f'keyid="default";alg="hmac-sha256";created={created}'
    base = "\n".join(
        [
            "@method: POST",
            f"@path: {urlsplit(url).path or '/'}",
            f"@authority: {authority_of(url)}",
            f'"x-webhook-timestamp": {created}',
            f'"content-digest": {digest}',
            f'"@signature-params": ({_KAMU_COMPONENTS})',
            f";{parameters}",
        ]
    )
    signature = b64encode(signer.sign(base.encode())).decode()
    return {
        "signature-input": f"sig1=({_KAMU_COMPONENTS}); " + parameters.replace(";", "; "),
        "signature": f"sig1=:{signature}:",
    }


def kamu_body(dataset: str, account: str, old: str | None, new: str, *, breaking: bool) -> bytes:
    """Return the message of kamu about a new head: compact JSON, sorted keys.

    Args:
        dataset: id of the dataset.
        account: owner of the dataset.
        old, new: the heads before and after, or None if the dataset is new.
        breaking: the new chain does not contain the old head.
    """
    body = {
        "block_ref": "head",
        "dataset_id": dataset,
        "is_breaking_change": breaking,
        "new_hash": new,
        "owner_account_id": account,
        "version": _KAMU_VERSION,
    } | ({"old_hash": old} if old is not None else {})
    return msgspec.json.encode(body, order="sorted")


def cloud_event_headers(url: str, delivery: Delivery, signer: Signer | None, created: int) -> dict[str, str]:
    """Return the headers of a request with a CloudEvent."""
    headers = {
        "Content-Type": "application/cloudevents+json; charset=utf-8",
        "Content-Digest": content_digest(delivery.body),
        "Idempotency-Key": f'"{delivery.id}"',
    }
    return headers if signer is None else headers | signature_headers(url, headers, signer, created)


def kamu_headers(url: str, delivery: Delivery, signer: Signer, created: int) -> dict[str, str]:
    """Return the headers of a request in the form of kamu."""
    digest = content_digest(delivery.body)
    test = delivery.kind == "Test"
    return {
        "content-type": "application/json",
        "content-digest": digest,
        "x-webhook-event-type": _KAMU_TEST if test else KAMU_EVENT,
        "x-webhook-delivery-id": delivery.id,
        "x-webhook-subscription-id": stable_id("alert", delivery.alert),
        "x-webhook-delivery-attempt": str(delivery.attempts + 1),
        "x-webhook-timestamp": str(created),
        **kamu_signature_headers(url, digest, signer, created),
    }


class AlertClient(HttpClient):
    """The client of the receiver of an alert. Errors contain only its origin: the path can be a secret."""

    network_hint = "check the address and the network"

    def where(self, url: str) -> str:
        """Return the origin of a URL."""
        return origin_of(url)

    def redirect_error(
        self, problem: RedirectProblem, response: Response | None, old: str, new: str
    ) -> OdfError:
        """Return the error for a redirect: none is followed."""
        if response is None:
            return super().redirect_error(problem, response, old, new)
        return SourceUnavailable(
            f"the server returned {response.status}, a redirect, which alerts do not follow",
            where=self.where(old),
            hint="set url to the final address",
        )


def post(url: str, headers: Mapping[str, str], body: bytes, access: RemoteAccess, seconds: float) -> None:
    """Send a POST request: one attempt, without redirects, since these would invalidate the signature.

    Args:
        url: the address.
        headers: headers of the request.
        body: body of the request.
        access: settings and credentials.
        seconds: limit of each wait for the server.

    Raises:
        AttemptFailed: the response is not 2xx, or is missing.
        Cancelled: immediately.
    """
    fetch = msgspec.structs.replace(
        access.config.fetch,
        connect_timeout_seconds=seconds,
        read_timeout_seconds=seconds,
        max_redirects=0,
    )
    config = msgspec.structs.replace(access.config, fetch=fetch)
    client = AlertClient.for_remote(url, access._replace(config=config))
    try:
        client.request("POST", url, headers=headers, body=RequestBody(body)).close()
    finally:
        client.close()
