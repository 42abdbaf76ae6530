"""The metadata model and its encodings: events and manifests, FlatBuffers, YAML with positions, JSON Schema,
timestamps.

Imports only ``identity`` and the base modules.
"""
