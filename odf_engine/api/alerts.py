"""The alerts of a workspace: definitions, secrets, messages and dead letters; changes that need no job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from odf_engine.automation.alerts.definition import Alert, Webhook
from odf_engine.automation.alerts.store import MAX_DEAD, AlertStore, Delivery, has_queue, read_newest
from odf_engine.base.lazy import LazyModule
from odf_engine.base.progress import Reporter
from odf_engine.errors import UsageError
from odf_engine.net.credentials import Credentials
from odf_engine.on_demand import net_download
from odf_engine.workspace.documents.store import DocumentEntry, Documents, Unreadable
from odf_engine.workspace.workspace import Workspace

if TYPE_CHECKING:
    from odf_engine.automation.alerts import delivery, event_collector
else:
    delivery = LazyModule("odf_engine.automation.alerts.delivery")
    event_collector = LazyModule("odf_engine.automation.alerts.event_collector")


_MIN_SECRET: Final = 16


class WorkspaceAlerts:
    """Reads and changes the alerts of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.documents = Documents(workspace.odf, Alert)

    def entries(self) -> Sequence[DocumentEntry[Alert] | Unreadable]:
        """Return all alerts by name, also those whose file is invalid."""
        return self.documents.entries()

    def accept(self, alert: Alert) -> None:
        """Accept the current definition of an alert. It sends the events from now on."""
        others = [other for other in self.documents.active() if other.name != alert.name]
        with (
            self._store() as store,
            contextlib.closing(event_collector.EventCollector(self._workspace.odf, store)) as events,
        ):
            events.begin([alert], self._workspace, replace=not others)
        self.documents.accept(alert)

    def remove(self, name: str) -> None:
        """Remove an alert, with its secret, its queued deliveries, and its dead letters.

        Raises:
            NotFound: there is no such alert.
        """
        self.documents.remove(name)
        self.set_secret(name, None)
        with self._store() as store:
            store.forget(name)

    def lacks_secret(self, alert: Alert) -> bool:
        """Return whether the requests of an alert are signed, but its secret is not stored."""
        return _is_signed(alert) and Credentials(self._workspace.odf).alert_secret(alert.name) is None

    def require_signed(self, name: str) -> None:
        """Check that the requests of an alert are signed with a secret.

        Raises:
            NotFound: there is no such alert.
            UsageError: its requests are not signed.
        """
        if not _is_signed(self.documents.read(name)):
            raise UsageError(
                f"alert '{name}' has no secret", hint="set signature: hmac-sha256 in its Webhook sink"
            )

    def set_secret(self, name: str, secret: str | None) -> None:
        """Store the secret of an alert, or remove it.

        Raises:
            UsageError: it is too short, or has control characters.
        """
        if secret is not None and (len(secret) < _MIN_SECRET or not secret.isprintable()):
            raise UsageError(f"invalid secret: fewer than {_MIN_SECRET} characters, or control characters")
        Credentials(self._workspace.odf).set_alert_secret(name, secret)

    def send_test(self, name: str) -> str:
        """Send a test message, and return the address of the receiver, which has confirmed it.

        Raises:
            UsageError: the alert is not accepted.
            OdfError: the message was not delivered.
        """
        alert, state, _ = self.documents.entry(name)
        if state != "active":
            raise UsageError(
                f"alert '{name}' is not accepted",
                hint=f"review the definition, then accept it: odf alert accept {name}",
            )
        try:
            message = delivery.make_test_delivery(alert, self._workspace)
            delivery.send(alert, message, self._workspace, Reporter())
        except net_download.AttemptFailed as failure:
            raise failure.error from None
        return alert.spec.sink.address

    def counts(self) -> dict[tuple[str, str], int]:
        """Return the number of messages by alert and state."""
        if not has_queue(self._workspace.odf):
            return {}
        with self._store() as store:
            return {(name, state): count for (name, state), count in store.counts().items()}

    def messages(self, limit: int, name: str | None = None) -> list[Delivery]:
        """Return the newest messages, of all alerts or of one, newest first.

        Raises:
            NotFound: there is no such alert.
        """
        self.require(name)
        return read_newest(self._workspace.odf, limit, name)

    def dead_letters(self, name: str | None = None) -> list[Delivery]:
        """Return the messages whose delivery has failed for good, of all alerts or of one, newest first.

        Raises:
            NotFound: there is no such alert.
        """
        self.require(name)
        return read_newest(self._workspace.odf, MAX_DEAD, name, "dead")

    def retry_dead_letters(self, numbers: Sequence[int] | None, name: str | None = None) -> int:
        """Queue dead letters again, all for None, and return their number."""
        with self._store() as store:
            return store.retry(numbers, time.time(), name)

    def remove_dead_letters(self, numbers: Sequence[int] | None, name: str | None = None) -> int:
        """Delete dead letters, all for None, and return their number."""
        with self._store() as store:
            return store.remove_dead(numbers, name)

    def require(self, name: str | None) -> None:
        """Check that there is an alert of this name, unless the name is None.

        Raises:
            NotFound: there is no such alert.
        """
        if name is not None:
            self.documents.require(name)

    def _store(self) -> contextlib.closing[AlertStore]:
        return contextlib.closing(AlertStore(self._workspace.odf))


def _is_signed(alert: Alert) -> bool:
    sink = alert.spec.sink
    return isinstance(sink, Webhook) and sink.signature == "hmac-sha256"
