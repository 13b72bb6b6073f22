"""Feature engineering on Lance tables with Spark.

After `pip install lance-spark`, `spark.read.format("lance")` and `df.write.format("lance")` work; `enable_pushdown(spark)` lets Spark's
planner hand columns, filters, limits and simple aggregates down to Lance. `connect(uri)` opens a folder of tables, whose computed columns
are defined once with `udf_runtime.udf` and filled by resumable jobs.
"""

from lance_spark.backfill.cleaning import cleanup
from lance_spark.backfill.plan_view import BackfillPlan
from lance_spark.commit.changes import CommitResult
from lance_spark.commit.history import last_commit
from lance_spark.connection import Connection, connect
from lance_spark.errors import (
    BackfillIncompleteError,
    ColumnExistsError,
    ColumnNotFoundError,
    CommitConflictError,
    CommitError,
    CommitImpossibleError,
    FilterError,
    JobNotFoundError,
    JobTimeoutError,
    LanceSparkError,
    OptionError,
    RegistrationError,
    ResourcesUnavailableError,
    StoredUdfError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
    UnsupportedTypeError,
)
from lance_spark.jobs.handle import Job
from lance_spark.jobs.model import BackfillJobResult, ErrorRecord, JobRecord, UdfResult
from lance_spark.pushdown.rule import disable_pushdown, enable_pushdown
from lance_spark.table import Table

__all__ = [
    "BackfillIncompleteError",
    "BackfillJobResult",
    "BackfillPlan",
    "ColumnExistsError",
    "ColumnNotFoundError",
    "CommitConflictError",
    "CommitError",
    "CommitImpossibleError",
    "CommitResult",
    "Connection",
    "ErrorRecord",
    "FilterError",
    "Job",
    "JobNotFoundError",
    "JobRecord",
    "JobTimeoutError",
    "LanceSparkError",
    "OptionError",
    "RegistrationError",
    "ResourcesUnavailableError",
    "StoredUdfError",
    "Table",
    "TableExistsError",
    "TableNotFoundError",
    "UdfResult",
    "UnsupportedOperationError",
    "UnsupportedTypeError",
    "cleanup",
    "connect",
    "disable_pushdown",
    "enable_pushdown",
    "last_commit",
]
