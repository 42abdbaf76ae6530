"""Network access: connector, HTTP, FTP and bucket clients, address policy, retries, downloads, credentials.

Used by `ingest.fetch` and `sync`. Must not import packages above `chain`.
"""
