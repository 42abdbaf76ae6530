"""A workspace: datasets by name, definitions, documents, lineage, remotes, trust, consistency check.

Imports ``chain``, ``storage``, ``metadata``, ``identity``, ``net`` and the base modules; ``sql`` and ``data``
for definitions and lineage. It does not import Spark.
"""
