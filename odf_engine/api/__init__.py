"""The façade: what users, scripts, commands and the workstation do with workspaces, datasets and rows.

``import odf_engine as odf`` exports its names. It must not import the user interface, and importing it loads
neither PySpark nor PyArrow.
"""
