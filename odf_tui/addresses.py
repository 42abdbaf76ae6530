"""What a person means by an address, and where a dataset would be in a repository."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import quote

from odf_engine.errors import NotFound, OdfError, UsageError
from odf_engine.identity.names import DatasetAliasRemote, DatasetUrl, is_valid_name, parse_ref_remote
from odf_engine.net.urls import dataset_name_from_url, normalize_url
from odf_tui.humane import explained
from odf_tui.remotes import is_writable
from odf_tui.share_source import Place


def place_of(text: str, repositories: Sequence[Place]) -> Place:
    """The dataset that a URL or ``repository/name`` means; its name is empty where the URL says none.

    Raises:
        OdfError: it is neither, or there is no such repository.
    """
    ref = parse_ref_remote(text)
    if isinstance(ref, DatasetUrl):
        url = normalize_url(ref.url)
        try:
            return Place(dataset_name_from_url(url), url)
        except UsageError:
            return Place("", url)
    if isinstance(ref, DatasetAliasRemote):
        for each in repositories:
            if each.name.lower() == ref.repo.lower():
                return Place(ref.name, place_in(each, str(ref.alias)).url)
        raise NotFound(f"there is no repository '{ref.repo}'")
    raise UsageError("elsewhere a dataset is found by name", hint="repository/name, or its URL")


def place_in(repository: Place, dataset: str) -> Place:
    """Where a dataset is, or would be, in a repository; its name is ``repository/name``."""
    return Place(f"{repository.name}/{dataset}", f"{repository.url}{quote(dataset)}/")


def place_check(repositories: Sequence[Place], *, to_push: bool) -> Callable[[str], str]:
    """What is wrong with an address that was typed."""

    def check(text: str) -> str:
        try:
            url = place_of(text, repositories).url
        except OdfError as error:
            return explained(error)
        if to_push and not is_writable(url):
            return "there one can only read: file:, s3:, odf+https: or odf+http: can be pushed to"
        return ""

    return check


def repository_check(text: str) -> str:
    """What is wrong with the URL of a repository."""
    try:
        normalize_url(text)
    except OdfError as error:
        return explained(error)
    return ""


def repository_name_check(repositories: Sequence[Place]) -> Callable[[str], str]:
    """What is wrong with the name of a new repository."""
    taken = {each.name.lower() for each in repositories}

    def check(text: str) -> str:
        if not is_valid_name(text):
            return "a name has letters, digits, dots and dashes"
        return f"there is a repository {text} already" if text.lower() in taken else ""

    return check
