"""What keeps a table quick and small: a part of its facade."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from pyspark.sql import SparkSession

from lance_spark.jobs.progress import Progress
from lance_spark.table.versions import TableVersions
from lance_spark.upkeep.compaction import CompactionJob
from lance_spark.upkeep.request import CompactionRequest
from lance_spark.upkeep.results import CompactionResult


class TableUpkeep(TableVersions):
    """The methods of :class:`lance_spark.Table` for its upkeep."""

    name: str
    _spark: Callable[[], SparkSession]
    _progress: bool | None

    def compact_files(  # noqa: PLR0913 - one parameter per option
        self,
        *,
        target_rows_per_fragment: int | None = None,
        max_bytes_per_file: int | None = None,
        materialize_deletions: bool | None = None,
        materialize_deletions_threshold: float | None = None,
        defer_index_remap: bool | None = None,
        batch_size: int | None = None,
        concurrency: int | None = None,
        commit_granularity: int | None = None,
        commit_max_retries: int | None = None,
    ) -> CompactionResult:
        """Writes small fragments, and those with many deleted rows, anew as larger ones.

        Lance plans it on the driver, Spark's executors write, and finished tasks are committed in
        groups: after any death the same call does what is left. Rows of neighbours stay in order,
        and come after those of fragments that are left as they are. Other writers go on meanwhile,
        and what they commit first stands: fragments that they delete from, update or fill are
        compacted once more from what they have left. A backfill beside it calls no UDF again for
        rows that moved. Columns that were dropped are not written again.

        Defaults are those of the table's configuration (keys `lance.compaction.*`), else Lance's.

        Args:
            target_rows_per_fragment: Rows that a fragment aims at; fragments with fewer are joined
                with their neighbours. By default 1,048,576.
            max_bytes_per_file: Most bytes of a data file that is written, by default 90 GiB.
            materialize_deletions: Whether fragments with many deleted rows are written anew,
                without these; by default true.
            materialize_deletions_threshold: Which share of deleted rows is many, by default 0.1.
            defer_index_remap: Whether indexes are kept up by later reads instead of by each commit;
                only for tables without stable row ids. By default false.
            batch_size: Rows that a task reads at a time, for wide rows and little memory.
            concurrency: Most tasks at once; None uses all slots. A task writes about one fragment.
            commit_granularity: Tasks per commit; by default 8 per slot of the cluster, and at least
                64. Each commit keeps the indexes up, and a death loses what two groups had written.
            commit_max_retries: Rounds that other writers may bring to nothing before fragments are
                left as they are, by default 10.

        Raises:
            OptionError: A parameter is not valid. Nothing was changed.
            UpkeepIncompleteError: Fragments could not be written anew, because a data file is
                damaged for example; the others are compacted.
            CommitError: A commit failed, for another reason than concurrent ones.
        """
        request = CompactionRequest(
            target_rows_per_fragment=target_rows_per_fragment,
            max_bytes_per_file=max_bytes_per_file,
            materialize_deletions=materialize_deletions,
            materialize_deletions_threshold=materialize_deletions_threshold,
            defer_index_remap=defer_index_remap,
            batch_size=batch_size,
            concurrency=concurrency,
            commit_granularity=commit_granularity,
            commit_max_retries=commit_max_retries,
        )
        progress = Progress(title=f"{self.name}: compaction", enabled=self._progress)
        ref = self._ref
        return CompactionJob(self._spark(), ref, request, job_id=uuid.uuid4().hex, progress=progress).run()
