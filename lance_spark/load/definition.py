"""The source of a load's columns for the engine: a join without calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lance_spark.backfill.planning.definition import Definition
from lance_spark.backfill.task.value_source import JoinByKey
from lance_spark.commit.conflicts.identity import field_identities
from lance_spark.dataset import DatasetRef
from lance_spark.load.join import LoadJoin, types_of
from lance_spark.load.request import LoadRequest
from lance_spark.load.source_alignment import SourceAlignment
from lance_spark.load.sources import Source, release_source
from udf_runtime.checkpoint import CheckpointKey

if TYPE_CHECKING:
    import lance


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadDefinition(Definition):
    """The source of columns with values matched by keys."""

    job_type: ClassVar[str] = LoadRequest.name
    noun: ClassVar[str] = "load"

    request: LoadRequest
    by_key: LoadJoin

    @property
    def value_source(self) -> JoinByKey:
        """The source of values for tasks."""
        return JoinByKey()

    @property
    def resources(self) -> LoadRequest:
        """The resources of a task."""
        return self.request

    @property
    def join(self) -> LoadJoin:
        """The join with the values."""
        return self.by_key

    @property
    def origin(self) -> str:
        """The origin of the values, for commit messages."""
        return f"from {self.by_key.source.name}"

    def refuse_changed(
        self,
        snapshot: DatasetRef,  # noqa: ARG002 - those of the base
        when: str,  # noqa: ARG002
        *,
        landed: lance.LanceDataset | None = None,  # noqa: ARG002
    ) -> None:
        """Raises if the source has changed.

        Raises:
            SourceChangedError: The source has changed.
        """
        self.by_key.source.refuse_changed()

    def release(self) -> None:
        """Deletes the staged rows of the source."""
        release_source(self.by_key.source)


def define_load(
    source: Source,
    request: LoadRequest,
    dataset: lance.LanceDataset,
    alignment: SourceAlignment | None,
) -> LoadDefinition:
    """Returns the definition for a version of the table with all columns.

    The key of checkpoints identifies the source, the keys, the columns, and the handling of rows
    without a match.
    """
    identities = {column.name: column for column in field_identities(dataset.lance_schema)}
    schema = dataset.schema
    kind = types_of([schema.field(name) for name in request.columns])
    inputs = tuple(identities[name] for name in request.keys)
    version = f"{source.identity}-{request.on_missing}"
    key = CheckpointKey(
        udf_name=request.name,
        udf_version=version,
        inputs=tuple(column.id for column in inputs),
        output_type=str(kind),
    )
    return LoadDefinition(
        stored=None,
        loaded=None,
        key=key,
        inputs=inputs,
        outputs=tuple((name, name) for name in request.columns),
        request=request,
        by_key=LoadJoin(
            source=source,
            keys=request.keys,
            columns=request.columns,
            on_missing=request.on_missing,
            checkpoint_rows=request.checkpoint_rows,
            alignment=alignment,
        ),
    )
