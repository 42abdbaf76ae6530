"""Ad-hoc SQL over the datasets of a workspace, and proofs of its results.

Reads datasets through :mod:`odf_engine.views`. Must not import packages that write datasets.
"""
