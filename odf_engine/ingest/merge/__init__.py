"""Merge phase: append, ledger, snapshot and changelog strategies, and the key index that makes them
incremental.
"""
