"""Removes useless checkpoints. Runs on the driver, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from lance_spark.arguments import ARGUMENTS
from lance_spark.backfill.reuse.computed_rows import RecordStore
from lance_spark.backfill.reuse.round_context import source_of_ids
from lance_spark.columns.binding import Binding
from lance_spark.commit.conflicts.identity import BINDING_KEY, field_identities
from lance_spark.dataset import DatasetRef, table_exists
from lance_spark.errors import StoredUdfError, TableNotFoundError
from lance_spark.jobs.history import JobHistory
from lance_spark.locations import normalize_uri
from lance_spark.staging.area import staged_jobs
from lance_spark.staging.orphans import moment_before, remove_orphans
from lance_spark.storage.objects import LanceObjects, checkpoint_place, checkpoint_store

if TYPE_CHECKING:
    import lance


@ARGUMENTS.function
def cleanup(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    older_than: timedelta,
    checkpoint: str | None = None,
) -> int:
    """Deletes files of jobs whose driver died, and useless checkpoints.

    Data files of any version of any branch stay. Checkpoints and finished column files without a
    commit stay if a column's current UDF can use them for an existing fragment, or if an
    unsuccessful job started within `older_than`. Checkpoints of successful jobs go: a task that
    outlived its job wrote them. The cleanup ends all older jobs, so let `older_than` exceed the
    duration of the longest job. A job that still runs then fails, and its commits stay. Files of a
    commit in progress stay for a later cleanup. Runs on the driver, without Spark.

    Args:
        uri: Location of the table.
        storage_options: Options of the object store.
        older_than: Minimum age of a job, by the clock of its driver.
        checkpoint: The location in `connect(checkpoint=...)`, if checkpoints are not next to the
            table.

    Returns:
        The number of deleted data files.

    Raises:
        TableNotFoundError: The location has neither a table nor files of a killed first write.
        TableUnreadableError: The table or one of its versions cannot be read. No file of the job in
            question was deleted.
        OptionError: `older_than` is negative, or longer than the calendar.

    Example:
        ```python
        from datetime import timedelta

        import lance_spark
        from lance_spark import udf


        @udf
        def double(price: int) -> int:
            return 2 * price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"double": double})
        books.backfill("double")
        print(lance_spark.cleanup("library/books.lance", older_than=timedelta(days=1)))  # 0
        ```
    """
    ref = DatasetRef.at(normalize_uri(uri, option="uri"), storage_options or {})
    since = moment_before(older_than)
    needed: set[str] = set()
    if table_exists(ref.uri, ref.storage):
        # Checkpoints first: remaining checkpoints may refer to finished column files without a
        # commit.
        needed = _clean_checkpoints(ref, since, checkpoint)
    elif not staged_jobs(ref.uri, ref.storage_options):
        raise TableNotFoundError(ref.uri)
    return remove_orphans(uri, storage_options, older_than=older_than, needed=needed)


def _clean_checkpoints(ref: DatasetRef, since: datetime, location: str | None) -> set[str]:
    """Deletes useless checkpoints, and returns the column files with a use."""
    history, head = JobHistory(ref), ref.open_latest()
    jobs = history.jobs()
    busy = {job.key for job in jobs if job.status != "DONE" and job.updated_at >= since}
    done_jobs = {job.job_id for job in jobs if job.updated_at < since}
    done_jobs -= {job.job_id for job in jobs if job.status != "DONE"}
    usable = _usable(head)
    place = None if location is None else checkpoint_place(location, ref.uri)
    store = checkpoint_store(ref.uri, ref.storage_options, place)

    def may_serve(key: str, source: str) -> bool:
        return key in busy or (key, source) in usable

    store.cleanup(keep=may_serve, done_jobs=done_jobs)
    _compact_records(RecordStore(ref), head)
    for job in jobs:
        if job.status == "DEAD" and job.updated_at < since:
            history.clear(job.staging_id)
    # A checkpoint of several files stays for one of them.
    return store.column_files(keep=may_serve)


def _compact_records(records: RecordStore, head: lance.LanceDataset) -> None:
    """Drops records without a use for any version of the table.

    A version shows the compaction of a missing fragment, and a restored version needs the records
    of its column files.
    """
    present = {fragment.fragment_id for fragment in head.get_fragments()}
    oldest = min(version["version"] for version in head.version_refs())
    files = {
        path.rpartition("/")[2]
        for path in LanceObjects(head.uri, records.ref.storage_options).list("data")
    }
    for column in field_identities(head.lance_schema):
        if column.token is not None:
            records.compact(
                column.token,
                keep=lambda record: record.fragment_id in present or record.table_version >= oldest,
                keep_superseded=lambda record: (
                    record.target_file in files or record.table_version >= oldest
                ),
            )


def _usable(head: lance.LanceDataset) -> set[tuple[str, str]]:
    """Returns the keys and sources of the current columns and fragments."""
    columns = {column.id: column for column in field_identities(head.lance_schema)}
    fragments = [fragment.metadata for fragment in head.get_fragments()]
    usable = set()
    for field in head.schema:
        text = (field.metadata or {}).get(BINDING_KEY.encode())
        if text is None:
            continue
        try:
            binding = Binding.from_json(text.decode(), field.name)
        except StoredUdfError:
            continue
        ids = [i for number in binding.input_ids if number in columns for i in columns[number].ids]
        usable |= {(binding.key.digest, source_of_ids(fragment, ids)) for fragment in fragments}
    return usable
