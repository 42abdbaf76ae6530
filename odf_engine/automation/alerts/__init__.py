"""Alerts: messages about events of a workspace to webhooks, mail servers, terminals, and OpenLineage.

Definitions in YAML, the queue of deliveries, the formats of messages, metrics. The worker collects the events
and delivers them: ``event_collector`` and ``runner``. Imports ``flows``.
"""
