"""Data files: schemas, Parquet slices, logical and physical hashes, changelogs, column statistics.

Works on files and Arrow data alone. Must not import chains, workspaces or Spark.
"""
