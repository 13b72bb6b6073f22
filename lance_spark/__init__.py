"""Feature engineering on Lance tables with Spark.

After `pip install lance-spark`, `spark.read.format("lance")` and `df.write.format("lance")` work; `enable_pushdown(spark)` lets Spark's
planner hand columns, filters, limits and simple aggregates down to Lance.
"""

from lance_spark.commit.changes import CommitResult
from lance_spark.commit.history import last_commit
from lance_spark.errors import LanceSparkError
from lance_spark.pushdown.rule import disable_pushdown, enable_pushdown
from lance_spark.write.cleanup import cleanup

__all__ = [
    "CommitResult",
    "LanceSparkError",
    "cleanup",
    "disable_pushdown",
    "enable_pushdown",
    "last_commit",
]
