"""Queries over one table: what to select, and which rows. A description, that reads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias, TypeVar

from lance_spark.catalog.adding import Computed, parse_transforms
from lance_spark.dataset import DatasetRef
from lance_spark.errors import OptionError, RegistrationError
from udf_runtime import UDF, UnpackedUDF

_Table_co = TypeVar("_Table_co", covariant=True)

Selection: TypeAlias = "Sequence[str | UDF | UnpackedUDF] | Mapping[str, str | UDF | tuple[UDF, list[str]]]"


class ViewMaker(Protocol[_Table_co]):
    """What makes views: a :class:`lance_spark.Connection`."""

    def create_materialized_view(self, name: str, query: Query) -> _Table_co:
        """Makes a materialized view."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A query over one table. Each method returns another one; nothing is read.

    Made by :meth:`lance_spark.Table.search`.

    Attributes:
        source: The table.
        columns: Names of the selected columns, with expressions in Lance SQL; None selects all.
        computed: Selected columns of UDFs.
        condition: The filter in Lance SQL.
        bounds: What was asked for with `limit` and `offset`.
    """

    source: DatasetRef
    columns: tuple[tuple[str, str], ...] | None = None
    computed: tuple[Computed, ...] = ()
    condition: str | None = None
    bounds: tuple[tuple[str, int], ...] = ()

    def select(self, columns: Selection) -> Query:
        """Selects columns.

        Args:
            columns: Names, in the order of the result; a list may also have UDFs that return
                `Columns[T]`, or `UnpackedUDF`. Or a dict of names, each with an expression in Lance
                SQL, a UDF whose parameters are named like columns of the table, or `(udf, ["a",
                "b"])`, which binds its parameters to these columns in order.

        Raises:
            OptionError: It is neither, or empty.
            RegistrationError: A value of the dict is none of these.
        """
        if isinstance(columns, Mapping) and columns:
            sql, computed = parse_transforms(columns)
            return replace(self, columns=tuple(sql.items()), computed=tuple(computed))
        if isinstance(columns, str) or not isinstance(columns, Sequence) or not columns:
            raise OptionError("select", repr(columns), "a list of columns, or a dict of names and expressions")
        names = [name for name in columns if isinstance(name, str)]
        computed = [one for udf in columns if not isinstance(udf, str) for one in parse_transforms(udf)[1]]
        return replace(self, columns=tuple((name, quoted(name)) for name in names), computed=tuple(computed))

    def where(self, condition: str) -> Query:
        """Selects the rows that match a condition in Lance SQL.

        Raises:
            OptionError: It is no text.
        """
        if not isinstance(condition, str) or not condition.strip():
            raise OptionError("where", repr(condition), "a condition in Lance SQL")
        return replace(self, condition=condition)

    def limit(self, rows: int) -> Query:
        """Notes a limit; a materialized view refuses it."""
        return replace(self, bounds=(*self.bounds, ("limit", rows)))

    def offset(self, rows: int) -> Query:
        """Notes an offset; a materialized view refuses it."""
        return replace(self, bounds=(*self.bounds, ("offset", rows)))

    def create_materialized_view(self, db: ViewMaker[_Table_co], name: str) -> _Table_co:
        """Makes a materialized view of this query: `db.create_materialized_view(name, query)`."""
        return db.create_materialized_view(name, self)

    def refuse_bounds(self) -> None:
        """Refuses what no view can keep up to date.

        Raises:
            RegistrationError: The query has a limit or an offset.
        """
        for bound, rows in self.bounds:
            raise RegistrationError(
                f"a materialized view cannot have {bound}({rows}): which rows are the first ones changes with every "
                f"row that is added or deleted, so no refresh could tell what to keep - over {self.source.uri} - "
                f"select rows with where(...), or leave the {bound} to the queries over the view"
            )


def quoted(name: str) -> str:
    """Returns a column's name as an expression in Lance SQL."""
    return f"`{name}`"
