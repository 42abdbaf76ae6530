"""Derivative datasets: planning and running transactions, query migration, rebuilding.

``verify`` replays transactions and checks files, ``provenance`` traces rows.
Must not import ``sync`` or ``jobs``.
"""
