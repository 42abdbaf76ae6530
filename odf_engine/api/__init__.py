"""Python API: workspaces, datasets, rows. It is the public face of the engine for scripts and notebooks.

``import odf_engine as odf`` exports its names. It must not import the user interface.
"""
