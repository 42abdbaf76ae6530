"""Datasets, settings, keys, credentials, server, file check: changes of a workspace without a job."""
