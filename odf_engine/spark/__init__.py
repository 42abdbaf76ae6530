"""The only package that imports PySpark: sessions, readers, query analysis, plan rewriting and Arrow results.

It must not import `workspace`, `ingest`, `derive` or `rows`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # For annotations in other packages, which must not import PySpark themselves.
    from pyspark.sql import DataFrame as DataFrame
    from pyspark.sql import SparkSession as SparkSession
    from pyspark.sql.types import StructType as StructType
