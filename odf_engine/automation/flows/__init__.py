"""Flows: scheduled and triggered runs of tasks. Definitions in YAML, times, decisions, stored runs, tasks.

The worker runs them: ``runner``.
"""
