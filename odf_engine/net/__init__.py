"""Network access: HTTP client, S3 client, retries and resumable downloads, address policy, proxies,
credentials.
"""
