"""Data files: schemas, Parquet slices, logical and physical hashes, changelogs, column statistics."""
