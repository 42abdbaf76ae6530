"""Flows and alerts of a workspace: their definitions, state and queues, and the services that execute them.

The worker starts the services through :mod:`odf_engine.worker.services`.
"""
