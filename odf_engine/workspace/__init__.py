"""A workspace: datasets by name, definitions, lineage graphs, remotes, trust, tokens, consistency check.

Imports ``chain``, ``storage``, ``metadata``, ``identity``, ``net`` and the base modules; ``sql`` and ``data``
for definitions and lineage. It does not import Spark.
"""
