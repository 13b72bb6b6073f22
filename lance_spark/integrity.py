"""Check and repair of the files and metadata that lance-spark keeps in a table: :func:`check`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from lance_spark.arguments import ARGUMENTS
from lance_spark.backfill.reuse.computed_rows import RECORDS, check_record
from lance_spark.columns.binding import Binding
from lance_spark.commit.changes import CommitResult
from lance_spark.commit.conflicts.history import SUMMARY_KEY, event_of
from lance_spark.commit.conflicts.identity import BINDING_KEY
from lance_spark.dataset import FOLDER, DatasetRef, branches_of
from lance_spark.display import Displayable
from lance_spark.errors import StoredUdfError, TableUnreadableError, ViewError
from lance_spark.jobs.reader_process import empty_caches
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.row_errors import ErrorRecord
from lance_spark.jobs.tables import (
    ERRORS,
    JOBS,
    SystemTable,
    read_intact_rows,
    replace_rows,
    table_ref,
)
from lance_spark.locations import is_local, normalize_uri
from lance_spark.storage.objects import (
    LanceObjects,
    checkpoint_place,
    objects_beside,
    objects_of_table,
)
from lance_spark.views.definition import view_of
from lance_spark.views.state import refreshed_of
from udf_runtime import UDF
from udf_runtime.checkpoint.codec import decode, is_of_newer_release
from udf_runtime.checkpoint.store import Objects
from udf_runtime.errors import CheckpointError, end_sentence

if TYPE_CHECKING:
    import lance

DAMAGED_FOLDER = "damaged"
"""Folder below `_lance_spark` for files that a repair moved aside."""

_ROW_CHECKS: Mapping[SystemTable, Callable[[dict[str, Any]], object]] = {
    JOBS: JobRecord.from_row,
    ERRORS: ErrorRecord.from_row,
    RECORDS: check_record,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """A damaged file, row or piece of metadata.

    Attributes:
        place: Path below the table's folder, or `column x`, `version 3`, `schema`; with a prefix
            for a branch.
        problem: The reason why lance-spark cannot use it.
        remedy: The repair, or the advice for the user.
        repaired: Whether this call repaired it.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        for damage in lance_spark.check("library/books.lance").damages:
            print(damage.place, damage.problem, damage.remedy)
        ```
    """

    place: str
    problem: str
    remedy: str
    repaired: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckResult(Displayable):
    """Result of :func:`check`.

    Attributes:
        uri: Location of the table.
        damages: The damages, in the order of the checks; empty for an intact table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        result = lance_spark.check("library/books.lance")
        print(result.damages)  # ()
        ```
    """

    uri: str
    damages: tuple[Damage, ...]

    @property
    def is_intact(self) -> bool:
        """Whether nothing is damaged, or everything was repaired."""
        return all(damage.repaired for damage in self.damages)

    @property
    def text(self) -> str:
        """The result in one line, and a line per damage."""
        repaired = sum(damage.repaired for damage in self.damages)
        lines = [
            f"{damage.place}: {end_sentence(damage.problem)} {damage.remedy}"
            for damage in self.damages
        ]
        return "\n".join(
            [f"check of {self.uri}: {len(self.damages)} damaged, {repaired} repaired", *lines]
        )


@ARGUMENTS.function
def check(
    uri: str,
    storage_options: Mapping[str, str] | None = None,
    *,
    repair: bool = False,
    checkpoint: str | None = None,
) -> CheckResult:
    """Checks everything that lance-spark keeps in a table, and repairs what can be rebuilt.

    The check covers the job history, error rows, records of computed rows, checkpoints, stored
    UDFs, bindings, the definition and state of a view, and summaries of commits, on all branches.
    Lance's own data files are out of scope. Runs on the driver, without Spark. A child process
    decodes Lance files, so that damage cannot end the driver. Reads every checkpoint once.

    A repair keeps every row that can be read. Damaged files move to `_lance_spark/damaged/<time>/`.
    Values of damaged checkpoints and records are computed again by the next backfill. Repair while
    no job of the table runs.

    Args:
        uri: Location of the table.
        storage_options: Options of the object store.
        repair: Whether to repair.
        checkpoint: Value of `connect(checkpoint=...)`, if checkpoints are outside of the table.

    Returns:
        The damages.

    Raises:
        TableNotFoundError: The table does not exist.
        TableUnreadableError: The table cannot be opened, the store refused, or a repair would lose
            columns of a newer release.

    Example:
        ```python
        import lance_spark

        result = lance_spark.check("tables/docs.lance")
        if not result.is_intact:
            lance_spark.check("tables/docs.lance", repair=True)
        ```
    """
    ref = DatasetRef.at(normalize_uri(uri, option="uri"), storage_options or {})
    dataset = ref.open_latest()
    empty_caches()
    aside = _Aside(f"{DAMAGED_FOLDER}/{datetime.now(UTC):%Y%m%dT%H%M%S%f}") if repair else None
    shared = None
    if checkpoint is not None:
        shared = LanceObjects(normalize_uri(checkpoint, option="checkpoint"), ref.storage_options)
    damages = [
        *_check_branch(ref, dataset, shared, aside),
        *_check_files(objects_of_table(ref), "udfs", _has_digest, aside),
    ]
    for name in branches_of(dataset):
        branch = ref.on_branch(name)
        try:
            branch_damages = list(_check_branch(branch, branch.open_latest(), shared, aside))
        except TableUnreadableError as error:
            remedy = "Repair the store, or delete the branch."
            branch_damages = [Damage(place="its latest version", problem=str(error), remedy=remedy)]
        damages += [
            replace(damage, place=f"branch {name!r}: {damage.place}") for damage in branch_damages
        ]
    return CheckResult(uri=ref.uri, damages=tuple(damages))


def _check_branch(
    ref: DatasetRef, dataset: lance.LanceDataset, shared: LanceObjects | None, aside: _Aside | None
) -> Iterator[Damage]:
    """Yields the damages of the main branch or of another branch.

    `shared` is the folder of `connect(checkpoint=...)`, which is opened once for all branches.
    """
    for table in _ROW_CHECKS:
        yield from _check_table(ref, table, aside)
    objects: Objects = objects_beside(ref)
    if shared is not None:
        place = checkpoint_place(shared.uri, ref.uri).removeprefix(f"{shared.uri}/")
        objects = _Below(
            shared, place if is_local(shared.uri) else unquote(place)
        )  # a path, not a URI
    yield from _check_files(objects, "checkpoints", _decodes, aside)
    yield from _check_columns(dataset)
    yield from _check_view(dataset)
    yield from _check_versions(dataset)


@dataclass(frozen=True, slots=True)
class _Below(Objects):
    """The objects below a folder of a store. Paths are relative to the folder."""

    objects: Objects
    folder: str

    def put(self, path: str, data: bytes) -> None:
        self.objects.put(f"{self.folder}/{path}", data)

    def get(self, path: str) -> bytes | None:
        return self.objects.get(f"{self.folder}/{path}")

    def list(self, prefix: str) -> list[str]:
        paths = self.objects.list(f"{self.folder}/{prefix}")
        return [path.removeprefix(f"{self.folder}/") for path in paths]

    def delete(self, path: str) -> None:
        self.objects.delete(f"{self.folder}/{path}")

    def remove_leftovers(self, prefix: str, *, older_than_s: float) -> int:
        return self.objects.remove_leftovers(f"{self.folder}/{prefix}", older_than_s=older_than_s)


@dataclass(frozen=True, slots=True)
class _Aside:
    """The folder for damaged files of a repair."""

    folder: str

    def move(self, objects: Objects, path: str) -> None:
        """Moves an object; a missing object is no error."""
        data = objects.get(path)
        if data is not None:
            objects.put(f"{self.folder}/{path}", data)
        objects.delete(path)


def _check_table(ref: DatasetRef, table: SystemTable, aside: _Aside | None) -> Iterator[Damage]:
    for check_of_table in (_check_links, _check_manifests):
        unreadable = list(check_of_table(ref, table, aside))
        yield from unreadable
        if unreadable and aside is None:
            return  # no link is followed, and without the manifest no rows are known
    rows, files = read_intact_rows(ref, table)
    intact, broken = _split_rows(rows, _ROW_CHECKS[table])
    remedy = "The repair keeps the readable rows and moves the damaged files aside."
    damages = [
        Damage(place=f"{table.name}/{file.path}", problem=file.reason, remedy=remedy)
        for file in files
    ]
    damages += [
        Damage(place=f"{table.name}, row {row}", problem=text, remedy=remedy)
        for row, text in broken.items()
    ]
    if damages and aside is not None:
        replace_rows(ref, table, intact)
        for file in files:
            aside.move(objects_beside(ref), f"{table.name.partition('/')[2]}/{file.path}")
    yield from (replace(damage, repaired=aside is not None) for damage in damages)


def _check_links(ref: DatasetRef, table: SystemTable, aside: _Aside | None) -> Iterator[Damage]:
    """Yields links on the way to a side table; the repair removes the links."""
    at = table_ref(ref, table)
    while link := LanceObjects(at.uri, at.storage_options).find_link():
        place = os.path.relpath(link, ref.uri)
        if aside is not None:
            LanceObjects(ref.uri, ref.storage_options).delete(place)
        remedy = "The repair removes the link, and leaves the target of the link."
        problem = "it is a link, and no link is followed"
        yield Damage(place=place, problem=problem, remedy=remedy, repaired=aside is not None)
        if aside is None:
            return


def _check_manifests(ref: DatasetRef, table: SystemTable, aside: _Aside | None) -> Iterator[Damage]:
    """Yields latest manifests that cannot be opened; the repair restores the previous version."""
    objects, name = objects_beside(ref), table.name.partition("/")[2]
    while paths := objects.list(f"{name}/_versions"):
        problem = _problem_of_latest(table_ref(ref, table), objects, paths[0])
        if problem is None:
            return
        remedy = "The repair moves the manifest aside and falls back to the version before."
        yield Damage(
            place=f"{FOLDER}/{paths[0]}", problem=problem, remedy=remedy, repaired=aside is not None
        )
        if aside is None:
            return
        aside.move(objects, paths[0])


def _problem_of_latest(at: DatasetRef, objects: LanceObjects, manifest: str) -> str | None:
    """Returns the reason why the latest version cannot be opened, or None.

    A short failure of the store is no damage: the manifest is fetched and opened again.

    Raises:
        TableUnreadableError: The store refused.
    """
    problem = None
    for _ in range(2):
        try:
            at.open_latest()
        except TableUnreadableError as error:
            problem = str(error)
            objects.get(manifest)
        else:
            return None
    return problem


def _split_rows(
    rows: pa.Table, parse: Callable[[dict[str, Any]], object]
) -> tuple[pa.Table, dict[int, str]]:
    """Returns the rows that `parse` accepts, and the problems of the other rows by number."""
    broken: dict[int, str] = {}
    for number in range(rows.num_rows):
        try:
            parse(rows.slice(number, 1).to_pylist()[0])
        except (ValueError, TypeError, ArithmeticError) as error:
            broken[number] = str(error)
    intact = pa.array([number not in broken for number in range(rows.num_rows)], pa.bool_())
    return rows.filter(intact), broken


def _check_files(
    objects: Objects,
    folder: str,
    problem_of: Callable[[str, bytes], str | None],
    aside: _Aside | None,
) -> Iterator[Damage]:
    for path in objects.list(folder):
        data = objects.get(path)
        problem = None if data is None else problem_of(path, data)
        if data is None or problem is None:
            continue
        is_newer = folder == "checkpoints" and is_of_newer_release(data)
        if aside is not None and not is_newer:
            aside.move(objects, path)
        remedy = "The repair moves the file aside. The next backfill computes its values again."
        if is_newer:
            remedy = "The repair leaves the file. Check and repair the table with the newer release that wrote it."
        elif folder == "udfs":
            remedy = (
                "The repair moves the file aside. Give the column its UDF again with alter_columns."
            )
        is_repaired = aside is not None and not is_newer
        yield Damage(place=path, problem=problem, remedy=remedy, repaired=is_repaired)


def _decodes(_path: str, data: bytes) -> str | None:
    try:
        decode(data)
    except CheckpointError as error:
        return str(error)
    return None


def _has_digest(path: str, data: bytes) -> str | None:
    digest = UDF.payload_digest(data)
    return None if path.endswith(f"/{digest}") else f"the content has the digest {digest}"


def _check_columns(dataset: lance.LanceDataset) -> Iterator[Damage]:
    for field in dataset.schema:
        text = (field.metadata or {}).get(BINDING_KEY.encode())
        try:
            if text is not None:
                Binding.from_json(text.decode(), field.name)
        except (StoredUdfError, UnicodeDecodeError) as error:
            remedy = "Give the column a UDF again with alter_columns."
            yield Damage(place=f"column {field.name!r}", problem=str(error), remedy=remedy)


def _check_view(dataset: lance.LanceDataset) -> Iterator[Damage]:
    try:
        if view_of(dataset) is not None:
            refreshed_of(dataset)
    except ViewError as error:
        yield Damage(
            place="schema", problem=str(error), remedy="Drop the view and create the view again."
        )


def _check_versions(dataset: lance.LanceDataset) -> Iterator[Damage]:
    remedy = "Nothing to do: the version is shown without the summary, and cleanup_old_versions removes it."
    for version in sorted(version_ref["version"] for version_ref in dataset.version_refs()):
        event = event_of(dataset, version)
        try:
            if SUMMARY_KEY in event.properties:
                CommitResult.from_json(
                    event.properties[SUMMARY_KEY], uri=dataset.uri, version=version
                )
        except ValueError as error:
            yield Damage(place=f"version {version}", problem=str(error), remedy=remedy)
