"""Stateful queries: micro-batches, retractable aggregates, as-of joins and row-level lineage."""
