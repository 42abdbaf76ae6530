"""Push, pull and comparison with remotes; import of datasets from repositories."""
