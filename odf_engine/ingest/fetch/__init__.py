"""Fetch phase: HTTP, FTP, S3, local files and globs, containers."""
