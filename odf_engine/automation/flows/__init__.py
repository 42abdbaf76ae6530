"""Flows: scheduled and triggered runs of tasks. Definitions in YAML, times, decisions, stored runs.

Imports only ``workspace`` and lower layers. The worker runs them: ``automation.runners``.
"""
