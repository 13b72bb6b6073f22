"""The plan of an agent, for users: :class:`AgentPlan`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lance_spark.agent.settings import join_names
from lance_spark.display import Displayable, join_counts
from lance_spark.errors import counted
from lance_spark.jobs.results import BackfillJobResult, RefreshJobResult

StepStatus = Literal["due", "done", "failed", "waiting", "not allowed", "other product"]
"""due: the step can start. waiting: the step starts later, for the stated reason. not allowed: the
agent runs no stored code of the table. other product: another product keeps the column up to
date."""


StepKey: TypeAlias = tuple[str, str, tuple[str, ...]]
"""Location of a table, action and columns of a step: different for any two jobs."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AgentStep(Displayable):
    """A column or a view that is out of date, and the job that brings it up to date.

    Attributes:
        table_name: Name of the table, with its namespaces. A part with a dot is in backquotes.
        table_uri: Location of the table.
        action: `backfill` of a column, `refresh` of a view, or `open` for an unreadable table.
        columns: Columns to fill: a column, or the sibling columns of a UDF. None for a refresh.
        status: `due`, `done`, `failed`, `waiting`, `not allowed` or `other product`.
        reason: Reason of the status, or None.
        version: Version of the table.
        after: Names of the steps that come first, because this step reads their results.
        after_keys: The `key` of these steps.
        rows: Rows to compute, to add, to rewrite or to remove. None if not counted.
        estimated_seconds: Estimated duration of the job, by earlier jobs or by a sample; None
            without either.
        estimated_cost: Estimated cost of the calls, by earlier jobs or by a sample, in the unit of
            `@udf(cost=)`; None without either.
        result: Result of the job, if the job has ended.

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
        step = db.agent(allow=["books"]).plan().steps[0]
        assert (step.name, step.status, step.rows) == ("books.double", "due", 10)
        ```
    """

    table_name: str
    table_uri: str
    action: Literal["backfill", "refresh", "open"]
    columns: tuple[str, ...] = ()
    status: StepStatus = "due"
    reason: str | None = None
    version: int = 0
    after: tuple[str, ...] = ()
    after_keys: tuple[StepKey, ...] = ()
    rows: int | None = None
    estimated_seconds: float | None = None
    estimated_cost: float | None = None
    result: BackfillJobResult | RefreshJobResult | None = None

    @property
    def name(self) -> str:
        """Name of the step: the name of the view, or of the table with the column."""
        columns = "+".join(join_names((column,)) for column in self.columns)
        return f"{self.table_name}.{columns}" if columns else self.table_name

    @property
    def key(self) -> StepKey:
        """Location of the table, action and columns: different for any two jobs."""
        return self.table_uri, self.action, self.columns

    @property
    def text(self) -> str:
        """Summary of the step."""
        return ". ".join(
            filter(
                None, (f"{self.action} of {self.name}: {self.status}", self._numbers, self.reason)
            )
        )

    @property
    def _numbers(self) -> str:
        if self.result is not None:
            return self.result.text
        seconds, cost = self.estimated_seconds, self.estimated_cost
        return join_counts(
            "" if self.rows is None else counted(self.rows, "row"),
            "" if seconds is None else f"about {seconds:,.1f} s",
            f"cost about {cost:,.4g}" if cost else "",
            f"after {', '.join(self.after)}" if self.after else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AgentPlan(Displayable):
    """The steps of an agent, in the order of their dependencies.

    Attributes:
        steps: The steps: out-of-date columns and views, and tables that the agent must leave alone.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        query = books.search(None).select(["id"]).where("price > 50")
        db.create_materialized_view("expensive", query, auto_refresh=True)
        print(db.agent(allow=["*"]).plan().explain())
        ```
    """

    steps: tuple[AgentStep, ...] = ()

    @property
    def has_work(self) -> bool:
        """Whether a step is due."""
        return any(step.status == "due" for step in self.steps)

    @property
    def text(self) -> str:
        """Summary of the plan: the number of steps by status."""
        counts = Counter(step.status for step in self.steps)
        return (
            join_counts(*((count, str(status)) for status, count in counts.items()))
            or "everything is up to date"
        )

    def explain(self) -> str:
        """Returns the plan as text, one line per step."""
        return "\n".join([self.text, *(f"  {step.text}" for step in self.steps)])
