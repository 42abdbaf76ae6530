"""Ingesting outside data into root datasets: fetch, prepare, read, preprocess, merge, commit."""
