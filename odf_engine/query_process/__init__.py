"""Queries over Parquet files in a separate process of DuckDB or DataFusion, results as Arrow batches.

Only `duckdb_process`, `datafusion_process` and `row_lineage`, which run in that process, import these
libraries. The package must not import `workspace`, `ingest`, `derive` or `rows`.
"""
