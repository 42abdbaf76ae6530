"""Ingestion of external data into root datasets: fetch, prepare, read, preprocess, merge, commit."""
