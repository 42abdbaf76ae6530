"""The help topics and the Markdown text of their pages."""

from __future__ import annotations

from pathlib import Path
from typing import Final

TOPICS: Final = {
    "getting-started": "Create a workspace and a first dataset",
    "datasets": "Datasets, blocks and the workspace folder",
    "manifests": "Define datasets in YAML, and change them",
    "resources": "Resources of RFC-018: sources outside the chain, values",
    "ingestion": "Poll sources, push rows",
    "sources": "Collections of tables, MQTT messages and Ethereum logs",
    "web-sources": "Lists in pages, and the files of folders on servers",
    "merge-strategies": "Combine new rows with existing rows",
    "linked-objects": "Store large files with a dataset",
    "transforms": "Derive datasets with SQL",
    "joins": "Join datasets by time, by version or by key",
    "event-time": "Event time, watermarks and late rows",
    "verification": "Verify datasets, query results and signatures",
    "compaction": "Merge small slices, and remove old heads",
    "branches": "Pull into a branch, check it, promote it",
    "sharing": "Repositories: pull, push, search, serve",
    "cite": "Citations, crates (RO-Crate) and catalogs (DCAT)",
    "trust": "Datasets by other authors, and the sandbox",
    "time-travel": "Earlier versions, event time, differences",
    "provenance": "Trace rows and values to their sources",
    "sql": "Query datasets with SQL",
    "tables": "Datasets as Delta Lake and Apache Iceberg tables",
    "flight": "Query the datasets from ADBC, Polars, DuckDB, R and JDBC",
    "peers": "Other programs that read datasets, and what was tried",
    "flows": "Run tasks by schedule, or when datasets change",
    "checks": "Check new rows before they are committed",
    "alerts": "Webhooks, mail, OpenLineage, metrics",
    "workstation": "Panes, jobs and the worker",
    "keys": "Keys and themes of the workstation",
    "configuration": "Settings, environment and files",
    "filters": "Titles, totals, spreadsheets, archives: files as publishers release them",
    "engines": "Spark, DuckDB, DataFusion and other engines",
    "clusters": "Spark on a cluster",
    "stores": "Datasets in an object store, for several machines",
    "python": "The Python API",
    "troubleshooting": "Common errors and how to fix them",
    "specification": "Where odf departs from the specification, and why",
    "glossary": "Terms of Open Data Fabric",
}
"""The title of each topic, in reading order."""

COMMANDS: Final = "commands"
"""The topic of the command reference, which is generated from the commands."""


def read_page(topic: str) -> str:
    """Return the Markdown text of a topic of :data:`TOPICS`."""
    return (Path(__file__).parent / f"{topic}.md").read_text(encoding="utf-8")
