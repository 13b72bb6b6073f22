"""What keeps a table quick and small: a part of its facade."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import timedelta

from pyspark.sql import SparkSession

from lance_spark.jobs.progress import Progress
from lance_spark.table.indexes import TableIndexes
from lance_spark.upkeep.cleanup import CleanupTask, checked_age
from lance_spark.upkeep.cleanup import result_of as cleanup_result
from lance_spark.upkeep.compaction import CompactionJob
from lance_spark.upkeep.request import CompactionRequest
from lance_spark.upkeep.results import CleanupResult, CompactionResult, MaintenanceResult, TableStatistics
from lance_spark.upkeep.spark_jobs import SparkJobs
from lance_spark.upkeep.statistics import statistics_of


class TableUpkeep(TableIndexes):
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

    def cleanup_old_versions(
        self,
        older_than: timedelta | None = None,
        *,
        delete_unverified: bool = False,
        error_if_tagged_old_versions: bool = True,
    ) -> CleanupResult:
        """Removes old versions and the files that only they use, in one Spark task.

        The latest version stays, and so do versions with a tag. Jobs that read a version that is
        removed go on at the latest one.

        Args:
            older_than: Age of the versions; by default seven days.
            delete_unverified: Whether files that no version names are deleted at any age, and not
                after seven days. What running jobs have written and not committed is such a file.
            error_if_tagged_old_versions: Whether a tagged version of that age is an error.

        Raises:
            OptionError: `older_than` is not valid.
            TableNotFoundError: The table was dropped.
            CommitError: A tagged version is of that age. No version was removed.
            TableUnwritableError: The store refused, or the folder of the table holds a link.
        """
        ref = self._ref
        ref.open_latest()  # a missing table is no refusal of the store
        task = CleanupTask(
            table=ref,
            older_than_s=checked_age(older_than).total_seconds(),
            delete_unverified=delete_unverified,
            error_if_tagged=error_if_tagged_old_versions,
        )
        description = f"lance-spark: cleanup of {ref.uri}"
        jobs = SparkJobs[CleanupTask](self._spark(), tag=f"lance-spark-{uuid.uuid4().hex}", description=description)
        (answer,) = jobs.run([task], 1, lambda _, failure: json.dumps({"error": failure.message}).encode())
        return cleanup_result(answer, ref.uri)

    def stats(self) -> TableStatistics:
        """Returns rows, fragments, files and indexes of the version that is shown.

        Starts no Spark job, and reads no more than metadata.
        """
        return statistics_of(self._shown.open())

    def optimize(
        self, *, cleanup_older_than: timedelta | None = None, delete_unverified: bool = False
    ) -> MaintenanceResult:
        """Takes new rows into indexes, compacts, and removes old versions.

        In this order, because fragments that an index serves are not joined with others.

        Args:
            cleanup_older_than: Age of versions that are removed; by default seven days. Versions
                with a tag stay.
            delete_unverified: As in :meth:`cleanup_old_versions`.

        Raises:
            OptionError: `cleanup_older_than` is not valid. Nothing was changed.
            LanceSparkError: What :meth:`compact_files`, :meth:`optimize_indices` and
                :meth:`cleanup_old_versions` raise; what came before stays.
        """
        age = checked_age(cleanup_older_than, option="cleanup_older_than")
        ref = self._ref  # refused while a version is checked out
        due = tuple(name for name, rows in statistics_of(ref.open_latest()).unindexed_rows.items() if rows)
        if due:
            self.optimize_indices(due)
        compaction = self.compact_files()
        cleanup = self.cleanup_old_versions(
            age, delete_unverified=delete_unverified, error_if_tagged_old_versions=False
        )
        return MaintenanceResult(compaction=compaction, indexes=due, cleanup=cleanup)

    def maintain(self) -> MaintenanceResult:
        """Does what is due, and says what it did.

        Fragments are compacted that Lance's plan names: with fewer rows than 1,048,576 beside
        others, or with a tenth of their rows deleted; or as the table's configuration says (keys
        `lance.compaction.*`). Indexes take in rows that they do not serve. Versions older than
        seven days go, but for those with a tag.

        Raises:
            LanceSparkError: As :meth:`optimize` says.
        """
        return self.optimize()
