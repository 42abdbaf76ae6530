"""Credentials for object stores: stored logins, environment, profiles of the AWS CLI."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import socket
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final

from odf_engine.errors import SourceUnavailable, UsageError
from odf_engine.net.credentials import Login

_METADATA: Final = ("169.254.169.254", 80)
_ROLE_VARIABLES: Final = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
_PROCESS_SECONDS: Final = 60
Options = dict[str, Any]
"""Arguments of a store of obstore: ``config``, and perhaps ``credential_provider``."""


def s3_options(login: Login | None, *, anonymous: bool) -> Options:
    """Return the credentials for S3.

    The order is: the login, none if ``anonymous``, AWS_ACCESS_KEY_ID, the profile, a role of the container or
    the machine. Without any of them, requests are not signed, as public buckets require.

    Raises:
        SourceUnavailable: the profile cannot be used.
    """
    if login is not None and login.user:
        return _static(login.user, login.secret, login.token)
    if anonymous:
        return {"config": {"skip_signature": True}}
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if key and secret:
        return _static(key, secret, os.environ.get("AWS_SESSION_TOKEN", ""))
    if (options := _profile_options()) is not None:
        return options
    if any(os.environ.get(name) for name in _ROLE_VARIABLES) or _has_metadata_service():
        return {"config": {}}
    return {"config": {"skip_signature": True}}


def google_options(login: Login | None, *, anonymous: bool) -> Options:
    """Return the credentials for Google Cloud Storage.

    A token is an access token, or the JSON of a service account's key. Without one, the library uses the
    variables of the environment (``GOOGLE_…``), or the default credentials of the machine.

    Raises:
        UsageError: the login is a user with a password.
    """
    if anonymous or login is None:
        return {"config": {"skip_signature": True} if anonymous else {}}
    if login.user:
        hint = "store an access token or the key of a service account: odf repo login URL"
        raise UsageError("gs: URLs require a token", hint=hint)
    if login.token.startswith("{"):
        return {"config": {"service_account_key": login.token}}
    return {"config": {}, "credential_provider": lambda: {"token": login.token, "expires_at": None}}


def azure_options(login: Login | None, *, anonymous: bool) -> Options:
    """Return account and credentials for Azure Blob Storage.

    A user is the storage account, its secret the access key or a shared access signature. A token is a shared
    access signature or a bearer token. Without a login, the library uses the variables of the environment
    (``AZURE_…``).

    Raises:
        UsageError: the storage account is unknown.
    """
    account = (login.user if login else "") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    if not account and os.environ.get("AZURE_STORAGE_USE_EMULATOR", "").lower() in ("1", "true"):
        account = "devstoreaccount1"
    if not account:
        hint = "run odf repo login URL --user ACCOUNT, or set AZURE_STORAGE_ACCOUNT_NAME"
        raise UsageError("missing storage account for an az: URL", hint=hint)
    options: Options = {"config": {"account_name": account}}
    if anonymous:
        options["config"]["skip_signature"] = True
    elif login is not None:
        secret = (login.secret or login.token).removeprefix("?")
        kind = "sas_token" if "sig=" in secret else "access_key" if login.user else "token"
        options["credential_provider"] = lambda: {kind: secret, "expires_at": None}
    return options


def _static(key: str, secret: str, token: str) -> Options:
    credentials = {
        "access_key_id": key,
        "secret_access_key": secret,
        "token": token or None,
        "expires_at": None,
    }
    return {"config": {"skip_signature": False}, "credential_provider": lambda: credentials}


def _profile_options() -> Options | None:
    """Return the credentials of the profile in ``~/.aws``, or None if it has none."""
    named = os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    name = named or "default"
    values = dict(_section("AWS_CONFIG_FILE", "config", name, f"profile {name}"))
    values |= _section("AWS_SHARED_CREDENTIALS_FILE", "credentials", name)
    key, secret = values.get("aws_access_key_id"), values.get("aws_secret_access_key")
    if key and secret:
        return _static(key, secret, values.get("aws_session_token", ""))
    if command := values.get("credential_process"):
        return {"config": {"skip_signature": False}, "credential_provider": _process_provider(command)}
    if not any(option in values for option in ("role_arn", "sso_session", "sso_start_url", "login_session")):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider  # deferred: boto3 is optional

        return {"config": {"skip_signature": False}, "credential_provider": Boto3CredentialProvider()}
    except ImportError:
        problem = f"the AWS profile '{name}' requires the package boto3, which is not installed"
        hint = "install boto3, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    except Exception as error:
        problem = f"the AWS profile '{name}' cannot be used: {str(error)[:200]}"
        hint = "sign in with the AWS CLI, then try again"
    raise SourceUnavailable(problem, hint=hint)


def _section(variable: str, file: str, *names: str) -> Mapping[str, str]:
    path = Path(os.environ.get(variable) or f"~/.aws/{file}").expanduser()
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        # The error may quote the file.
        hint = "correct the file, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise SourceUnavailable(
            "the file of AWS profiles cannot be read", where=str(path), hint=hint
        ) from None
    return next((dict(parser[name]) for name in names if parser.has_section(name)), {})


def _process_provider(command: str) -> Callable[[], dict[str, Any]]:
    """Return a provider that runs the ``credential_process`` of a profile."""

    def run() -> dict[str, Any]:
        try:
            done = subprocess.run(
                shlex.split(command), capture_output=True, timeout=_PROCESS_SECONDS, check=True
            )
            credentials = json.loads(done.stdout)
            expires = credentials.get("Expiration")
            return {
                "access_key_id": credentials["AccessKeyId"],
                "secret_access_key": credentials["SecretAccessKey"],
                "token": credentials.get("SessionToken"),
                "expires_at": datetime.fromisoformat(expires) if expires else None,
            }
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError):
            # Their texts may contain credentials.
            raise SourceUnavailable(
                "the credential_process of the AWS profile failed",
                hint="run the command in a terminal to see why",
            ) from None

    return run


@cache
def _has_metadata_service() -> bool:
    """Return whether this is a machine of a cloud, whose role may have credentials."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true":
        with suppress(OSError), socket.create_connection(_METADATA, timeout=1):
            return True
    return False
