"""Remote datasets and repositories, one module per transport."""
