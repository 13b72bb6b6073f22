"""The method of a connection for its agent: a part of the facade."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from lance_spark.agent.agent import Agent
from lance_spark.agent.looks import WatchedTables
from lance_spark.agent.settings import AgentSettings, patterns_of
from lance_spark.arguments import ARGUMENTS
from lance_spark.table.agent_table import AgentTable
from lance_spark.table.connections.folders import FolderTables
from lance_spark.table.connections.namespaces import NamespaceTables

if TYPE_CHECKING:
    from lance_spark.table.table import Table


@ARGUMENTS.methods
class ConnectionAgents(ABC):
    """The methods of :class:`lance_spark.Connection` for agents."""

    _tables: FolderTables | NamespaceTables
    _spark: SparkSession | None

    @abstractmethod
    def open_table(self, name: str, *, namespace: Sequence[str] | None = None) -> Table:
        """Opens a table."""

    def agent(
        self,
        *,
        allow: Sequence[str] = (),
        claim: Sequence[str] = (),
        max_jobs: int = 1,
        max_calls: int | None = None,
        max_seconds: float | None = None,
        max_cost: float | None = None,
        trigger: timedelta = timedelta(minutes=1),
        debounce: timedelta = timedelta(seconds=10),
    ) -> Agent:
        """Returns an agent for the columns with `auto_backfill` and the views with `auto_refresh`.

        The agent does nothing before its `run` or `run_once`. It fills columns as
        `backfill(stale=True)` does, and refreshes views.

        Args:
            allow: Names of tables whose stored code the agent may run, where `*` stands for any
                text; tables of a namespace as `namespace.table`. A part with a dot or a backquote
                is in backquotes, as in Spark. Tables of a catalog with `allow_stored_code` are
                allowed, too. Others are in plans as *not allowed*.
            claim: Names of columns, as `table.column`, that have a UDF of another product, too. By
                default the agent leaves these columns alone.
            max_jobs: Maximum number of concurrent jobs.
            max_calls: Maximum number of rows for UDFs in an hour, for all jobs of agents together.
                A job gets a share of the rest, and ends at its share. A table function runs to its
                end.
            max_seconds: Maximum seconds of jobs in an hour.
            max_cost: Maximum cost of the rows in an hour, in the unit of `@udf(cost=)`.
            trigger: Time between looks at the tables. A column that keeps failing waits twice as
                long after each failure, an hour at most.
            debounce: Age of the last commit of a table before `run` starts its jobs, so that many
                small commits cause one job. Steady commits delay a job ten times as long at most.

        Raises:
            OptionError: A setting is not valid.

        Example:
            ```python
            import lance_spark
            from lance_spark import udf


            @udf(auto_backfill=True)
            def double(price: int) -> int:
                return 2 * price


            db = lance_spark.connect("library")
            books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
            books.add_columns({"double": double})
            agent = db.agent(allow=["books"], max_calls=1_000_000)
            print(agent.plan().explain())
            print(agent.run_once())
            ```
        """
        settings = AgentSettings(
            allow=patterns_of("allow", allow),
            claim=patterns_of("claim", claim),
            max_jobs=max_jobs,
            max_calls=max_calls,
            max_seconds=max_seconds,
            max_cost=max_cost,
            trigger=trigger,
            debounce=debounce,
        )
        source = WatchedTables(
            list_tables=self._list_all_tables,
            open_table=lambda path: AgentTable(
                self.open_table(path[-1], namespace=path[:-1] or None)
            ),
            find_session=lambda: self._spark or SparkSession.getActiveSession(),
        )
        return Agent(source, settings)

    def _list_all_tables(self) -> Iterator[tuple[str, ...]]:
        """Yields the names of all tables, with the names of their namespaces."""
        paths: list[tuple[str, ...]] = [()]
        while paths:
            path = paths.pop()
            yield from ((*path, name) for name in self._tables.names(path))
            if isinstance(self._tables, NamespaceTables):
                paths += [(*path, name) for name in self._tables.namespaces(path)]
