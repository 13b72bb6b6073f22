"""The shown and the requested version of a refresh: :class:`RefreshBase`. Runs on the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lance_spark.columns.binding import load_udf
from lance_spark.commit.conflicts.history import data_paths, events_between
from lance_spark.dataset import DatasetRef
from lance_spark.errors import (
    FilterError,
    RegistrationError,
    StableRowIdsError,
    VersionNotFoundError,
    ViewError,
    ViewSourceError,
)
from lance_spark.staging.area import Staging
from lance_spark.staging.file_layout import FileLayout
from lance_spark.storage.objects import objects_of_table
from lance_spark.views.definition import (
    CHILD_INDEX,
    ViewDefinition,
    check_lance_texts,
    existing_view,
    expressions_of,
    groups_of,
    made_columns,
    used_fields,
)
from lance_spark.views.placement import PlacementSpec
from lance_spark.views.source_pin import made_anew, refuse_other_source
from lance_spark.views.state import CONFIG_KEY, Refreshed, has_unfinished, refreshed_of
from udf_runtime import UDF

if TYPE_CHECKING:
    import lance

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshBase:
    """A version of the view, and two versions of the source, at the start of a refresh.

    Attributes:
        source: The requested version of the source.
        shows: The shown version of the source; None before the first refresh.
        base: The shown version, for comparison; None if the version was cleaned up or is uncertain,
            or if the rows of the view cannot be trusted.
    """

    view: DatasetRef
    dataset: lance.LanceDataset
    definition: ViewDefinition
    source: DatasetRef
    shows: Refreshed | None
    base: DatasetRef | None

    @property
    def is_current(self) -> bool:
        """Whether the view shows the requested version."""
        if self.definition.makes_table or self.shows is None or self.shows.skipped is not None:
            return False
        return self.base is not None and self.base.version == self.source.version

    @property
    def shows_later(self) -> bool:
        """Whether the view shows a later version than requested."""
        return self.shows is not None and self.shows.version > (self.source.version or 0)

    def noted_at(self, state: Refreshed) -> int | None:
        """Returns the `at` of the view's configuration, if all else equals a state, else None."""
        shows = self.shows
        if shows is None or shows != replace(state, at=shows.at):
            return None
        text = self.dataset.config().get(CONFIG_KEY)
        return shows.at if text == shows.to_json() else None

    @staticmethod
    def of(view: DatasetRef, source: DatasetRef, *, job_id: str | None = None) -> RefreshBase:
        """Reads a pinned version of a view, for a job. Runs on the driver.

        Raises:
            ViewError, ViewSourceError, StableRowIdsError: The view cannot be refreshed.
        """
        dataset = view.open()
        definition = existing_view(dataset)
        shows = refreshed_of(dataset)
        base = None
        # A table function makes all rows again, for any shown version.
        if shows is not None and not definition.makes_table:
            _refuse_unstable(view, source, shows)
            base = _base_of(view, definition, shows, source)
            _refuse_overwritten(view, source, shows, base)
        if base is None:
            refuse_other_source(view, definition.source_of(view), (shows, definition.pin))
        elif shows is not None and (shows.doubled or (shows.lost and has_unfinished(view, job_id))):
            base = None
        definition.fields_in(source, view.uri)
        _check_texts(view, dataset, definition, source)
        return RefreshBase(
            view=view, dataset=dataset, definition=definition, source=source, shows=shows, base=base
        )

    def may_lack_rows(self, *, new: int, unknown: int) -> bool:
        """Tells whether the source may lack rows of the base.

        Args:
            new: Number of rows that the base lacks.
            unknown: Number of rows of unknown origin.
        """
        if self.base is None:
            return False
        # Without deletions, the source has the rows of the base and the new rows.
        return unknown > 0 or self.source.open().count_rows() != self.base.open().count_rows() + new

    def spec(self, staging: Staging, max_rows: int) -> PlacementSpec:
        """Returns the common data of the tasks."""
        definition = self.definition
        fields = {field.id: field for field in definition.fields_in(self.source, self.view.uri)}
        groups = self._groups()
        expressions = expressions_of(self.dataset)
        function_columns = [name for _, name in made_columns(self.dataset)]
        names = [*definition.row_columns, *(name for name, _ in expressions), *function_columns]
        computed = [name for _, columns in groups for name in columns]
        return PlacementSpec(
            source=self.source,
            base=self.base,
            view=self.view,
            staging=staging,
            columns=expressions,
            where=definition.where,
            used=tuple(fields.values()),
            groups=tuple(tuple(fields[number] for number in input_ids) for input_ids, _ in groups),
            computed=tuple(columns for _, columns in groups),
            placed=FileLayout.of_table(self.dataset, names),
            rewrite_layout=FileLayout.of_table(self.dataset, [*names, *computed]),
            max_rows=max_rows,
            makes_chunks=definition.makes_chunks,
            selects=definition.spark is None,
        )

    def _groups(self) -> list[tuple[Iterable[int], tuple[str, ...]]]:
        """Returns the inputs of each UDF, and its columns."""
        function = self.definition.function
        if function is None or self.definition.makes_table:
            return [(binding.input_ids, columns) for binding, columns in groups_of(self.dataset)]
        # A row that the condition starts to select is chunked as a new row.
        condition = used_fields(self.source.open(), [self.definition.where or ""])
        columns = (CHILD_INDEX, *(name for _, name in made_columns(self.dataset)))
        return [({*function.input_ids, *(field.id for field in condition)}, columns)]


def load_functions(start: RefreshBase) -> dict[str, UDF]:
    """Loads the UDFs of a view, and returns them by the digests of their pickles.

    Raises:
        StoredUdfError: A stored UDF cannot be used.
    """
    bindings = [*groups_of(start.dataset), (start.definition.function, ("",))]
    objects = objects_of_table(start.view)
    return {
        binding.payload: load_udf(binding, objects, columns[0])
        for binding, columns in bindings
        if binding is not None
    }


def _refuse_unstable(view: DatasetRef, source: DatasetRef, shows: Refreshed) -> None:
    if not source.open().has_stable_row_ids and shows.version != source.version:
        raise StableRowIdsError(
            f"The view {view.uri} shows version {shows.version} of its source, and cannot follow it to version "
            f"{source.version}, because rows of the source have no stable ids. Source: {source.uri}. "
            f"refresh(src_version={shows.version}) still works. To follow the source, write the source again with "
            "enable_stable_row_ids=True, and make the view again.",
            uri=view.uri,
        )


def _base_of(
    view: DatasetRef, definition: ViewDefinition, shows: Refreshed, source: DatasetRef
) -> DatasetRef | None:
    """Returns the shown version; None after a cleanup."""
    try:
        base = (
            source
            if shows.version == source.version
            else definition.pin_source(view, shows.version)
        )
    except VersionNotFoundError:
        latest = definition.pin_source(view, None)
        if (latest.version or 0) < shows.version:
            raise made_anew(view, latest, shows.version) from None
        _LOG.warning(
            "version %s of the source of view %s was cleaned up: all rows are made anew",
            shows.version,
            view.uri,
        )
        return None
    if base.incarnation != shows.incarnation:
        raise made_anew(view, base, shows.version)
    return base


def _check_texts(
    view: DatasetRef, dataset: lance.LanceDataset, definition: ViewDefinition, source: DatasetRef
) -> None:
    """Checks the stored texts of a view, because any writer of the view may change them."""
    expressions = [text for _, text in expressions_of(dataset)]
    try:
        if definition.spark is None:
            reads = (text for _, text in definition.reads)
            check_lance_texts(source.open(), (*expressions, *reads), definition.where)
        else:
            definition.spark.check_columns(expressions, definition.columns)
    except (RegistrationError, FilterError) as error:
        raise ViewError(
            f"An expression of the view {view.uri} is one that no view can have. Nothing was changed. Make the view "
            f"again. Reason: {error}",
            uri=view.uri,
        ) from error


def _shares_fragment(before: lance.LanceDataset, after: lance.LanceDataset) -> bool:
    """Tells whether two versions have a fragment in common: an overwrite leaves none."""
    for number in before.fragment_ids() & after.fragment_ids():
        old, new = (dataset.get_fragment(number) for dataset in (before, after))
        if (
            old is not None
            and new is not None
            and not set(data_paths([old.metadata])).isdisjoint(data_paths([new.metadata]))
        ):
            return True
    return False


def _refuse_overwritten(
    view: DatasetRef, source: DatasetRef, shows: Refreshed, base: DatasetRef | None
) -> None:
    if base is not None and _shares_fragment(base.open(), source.open()):
        return
    low, high = sorted((shows.version, source.version or 0))
    newest = source if base is None or (source.version or 0) >= shows.version else base
    for event in events_between(newest.open(), low, high):
        if event.name == "Overwrite":
            raise ViewSourceError(
                f"The source of the view {view.uri} was overwritten at version {event.version}, between the shown "
                f"version {shows.version} and version {source.version}. Source: {source.uri}. Nothing was changed. "
                "Make the view again.",
                uri=view.uri,
            )
