"""A workspace's background worker: protocol, client, server, job queue, job log."""
