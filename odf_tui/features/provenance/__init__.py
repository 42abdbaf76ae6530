"""Where a row or value comes from."""
