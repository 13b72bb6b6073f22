"""The job that brings a view up to date with a version of its source.

First its rows: tasks find what changed in the source since the version that the view shows, write
what is new and what changed as fragments, and one commit takes the old rows out and the new ones
in, stamped with the version. Then the columns of UDFs, which are NULL in new rows: each is a
backfill of the view, whose inputs are read from that version of the source. A death between two
steps leaves a view that the next refresh brings up to date from there.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as sf

from lance_spark.backfill.driver.job import BackfillJob
from lance_spark.backfill.planning.admission import check_resources
from lance_spark.backfill.planning.planner import prepare
from lance_spark.backfill.request import BackfillRequest
from lance_spark.catalog.binding import load_udf
from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import RowsToReplace
from lance_spark.commit.conflicts.history import events_between
from lance_spark.commit.replace_commit import commit_replaced
from lance_spark.commit.schema_change import change_schema
from lance_spark.commit.store_check import allowed_by_environment, refuse_unsafe_store
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    BackfillIncompleteError,
    CommitConflictError,
    LanceSparkError,
    StableRowIdsError,
    VersionNotFoundError,
    ViewSourceError,
)
from lance_spark.jobs.history import JobHistory, this_process, this_user
from lance_spark.jobs.model import BackfillJobResult, JobRecord, RefreshJobResult, Status
from lance_spark.jobs.progress import Progress
from lance_spark.objects import objects_beside
from lance_spark.rows.row_addresses import ROW_ADDRESS
from lance_spark.session.sessions import active_in_thread, cancel, known_slots, tagged
from lance_spark.staging.area import Staging, new_id
from lance_spark.staging.file_layout import FileLayout
from lance_spark.staging.job_end import commit_or_give_up, finish
from lance_spark.views.definition import SOURCE_ROW_ID, ViewDefinition, define, existing_view, expressions_of, groups_of
from lance_spark.views.difference import affected
from lance_spark.views.placement import (
    ANSWER,
    GONE,
    Answer,
    Moves,
    Placement,
    PlacementSpec,
    ReadLists,
    SourceRows,
)
from lance_spark.views.plan import RefreshPlan
from lance_spark.views.state import CONFIG_KEY, STAMP_KEY, Refreshed, refreshed_of

if TYPE_CHECKING:
    import lance
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)

JOB_TYPE = "refresh"

DEFAULT_FRAGMENT_ROWS = 1_048_576

_LOOKED_UP_ROWS = 10_000
"""Rows that are looked up in the view by their ids; more are joined."""

_TASK_FRAGMENTS = 1000
_UNMATCHED_PARTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRequest:
    """What a caller of `refresh` asks for, checked."""

    src_version: int | None = None
    max_rows_per_fragment: int = DEFAULT_FRAGMENT_ROWS
    concurrency: int | None = None
    intra_applier_concurrency: int = 1
    admission_check: bool = True
    admission_strict: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a refresh begins: a version of the view, what it shows, and what it is to show.

    Attributes:
        shows: Version of the source that the view shows; None before the first refresh.
        base: The same, to compare with; None where it was cleaned up, or is not known for certain.
    """

    view: DatasetRef
    dataset: lance.LanceDataset
    definition: ViewDefinition
    source: DatasetRef
    shows: Refreshed | None
    base: DatasetRef | None

    @property
    def is_current(self) -> bool:
        """Whether the view's rows are those of the version that it is to show."""
        return self.base is not None and self.base.version == self.source.version

    @staticmethod
    def of(ref: DatasetRef, source: DatasetRef) -> Start:
        """Looks at the latest version of a view. Runs on the driver.

        Raises:
            ViewError, ViewSourceError, StableRowIdsError: It cannot be refreshed.
        """
        view = ref.pin(None)
        dataset = view.open()
        definition = existing_view(dataset)
        shows = refreshed_of(dataset)
        base = None
        if shows is not None:
            _refuse_unstable(view, source, shows)
            base = _base_of(view, definition, shows)
            _refuse_overwritten(view, source, shows, base)
            if shows.lost and _has_unfinished(view):
                base = None
        definition.fields_in(source, view.uri)
        return Start(view=view, dataset=dataset, definition=definition, source=source, shows=shows, base=base)

    def spec(self, staging: Staging, max_rows: int) -> PlacementSpec:
        """Returns what the tasks share."""
        source = {field.id: field for field in self.definition.fields_in(self.source, self.view.uri)}
        groups, expressions = groups_of(self.dataset), expressions_of(self.dataset)
        names = [SOURCE_ROW_ID, *(name for name, _ in expressions)]
        computed = [columns for _, columns in groups]
        return PlacementSpec(
            source=self.source,
            base=self.base,
            view=self.view,
            staging=staging,
            columns=expressions,
            where=self.definition.where,
            used=tuple(source.values()),
            groups=tuple(tuple(source[number] for number in binding.input_ids) for binding, _ in groups),
            computed=tuple(computed),
            placed=FileLayout.of_table(self.dataset, names),
            moved=FileLayout.of_table(self.dataset, [*names, *(name for columns in computed for name in columns)]),
            max_rows=max_rows,
        )


def _refuse_unstable(view: DatasetRef, source: DatasetRef, shows: Refreshed) -> None:
    if not source.open().has_stable_row_ids and shows.version != source.version:
        raise StableRowIdsError(
            f"the view shows version {shows.version} of its source, and cannot follow it to version {source.version}: "
            "rows of the source have no stable ids, so nothing tells which row is which after a compaction - view "
            f"{view.uri}, source {source.uri} - refresh(src_version={shows.version}) goes on with what is there; write "
            "the source anew with enable_stable_row_ids=True, and make the view anew",
            uri=view.uri,
        )


def _base_of(view: DatasetRef, definition: ViewDefinition, shows: Refreshed) -> DatasetRef | None:
    """Returns the version that the view shows; None where it was cleaned up."""
    try:
        base = definition.pin_source(view, shows.version)
    except VersionNotFoundError:
        _LOG.warning(
            "version %s of the source of view %s was cleaned up: all rows are made anew", shows.version, view.uri
        )
        return None
    if base.incarnation != shows.incarnation:
        raise ViewSourceError(
            f"the source was made anew since the view was refreshed from version {shows.version} of it - view "
            f"{view.uri}, source {base.uri} - nothing was changed; make the view anew",
            uri=view.uri,
        )
    return base


def _refuse_overwritten(view: DatasetRef, source: DatasetRef, shows: Refreshed, base: DatasetRef | None) -> None:
    low, high = sorted((shows.version, source.version or 0))
    newest = source if base is None or (source.version or 0) >= shows.version else base
    for event in events_between(newest.open(), low, high):
        if event.name == "Overwrite":
            raise ViewSourceError(
                f"the source was overwritten at version {event.version}, between version {shows.version}, which the "
                f"view shows, and version {source.version}: its rows are others - view {view.uri}, source {source.uri} "
                "- nothing was changed; make the view anew",
                uri=view.uri,
            )


def _has_unfinished(view: DatasetRef) -> bool:
    """Tells whether a refresh began after the last one that ended well."""
    records = [record for record in JobHistory(view).jobs() if record.job_type == JOB_TYPE]
    ended = max((record.launched_at for record in records if record.status == "DONE"), default=None)
    return any(record.status != "DONE" and (ended is None or record.launched_at > ended) for record in records)


class RefreshJob:
    """One refresh, run by one thread. Checks what can be checked when it is made.

    Raises:
        ViewError, ViewSourceError, StableRowIdsError, VersionNotFoundError: The view cannot be
            refreshed.
        StoredUdfError: A stored UDF cannot be used.
        ResourcesUnavailableError: A UDF asks for more than the cluster has.
    """

    def __init__(
        self,
        spark: SparkSession,
        ref: DatasetRef,
        request: RefreshRequest,
        *,
        table_name: str,
        checkpoints: str | None,
        progress: Callable[[str], Progress],
    ) -> None:
        refuse_unsafe_store(ref.uri, ref.storage, allow=allowed_by_environment())
        definition = existing_view(ref.open_latest())
        self._source = definition.pin_source(ref, request.src_version)
        start = Start.of(ref, self._source)
        for binding, columns in groups_of(start.dataset):
            udf = load_udf(binding, objects_beside(ref), columns[0])
            if request.admission_check:
                check_resources(spark, udf, strict=request.admission_strict)
        self.job_id = uuid.uuid4().hex
        self.columns = tuple(name for name in start.dataset.schema.names if name != SOURCE_ROW_ID)
        self._spark = spark
        self._ref = ref
        self._request = request
        self._table_name = table_name
        self._checkpoints = checkpoints
        self._make_progress = progress
        self._previous = None if start.shows is None else start.shows.version
        self._staging = Staging(uri=ref.uri, storage_options=ref.storage_options, job_id=new_id())
        self._tag = f"lance-spark-{self._staging.job_id}"
        self._policy = CommitPolicy.of(None)
        self._history = JobHistory(ref)
        self._cancelled = threading.Event()
        self._backfill: BackfillJob | None = None
        self._launched, self._began = datetime.now(UTC), time.monotonic()
        self._seconds: dict[str, float] = {}
        self._fragments = 0
        self._rows = (0, 0, 0)
        self._versions: tuple[int, ...] = ()
        self._backfills: dict[str, BackfillJobResult] = {}

    def cancel(self) -> None:
        """Stops the tasks, and returns at once. Works from any thread."""
        self._cancelled.set()
        cancel(self._spark, self._tag)
        if self._backfill is not None:
            self._backfill.cancel()

    def snapshot(self) -> RefreshJobResult:
        """Returns how the job stands."""
        return self._result("RUNNING")

    def run(self) -> RefreshJobResult:
        """Runs the job to its end.

        Raises:
            BackfillIncompleteError: The job was cancelled, tasks failed, or rows got no value in a
                column of a UDF.
            CommitConflictError: Other writers kept coming first.
            LanceSparkError: The job could not go on.
        """
        self._save("RUNNING")
        status: Status = "FAILED"
        message: str | None = None
        try:
            self._bring_rows_up_to_date()
            self._fill()
            status = "DONE"
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
            if self._cancelled.is_set():
                status = "CANCELLED"
            elif self._versions:
                status = "PARTIAL"
            raise
        finally:
            self._save(status, message)
        return self._result(status)

    def _bring_rows_up_to_date(self) -> None:
        self._staging.open_job()
        named = commit_or_give_up(self._staging, self._ref, self._replace_until_it_holds)
        finish(self._staging, self._ref, named)

    def _replace_until_it_holds(self) -> list[str]:
        """Commits the rows, again where a concurrent writer came first; returns names of files."""
        for attempt in itertools.count():
            start = Start.of(self._ref, self._source)
            if start.is_current:
                break
            try:
                return self._replace_rows(start)
            except CommitConflictError as error:
                if attempt == self._policy.max_retries or self._cancelled.is_set():
                    raise
                _LOG.info("the rows of view %s are looked at again: %s", self._ref.uri, error)
        return []

    def _replace_rows(self, start: Start) -> list[str]:
        """Commits the rows of the version to show, and returns the names of the files committed."""
        began = time.monotonic()
        spec = start.spec(self._staging, self._request.max_rows_per_fragment)
        look = affected(start.source, start.base, spec.used)
        self._fragments = len(look.now)
        done = self._place(spec, look.now)
        source, base = start.source.open(), None if start.base is None else start.base.open()
        # Row ids are never given twice: rows that are neither new nor gone are in both.
        if base is not None and source.count_rows() != base.count_rows() + done.new:
            done = Answer.of([*self._texts(done), *self._texts(self._place(spec, look.then, gone=True))])
        moved = self._move(spec, done) if done.lists else Answer()
        rebuilt = [] if start.base is not None else [one.fragment_id for one in start.dataset.get_fragments()]
        self._seconds["place"] = self._seconds.get("place", 0.0) + time.monotonic() - began
        began = time.monotonic()
        names = self._commit(start, done, moved, rebuilt)
        self._seconds["commit"] = self._seconds.get("commit", 0.0) + time.monotonic() - began
        return names

    @staticmethod
    def _texts(answer: Answer) -> list[str]:
        return [str(answer.to_batch().column(0)[0].as_py())]

    def _place(self, spec: PlacementSpec, fragments: Sequence[tuple[int, int]], *, gone: bool = False) -> Answer:
        slots = known_slots(self._spark) or self._request.concurrency or 1
        rows = max(1, min(sum(rows for _, rows in fragments) // slots // 2, spec.max_rows))
        units = tuple(_packed(fragments, rows))
        if not units:
            return Answer()
        parts = min(len(units), self._request.concurrency or len(units))
        task = Placement(spec=spec, units=units, gone=gone)
        return self._answers(lambda: self._spark.range(0, len(units), 1, parts).mapInArrow(task, ANSWER))

    def _move(self, spec: PlacementSpec, done: Answer) -> Answer:
        def frame() -> DataFrame:
            reader = ReadLists(staging=self._staging, paths=tuple(done.lists))
            count = len(reader.paths)
            listed = self._spark.range(0, count, 1, min(count, self._request.concurrency or count)).mapInArrow(
                reader, "id long, change long"
            )
            view = self._view_ids(spec.view, done)
            joined = listed.join(view, listed["id"] == view[SOURCE_ROW_ID], "left").select(ROW_ADDRESS, "id", "change")
            there = sf.col(ROW_ADDRESS).isNotNull() | (sf.col("change") != GONE)
            # Rows that the view does not have yet come in parts of their own.
            part = sf.coalesce(sf.shiftright(ROW_ADDRESS, 32), -1 - sf.pmod(sf.col("id"), sf.lit(_UNMATCHED_PARTS)))
            return (
                joined.where(there)
                .repartition(part)
                .sortWithinPartitions(ROW_ADDRESS)
                .mapInArrow(Moves(spec=spec), ANSWER)
            )

        return self._answers(frame)

    def _view_ids(self, view: DatasetRef, done: Answer) -> DataFrame:
        """Returns row ids and addresses of the view, of all rows or of few listed ones."""
        options = {f"storage.{key}": value for key, value in view.storage.items()}
        options |= {"version": str(view.version), "columns": json.dumps([SOURCE_ROW_ID, ROW_ADDRESS])}
        if done.listed <= _LOOKED_UP_ROWS:
            payloads = [self._staging.objects.get(path) for path in done.lists]
            tables = [pa.ipc.open_stream(payload).read_all() for payload in payloads if payload is not None]
            ids = pa.concat_tables(tables, promote_options="none").column("id").to_pylist() if tables else []
            options["filter"] = f"{SOURCE_ROW_ID} IN ({', '.join(map(str, ids))})"
        return self._spark.read.format("lance").options(**options).load(view.uri)

    def _answers(self, frame: Callable[[], DataFrame]) -> Answer:
        if self._cancelled.is_set():
            raise self._incomplete("the job was cancelled")
        with (
            active_in_thread(self._spark),
            tagged(self._spark, self._tag, f"lance-spark: refresh of {self._table_name}"),
        ):
            try:
                return Answer.of(row[0] for row in frame().collect())
            except Exception as error:
                if self._cancelled.is_set():
                    raise self._incomplete("the job was cancelled") from error
                raise

    def _commit(self, start: Start, done: Answer, moved: Answer, rebuilt: Sequence[int]) -> list[str]:
        from lance.fragment import FragmentMetadata

        fragments = [FragmentMetadata.from_json(json.dumps(one)) for one in (*done.fragments, *moved.fragments)]
        names = [str(file.path) for fragment in fragments for file in fragment.files]
        source = start.source
        shown = Refreshed(version=source.version or 0, incarnation=source.incarnation or "")
        at = start.view.version or 0
        gone = sum(one.metadata.num_rows for one in start.dataset.get_fragments()) if rebuilt else moved.deleted
        if fragments or moved.updated or moved.removed or rebuilt:
            self._staging.begin_commit()
            self._staging.refuse_missing(names)
            change = RowsToReplace(
                read_version=at,
                updated=tuple(FragmentMetadata.from_json(json.dumps(one)) for one in moved.updated),
                removed=(*moved.removed, *rebuilt),
                fragments=tuple(fragments),
                rows=done.added + moved.moved,
                stamp={STAMP_KEY: shown.to_json()},
                commit_message=f"refresh from version {source.version} of the source (job {self.job_id})",
            )
            result = commit_replaced(self._ref, change, job_id=self._staging.job_id, policy=self._policy)
            at = result.version
            self._versions = (at,)
        self._rows = (done.added, moved.moved, max(0, gone - moved.moved))
        self._note(replace(shown, at=at))
        return names

    def _note(self, shown: Refreshed) -> None:
        """Puts what the view shows into its configuration."""

        def note(head: lance.LanceDataset) -> None:
            known = head.config().get(CONFIG_KEY)
            if known is None or Refreshed.from_json(known).at <= shown.at:
                head.update_config({CONFIG_KEY: shown.to_json()})

        change_schema(self._ref, note)

    def _fill(self) -> None:
        """Fills the columns of UDFs."""
        began = time.monotonic()
        request = self._request
        failed: list[BackfillIncompleteError] = []
        for number, (_, columns) in enumerate(groups_of(self._ref.open_latest())):
            asked = BackfillRequest(
                columns=columns,
                concurrency=request.concurrency,
                intra_applier_concurrency=request.intra_applier_concurrency,
                job_id=f"{self.job_id}-{number}",
            )
            prepared = prepare(self._ref, asked, checkpoints=self._checkpoints, define=define)
            progress = self._make_progress(f"{self._table_name}.{', '.join(columns)}")
            self._backfill = BackfillJob(self._spark, prepared, self._table_name, progress)
            if self._cancelled.is_set():
                raise self._incomplete("the job was cancelled")
            try:
                result = self._backfill.run()
            except BackfillIncompleteError as error:
                if isinstance(error.result, BackfillJobResult):
                    self._backfills.update(dict.fromkeys(columns, error.result))
                failed.append(error)
            else:
                self._backfills.update(dict.fromkeys(columns, result))
        self._seconds["backfill"] = time.monotonic() - began
        if failed:
            raise self._incomplete("; ".join(map(str, failed))) from failed[0]

    def _incomplete(self, reason: str) -> BackfillIncompleteError:
        status: Status = "CANCELLED" if self._cancelled.is_set() else "PARTIAL" if self._versions else "FAILED"
        return BackfillIncompleteError(
            f"the refresh is incomplete: {reason} - view {self._ref.uri}, job {self.job_id} - what was computed is "
            "kept; refresh again when the cause is gone",
            result=self._result(status),
        )

    def _result(self, status: Status) -> RefreshJobResult:
        added, recomputed, removed = self._rows
        return RefreshJobResult(
            job_id=self.job_id,
            status=status,
            table_name=self._table_name,
            table_uri=self._ref.uri,
            source_uri=self._source.uri,
            source_version=self._source.version or 0,
            previous_version=self._previous,
            launched_at=self._launched,
            completed_at=None if status == "RUNNING" else datetime.now(UTC),
            rows_added=added,
            rows_recomputed=recomputed,
            rows_removed=removed,
            fragments_total=self._fragments,
            fragments_done=self._fragments if self._versions or status == "DONE" else 0,
            versions=self._versions,
            backfills=dict(self._backfills),
            seconds={**self._seconds, "total": time.monotonic() - self._began},
        )

    def _save(self, status: Status, message: str | None = None) -> None:
        result = self._result(status)
        record = JobRecord(
            job_id=self.job_id,
            job_type=JOB_TYPE,
            status=status,
            columns=self.columns,
            udf_name="",
            udf_version="",
            key="",
            where=None,
            read_version=result.source_version,
            staging_id=self._staging.job_id,
            launched_at=self._launched,
            updated_at=datetime.now(UTC),
            completed_at=result.completed_at,
            launched_by=this_user(),
            process=this_process(),
            rows_selected=result.rows_refreshed,
            rows_computed=result.rows_computed,
            fragments_total=result.fragments_total,
            fragments_done=result.fragments_done,
            versions=self._versions,
            seconds=result.seconds,
            message=message,
        )
        try:
            self._history.save(record)
        except (OSError, LanceSparkError) as error:
            if status == "RUNNING":
                raise
            _LOG.warning("the history of %s could not be written: %s", self._ref.uri, error)


def plan_refresh(ref: DatasetRef, src_version: int | None, *, table_name: str, checkpoints: str | None) -> RefreshPlan:
    """Returns what a refresh would do. Runs on the driver; reads what changed, and writes nothing.

    Raises:
        ViewError, ViewSourceError, StableRowIdsError, VersionNotFoundError: The view cannot be
            refreshed.
    """
    definition = existing_view(ref.open_latest())
    start = Start.of(ref, definition.pin_source(ref, src_version))
    spec = start.spec(Staging(uri=ref.uri, job_id="plan"), DEFAULT_FRAGMENT_ROWS)
    look = affected(start.source, None if start.is_current else start.base, spec.used)
    rows = SourceRows(spec)
    added = changed = gone = new = 0
    for number, _ in () if start.is_current else look.now:
        since = rows.since_base(number)
        new += len(since.new)
        added += len(rows.matching(number, since.new))
        selected = rows.matching(number, since.changed)
        changed += len(selected)
        gone += len(since.changed - selected)
    source, base = start.source.open(), None if start.base is None else start.base.open()
    if base is None:
        gone = start.dataset.count_rows()
    elif rows.difference is not None and source.count_rows() != base.count_rows() + new:
        gone += sum(len(ids) for number, _ in look.then for ids in rows.difference.gone(number))
    known = set() if base is None else {one.fragment_id for one in base.get_fragments()}
    return RefreshPlan(
        table_name=table_name,
        table_uri=ref.uri,
        source_uri=source.uri,
        source_version=source.version,
        previous_version=None if start.shows is None else start.shows.version,
        rebuilds=start.shows is not None and start.base is None,
        rows_added=added,
        rows_recomputed=changed,
        rows_removed=gone,
        rows_pending=_pending(ref, start, checkpoints),
        new_source_fragments=0 if start.is_current else sum(number not in known for number, _ in look.now),
        untouched_fragments=len(source.get_fragments()) if start.is_current else look.untouched,
    )


def _pending(ref: DatasetRef, start: Start, checkpoints: str | None) -> int:
    if start.base is None:
        return 0
    requests = [BackfillRequest(columns=columns, plan_only=True) for _, columns in groups_of(start.dataset)]
    prepared = [prepare(ref, one, checkpoints=checkpoints, define=define) for one in requests]
    return sum(plan.rows_to_do for one in prepared for plan in one.work(scan=True))


def _packed(fragments: Sequence[tuple[int, int]], rows: int) -> list[tuple[int, ...]]:
    """Packs fragments, with their rows, into tasks of about so many rows."""
    units: list[tuple[int, ...]] = []
    packed: list[int] = []
    held = 0
    for number, count in fragments:
        if packed and (held + count > rows or len(packed) >= _TASK_FRAGMENTS):
            units.append(tuple(packed))
            packed, held = [], 0
        packed.append(number)
        held += count
    return [*units, tuple(packed)] if packed else units
