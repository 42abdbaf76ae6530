"""The only package that imports PySpark: sessions, readers, query analysis, plan rewriting, Arrow results."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # For annotations of other packages: none of them imports PySpark.
    from pyspark.sql import DataFrame as DataFrame
    from pyspark.sql import SparkSession as SparkSession
    from pyspark.sql.types import StructType as StructType
