"""Verification: integrity of chain and files, replay of transactions, origins of datasets."""
