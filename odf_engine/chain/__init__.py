"""A dataset's metadata chain: reading, append rules, folded state, block index, search."""
