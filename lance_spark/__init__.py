"""Feature engineering on Lance tables with Spark.

After `pip install lance-spark`, `spark.read.format("lance")` and `df.write.format("lance")` work; `enable_pushdown(spark)` lets Spark's
planner hand columns, filters, limits and simple aggregates down to Lance. `connect(uri)` opens a folder of tables, whose computed columns
are defined once with `udf_runtime.udf` and filled by resumable jobs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.history import last_commit
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
    UnsafeStoreError,
    UnsupportedOperationError,
    UnsupportedTypeError,
)
from lance_spark.pushdown.rule import disable_pushdown, enable_pushdown

if TYPE_CHECKING:
    from lance_spark.backfill.cleanup import cleanup
    from lance_spark.backfill.planning.explain import BackfillPlan
    from lance_spark.backfill.watch import Watch
    from lance_spark.connection import Connection, connect
    from lance_spark.jobs.handle import Job
    from lance_spark.jobs.model import BackfillJobResult, ErrorRecord, JobRecord, UdfResult
    from lance_spark.table import Table

_LATER = {
    "BackfillJobResult": "jobs.model",
    "BackfillPlan": "backfill.planning.explain",
    "Connection": "connection",
    "ErrorRecord": "jobs.model",
    "Job": "jobs.handle",
    "JobRecord": "jobs.model",
    "Table": "table",
    "UdfResult": "jobs.model",
    "Watch": "backfill.watch",
    "cleanup": "backfill.cleanup",
    "connect": "connection",
}
"""The table API is imported when it is first asked for: Spark's worker processes import this package to read and write, and need none of it."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


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
    "UnsafeStoreError",
    "UnsupportedOperationError",
    "UnsupportedTypeError",
    "Watch",
    "cleanup",
    "connect",
    "disable_pushdown",
    "enable_pushdown",
    "last_commit",
]
