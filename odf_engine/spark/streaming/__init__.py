"""Stateful queries: micro-batches, retractable aggregates, as-of joins, row-level lineage."""
