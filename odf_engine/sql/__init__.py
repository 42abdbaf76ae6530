"""SQL text without an engine: tokens, error excerpts, table functions, column-level lineage."""
