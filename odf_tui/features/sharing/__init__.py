"""Exchange with remotes and repositories."""
