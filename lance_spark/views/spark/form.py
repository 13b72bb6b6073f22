"""The stored form of a query of Spark: nested SELECTs over the source, as text in Spark SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_spark.errors import RegistrationError, ViewError
from lance_spark.jvm.gateway import is_classic
from lance_spark.types.fields import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROW_ID = "_rowid"
"""Column with the row id in all SELECTs. Lance reserves this name."""

SETTINGS = (
    "spark.sql.ansi.enabled",
    "spark.sql.session.timeZone",
    "spark.sql.caseSensitive",
    "spark.sql.timestampType",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.decimalOperations.allowPrecisionLoss",
    "spark.sql.ansi.doubleQuotedIdentifiers",
    "spark.sql.ansi.enforceReservedKeywords",
    "spark.sql.parser.escapedStringLiterals",
    "spark.sql.parser.quotedRegexColumnNames",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.legacy.sizeOfNull",
)
"""Settings of a session that define the meaning of a text in Spark SQL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A SELECT over the inner block, or over the source.

    Attributes:
        alias: Qualifier for columns. The innermost block has an alias.
        where: Condition on rows.
        select: The columns, each with its name (`x + 1 AS y`).
    """

    alias: str | None
    where: str | None
    select: tuple[str, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """All expressions."""
        return self.select if self.where is None else (self.where, *self.select)

    def over(self, frame: DataFrame, *carried: str) -> DataFrame:
        """Returns the SELECT over a DataFrame, with additional columns first."""
        if self.alias is not None:
            frame = frame.alias(self.alias)
        if self.where is not None:
            frame = frame.where(self.where)
        return frame.selectExpr(*carried, *self.select)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkForm:
    """A query of Spark over a single table.

    Attributes:
        blocks: The SELECTs, the innermost first.
        settings: The values of :data:`SETTINGS` in the session of the creation.
    """

    blocks: tuple[Block, ...]
    settings: tuple[tuple[str, str], ...]

    def over(self, frame: DataFrame, *carried: str) -> DataFrame:
        """Returns the query over a DataFrame with the columns of the source."""
        for block in self.blocks:
            frame = block.over(frame, *carried)
        return frame

    @staticmethod
    def of(values: Mapping[str, Any] | None) -> SparkForm | None:
        """Returns the form of JSON values; damaged values raise errors of dicts."""
        if values is None:
            return None
        blocks = _join_steps(values["blocks"])
        settings = tuple((str(k), str(v)) for k, v in values["settings"])
        unknown = sorted({name for name, _ in settings} - set(SETTINGS))
        if unknown:
            raise ValueError(f"a view has no setting {unknown[0]}")
        return SparkForm(blocks=blocks, settings=settings)

    @staticmethod
    def check_columns(expressions: Iterable[str], columns: Iterable[str]) -> None:
        """Refuses expressions of columns, except names of columns of the query.

        Raises:
            RegistrationError: An expression is more than a name.
        """
        names = {quote_identifier(name) for name in columns}
        for text in expressions:
            if text not in names:
                raise RegistrationError(f"the expression {text!r} is no column of the view's query")

    def session(self, spark: SparkSession, view_uri: str) -> SparkSession:
        """Returns a session with the settings of the query: this session or a new session.

        Raises:
            ViewError: A session of Spark Connect has other settings.
        """
        have = dict(settings_of(spark))
        changes = {name: value for name, value in self.settings if have.get(name) != value}
        if not changes:
            return spark
        if not is_classic(spark):
            calls = ", ".join(
                f"spark.conf.set({name!r}, {value!r})" for name, value in changes.items()
            )
            raise ViewError(
                f"Settings of the session change the meaning of the expressions of the view {view_uri}. Over Spark "
                f"Connect, set the settings of the view first: {calls}",
                uri=view_uri,
            )
        return self.new_session(spark)

    def new_session(self, spark: SparkSession) -> SparkSession:
        """Returns a new classic session with the query's settings."""
        session = spark.newSession()
        for name, value in self.settings:
            session.conf.set(name, value)
        return session


def _join_steps(steps: Iterable[Mapping[str, Any]]) -> tuple[Block, ...]:
    """Returns the SELECTs of stored steps.

    Earlier commits stored the queries of CREATE MATERIALIZED VIEW and of DataFrames as steps. A
    step without columns has an alias or a condition of the next SELECT.

    Raises:
        ValueError: The last step has no columns.
    """
    blocks: list[Block] = []
    alias: str | None = None
    conditions: list[str] = []
    for step in steps:
        alias = step["alias"] or alias
        conditions += [] if step["where"] is None else [str(step["where"])]
        if step["select"] is not None:
            where = (
                conditions[0]
                if len(conditions) == 1
                else " AND ".join(f"({text}\n)" for text in conditions)
            )
            blocks.append(
                Block(alias=alias, where=where or None, select=tuple(map(str, step["select"])))
            )
            alias, conditions = None, []
    if alias is not None or conditions:
        raise ValueError("the last SELECT of a view has no columns")
    return tuple(blocks)


def settings_of(spark: SparkSession) -> tuple[tuple[str, str], ...]:
    """Returns the settings of a session with an effect on the meaning of a query."""
    # `get` with a default of this package would hide Spark's default.
    values = ((name, spark.conf.get(name)) for name in SETTINGS)
    return tuple((name, value) for name, value in values if value is not None)
