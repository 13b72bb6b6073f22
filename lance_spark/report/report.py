"""Reports of tables: :class:`Report`."""

from __future__ import annotations

import html
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lance_spark.arguments import ARGUMENTS
from lance_spark.dataset import DatasetRef
from lance_spark.display import Displayable, join_counts
from lance_spark.errors import OptionError, TableNotFoundError, counted
from lance_spark.report.collect import (
    MOST_TABLES,
    describe_table,
    jobs_of,
    latest_jobs,
    query_states,
    with_errors,
)
from lance_spark.report.page import render_page
from lance_spark.report.states import JobState, PlaceState, TableState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@ARGUMENTS.methods
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Report(Displayable):
    """The jobs and the state of tables, as one page of HTML.

    Made by :meth:`lance_spark.Table.report` and :meth:`lance_spark.Connection.report`. A notebook
    shows the page. The page has no scripts, and needs no network.

    Attributes:
        place: Location of the table, the folder or the namespace.
        made_at: Time of the report.
        tables: Number of tables.
        jobs: Number of jobs in the histories of the shown tables.
        running: Number of running jobs.
        html: The page.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        report = books.report()
        report.save("report.html")
        print(report)  # 1 table
        ```
    """

    place: str
    made_at: datetime
    tables: int
    jobs: int
    running: int
    html: str = field(repr=False)

    @property
    def text(self) -> str:
        """Summary: `3 tables, 12 jobs, 1 running`."""
        return join_counts(
            counted(self.tables, "table"),
            counted(self.jobs, "job") if self.jobs else "",
            (self.running, "running"),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page into a file of this machine. An existing file is replaced.

        Args:
            path: The file, such as `report.html`.

        Raises:
            OptionError: The file cannot be written.

        Example:
            ```python
            from pathlib import Path

            import lance_spark

            db = lance_spark.connect("library")
            db.create_table("books", [{"id": 1}])
            db.report().save("report.html")
            assert "books" in Path("report.html").read_text()
            ```
        """
        try:
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.html)
        except (OSError, ValueError) as error:
            problem = f"cannot be written: {error}"
            raise OptionError(
                "path", os.fspath(path), "a file in an existing folder", problem=problem
            ) from error

    def _repr_html_(self) -> str:
        """Returns the page in a frame, where its styles stay, and where no script can run."""
        return (
            f'<iframe sandbox title="lance-spark" srcdoc="{html.escape(self.html)}" '
            'style="width: 100%; height: 42rem; border: 1px solid #8884"></iframe>'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedTable:
    """A table for a report, or the reason why the table cannot be opened.

    Attributes:
        name: Name of the table.
        uri: Location of the table.
        ref: The table; None if the table cannot be opened.
        checkpoints: Location of the checkpoints; None is next to the table.
        problem: Why the table cannot be opened.
    """

    name: str
    uri: str
    ref: DatasetRef | None = None
    checkpoints: str | None = None
    problem: str = ""


def make_report(
    place: str,
    tables: Iterable[ReportedTable],
    *,
    total: int | None,
    spark: SparkSession | None = None,
) -> Report:
    """Returns the report of tables. Reads metadata and histories, and starts no Spark session.

    Args:
        place: Location of the tables, for the title.
        tables: The tables; only the first :data:`MOST_TABLES` are read.
        total: Number of all tables of a folder; None for the report of a single table.
        spark: A session whose streaming queries the report has.

    Raises:
        TableNotFoundError: The single table does not exist.
    """
    states: list[TableState] = []
    jobs: list[JobState] = []
    refs: dict[str, DatasetRef] = {}
    for table in itertools.islice(tables, MOST_TABLES):
        described = _describe(table, is_alone=total is None)
        jobs = latest_jobs(itertools.chain(jobs, jobs_of(described)))
        states.append(replace(described, jobs=()))
        if table.ref is not None:
            refs[table.uri] = table.ref
    state = PlaceState(
        place=place,
        is_folder=total is not None,
        tables=states,
        tables_total=len(states) if total is None else total,
        jobs=with_errors(jobs, refs),
        queries=query_states(spark),
    )
    made_at = datetime.now(UTC)
    return Report(
        place=place,
        made_at=made_at,
        tables=state.tables_total,
        jobs=sum(table.jobs_total for table in states),
        running=sum(table.jobs_running for table in states),
        html=render_page(state, made_at),
    )


def _describe(table: ReportedTable, *, is_alone: bool) -> TableState:
    if table.ref is None:
        return TableState(name=table.name, uri=table.uri, problems=(table.problem,))
    try:
        return describe_table(table.ref, table.name, checkpoints=table.checkpoints)
    except TableNotFoundError as error:
        if is_alone:
            raise
        return TableState(
            name=table.name, uri=table.uri, problems=(str(error),)
        )  # dropped a moment ago
