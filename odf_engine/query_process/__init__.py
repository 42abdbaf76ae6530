"""DataFusion: queries over Parquet files in a separate process, results as Arrow batches.

Only `query_process` and `row_lineage`, which run in that process, import the library. The package must not
import `workspace`, `ingest`, `derive` or `rows`.
"""
