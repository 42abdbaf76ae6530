"""Engine of Open Data Fabric: datasets as hash-linked chains of blocks; their ingestion, transformation,
exchange and verification.

The public API is :func:`open`, which returns a ``Workspace``. Its modules are imported on first use.
"""
