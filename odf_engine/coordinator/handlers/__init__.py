"""Handlers of requests, one module per topic; each returns the result that its request declares."""
