"""Makes `format("lance")` known to Spark.

Spark imports top-level modules named `pyspark_*` and takes their `DefaultSource`.
"""

from lance_spark.datasource import LanceDataSource as DefaultSource

__all__ = ["DefaultSource"]
