"""What screens ask of the engine; every call may block, so it is made in a thread."""
