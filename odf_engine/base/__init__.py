"""Configuration, settings, files, progress, processes and terminal text: what every package may use.

It imports only ``odf_engine.errors``.
"""
