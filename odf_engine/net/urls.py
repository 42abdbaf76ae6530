"""URL normalization, origins, and redaction of logins."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, quote, unquote, unquote_to_bytes, urlsplit, urlunsplit

from odf_engine.errors import UsageError, escape_surrogates, has_surrogates
from odf_engine.identity.names import is_valid_name

_LOGIN: Final = re.compile(r"^([^/?#]*//)[^/?#]*@")


def without_login(url: str) -> str:
    """Return the URL without user and password."""
    return _LOGIN.sub(r"\1", url)  # also of URLs that cannot be parsed, such as those with variables


SCHEMES: Final = (
    "file",
    "http",
    "https",
    "odf+http",
    "odf+https",
    "s3",
    "s3+http",
    "s3+https",
    "gs",
    "az",
    "ipfs",
    "ipns",
)
_PORTS: Final = {"http": 80, "https": 443, "mqtt": 1883, "smtp": 587, "smtps": 465}
_SAFE: Final = ":@!$&'()*+,;=~"
"""Characters of a path segment that are not percent-encoded, besides letters, digits and ``-._``."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def normalize_login_url(text: str) -> str:
    """Return the canonical form of a URL that credentials are for.

    It is one of a repository, or of a server such as ``mqtt://HOST:PORT`` or ``smtp://HOST:PORT``.

    Raises:
        UsageError: as :func:`normalize_url`.
    """
    return normalize_url(text, (*SCHEMES, "mqtt", "smtp", "smtps"))


def normalize_url(text: str, schemes: Sequence[str] = SCHEMES) -> str:
    """Return the canonical form of a URL: scheme and host in lower case, no default port, a slash at its end.

    A path of a folder, such as ``/mnt/stick/cities``, becomes a ``file:`` URL.

    Raises:
        UsageError: unknown scheme, no host, ``..`` in the path, a login, or a path that is not UTF-8.
    """
    text = text.strip()
    if has_surrogates(text):
        raise UsageError(f"the URL is not UTF-8 text: {text!r}")
    if _CONTROL.search(text):
        raise UsageError("invalid URL: it contains control characters")
    if text.startswith(("/", "./", "../", "~/")) or text in (".", "..", "~"):
        return _folder(str(Path(text).expanduser()))
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"invalid URL: {str(error)[:100].lower()}") from None
    scheme = parts.scheme.lower()
    if scheme not in schemes:
        known = ", ".join(f"{name}:" for name in schemes)
        shown = f"{scheme}:" if scheme else f"'{redact_url(text)}'"
        raise UsageError(f"unsupported URL: {shown}", hint=f"supported schemes: {known}")
    if "@" in parts.netloc:
        hint = "remove them and run odf repo login URL"
        raise UsageError("invalid URL: it contains a user or password", hint=hint)
    if parts.query or parts.fragment:
        hint = "use the URL of the dataset's folder"
        raise UsageError("invalid URL: it contains ? or #", hint=hint)
    if scheme == "file":  # in file://data/x, `data` parses as the host
        path = parts.path if parts.netloc == "localhost" else parts.netloc + parts.path
        return _folder(os.fsdecode(unquote_to_bytes(path)))
    if not parts.hostname:
        raise UsageError(f"invalid {scheme}: URL: missing host")
    if {".", ".."} & {unquote(part) for part in parts.path.split("/")}:
        raise UsageError("invalid URL: its path contains . or ..")
    steps = [quote(unquote_to_bytes(part), safe=_SAFE) for part in parts.path.rstrip("/").split("/")]
    return urlunsplit((scheme, _netloc(scheme, parts, port), "/".join(steps) + "/", "", ""))


def _netloc(scheme: str, parts: SplitResult, port: int | None) -> str:
    """Return host and port. A content identifier is case-sensitive, and is not changed."""
    if not scheme.endswith(("http", "https")):
        return parts.netloc
    return _host(parts) + ("" if port in (None, _PORTS[scheme.rpartition("+")[2]]) else f":{port}")


def _host(parts: SplitResult) -> str:
    host = (parts.hostname or "").lower()
    return f"[{host}]" if ":" in host else host


def _folder(path: str) -> str:
    # Symbolic links are not resolved: their targets may change.
    absolute = str(Path(path).absolute())
    if has_surrogates(absolute):
        raise UsageError(
            "the path of the folder is not UTF-8",
            where=escape_surrogates(absolute),
            hint="rename the folder, or run the command from another folder",
        )
    parts: list[str] = []
    for part in absolute.split("/"):
        if part == "..":
            parts = parts[:-1]
        elif part not in ("", "."):
            parts.append(part)
    return "file:///" + "".join(f"{quote(part)}/" for part in parts)


def folder_of(url: str) -> Path | None:
    """Return the folder of a ``file:`` URL, or None for other URLs."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def redact_url(url: str) -> str:
    """Return a URL without login, query and fragment, for messages."""
    try:
        parts = urlsplit(url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
    except ValueError:
        return f"{url.partition(':')[0]}:…"


def origin_of(url: str) -> str:
    """Return the origin that a login belongs to: scheme, host and port; for buckets also the bucket.

    The simple and the smart protocol of a server have the same origin.
    """
    parts = urlsplit(url)
    scheme = parts.scheme.lower().removeprefix("odf+")
    default = _PORTS.get(scheme.rpartition("+")[2])
    port = "" if parts.port in (None, default) else f":{parts.port}"
    bucket = f"/{parts.path.lstrip('/').partition('/')[0]}" if scheme.startswith("s3+") else ""
    return f"{scheme}://{_host(parts)}{port}{bucket}"


def supports_login(url: str) -> bool:
    """Return whether a URL can have a login: folders and content identifiers cannot."""
    return urlsplit(url).scheme.lower() not in ("file", "ipfs", "ipns")


def is_url(location: str) -> bool:
    """Return whether the location of a data file is a URL of a network protocol."""
    return urlsplit(location).scheme.lower() in ("http", "https", "ftp", "ftps", "s3")


def is_s3(url: str) -> bool:
    """Return whether a URL is one of S3, whose login is an access key and its secret."""
    return urlsplit(url).scheme.lower().partition("+")[0] == "s3"


def dataset_name_from_url(url: str) -> str:
    """Return a dataset name from a URL: its last path segment that is a valid name, else its host.

    Raises:
        UsageError: there is no valid name.
    """
    parts = urlsplit(url)
    for part in reversed(parts.path.split("/")):
        if is_valid_name(name := unquote(part)):
            return name
    host = parts.hostname or ""
    if is_valid_name(host):
        return host
    raise UsageError(f"{url} contains no name for the dataset", hint="use --as NAME")


def short_url(url: str) -> str:
    """Return a short form of a URL: host, or folder, and the name of the dataset."""
    parts = urlsplit(url)
    names = [unquote(part) for part in parts.path.split("/") if part]
    if parts.hostname:
        return "/".join([parts.netloc.rpartition("@")[2], *names[-1:]])
    return "/".join(names[-2:]) or url
