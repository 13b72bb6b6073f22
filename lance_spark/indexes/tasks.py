"""Tasks of an index build: train a model of vectors, build a segment, merge segments.

Tasks run on executors, with the threads of Lance's own pool. A task that runs twice writes its
segment twice, under two names. Lance's `cleanup_old_versions` deletes the segment without a commit.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lance_spark.dataset import DatasetRef
from lance_spark.errors import IndexBuildError, LanceSparkError, panics_as_errors
from lance_spark.indexes.definition import IndexDefinition
from lance_spark.indexes.segments import FOLDER, segment_of_json, segment_to_json
from lance_spark.lance_compat import plain
from lance_spark.storage.objects import LanceObjects

if TYPE_CHECKING:
    import lance
    from lance.dataset import Index

_LOG = logging.getLogger(__name__)

_CENTROIDS, _CODEBOOK = "centroids", "codebook"


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexWork:
    """The shared description of the tasks of a build.

    Attributes:
        ref: The table at its pinned version.
        definition: The index with all of its parameters.
        folder: Folder of the trained model in the table's directory; None if each task trains its
            own model.
    """

    ref: DatasetRef
    definition: IndexDefinition
    folder: str | None = None

    @property
    def objects(self) -> LanceObjects:
        """The objects in the table's directory."""
        return LanceObjects(self.ref.uri, self.ref.storage_options)

    @contextlib.contextmanager
    def explained(self) -> Iterator[lance.LanceDataset]:
        """Opens the table, and raises Lance's errors as errors of lance-spark."""
        dataset = self.ref.open()
        try:
            with panics_as_errors():
                yield dataset
        except LanceSparkError:
            raise
        except (
            ValueError,
            OSError,
            RuntimeError,
            TypeError,
            KeyError,
            NotImplementedError,
        ) as error:
            index = self.definition
            raise IndexBuildError(
                f"Index {index.name!r} ({index.kind}) of column {index.column!r} could not be built: {plain(error)}. "
                f"Table: {self.ref.uri}, version {self.ref.version}. Nothing was changed.{index.model_hint}",
                uri=self.ref.uri,
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainModel:
    """Trains the model that all segments of a vector index share, in the table's directory.

    Memory: a sample of `num_partitions` times `sample_rate` vectors, and one of 2 to the power of
    `num_bits` times `sample_rate`.
    """

    work: IndexWork

    def run(self) -> None:
        """Trains and writes the model."""
        with self.work.explained() as dataset:
            self._train(dataset)

    def _train(self, dataset: lance.LanceDataset) -> None:
        from lance.indices import IndicesBuilder

        values: dict[str, Any] = dict(self.work.definition.parameters)
        training = {"sample_rate": values["sample_rate"], "max_iters": values["max_iters"]}
        builder = IndicesBuilder(dataset, self.work.definition.column)
        rows = dataset.count_rows()
        # A sample with fewer rows than the partitions need has fewer rows for each partition.
        rate = max(2, min(values["sample_rate"], rows // values["num_partitions"]))
        ivf = builder.train_ivf(
            values["num_partitions"],
            distance_type=values["metric"],
            **{**training, "sample_rate": rate},
        )
        self._put(_CENTROIDS, ivf.centroids)
        if "num_sub_vectors" in values:
            rate = max(2, min(values["sample_rate"], rows >> values["num_bits"]))
            pq = builder.train_pq(
                ivf,
                values["num_sub_vectors"],
                num_bits=values["num_bits"],
                **{**training, "sample_rate": rate},
            )
            self._put(_CODEBOOK, pq.codebook)

    def _put(self, name: str, array: pa.Array[Any]) -> None:
        sink = io.BytesIO()
        batch = pa.RecordBatch.from_arrays([array], names=[name])
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        self.work.objects.put(f"{self.work.folder}/{name}", sink.getvalue())


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSegment:
    """Builds the segment of a run of fragments; `is_only` if the index has no other segment."""

    work: IndexWork
    fragment_ids: tuple[int, ...]
    is_only: bool

    def run(self) -> str:
        """Returns the segment as JSON."""
        with self.work.explained() as dataset:
            return segment_to_json(self._build(dataset))

    def _build(self, dataset: lance.LanceDataset) -> Index:
        definition = self.work.definition
        segment = dataset.create_index_uncommitted(
            definition.column,
            definition.kind,
            name=definition.name,
            replace=True,
            fragment_ids=list(self.fragment_ids),
            **self._parameters(),
        )
        # A text index of one segment needs the merge, too.
        is_merged = definition.kind == "FTS" and self.is_only
        return dataset.merge_existing_index_segments([segment]) if is_merged else segment

    def _parameters(self) -> dict[str, Any]:
        parameters = dict(self.work.definition.parameters)
        if self.work.folder is not None:
            parameters["ivf_centroids"] = self._get(_CENTROIDS)
            if "num_sub_vectors" in parameters:
                parameters["pq_codebook"] = self._get(_CODEBOOK)
        return parameters

    def _get(self, name: str) -> pa.Array[Any]:
        stored = self.work.objects.get(f"{self.work.folder}/{name}")
        if stored is None:
            raise OSError(f"{name} of the model are gone")
        array: pa.Array[Any] = pa.ipc.open_stream(stored).read_next_batch().column(0)
        return array


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSegments:
    """Merges segments into one segment."""

    work: IndexWork
    segments: tuple[str, ...]

    def run(self) -> str:
        """Returns the merged segment as JSON."""
        with self.work.explained() as dataset:
            merged = dataset.merge_existing_index_segments(
                [segment_of_json(text) for text in self.segments]
            )
        return segment_to_json(merged)


def discard(ref: DatasetRef, segments: Sequence[Index]) -> None:
    """Deletes uncommitted segments. Lance's cleanup deletes the rest after a failure."""
    objects = LanceObjects(ref.uri, ref.storage_options)
    for segment in segments:
        try:
            objects.delete_folder(f"{FOLDER}/{segment.uuid}")
        except OSError as error:
            _LOG.info(
                "a segment of an index that is not needed stays in %s: %s", ref.uri, plain(error)
            )
