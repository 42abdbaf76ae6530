"""Transactions of queries with state: batches, checkpoints, as-of joins, changing results, recomputation."""
