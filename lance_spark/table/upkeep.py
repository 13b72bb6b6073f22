"""What keeps a table quick and small: a part of its facade."""

from __future__ import annotations

import uuid
from datetime import timedelta

from lance_spark.jobs.progress import Progress
from lance_spark.table.indexes import TableIndexes
from lance_spark.upkeep.cleanup import CleanupTask, checked_age, run_cleanup
from lance_spark.upkeep.compaction import CompactionJob, CompactionRequest
from lance_spark.upkeep.results import (
    CleanupResult,
    CompactionResult,
    MaintenanceResult,
    TableStatistics,
)


class TableUpkeep(TableIndexes):
    """The methods of :class:`lance_spark.Table` for its upkeep."""

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
        """Rewrites small fragments, and fragments with many deleted rows, as larger fragments.

        Lance plans the compaction on the driver, Spark's executors write, and finished tasks are
        committed in groups. After a death, the same call does the rest. Rows of neighbouring
        fragments keep their order, and follow the rows of unchanged fragments. Concurrent commits
        win: fragments that a concurrent writer deletes from, updates or fills are compacted again.
        A concurrent backfill calls no UDF again for moved rows. Dropped columns are not copied.

        Defaults are those of the table's configuration (keys `lance.compaction.*`), else Lance's.

        Args:
            target_rows_per_fragment: Target rows of a fragment. Smaller fragments are joined with
                their neighbours. By default 1,048,576.
            max_bytes_per_file: Maximum bytes of a written data file, by default 90 GiB.
            materialize_deletions: Whether to rewrite fragments with many deleted rows; by default
                true.
            materialize_deletions_threshold: Share of deleted rows for such a rewrite, by default
                0.1.
            defer_index_remap: Whether later reads, and not each commit, update the indexes; only
                for tables without stable row ids. By default false.
            batch_size: Rows of a read batch, for wide rows and little memory.
            concurrency: Maximum number of concurrent tasks; None uses all slots. A task writes
                about one fragment.
            commit_granularity: Tasks per commit; by default 8 per slot of the cluster, and at least
                64. Each commit updates the indexes, and a death loses the work of two groups.
            commit_max_retries: Rounds lost to concurrent writers until a fragment is skipped, by
                default 10.

        Raises:
            OptionError: A parameter is not valid. Nothing was changed.
            UpkeepIncompleteError: A fragment could not be rewritten, for example because a data
                file is damaged. The other fragments are compacted.
            CommitError: A commit failed, and not because of a concurrent commit.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add([{"id": 10, "price": 100}])
            assert books.compact_files().fragments_removed == 2
            ```
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
        return CompactionJob(
            self._spark(), ref, request, job_id=uuid.uuid4().hex, progress=progress
        ).run()

    def cleanup_old_versions(
        self,
        older_than: timedelta | None = None,
        *,
        delete_unverified: bool = False,
        error_if_tagged_old_versions: bool = True,
        keep_for_streams: bool = False,
    ) -> CleanupResult:
        """Removes old versions and the files that only they use, in one Spark task.

        The latest version and tagged versions stay. Jobs that read a removed version continue at
        the latest version.

        Args:
            older_than: Age of the versions; by default seven days.
            delete_unverified: Whether to delete files of no version at any age, and not only after
                seven days. Running jobs have such files until they commit.
            error_if_tagged_old_versions: Whether a tagged version of this age is an error.
            keep_for_streams: Whether versions stay that a stream from or to this table still needs.
                By default such versions are removed, and a warning names them. A stream counts for
                a week after its last micro-batch.

        Raises:
            OptionError: `older_than` is not valid.
            TableNotFoundError: The table was dropped.
            CommitError: A tagged version has this age. No version was removed.
            TableUnwritableError: The store refused, or the folder of the table holds a link.

        Example:
            ```python
            from datetime import timedelta

            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add([{"id": 10, "price": 100}])
            assert books.cleanup_old_versions(timedelta(0)).old_versions == 1
            ```
        """
        ref = self._ref
        ref.open_latest()  # a missing table is no refusal of the store
        task = CleanupTask(
            table=ref,
            older_than_s=checked_age(older_than).total_seconds(),
            delete_unverified=delete_unverified,
            error_if_tagged=error_if_tagged_old_versions,
            keep_for_streams=keep_for_streams,
        )
        return run_cleanup(self._spark(), task)

    def stats(self) -> TableStatistics:
        """Returns rows, fragments, files and indexes of the checked out version.

        Starts no Spark job, and reads only metadata.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            assert books.stats().rows == 10
            ```
        """
        return TableStatistics.of(self._shown.open())

    def optimize(
        self, *, cleanup_older_than: timedelta | None = None, delete_unverified: bool = False
    ) -> MaintenanceResult:
        """Adds new rows to indexes, compacts, and removes old versions.

        The order matters: fragments with an index are not joined with other fragments.

        Args:
            cleanup_older_than: Age of removed versions; by default seven days. Tagged versions
                stay.
            delete_unverified: As in :meth:`cleanup_old_versions`.

        Raises:
            OptionError: `cleanup_older_than` is not valid. Nothing was changed.
            LanceSparkError: An error of :meth:`compact_files`, :meth:`optimize_indices` or
                :meth:`cleanup_old_versions`. Finished steps stay.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add([{"id": 10, "price": 100}])
            print(books.optimize())
            ```
        """
        age = checked_age(cleanup_older_than, option="cleanup_older_than")
        ref = self._ref  # refused while a version is checked out
        due = tuple(
            name
            for name, rows in TableStatistics.of(ref.open_latest()).unindexed_rows.items()
            if rows
        )
        if due:
            self.optimize_indices(due)
        compaction = self.compact_files()
        cleanup = self.cleanup_old_versions(
            age, delete_unverified=delete_unverified, error_if_tagged_old_versions=False
        )
        return MaintenanceResult(compaction=compaction, indexes=due, cleanup=cleanup)

    def maintain(self) -> MaintenanceResult:
        """Does the maintenance that is due, and returns a summary.

        Compacts the fragments of Lance's plan: fragments with fewer than 1,048,576 rows next to
        others, and fragments with a tenth of their rows deleted, or as the table's configuration
        (keys `lance.compaction.*`). Adds missing rows to indexes. Removes versions older than seven
        days, except tagged versions.

        Raises:
            LanceSparkError: As in :meth:`optimize`.

        Example:
            ```python
            import lance_spark

            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            print(books.maintain())
            ```
        """
        return self.optimize()
