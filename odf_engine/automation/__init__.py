"""Flows and alerts of a workspace: their documents, state and queues, and the services that execute them.

Users write the documents in YAML; the checks of datasets (:mod:`odf_engine.checks`) are documents too.
"""
