"""The start of a refresh: the shown and the requested version. Runs on the driver."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.commit.conflicts.history import events_between
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
from lance_spark.views.definition import (
    CHILD_INDEX,
    ViewDefinition,
    existing_view,
    expressions_of,
    groups_of,
    made_columns,
    used_fields,
)
from lance_spark.views.lance_text import check_lance_texts
from lance_spark.views.placement import PlacementSpec
from lance_spark.views.source_pin import made_anew, refuse_other_source
from lance_spark.views.state import Refreshed, has_unfinished, refreshed_of

if TYPE_CHECKING:
    import lance

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of a refresh: a version of the view, and two versions of the source.

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

    @staticmethod
    def of(ref: DatasetRef, source: DatasetRef, *, job_id: str | None = None) -> Start:
        """Reads the latest version of a view, for a job. Runs on the driver.

        Raises:
            ViewError, ViewSourceError, StableRowIdsError: The view cannot be refreshed.
        """
        view = ref.pin(None)
        dataset = view.open()
        definition = existing_view(dataset)
        shows = refreshed_of(dataset)
        base = None
        # A table function makes all rows again, for any shown version.
        if shows is not None and not definition.makes_table:
            _refuse_unstable(view, source, shows)
            base = _base_of(view, definition, shows)
            _refuse_overwritten(view, source, shows, base)
        if base is None:
            refuse_other_source(view, definition.source_of(view), (shows, definition.pin))
        elif shows is not None and (shows.doubled or (shows.lost and has_unfinished(view, job_id))):
            base = None
        definition.fields_in(source, view.uri)
        _check_texts(view, dataset, definition, source)
        return Start(view=view, dataset=dataset, definition=definition, source=source, shows=shows, base=base)

    def spec(self, staging: Staging, max_rows: int) -> PlacementSpec:
        """Returns the common data of the tasks."""
        definition, function = self.definition, self.definition.function
        source = {field.id: field for field in definition.fields_in(self.source, self.view.uri)}
        groups, expressions = groups_of(self.dataset), expressions_of(self.dataset)
        names = [*definition.row_columns, *(name for name, _ in expressions)]
        inputs = [tuple(source[number] for number in binding.input_ids) for binding, _ in groups]
        computed = [columns for _, columns in groups]
        if definition.makes_table:
            names += [name for _, name in made_columns(self.dataset)]
        elif function is not None:
            function_columns = [name for _, name in made_columns(self.dataset)]
            names += function_columns
            # A row that the condition starts to select is chunked as a new row.
            read = used_fields(self.source.open(), [definition.where or ""], ())
            inputs = [tuple(source[number] for number in {*function.input_ids, *(field.id for field in read)})]
            computed = [(CHILD_INDEX, *function_columns)]
        return PlacementSpec(
            source=self.source,
            base=self.base,
            view=self.view,
            staging=staging,
            columns=expressions,
            where=self.definition.where,
            used=tuple(source.values()),
            groups=tuple(inputs),
            computed=tuple(computed),
            placed=FileLayout.of_table(self.dataset, names),
            moved=FileLayout.of_table(self.dataset, [*names, *(name for columns in computed for name in columns)]),
            max_rows=max_rows,
            makes_chunks=function is not None and not definition.makes_table,
            selects=self.definition.spark is None,
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
    """Returns the shown version; None after a cleanup."""
    try:
        base = definition.pin_source(view, shows.version)
    except VersionNotFoundError:
        latest = definition.pin_source(view, None)
        if (latest.version or 0) < shows.version:
            raise made_anew(view, latest, shows.version) from None
        _LOG.warning(
            "version %s of the source of view %s was cleaned up: all rows are made anew", shows.version, view.uri
        )
        return None
    if base.incarnation != shows.incarnation:
        raise made_anew(view, base, shows.version)
    return base


def _check_texts(view: DatasetRef, dataset: lance.LanceDataset, definition: ViewDefinition, source: DatasetRef) -> None:
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
            f"the view has what no view can have: {error} - view {view.uri} - nothing was changed; make the view anew",
            uri=view.uri,
        ) from error


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
