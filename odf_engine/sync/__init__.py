"""Exchange of datasets with other repositories: comparing histories, pull and push.

The package must not import `derive` or `worker`.
"""
