"""Modules of the engine that are imported when they are first used.

A job runs in the worker, but clients import the modules of all jobs, for requests and results. The modules
here are not imported before a job runs, or before a method of the façade needs them.

A module that imports PySpark is first used after Spark has started: the start imports PySpark too, and two
threads must not do that at the same time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odf_engine.base.lazy import LazyModule

if TYPE_CHECKING:
    from odf_engine.chain import block_search as block_search
    from odf_engine.chain import compaction as compaction
    from odf_engine.chain import state as chain_state
    from odf_engine.checks import gate as check_gate
    from odf_engine.data import ddl as ddl
    from odf_engine.data import operation_counts as operation_counts
    from odf_engine.data.parquet import slices as slices
    from odf_engine.derive import plan as derive_plan
    from odf_engine.derive import query_migration as query_migration
    from odf_engine.derive import read_limit as read_limit
    from odf_engine.derive import rebuild as rebuild
    from odf_engine.derive import run as derive_run
    from odf_engine.derive.provenance import model as provenance_model
    from odf_engine.derive.provenance import trace as provenance_trace
    from odf_engine.derive.verify import compatibility as compatibility
    from odf_engine.derive.verify import integrity as integrity
    from odf_engine.derive.verify import proof_check as proof_check
    from odf_engine.derive.verify import recompute as recompute
    from odf_engine.derive.verify import replay as replay
    from odf_engine.derive.verify import report as verify_report
    from odf_engine.derive.verify import result_file as result_file
    from odf_engine.engines import engine_router as engine_router
    from odf_engine.ingest import new_columns as new_columns
    from odf_engine.ingest import polling_source as polling_source
    from odf_engine.ingest import push_source as push_source
    from odf_engine.ingest import source_adaptation as source_adaptation
    from odf_engine.ingest.fetch import fetch_step as fetch_step
    from odf_engine.ingest.fetch import model as fetch_model
    from odf_engine.ingest.read import file_table as file_table
    from odf_engine.metadata import yaml as metadata_yaml
    from odf_engine.net import download as net_download
    from odf_engine.net import http_client as http_client
    from odf_engine.publication import catalog as catalog
    from odf_engine.publication import citation as citation
    from odf_engine.publication import crate as crate
    from odf_engine.publication import crate_data as crate_data
    from odf_engine.rows import as_at as as_at
    from odf_engine.rows import diff as diff
    from odf_engine.rows import execution as query_execution
    from odf_engine.rows import export as row_export
    from odf_engine.rows import latest_state as latest_state
    from odf_engine.rows import projection as projection
    from odf_engine.rows import query_proof as query_proof
    from odf_engine.rows import query_results as query_results
    from odf_engine.rows import row_diff as row_diff
    from odf_engine.rows import row_window as row_window
    from odf_engine.rows import scan as row_scan
    from odf_engine.rows import statistics as row_statistics
    from odf_engine.spark.executors import slice_downloads as slice_downloads
    from odf_engine.spark.runtime import given_session as given_session
    from odf_engine.spark.runtime import session as spark_session
    from odf_engine.sql import manifest_translation as manifest_translation
    from odf_engine.storage import scratch as scratch
    from odf_engine.sync import recorded_sync as recorded_sync
    from odf_engine.sync.remotes import transports as transports
    from odf_engine.tables import dataset_tables as dataset_tables
    from odf_engine.workspace import block_warnings as block_warnings
    from odf_engine.workspace import dataset_folders as dataset_folders
    from odf_engine.workspace import dataset_summary as dataset_summary
    from odf_engine.workspace import engine_versions as engine_versions
    from odf_engine.workspace import remotes as remotes
    from odf_engine.workspace import trust as trust
    from odf_engine.workspace import workspace as workspaces
    from odf_engine.workspace.definitions import column_lineage as column_lineage
    from odf_engine.workspace.definitions import definition as definitions
    from odf_engine.workspace.definitions import definition_update as definition_update
    from odf_engine.workspace.definitions import query_check as query_check
    from odf_engine.workspace.documents import private_source as private_source
    from odf_engine.workspace.documents import store as document_store
else:
    block_search = LazyModule("odf_engine.chain.block_search")
    compaction = LazyModule("odf_engine.chain.compaction")
    chain_state = LazyModule("odf_engine.chain.state")
    check_gate = LazyModule("odf_engine.checks.gate")
    ddl = LazyModule("odf_engine.data.ddl")
    operation_counts = LazyModule("odf_engine.data.operation_counts")
    slices = LazyModule("odf_engine.data.parquet.slices")
    derive_plan = LazyModule("odf_engine.derive.plan")
    query_migration = LazyModule("odf_engine.derive.query_migration")
    read_limit = LazyModule("odf_engine.derive.read_limit")
    rebuild = LazyModule("odf_engine.derive.rebuild")
    derive_run = LazyModule("odf_engine.derive.run")
    provenance_model = LazyModule("odf_engine.derive.provenance.model")
    provenance_trace = LazyModule("odf_engine.derive.provenance.trace")
    compatibility = LazyModule("odf_engine.derive.verify.compatibility")
    integrity = LazyModule("odf_engine.derive.verify.integrity")
    proof_check = LazyModule("odf_engine.derive.verify.proof_check")
    recompute = LazyModule("odf_engine.derive.verify.recompute")
    replay = LazyModule("odf_engine.derive.verify.replay")
    verify_report = LazyModule("odf_engine.derive.verify.report")
    result_file = LazyModule("odf_engine.derive.verify.result_file")
    engine_router = LazyModule("odf_engine.engines.engine_router")
    fetch_step = LazyModule("odf_engine.ingest.fetch.fetch_step")
    fetch_model = LazyModule("odf_engine.ingest.fetch.model")
    new_columns = LazyModule("odf_engine.ingest.new_columns")
    polling_source = LazyModule("odf_engine.ingest.polling_source")
    push_source = LazyModule("odf_engine.ingest.push_source")
    source_adaptation = LazyModule("odf_engine.ingest.source_adaptation")
    file_table = LazyModule("odf_engine.ingest.read.file_table")
    metadata_yaml = LazyModule("odf_engine.metadata.yaml")
    net_download = LazyModule("odf_engine.net.download")
    http_client = LazyModule("odf_engine.net.http_client")
    catalog = LazyModule("odf_engine.publication.catalog")
    citation = LazyModule("odf_engine.publication.citation")
    crate = LazyModule("odf_engine.publication.crate")
    crate_data = LazyModule("odf_engine.publication.crate_data")
    as_at = LazyModule("odf_engine.rows.as_at")
    diff = LazyModule("odf_engine.rows.diff")
    query_execution = LazyModule("odf_engine.rows.execution")
    row_export = LazyModule("odf_engine.rows.export")
    latest_state = LazyModule("odf_engine.rows.latest_state")
    projection = LazyModule("odf_engine.rows.projection")
    query_proof = LazyModule("odf_engine.rows.query_proof")
    query_results = LazyModule("odf_engine.rows.query_results")
    row_diff = LazyModule("odf_engine.rows.row_diff")
    row_window = LazyModule("odf_engine.rows.row_window")
    row_scan = LazyModule("odf_engine.rows.scan")
    row_statistics = LazyModule("odf_engine.rows.statistics")
    slice_downloads = LazyModule("odf_engine.spark.executors.slice_downloads")
    given_session = LazyModule("odf_engine.spark.runtime.given_session")
    spark_session = LazyModule("odf_engine.spark.runtime.session")
    manifest_translation = LazyModule("odf_engine.sql.manifest_translation")
    scratch = LazyModule("odf_engine.storage.scratch")
    recorded_sync = LazyModule("odf_engine.sync.recorded_sync")
    transports = LazyModule("odf_engine.sync.remotes.transports")
    dataset_tables = LazyModule("odf_engine.tables.dataset_tables")
    block_warnings = LazyModule("odf_engine.workspace.block_warnings")
    dataset_folders = LazyModule("odf_engine.workspace.dataset_folders")
    dataset_summary = LazyModule("odf_engine.workspace.dataset_summary")
    engine_versions = LazyModule("odf_engine.workspace.engine_versions")
    remotes = LazyModule("odf_engine.workspace.remotes")
    trust = LazyModule("odf_engine.workspace.trust")
    workspaces = LazyModule("odf_engine.workspace.workspace")
    column_lineage = LazyModule("odf_engine.workspace.definitions.column_lineage")
    definitions = LazyModule("odf_engine.workspace.definitions.definition")
    definition_update = LazyModule("odf_engine.workspace.definitions.definition_update")
    query_check = LazyModule("odf_engine.workspace.definitions.query_check")
    private_source = LazyModule("odf_engine.workspace.documents.private_source")
    document_store = LazyModule("odf_engine.workspace.documents.store")
