"""Remote datasets and repositories, one module a transport."""
