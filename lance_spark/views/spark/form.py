"""The stored form of a query of Spark: nested SELECTs over the source, as text in Spark SQL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_spark.errors import RegistrationError, ViewError
from lance_spark.jvm.gateway import is_classic
from lance_spark.types.names import quote_identifier

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

_ALL_COLUMNS = ("*",)


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

    def text_over(self, source: str) -> str:
        """Returns the SELECT as text over a table, or over a query in parentheses."""
        alias = "" if self.alias is None else f" AS {quote_identifier(self.alias)}"
        where = "" if self.where is None else f" WHERE {self.where}"
        return f"SELECT {', '.join(self.select)} FROM {source}{alias}{where}"  # noqa: S608 - for a message


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkForm:
    """A query of Spark over a single table.

    Attributes:
        blocks: The SELECTs, the innermost first.
        settings: The values of :data:`SETTINGS` in the session of the creation.
    """

    blocks: tuple[Block, ...]
    settings: tuple[tuple[str, str], ...]

    @property
    def is_of_text(self) -> bool:
        """Whether the view was made from a SELECT as text.

        Earlier releases also stored DataFrames. These have no name of the source, or all columns.
        """
        return (
            bool(self.blocks)
            and self.blocks[0].alias is not None
            and all(block.select != _ALL_COLUMNS for block in self.blocks)
        )

    def as_text(self, table: str) -> str:
        """Returns the query as a single SELECT over a table."""
        text = quote_identifier(table)
        for depth, block in enumerate(self.blocks):
            text = block.text_over(f"({text})" if depth else text)
        return text

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
        blocks = [
            Block(
                alias=block["alias"],
                where=block["where"],
                select=_ALL_COLUMNS if block["select"] is None else tuple(map(str, block["select"])),
            )
            for block in values["blocks"]
        ]
        settings = tuple((str(k), str(v)) for k, v in values["settings"])
        unknown = sorted({name for name, _ in settings} - set(SETTINGS))
        if unknown:
            raise ValueError(f"a view has no setting {unknown[0]}")
        return SparkForm(blocks=tuple(blocks), settings=settings)

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
            calls = ", ".join(f"spark.conf.set({name!r}, {value!r})" for name, value in changes.items())
            raise ViewError(
                f"the session has other settings than the one that made the view, so its expressions would mean "
                f"something else: {json.dumps(changes)} - view {view_uri} - over Spark Connect set them first: {calls}",
                uri=view_uri,
            )
        return self.beside(spark)

    def beside(self, spark: SparkSession) -> SparkSession:
        """Returns a new classic session with the query's settings."""
        session = spark.newSession()
        for name, value in self.settings:
            session.conf.set(name, value)
        return session


def settings_of(spark: SparkSession) -> tuple[tuple[str, str], ...]:
    """Returns the settings of a session with an effect on the meaning of a query."""
    # `get` with a default of this package would hide Spark's default.
    values = ((name, spark.conf.get(name)) for name in SETTINGS)
    return tuple((name, value) for name, value in values if value is not None)
