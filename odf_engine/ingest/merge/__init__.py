"""Merge phase: append, ledger, snapshot, changelog and upsert strategies, and the key index that
makes them incremental.
"""
