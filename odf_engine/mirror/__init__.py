"""Datasets in an object store: clients, the list of datasets, local mirrors, conditional commits.

A mirror is a folder with the layout of a dataset. Its objects can be missing until they are first read.
Imports ``chain``, ``net`` and lower packages, not ``workspace``.
"""
