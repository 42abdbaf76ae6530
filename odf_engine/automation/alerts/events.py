"""Events of a workspace, the alerts that they match, and their form as CloudEvents."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from odf_engine.automation.alerts.definition import Alert, EventKind
from odf_engine.base.config import Config
from odf_engine.identity.did import DatasetId
from odf_engine.identity.names import DatasetAlias, DatasetPattern, matches_pattern
from odf_engine.workspace.documents.document import Target, matches_target

_NAMES: Final = uuid.UUID("0f6d6a53-3a0c-5d0e-8f2e-6f2b1c5c2a10")
"""Namespace of the ids, which are UUIDs of version 5: the same event always has the same id."""
MAX_MESSAGE: Final = 1000
"""Characters of the message of an event."""


def stable_id(*parts: object) -> str:
    """Return a UUID that depends only on ``parts``."""
    return str(uuid.uuid5(_NAMES, "/".join(map(str, parts))))


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """An event.

    Attributes:
        id: its id.
        kinds: its kinds, the most specific first. An alert sends an event once, as the first kind that it
            selects.
        time: when it happened, RFC 3339.
        subject: name of the dataset or of the flow.
        message: what happened, one line.
        dataset: id of the dataset, or "" for a flow.
        data: details.
    """

    id: str
    kinds: Sequence[EventKind]
    time: str
    subject: str
    message: str
    dataset: str = ""
    data: dict[str, Any] = {}


def select_kind(alert: Alert, event: Event, config: Config) -> EventKind | None:
    """Return the kind of an event that an alert selects, or None if it does not send the event.

    ``config`` has the labels of datasets.
    """
    kind: EventKind | None = next(
        (candidate for candidate in event.kinds if candidate in alert.spec.kinds), None
    )
    if kind is None or not any(_is_target(target, event, config) for target in alert.spec.targets):
        return None
    return kind


def _is_target(target: Target, event: Event, config: Config) -> bool:
    if event.dataset:
        alias = DatasetAlias.parse(event.subject)
        return matches_target(target, alias, DatasetId.parse(event.dataset), config)
    if not isinstance(target, str):
        return False  # only datasets have labels
    if target == event.subject:
        return True
    pattern = DatasetPattern.parse(target)
    return pattern.ref is None and matches_pattern(pattern.name, event.subject)


def cloud_event(event: Event, kind: EventKind, workspace: str) -> bytes:
    """Return an event as JSON of CloudEvents 1.0.

    Args:
        event: the event.
        kind: the kind of the event that the alert selects.
        workspace: name of the workspace.
    """
    data = {"message": event.message, **({"dataset": event.dataset} if event.dataset else {}), **event.data}
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": event.id,
            "source": f"urn:odf:workspace:{quote(workspace, safe='')}",
            "type": f"odf.{kind}",
            "subject": event.subject,
            "time": event.time,
            "datacontenttype": "application/json",
            "data": data,
        }
    )
