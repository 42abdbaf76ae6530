"""Published descriptions of datasets: citations, research objects (RO-Crate) with provenance, catalogs."""
