"""Definitions of datasets: reading, comparison with manifest files, checks, column lineage."""
