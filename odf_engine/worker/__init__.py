"""A workspace's background worker: requests and results, client, server, job queue, job log, services.

Clients import ``protocol``, ``client`` and ``endpoint``; only the worker imports the rest.
"""
