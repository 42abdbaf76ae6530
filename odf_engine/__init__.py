"""Engine of Open Data Fabric: datasets as hash-linked chains of blocks; their ingestion, transformation,
exchange and verification.
"""
