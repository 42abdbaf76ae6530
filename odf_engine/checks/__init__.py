"""Checks: expectations on new rows of datasets, which are evaluated before the commit.

Definitions in YAML, evaluation, stored reports. Imports only ``rows`` and lower layers; the modules
``definition`` and ``reports`` import neither Spark nor ``rows``.
"""
