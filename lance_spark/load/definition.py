"""The source of a load's columns for the engine: a join without calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from lance_spark.backfill.planning.definition import Definition
from lance_spark.commit.conflicts.identity import field_identities
from lance_spark.dataset import DatasetRef
from lance_spark.errors import CommitImpossibleError
from lance_spark.load.join import LoadJoin, types_of
from lance_spark.load.layout import Layout
from lance_spark.load.request import LoadRequest
from lance_spark.load.sources import Source
from udf_runtime import UDF, Kind
from udf_runtime.checkpoint import CheckpointKey
from udf_runtime.definition.spec import Settings

if TYPE_CHECKING:
    import lance

_NAME = "load_columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDefinition(Definition):
    """The source of columns with values matched by keys."""

    job_type: ClassVar[str] = _NAME
    noun: ClassVar[str] = "load"

    by_key: LoadJoin

    @property
    def join(self) -> LoadJoin:
        """The join with the values."""
        return self.by_key

    @property
    def origin(self) -> str:
        """The origin of the values, for commit messages."""
        return f"from {self.by_key.source.name}"

    def refuse_changed(self, snapshot: DatasetRef, when: str) -> None:  # noqa: ARG002 - those of the base
        """Raises if the source has changed.

        Raises:
            SourceChangedError: The source has changed.
        """
        self.by_key.source.refuse_changed()


def define_load(
    source: Source, request: LoadRequest, dataset: lance.LanceDataset, layout: Layout | None
) -> LoadDefinition:
    """Returns the definition for a version of the table with all columns.

    The key of checkpoints identifies the source, the keys, the columns, and the handling of rows
    without a match.
    """
    identities = {column.name: column for column in field_identities(dataset.lance_schema)}
    kind = types_of([dataset.schema.field(name) for name in request.columns])
    inputs = tuple(identities[name] for name in request.keys)
    version = f"{source.identity}-{request.on_missing}"
    udf = stand_in(request, kind, version)
    key = CheckpointKey(
        udf_name=_NAME,
        udf_version=version,
        inputs=tuple(column.id for column in inputs),
        output_type=str(kind),
    )
    return LoadDefinition(
        stored=None,
        loaded=udf,
        key=key,
        inputs=inputs,
        outputs=tuple((name, name) for name in request.columns),
        by_key=LoadJoin(
            source=source,
            keys=request.keys,
            columns=request.columns,
            on_missing=request.on_missing,
            checkpoint_rows=request.checkpoint_rows,
            layout=layout,
        ),
    )


def stand_in(request: LoadRequest, kind: pa.DataType, version: str) -> UDF:
    """Returns a placeholder of the UDF with the requested resources of tasks, without calls."""
    return UDF.define(
        _never_called,
        kind=Kind.RECORD_BATCH,
        data_type=kind,
        name=_NAME,
        version=version,
        settings=Settings(num_cpus=request.cpus, memory=request.memory, task_size=request.job.task_size),
    )


def _never_called(batch: pa.RecordBatch) -> Any:  # noqa: ANN401, ARG001 - never returns
    """The function of the placeholder. The engine makes no calls if a join has the values."""
    raise CommitImpossibleError("values of a load are not computed", uri="")
