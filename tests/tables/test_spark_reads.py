"""Spark reads the files of a Delta table with the schema of the table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from odf_engine.workspace.workspace import Workspace
from tests.tables.conftest import make_wide, opened

if TYPE_CHECKING:
    from odf_engine.spark.runtime.session import SparkRuntime


def test_spark_reads_the_files_in_the_types_of_the_table(workspace: Workspace, runtime: SparkRuntime) -> None:
    make_wide(workspace)
    table = DeltaTable(opened(workspace, "wide").write_table("delta").path)
    session = runtime.session()
    from pyspark.sql.types import StructType

    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    rows = session.read.schema(schema).parquet(*table.file_uris()).orderBy("offset").collect()
    expected = table.to_pyarrow_table().sort_by("offset").to_pylist()
    for name in ("offset", "op", "a.b, größe", "tiny", "big", "price", "day", "text", "tags", "last"):
        assert [row[name] for row in rows] == [row[name] for row in expected], name
