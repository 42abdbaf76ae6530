"""Stateful queries: plans, batch queries over state and new rows, as-of joins and row-level lineage."""
