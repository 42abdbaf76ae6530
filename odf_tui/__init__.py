"""The terminal workstation for Open Data Fabric, and the ``odf`` command."""
