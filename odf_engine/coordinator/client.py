"""How screens and commands reach the worker: everything that they need of it, in one place.

Light to import: no Spark, no Arrow. The worker is a process of its own and goes on when a client ends.
"""

from __future__ import annotations

from odf_engine.coordinator.connection import Client, WorkerGone, read_journal
from odf_engine.coordinator.journal import JournalReader
from odf_engine.coordinator.runs import run_jobs

__all__ = ["Client", "JournalReader", "WorkerGone", "read_journal", "run_jobs"]
