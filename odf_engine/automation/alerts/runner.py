"""Delivers the alerts of a workspace in its worker. Nothing here is part of a job or of a commit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from pathlib import Path
from typing import Final

from odf_engine.automation.alerts.definition import Alert
from odf_engine.automation.alerts.delivery import make_delivery, send
from odf_engine.automation.alerts.event_collector import EventCollector
from odf_engine.automation.alerts.events import Event
from odf_engine.automation.alerts.store import MAX_DELAY, AlertStore, Delivery, NewDelivery
from odf_engine.automation.flows.scheduler import retry_delay
from odf_engine.base.progress import Reporter
from odf_engine.errors import Cancelled, OdfError
from odf_engine.net.download import AttemptFailed
from odf_engine.worker.protocol import Committed, JobChanged
from odf_engine.worker.services import Service, Submit
from odf_engine.workspace.documents.store import Documents
from odf_engine.workspace.workspace import Workspace

_POLL_SECONDS: Final = 2.0
"""Seconds between two checks of definitions, runs of flows, and requests of the command line."""
_SCAN_SECONDS: Final = 10.0
"""Minimum of the seconds between two comparisons of the heads of all datasets."""
_SCAN_SHARE: Final = 50
"""Minimum of these seconds as a multiple of the duration of a comparison."""
_FAILURE_SECONDS: Final = 30.0
_BATCH: Final = 20
"""Number of deliveries of an alert between two checks of its definition."""
_MAX_PARALLEL: Final = 4
"""Maximum number of alerts that deliver at the same time."""
_MAX_PAUSE: Final = 3600.0
"""Maximum delay in seconds that a receiver can request."""

_log = logging.getLogger(__name__)


class AlertRunner(Service):
    """Collects events and delivers them."""

    def __init__(self, odf: Path, submit: Submit) -> None:
        super().__init__(odf, submit)
        self._documents = Documents(odf, Alert)
        self._alerts: dict[str, Alert] = {}
        self._seen: object = None
        self._store: AlertStore | None = None
        self._collector: EventCollector | None = None
        self._wake = asyncio.Event()
        self._next_scan = 0.0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._parallel = asyncio.Semaphore(_MAX_PARALLEL)
        self._reporter = Reporter()
        self._chance = random.Random()
        self._queued = 0

    @property
    def active(self) -> bool:
        """Whether deliveries are queued, or an alert watches the heads of datasets."""
        watches = any("DatasetUpdated" in alert.spec.kinds for alert in self._alerts.values())
        return watches or bool(self._queued and self._alerts)

    def notify(self, event: JobChanged | Committed) -> None:
        """Collect the event of a job soon."""
        self._wake.set()

    async def serve(self) -> None:
        """Collect and deliver events, until this task is cancelled."""
        while True:
            try:
                pause = await self._step()
            except Exception as error:  # a failure never ends the worker
                _log.exception("alerts cannot be delivered: %s", error)
                pause = _FAILURE_SECONDS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)
            self._wake.clear()

    async def stop(self) -> None:
        """Cancel the deliveries. The next worker repeats those that were not confirmed."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.to_thread(self._reporter.cancel)
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._collector is not None:
            await asyncio.to_thread(self._collector.close)
        if self._store is not None:
            await asyncio.to_thread(self._store.close)

    async def _step(self) -> float:
        """Queue new events, and start deliveries that are due; return the seconds until the next step."""
        seen = self._documents.stamps(), self._documents.accepted()
        if seen != self._seen:
            alerts = await asyncio.to_thread(self._documents.active)
            self._alerts = {alert.name: alert for alert in alerts}
            self._seen = seen
            _log.info("%d alerts are active", len(alerts))
        if not self._alerts and self._store is None:
            return _POLL_SECONDS
        store = self._store = self._store or await asyncio.to_thread(AlertStore, self._odf)
        more = await asyncio.to_thread(self._queue_events, store)
        now = time.time()
        due = await asyncio.to_thread(store.next_due, now)
        self._queued = sum(name in self._alerts for name in due)
        for name, at in due.items():
            if at <= now and name in self._alerts and name not in self._tasks:
                task = asyncio.create_task(self._deliver(store, name), name=f"alert-{name}")
                self._tasks[name] = task
                task.add_done_callback(lambda _, name=name: self._end_task(name))
        waits = [at - now for name, at in due.items() if name in self._alerts and name not in self._tasks]
        return 0.0 if more else max(min([_POLL_SECONDS, *waits]), 0.05)

    def _open_workspace(self) -> contextlib.closing[Workspace]:
        return contextlib.closing(Workspace.find(explicit=self._odf.parent))

    def _end_task(self, name: str) -> None:
        self._tasks.pop(name, None)
        self._wake.set()

    def _queue_events(self, store: AlertStore) -> bool:
        """Queue the new events; return whether there are more. Called in a thread."""
        if self._collector is None:
            self._collector = EventCollector(self._odf, store)
        alerts = list(self._alerts.values())
        began = time.monotonic()
        scan = began >= self._next_scan
        with contextlib.ExitStack() as stack:
            opened: list[Workspace] = []

            def workspace() -> Workspace:
                if not opened:
                    opened.append(stack.enter_context(self._open_workspace()))
                return opened[0]

            batch = self._collector.collect(alerts, workspace, scan=scan)
            deliveries = [
                delivery
                for event in batch.events
                for alert in alerts
                if (delivery := _make_delivery(alert, event, workspace())) is not None
            ]
        if deliveries or batch.positions or batch.heads:
            store.enqueue(deliveries, time.time(), batch.positions, batch.heads)
        if scan:
            now = time.monotonic()
            self._next_scan = now + max(_SCAN_SECONDS, (now - began) * _SCAN_SHARE)
        return batch.more

    async def _deliver(self, store: AlertStore, name: str) -> None:
        """Send the deliveries of an alert that are due, in their order."""
        try:
            async with self._parallel:
                for delivery in await asyncio.to_thread(store.due, name, time.time(), _BATCH):
                    alert = self._alerts.get(name)
                    if alert is None:
                        return
                    await asyncio.to_thread(self._attempt, store, alert, delivery)
        except Exception as error:  # the outcome is not stored: do not repeat the delivery at once
            _log.exception("alert %s: the queue cannot be written: %s", name, error)
            await asyncio.sleep(_FAILURE_SECONDS)

    def _attempt(self, store: AlertStore, alert: Alert, delivery: Delivery) -> None:
        """Send a delivery, and store the outcome. Called in a thread."""
        pause = 0.0
        try:
            with self._open_workspace() as workspace:
                send(alert, delivery, workspace, self._reporter)
        except Cancelled:
            return  # the worker stops
        except AttemptFailed as failure:
            error, pause = failure.error.message, min(failure.pause or 0.0, _MAX_PAUSE)
        except OdfError as failure:
            error = failure.message
        except Exception as failure:
            _log.exception("alert %s: delivery %s failed", alert.name, delivery.id)
            error = f"unexpected error: {type(failure).__name__}"
        else:
            store.finish(delivery, time.time())
            return
        due: float | None = None
        if delivery.attempts < alert.spec.retry.max_attempts:
            delay = retry_delay(alert.spec.retry, delivery.attempts + 1, self._chance)
            due = time.time() + max(min(delay, MAX_DELAY), pause)
        _log.warning("alert %s: delivery %s failed: %s", alert.name, delivery.id, error)
        store.fail(delivery, error, time.time(), due)


def _make_delivery(alert: Alert, event: Event, workspace: Workspace) -> NewDelivery | None:
    """Return the delivery of an event, or None if the alert does not send it, or it cannot be created."""
    _ = workspace.config  # invalid settings concern all events: they are repeated
    try:
        return make_delivery(alert, event, workspace)
    except Exception as error:  # one event never blocks those after it
        _log.exception("alert %s: event %s cannot be sent: %s", alert.name, event.id, error)
        return None
