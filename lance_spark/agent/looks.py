"""Looks of an agent at tables: :class:`TableLook`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Protocol, TypeAlias

from lance_spark.backfill.planning.explain import BackfillPlan
from lance_spark.backfill.spending import Spending
from lance_spark.columns.binding import Binding, find_auto_backfilled
from lance_spark.commit.conflicts.identity import field_identities
from lance_spark.dataset import DatasetRef, incarnation_of
from lance_spark.jobs.handle import Job
from lance_spark.jobs.records import JobRecord
from lance_spark.jobs.results import BackfillJobResult, RefreshJobResult
from lance_spark.lance_compat import moment_of, version_of
from lance_spark.views.definition import ViewDefinition, existing_view, is_auto_refreshed, view_of
from lance_spark.views.plan import RefreshPlan

if TYPE_CHECKING:
    import lance
    from pyspark.sql import SparkSession

_OTHER_PRODUCT_KEY = b"virtual_column"
"""Field metadata of a column with a UDF of Geneva."""


class KeptTable(Protocol):
    """A table for the agent. All methods are those of :class:`lance_spark.Table`."""

    @property
    def ref(self) -> DatasetRef:
        """The table, at its latest version."""

    def list_jobs(self) -> list[JobRecord]:
        """Returns the jobs, newest first."""

    def plan_backfill(
        self, columns: tuple[str, ...], *, exact: bool, sample: int | None = None
    ) -> BackfillPlan:
        """Plans a backfill of outdated rows and rows without a value."""

    def plan_refresh(self) -> RefreshPlan:
        """Plans a refresh."""

    def start_backfill(
        self, columns: tuple[str, ...], job_id: str, budget: Spending, last_fragment: int | None
    ) -> Job[BackfillJobResult] | None:
        """Starts a backfill of outdated rows and rows without a value.

        Returns None if all fragments have ids above `last_fragment`.
        """

    def start_refresh(self, job_id: str, budget: Spending) -> Job[RefreshJobResult]:
        """Starts a refresh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedTables:
    """The tables of an agent.

    Attributes:
        list_tables: Returns the names of all tables, each with the names of its namespaces.
        open_table: Opens the table of such names.
        find_session: Returns the present session of Spark, or None.
        only: The columns of a watch, with or without a mark, in its only table. None for an agent,
            which fills marked columns and refreshes marked views.
    """

    list_tables: Callable[[], Iterable[tuple[str, ...]]]
    open_table: Callable[[tuple[str, ...]], KeptTable]
    find_session: Callable[[], SparkSession | None]
    only: tuple[str, ...] | None = None


VersionKey = tuple[int, str]
"""A version and its incarnation."""

ColumnGroups: TypeAlias = Mapping[tuple[str, ...], frozenset[tuple[str, ...]]]
"""Groups of columns, each with the groups of its inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLook:
    """The latest version of a table, and its columns and its view for the agent.

    Attributes:
        name: Name of the table, with its namespaces, as of :func:`join_names`.
        version: The version.
        committed_at: Time of its commit.
        last_fragment: Highest id of its fragments; -1 without fragments.
        groups: The columns with `auto_backfill`, sibling columns together, each group with the
            groups of its inputs.
        foreign: The columns with a UDF of another product.
        view: The definition of a view with `auto_refresh`, or None.
        source_uri: Location of the source of any view, or None.
        source_version: Version of the source of a view with `auto_refresh`, or None.
    """

    name: str
    table: KeptTable
    version: VersionKey
    committed_at: datetime
    groups: ColumnGroups
    foreign: frozenset[str]
    view: ViewDefinition | None
    source_uri: str | None
    source_version: VersionKey | None = None
    last_fragment: int = -1

    @property
    def uri(self) -> str:
        """Location of the table."""
        return self.table.ref.uri

    @property
    def ref(self) -> DatasetRef:
        """The table, at its latest version."""
        return self.table.ref

    @property
    def has_work(self) -> bool:
        """Whether the table has a column or a view for the agent."""
        return bool(self.groups or self.view is not None)

    @staticmethod
    def of(name: str, table: KeptTable, only: tuple[str, ...] | None = None) -> TableLook:
        """Describes the latest version of a table, for an agent or for the columns of a watch.

        Raises:
            TableNotFoundError: The table was dropped.
            ViewError: The definition of a view is damaged.
        """
        dataset = table.ref.open_latest()
        if only is not None:
            return TableLook(
                name=name,
                table=table,
                version=key_of(dataset),
                committed_at=moment_of(version_of(dataset)),
                groups={only: frozenset()},
                foreign=frozenset(),
                view=None,
                source_uri=None,
            )
        is_kept = is_auto_refreshed(dataset)
        view = existing_view(dataset) if is_kept else view_of(dataset)
        marked = (
            field.name for field in dataset.schema if _OTHER_PRODUCT_KEY in (field.metadata or {})
        )
        return TableLook(
            name=name,
            table=table,
            version=key_of(dataset),
            committed_at=moment_of(version_of(dataset)),
            groups=find_groups(dataset),
            foreign=frozenset(marked),
            view=view if is_kept else None,
            source_uri=None if view is None else view.source_of(table.ref).uri,
            last_fragment=max(dataset.fragment_ids(), default=-1),
        )


def key_of(dataset: lance.LanceDataset) -> VersionKey:
    """Returns the key of an open version. Needs no request."""
    return dataset.version, incarnation_of(dataset)


def in_order(looks: Iterable[TableLook]) -> Iterator[TableLook]:
    """Yields tables, each view after its source."""
    by_uri = {look.uri: look for look in looks}
    ordered_uris: set[str] = set()
    for start in by_uri.values():
        chain: list[TableLook] = []
        look: TableLook | None = start
        while look is not None and look.uri not in ordered_uris:
            ordered_uris.add(look.uri)
            chain.append(look)
            look = by_uri.get(look.source_uri or "")
        yield from reversed(chain)


def sort_groups(groups: ColumnGroups) -> ColumnGroups:
    """Returns groups of columns, each after the groups of its inputs.

    Columns in a cycle, and columns that read such columns, have the order of the table.
    """
    sorter = TopologicalSorter(dict.fromkeys(groups, ()))
    for columns, inputs in groups.items():
        sorter.add(columns, *inputs)
    order: list[tuple[str, ...]] = []
    with contextlib.suppress(CycleError):
        sorter.prepare()
    while ready := sorter.get_ready():
        order += ready
        sorter.done(*ready)
    ordered: dict[tuple[str, ...], frozenset[tuple[str, ...]]] = {}
    for columns in (*order, *groups):
        if columns not in ordered:
            ordered[columns] = frozenset(group for group in groups[columns] if group in ordered)
    return ordered


def find_groups(dataset: lance.LanceDataset) -> ColumnGroups:
    """Returns the columns of the agent in table order, with the groups of their inputs.

    Needs no request.
    """
    groups = find_auto_backfilled(dataset)
    if not groups:
        return {}
    owners = {name: columns for columns in groups for name in columns}
    names = {field.id: field.name for field in field_identities(dataset.lance_schema)}
    return {
        columns: _reads(binding, names, owners) - {columns} for columns, binding in groups.items()
    }


def _reads(
    binding: Binding, names: Mapping[int, str], owners: Mapping[str, tuple[str, ...]]
) -> frozenset[tuple[str, ...]]:
    """Returns the groups with the inputs of a UDF. The inputs of a view's UDF are in its source."""
    if binding.of_source:
        return frozenset()
    inputs = (names.get(number, "") for number in binding.input_ids)
    return frozenset(owners[name] for name in inputs if name in owners)
