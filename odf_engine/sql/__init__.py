"""SQL text without an engine: tokens, error excerpts, table functions and column-level lineage.

Must not import Spark or any package above `metadata`.
"""
