"""All public callables as subjects of calls, derived from the exports of the two packages.

An export is a function, a class whose instances have methods, a class for users to construct, an error, or a result. A
new function is called automatically; a new class must be entered in one of the tables below.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import lance
import pyarrow as pa
import pydantic
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, FloatType, StructField, StructType

import lance_spark
import udf_runtime
from lance_spark import (
    UDF,
    Agent,
    Backoff,
    BatchSearch,
    ColumnOrdering,
    Columns,
    Connection,
    ErrorPolicy,
    Fail,
    Job,
    Manifest,
    MergeInsertBuilder,
    Query,
    RateLimit,
    Report,
    Retry,
    RetryHttp,
    Search,
    Skip,
    SparkStartError,
    Table,
    TableReference,
    Tags,
    TakeQuery,
    UnpackedUDF,
    Watch,
    chunker,
    udf,
)
from lance_spark.jobs.results import BackfillJobResult
from lance_spark.table.branches import Branches
from lance_spark.table.connections.namespace_methods import NamespaceMethods
from udf_runtime.environments.builder import PipManifestBuilder, SiteManifestBuilder

EXPORTS: dict[str, Any] = {
    name: getattr(package, name)
    for package in (udf_runtime, lance_spark)
    for name in package.__all__
}


def no_spark() -> Any:
    raise SparkStartError("No Spark is made here.")


class Session:
    """Replaces a session of Spark: each attribute raises a typed error."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return no_spark()


Session.__name__, Session.__module__ = "SparkSession", "pyspark.sql.session"


class EmptyFrame:
    """Replaces a DataFrame of Spark, with a schema and without rows."""

    columns = ("vector",)
    schema = StructType([StructField("vector", ArrayType(FloatType()))])

    @property
    def sparkSession(self) -> Any:  # noqa: N802 - the name that PySpark has
        return no_spark()

    __getattr__ = Session.__getattr__


EmptyFrame.__name__, EmptyFrame.__module__ = "DataFrame", "pyspark.sql.connect.dataframe"


class Measure(NamedTuple):
    height: int


class Row(pydantic.BaseModel):
    id: int


@udf(data_type=pa.int64(), version="1")
def double(id: int) -> int:
    return id * 2


@udf(version="1")
def measure(id: int) -> Columns[Measure]:
    return Measure(id)


@chunker(output_schema=pa.schema([("piece", pa.string())]), version="1")
def pieces(text: str) -> Any:
    yield {"piece": text}


def plain(id: int) -> int:
    return id


def chunks(text: str) -> Any:
    yield {"piece": text}


class _Ended:
    """A job without tasks."""

    def run(self) -> BackfillJobResult:
        raise SparkStartError("No Spark is made here.")

    cancel = snapshot = run


def make_template(folder: Path) -> Path:
    """Makes the tables for each call."""
    rows = pa.table(
        {
            "id": pa.array(range(4), pa.int64()),
            "text": [f"text {i}" for i in range(4)],
            "vector": pa.array([[0.0, float(i)] for i in range(4)], pa.list_(pa.float32(), 2)),
        }
    )
    dataset = lance.write_dataset(rows, f"{folder}/t.lance", enable_stable_row_ids=True)
    dataset.create_scalar_index("text", "INVERTED")
    dataset.create_scalar_index("id", "BTREE")
    db = lance_spark.connect(str(folder), no_spark, progress=False)
    table = db.open_table("t")
    table.add_columns({"twice": (double, ["id"])})
    table.tags.create("first", 1)
    table.branches.create("work")
    db.create_materialized_view("v", table.search(None).select(["id"]))
    return folder


@dataclass
class CallFolder:
    """A folder with tables, recreated from a template after every call that changed the folder."""

    template: Path
    folder: Path

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.template, self.folder)

    def versions(self) -> list[str]:
        entries = []
        for top, folders, files in os.walk(self.folder):
            if os.path.basename(top) in ("_versions", "tags", "branches"):
                entries += [os.path.join(top, file) for file in files]
            # `__manifest` is the table of names of a namespace.
            internal = ("data", "_indices", "_transactions", "__manifest")
            folders[:] = [folder_ for folder_ in folders if folder_ not in internal]
        return sorted(entries)

    @property
    def db(self) -> Connection:
        return lance_spark.connect(str(self.folder), no_spark, progress=False)

    @property
    def catalog(self) -> Connection:
        properties = {"root": str(self.folder)}
        return lance_spark.connect(
            namespace_client_impl="dir", namespace_client_properties=properties, spark=no_spark
        )

    @property
    def table(self) -> Table:
        return self.db.open_table("t")

    @property
    def uri(self) -> str:
        return f"{self.folder}/t.lance"


@dataclass(frozen=True)
class Subject:
    """A callable, and arguments with which a call works or asks for Spark.

    Attributes:
        name: `function` or `Class.method`.
        make: Makes the callable.
        signature: Its parameters.
    """

    name: str
    make: Callable[[CallFolder], Callable[..., object]]
    signature: inspect.Signature

    def arguments(self, at: CallFolder) -> dict[str, object]:
        """Returns arguments with which a call works or asks for Spark."""
        arguments_given = {}
        for name, parameter in self.signature.parameters.items():
            make = VALID.get(f"{self.name}.{name}")
            if (
                make is None
                and parameter.default is parameter.empty
                and parameter.kind is not parameter.VAR_KEYWORD
            ):
                make = VALID.get(name)
            if make is not None:
                arguments_given[name] = make(at)
        return arguments_given

    def call(self, at: CallFolder, changed: dict[str, object]) -> object:
        """Makes a call with some other arguments."""
        keywords = self.arguments(at) | changed
        positional = [
            keywords.pop(name)
            for name, parameter in self.signature.parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL)
            and name in keywords
        ]
        called = self.make(at)
        owner = getattr(called, "__self__", None)
        with owner if isinstance(owner, Watch) else contextlib.nullcontext():
            result = called(*positional, **keywords)
        if isinstance(result, Watch):
            result.stop()
        return list(result) if inspect.isgenerator(result) else result


def stopped_agent(at: CallFolder) -> Agent:
    """An agent whose `run` returns at once."""
    agent = at.db.agent(allow=["*"])
    agent.stop()
    return agent


VALID: dict[str, Callable[[CallFolder], object]] = {
    "uri": lambda at: at.uri,
    "connect.uri": lambda at: at.uri,
    "namespace": lambda at: ["new"],
    "location": lambda at: "t.lance",
    "NamespaceMethods.register_table.name": lambda at: "registered",
    "path": lambda at: at.uri,
    "name": lambda at: "t",
    "spark": lambda at: Session(),
    "root": lambda at: str(at.folder),
    "Connection.create_table.name": lambda at: "new",
    "Connection.clone_table.target_table_name": lambda at: "new",
    "source_uri": lambda at: at.uri,
    "minimum_nprobes": lambda at: 1,
    "maximum_nprobes": lambda at: 1,
    "model": lambda at: Row,
    "MatchQuery.query": lambda at: "words",
    "MatchQuery.column": lambda at: "text",
    "PhraseQuery.query": lambda at: "words",
    "PhraseQuery.column": lambda at: "text",
    "MultiMatchQuery.query": lambda at: "words",
    "MultiMatchQuery.columns": lambda at: ["text"],
    "BoostQuery.positive": lambda at: lance_spark.MatchQuery("words", "text"),
    "BoostQuery.negative": lambda at: lance_spark.MatchQuery("words", "text"),
    "BooleanQuery.queries": lambda at: [("MUST", lance_spark.MatchQuery("words", "text"))],
    "Connection.create_table.schema": lambda at: pa.schema([("id", pa.int64())]),
    "Connection.create_materialized_view.name": lambda at: "new",
    "Connection.create_materialized_view.query": lambda at: at.table.search(None).select(["id"]),
    "Connection.create_udtf_view.name": lambda at: "new",
    "Connection.capture_local_environment.skip_site_packages": lambda at: True,
    "Query.create_materialized_view.db": lambda at: at.db,
    "Query.create_materialized_view.name": lambda at: "new",
    "offsets": lambda at: [0],
    "row_ids": lambda at: [0],
    "ordering": lambda at: [ColumnOrdering("id")],
    "ColumnOrdering.column_name": lambda at: "id",
    "Table.tokenize.query": lambda at: "words",
    "Search.create_materialized_view.db": lambda at: at.db,
    "TakeQuery.create_materialized_view.db": lambda at: at.db,
    "BatchSearch.create_materialized_view.db": lambda at: at.db,
    "source": lambda at: at.table.search(None),
    "udtf": lambda at: pieces,
    "udf": lambda at: double,
    "function": lambda at: pieces,
    "table_function.spark": lambda at: Session(),
    "new_name": lambda at: "renamed",
    "manifest": lambda at: Manifest(name="x", python_version="3.11"),
    "older_than": lambda at: timedelta(days=1),
    "Table.wait_for_index.timeout": lambda at: timedelta(0),
    "Watch.await_look.timeout": lambda at: timedelta(0),
    "transforms": lambda at: {"new": "id + 1"},
    "updates": lambda at: {"path": "text", "metadata": {"unit": "word"}},
    "field_name": lambda at: "text",
    "other_table": lambda at: [{"id": 1, "stock": 7}],
    "left_on": lambda at: "id",
    "new_metadata": lambda at: {"unit": "word"},
    "alterations": lambda at: {"path": "text", "nullable": True},
    "columns": lambda at: ["id"],
    "Table.backfill.columns": lambda at: "twice",
    "Table.backfill_async.columns": lambda at: "twice",
    "col_name": lambda at: "twice",
    "column": lambda at: "twice",
    "column_name": lambda at: "twice",
    "job_id": lambda at: "no job",
    "data": lambda at: [{"id": 7}],
    "where": lambda at: "id > 1",
    "values": lambda at: {"id": 1},
    "on": lambda at: "id",
    "pk": lambda at: "id",
    "field_names": lambda at: "text",
    "index_name": lambda at: "id_idx",
    "index_names": lambda at: "id_idx",
    "Table.drop_index.name": lambda at: "id_idx",
    "Table.load_columns.source": lambda at: [{"id": 1, "text": "x"}],
    "Table.load_columns_async.source": lambda at: [{"id": 1, "text": "x"}],
    "Table.plan_load_columns.source": lambda at: [{"id": 1, "text": "x"}],
    "Table.load_columns.columns": lambda at: ["text"],
    "Table.load_columns_async.columns": lambda at: ["text"],
    "Table.plan_load_columns.columns": lambda at: ["text"],
    "version": lambda at: 1,
    "from_version": lambda at: 1,
    "to_version": lambda at: 2,
    "tag": lambda at: "first",
    "Tags.create.tag": lambda at: "second",
    "Branches.create.name": lambda at: "new",
    "Branches.checkout.name": lambda at: "work",
    "Branches.delete.name": lambda at: "work",
    "Report.save.path": lambda at: f"{at.folder}/report.html",
    "condition": lambda at: "id > 1",
    "rows": lambda at: 1,
    "reranker": lambda at: object(),
    "distance_type": lambda at: "l2",
    "metric": lambda at: "l2",
    "ef": lambda at: 10,
    "nprobes": lambda at: 1,
    "refine_factor": lambda at: 1,
    "text": lambda at: "words",
    "vector": lambda at: [1.0, 2.0],
    "table_name": lambda at: "jobs",
    "auto_refresh": lambda at: True,
    "Search.create_materialized_view.name": lambda at: "new",
    "BatchSearch.create_materialized_view.name": lambda at: "new",
    "Table.update.values": lambda at: {"id": 1},
    "Table.restore.version": lambda at: 1,
    "builder": lambda at: SparkSession.Builder().remote("sc://nowhere"),
    "first": lambda at: 1,
    "second": lambda at: 2,
    "progress": lambda at: {"sources": []},
    "from_branch": lambda at: "work",
    "udf.func": lambda at: plain,
    "chunker.func": lambda at: chunks,
    "chunker.output_schema": lambda at: pa.schema([("piece", pa.string())]),
    "udtf.func": lambda at: chunks,
    "udtf.output_schema": lambda at: pa.schema([("piece", pa.string())]),
    "value": lambda at: double,
    "UDF.define.func": lambda at: plain,
    "UDF.keep_version.version": lambda at: "1",
    "UDF.with_input_columns.columns": lambda at: ["text"],
    "payload": lambda at: double.dumps(),
    "Manifest.python_version": lambda at: "3.11",
    "Manifest.from_dict.values": lambda at: Manifest(name="x", python_version="3.11").to_dict(),
    "Manifest.from_json.payload": lambda at: Manifest(name="x", python_version="3.11").to_json(),
    "UnpackedUDF.udf": lambda at: measure,
    "on_error": lambda at: Skip(),
    "matchers": lambda at: (Skip(),),
    "error": lambda at: ValueError("x"),
    "attempt": lambda at: 1,
    "rng": lambda at: __import__("random").Random(0),
    "skipped": lambda at: 1,
    "processed": lambda at: 1,
    "final": lambda at: True,
    "exceptions": lambda at: ValueError,
    "modules": lambda at: ["json"],
    "module": lambda at: "json",
    "env_vars": lambda at: ["HOME"],
    "key": lambda at: "HOME",
    "output_dir": lambda at: str(at.folder),
    "packages": lambda at: ["numpy==2.0"],
    "package": lambda at: "numpy==2.0",
    "url": lambda at: "https://pypi.org/simple",
    "places": lambda at: ["/wheels"],
    "PipManifestBuilder.python_version.version": lambda at: "3.11",
    "SiteManifestBuilder.python_version.version": lambda at: "3.11",
    "PipManifestBuilder.version.version": lambda at: "1",
    "SiteManifestBuilder.version.version": lambda at: "1",
    "PipManifestBuilder.requirements_path.path": lambda at: "requirements.txt",
    "UDF.with_artifacts.artifacts": lambda at: {},
}  # fmt: skip
"""Arguments by `Class.method.parameter`, or by the name of a required parameter."""

OBJECTS: dict[type, Callable[[CallFolder], object]] = {
    Agent: stopped_agent,
    BatchSearch: lambda at: at.table.search(EmptyFrame(), "vector"),
    Branches: lambda at: at.table.branches,
    Connection: lambda at: at.db,
    ErrorPolicy: lambda at: udf_runtime.skip_on_error(),
    Backoff: lambda at: Backoff(),
    Fail: lambda at: Fail(),
    Job: lambda at: Job(_Ended(), "job", "t", ("twice",)).start(),
    Manifest: lambda at: Manifest(name="x", python_version="3.11"),
    MergeInsertBuilder: lambda at: at.table.merge_insert("id").when_not_matched_insert_all(),
    NamespaceMethods: lambda at: at.catalog,
    PipManifestBuilder: lambda at: Manifest.create_pip("x"),
    Query: lambda at: at.table.search(None),
    RateLimit: lambda at: RateLimit(calls_per_minute=60),
    Report: lambda at: at.db.report(),
    Retry: lambda at: Retry(),
    RetryHttp: lambda at: RetryHttp(),
    Search: lambda at: at.table.search([1.0, 2.0], "vector"),
    SiteManifestBuilder: lambda at: Manifest.create_site("x"),
    Skip: lambda at: Skip(),
    Table: lambda at: at.table,
    TableReference: lambda at: at.table.get_reference(),
    Tags: lambda at: at.table.tags,
    TakeQuery: lambda at: at.table.take_offsets([0]),
    UDF: lambda at: double,
    Watch: lambda at: at.table.watch("twice"),
}
"""Classes, and makers of an instance for the calls of its methods."""

CONFIGS = (
    lance_spark.BTree,
    lance_spark.Bitmap,
    lance_spark.LabelList,
    lance_spark.FTS,
    lance_spark.IvfFlat,
    lance_spark.IvfSq,
    lance_spark.IvfPq,
    lance_spark.IvfRq,
    lance_spark.HnswFlat,
    lance_spark.HnswSq,
    lance_spark.HnswPq,
)
TEXT_QUERIES = (
    lance_spark.BooleanQuery,
    lance_spark.BoostQuery,
    lance_spark.MatchQuery,
    lance_spark.MultiMatchQuery,
    lance_spark.PhraseQuery,
)

CONSTRUCTORS = (
    *CONFIGS,
    *TEXT_QUERIES,
    Backoff,
    ColumnOrdering,
    ErrorPolicy,
    Fail,
    Manifest,
    RateLimit,
    Retry,
    RetryHttp,
    Skip,
    UnpackedUDF,
)
"""Classes for users to construct."""

RESULTS = frozenset(
    {
        "AgentPlan", "AgentStep", "BackfillEstimate", "BackfillJobResult", "BackfillPlan", "ChangeResult", "CheckResult", "CleanupResult", "CommitResult", "CompactionResult", "Damage",
        "ErrorRecord", "IndexConfig", "IndexStatistics", "JobRecord", "LoadPlan", "MaintenanceResult", "Preview", "RefreshJobResult",
        "RefreshPlan", "TagVersion", "TableDiff", "TableStatistics", "StreamLag", "TableVersion", "UdfResult", "Versions",
    }
)  # fmt: skip
"""Results: made by the package, from data that tests/malformed damages."""

ANNOTATIONS = frozenset(
    {"Columns", "FullTextOperator", "FullTextQuery", "Kind", "Occur", "Reranker"}
)
"""Names for annotations, comparisons, and base classes of users."""

INTERNAL = frozenset(
    {
        "UDF.fingerprint_parts",
        *(f"{name}.check_view" for name in ("Query", "Search", "BatchSearch", "TakeQuery")),
    }
)
"""Methods of those classes for other modules of the package, without arguments."""


def functions() -> Iterator[Subject]:
    """Yields the exported functions."""
    for name, export in EXPORTS.items():
        if inspect.isfunction(export) and inspect.signature(export).parameters:
            yield Subject(name, lambda _, function=export: function, inspect.signature(export))


def constructors() -> Iterator[Subject]:
    """Yields the classes for users to construct."""
    for cls in CONSTRUCTORS:
        yield Subject(cls.__name__, lambda _, cls=cls: cls, inspect.signature(cls))


def methods() -> Iterator[Subject]:
    """Yields the methods of a class with arguments."""
    for kind, make in OBJECTS.items():
        for name, member in inspect.getmembers_static(kind):
            is_static = isinstance(member, (staticmethod, classmethod))
            function = member.__func__ if is_static else member
            if (
                name.startswith("_")
                or not inspect.isfunction(function)
                or f"{kind.__name__}.{name}" in INTERNAL
            ):
                continue
            signature = inspect.signature(function)
            parameters = list(signature.parameters.values())[not isinstance(member, staticmethod) :]
            if parameters:
                bound = lambda at, make=make, name=name: getattr(make(at), name)  # noqa: E731
                yield Subject(
                    f"{kind.__name__}.{name}", bound, signature.replace(parameters=parameters)
                )


SUBJECTS = {subject.name: subject for subject in (*functions(), *constructors(), *methods())}


def uncovered() -> list[str]:
    """Returns the exports missing in all tables above."""
    classes = {cls.__name__ for cls in (*OBJECTS, *CONSTRUCTORS)} | RESULTS | ANNOTATIONS
    return [
        name
        for name, export in EXPORTS.items()
        if not (
            isinstance(export, type)
            and (issubclass(export, BaseException) or export.__name__ in classes)
        )
        and not inspect.isfunction(export)
        and not isinstance(export, str)
    ]
