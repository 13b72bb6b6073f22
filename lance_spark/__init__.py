"""Feature engineering on Lance tables with Spark.

After `pip install lance-spark`, `spark.read.format("lance")` and `df.write.format("lance")` work;
`enable_pushdown(spark)` lets Spark's planner hand columns, filters, limits and simple aggregates
down to Lance. `connect(uri)` opens a folder of tables, whose computed columns are defined once with
`udf_runtime.udf` and filled by resumable jobs.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from lance_spark.errors import (
    BackfillIncompleteError,
    ColumnExistsError,
    ColumnNameError,
    ColumnNotFoundError,
    CommitConflictError,
    CommitError,
    CommitImpossibleError,
    CommitOutcomeUnknownError,
    DamagedFileError,
    DamagedRecordWarning,
    FilterError,
    GatewayError,
    IndexBuildError,
    IndexExistsError,
    IndexNotFoundError,
    IndexTimeoutError,
    JobNotFoundError,
    JobTimeoutError,
    LancePanicError,
    LanceSparkError,
    MergeError,
    NoLocationError,
    OptionError,
    RegistrationError,
    ResourcesUnavailableError,
    RowAddressError,
    SchemaMismatchError,
    SearchError,
    SnapshotError,
    SourceChangedError,
    SourceError,
    SourceKeysError,
    SparkStartError,
    StableRowIdsError,
    StoredUdfError,
    TableExistsError,
    TableNotFoundError,
    TableUnreadableError,
    TableUnwritableError,
    UnsafeStoreError,
    UnsupportedOperationError,
    UnsupportedTypeError,
    UpkeepIncompleteError,
    ValueConversionError,
    VersionNotFoundError,
    ViewError,
    ViewSourceError,
    WorkerPythonError,
)

if TYPE_CHECKING:
    from lance_spark.backfill.cleanup import cleanup
    from lance_spark.backfill.planning.explain import BackfillPlan
    from lance_spark.backfill.watch import Watch
    from lance_spark.columns.spark_functions import table_function
    from lance_spark.commit.changes import CommitResult
    from lance_spark.dml.clauses import MergeInsertBuilder
    from lance_spark.dml.result import ChangeResult
    from lance_spark.indexes.listing import IndexConfig, IndexStatistics
    from lance_spark.integrity import CheckResult, Damage, check
    from lance_spark.jobs.handle import Job, JobFuture
    from lance_spark.jobs.model import BackfillJobResult, ErrorRecord, JobRecord, RefreshJobResult, UdfResult
    from lance_spark.load.plan import LoadPlan
    from lance_spark.pushdown.java_classes import jar
    from lance_spark.pushdown.rule import disable_pushdown, enable_pushdown
    from lance_spark.search.batch import BatchSearch
    from lance_spark.search.query import Query
    from lance_spark.search.rerank import Reranker
    from lance_spark.search.search import Search
    from lance_spark.session.configuration import configure
    from lance_spark.sql.catalog import catalog
    from lance_spark.table.connection import Connection, connect, open_table
    from lance_spark.table.history.differences import TableDiff
    from lance_spark.table.history.versions import TableVersion, Tags, Versions, last_commit
    from lance_spark.table.preview import Preview
    from lance_spark.table.reference import TableReference
    from lance_spark.table.table import Table
    from lance_spark.upkeep.results import CleanupResult, CompactionResult, MaintenanceResult, TableStatistics
    from lance_spark.views.plan import RefreshPlan
    from udf_runtime import (
        UDF,
        Backoff,
        CheckpointError,
        Columns,
        EnvironmentBuildError,
        ErrorPolicy,
        Fail,
        GenevaManifest,
        Kind,
        Manifest,
        Retry,
        Skip,
        SkipThresholdExceededError,
        UdfDefinitionError,
        UdfFailedError,
        UdfOutputError,
        UdfProcessDiedError,
        UdfRuntimeError,
        UnpackedUDF,
        as_udf,
        chunker,
        fail_fast,
        retry_all,
        retry_transient,
        skip_on_error,
        udf,
        udtf,
    )

    __version__: str

_LATER = {
    "BackfillJobResult": "jobs.model",
    "BackfillPlan": "backfill.planning.explain",
    "BatchSearch": "search.batch",
    "ChangeResult": "dml.result",
    "CleanupResult": "upkeep.results",
    "CommitResult": "commit.changes",
    "CompactionResult": "upkeep.results",
    "Connection": "table.connection",
    "ErrorRecord": "jobs.model",
    "IndexConfig": "indexes.listing",
    "IndexStatistics": "indexes.listing",
    "Job": "jobs.handle",
    "JobFuture": "jobs.handle",
    "JobRecord": "jobs.model",
    "LoadPlan": "load.plan",
    "MaintenanceResult": "upkeep.results",
    "MergeInsertBuilder": "dml.clauses",
    "Preview": "table.preview",
    "Query": "search.query",
    "RefreshJobResult": "jobs.model",
    "RefreshPlan": "views.plan",
    "Reranker": "search.rerank",
    "Search": "search.search",
    "Table": "table.table",
    "TableDiff": "table.history.differences",
    "TableVersion": "table.history.versions",
    "TableReference": "table.reference",
    "TableStatistics": "upkeep.results",
    "Tags": "table.history.versions",
    "Versions": "table.history.versions",
    "UdfResult": "jobs.model",
    "Watch": "backfill.watch",
    "CheckResult": "integrity",
    "Damage": "integrity",
    "catalog": "sql.catalog",
    "check": "integrity",
    "cleanup": "backfill.cleanup",
    "configure": "session.configuration",
    "connect": "table.connection",
    "disable_pushdown": "pushdown.rule",
    "enable_pushdown": "pushdown.rule",
    "jar": "pushdown.java_classes",
    "open_table": "table.connection",
    "last_commit": "table.history.versions",
    "table_function": "columns.spark_functions",
}
"""All but the errors is imported when it is first asked for: Spark's worker processes import this
package to read and write, and need none of it."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        value: object = import_module("importlib.metadata").version("lance-spark")
    else:
        value = getattr(import_module(f"{__name__}.{_LATER[name]}" if name in _LATER else "udf_runtime"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "UDF",
    "BackfillIncompleteError",
    "BackfillJobResult",
    "BackfillPlan",
    "Backoff",
    "BatchSearch",
    "ChangeResult",
    "CheckResult",
    "CheckpointError",
    "CleanupResult",
    "ColumnExistsError",
    "ColumnNameError",
    "ColumnNotFoundError",
    "Columns",
    "CommitConflictError",
    "CommitError",
    "CommitImpossibleError",
    "CommitOutcomeUnknownError",
    "CommitResult",
    "CompactionResult",
    "Connection",
    "Damage",
    "DamagedFileError",
    "DamagedRecordWarning",
    "EnvironmentBuildError",
    "ErrorPolicy",
    "ErrorRecord",
    "Fail",
    "FilterError",
    "GatewayError",
    "GenevaManifest",
    "IndexBuildError",
    "IndexConfig",
    "IndexExistsError",
    "IndexNotFoundError",
    "IndexStatistics",
    "IndexTimeoutError",
    "Job",
    "JobFuture",
    "JobNotFoundError",
    "JobRecord",
    "JobTimeoutError",
    "Kind",
    "LancePanicError",
    "LanceSparkError",
    "LoadPlan",
    "MaintenanceResult",
    "Manifest",
    "MergeError",
    "MergeInsertBuilder",
    "NoLocationError",
    "OptionError",
    "Preview",
    "Query",
    "RefreshJobResult",
    "RefreshPlan",
    "RegistrationError",
    "Reranker",
    "ResourcesUnavailableError",
    "Retry",
    "RowAddressError",
    "SchemaMismatchError",
    "Search",
    "SearchError",
    "Skip",
    "SkipThresholdExceededError",
    "SnapshotError",
    "SourceChangedError",
    "SourceError",
    "SourceKeysError",
    "SparkStartError",
    "StableRowIdsError",
    "StoredUdfError",
    "Table",
    "TableDiff",
    "TableExistsError",
    "TableNotFoundError",
    "TableReference",
    "TableStatistics",
    "TableUnreadableError",
    "TableUnwritableError",
    "TableVersion",
    "Tags",
    "UdfDefinitionError",
    "UdfFailedError",
    "UdfOutputError",
    "UdfProcessDiedError",
    "UdfResult",
    "UdfRuntimeError",
    "UnpackedUDF",
    "UnsafeStoreError",
    "UnsupportedOperationError",
    "UnsupportedTypeError",
    "UpkeepIncompleteError",
    "ValueConversionError",
    "VersionNotFoundError",
    "Versions",
    "ViewError",
    "ViewSourceError",
    "Watch",
    "WorkerPythonError",
    "__version__",
    "as_udf",
    "catalog",
    "check",
    "chunker",
    "cleanup",
    "configure",
    "connect",
    "disable_pushdown",
    "enable_pushdown",
    "fail_fast",
    "jar",
    "last_commit",
    "open_table",
    "retry_all",
    "retry_transient",
    "skip_on_error",
    "table_function",
    "udf",
    "udtf",
]
