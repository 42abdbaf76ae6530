"""Creates datasets and changes their definitions.

Manifests are written from templates or inferred from data files, and edited in the user's editor.
"""
