"""A workspace: datasets by name, definitions, lineage graphs, remotes, trust, tokens, consistency check."""
