"""A dataset's metadata chain: reading, append rules, folded state, block index, search.

Imports ``storage``, ``metadata``, ``identity`` and the base modules; ``data`` only inside functions, since it
loads Arrow.
"""
