"""Identities and names: dataset ids (did:odf), key pairs, aliases and references, multihashes, ownership
proofs.

Imports only the base modules.
"""
