"""What each kind of job does, one module a domain."""
