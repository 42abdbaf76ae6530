"""Files on disk: the object store, references with compare-and-swap, atomic replacement, scratch folders.

Imports only ``identity`` and the base modules.
"""
