"""Processes that are isolated from files and the network. Imports nothing above `base`."""
