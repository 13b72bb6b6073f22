"""Takes a DataFrame of a classic session apart, by its analysed plan in the driver's JVM.

Every expression writes itself as SQL, but for names and lambdas: columns are named by what they
are, and not by what they were called where an expression was made.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from py4j.java_gateway import is_instance_of
from pyspark.sql import DataFrame

from lance_spark.errors import RegistrationError
from lance_spark.types.names import quote_identifier
from lance_spark.views.spark.form import Block, refuse_options
from lance_spark.views.spark.text import FULL_REFRESH, lambda_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Java: TypeAlias = Any
"""An object of the JVM."""

_CATALYST = "org.apache.spark.sql.catalyst"
_PASSED = ("SubqueryAlias", "View")
_CATALOG_TABLES = ("lancespark.LanceTable", "lancespark.EvolvingTable")
"""Classes of tables of a SQL catalog of this package."""

_TABLE = "lance.table"
"""Column metadata of a catalog table: where it lies."""

_DAYS = {"DateAdd": "+", "DateSub": "-"}
"""Sums of a date and an interval, of which Spark takes the days by a function of its own."""

REFUSED: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("Join", "LateralJoin", "AsOfJoin"), ("a join", FULL_REFRESH)),
    **dict.fromkeys(("Aggregate", "Pivot", "Expand"), ("aggregates", FULL_REFRESH)),
    **dict.fromkeys(("Distinct", "Deduplicate"), ("distinct rows", FULL_REFRESH)),
    **dict.fromkeys(("Union", "Intersect", "Except"), ("a set operation", FULL_REFRESH)),
    **dict.fromkeys(
        ("GlobalLimit", "LocalLimit", "Offset", "Tail"), ("a limit", "leave it to the queries over the view")
    ),
    **dict.fromkeys(
        ("Sort", "Repartition", "RepartitionByExpression"), ("an order", "leave it to the queries over the view")
    ),
    "Window": ("a window", FULL_REFRESH),
    "Generate": ("a generator", FULL_REFRESH),
    "Sample": ("a sample", "select rows with where"),
    "WithCTE": ("a WITH", "nest the SELECTs"),
}
"""Nodes of plans, and what serves instead."""


class PlanReader:
    """The parts of one DataFrame.

    Attributes:
        blocks: Its SELECTs, the innermost first.
        uri: Location of its table.

    Raises:
        RegistrationError: It is something else than rows and columns of one Lance table.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._spark: SparkSession = frame.sparkSession
        self._jvm: Java = self._spark._jvm  # noqa: SLF001 - PySpark has no public way into the JVM
        self._gateway = self._spark.sparkContext._gateway  # noqa: SLF001 - as above
        self._names: dict[int, str] = {}
        self._relation: Java = None
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - as above
        self.blocks = tuple(self._blocks(plan, top=True))
        self.uri = _uri_of(self._relation)

    def leaf(self) -> DataFrame:
        """Returns the table's rows as the DataFrame has them."""
        rows = self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(
            self._spark._jsparkSession,  # noqa: SLF001 - as above
            self._relation,
        )
        return DataFrame(rows, self._spark)

    def _blocks(self, plan: Java, *, top: bool) -> list[Block]:
        kind = plan.getClass().getSimpleName()
        if kind in _PASSED:
            return self._blocks(plan.child(), top=top)
        if kind == "DataSourceV2Relation":
            self._relation = plan
            for attribute in _items(plan.output()):
                self._names[attribute.exprId().id()] = attribute.name()
            return []
        if kind == "Filter":
            below = self._blocks(plan.child(), top=top)
            return [*below, Block(where=self._text(plan.condition()))]
        if kind == "Project":
            below = self._blocks(plan.child(), top=False)
            return [*below, Block(select=self._selected(_items(plan.projectList()), top=top))]
        what, instead = REFUSED.get(kind, (f"a step {kind}", "select columns, expressions and rows of one Lance table"))
        raise RegistrationError(
            "a materialized view selects rows of one Lance table, and computes columns row by row, so it cannot have "
            f"{what} - in the DataFrame - {instead}"
        )

    def _selected(self, items: list[Any], *, top: bool) -> tuple[str, ...]:
        """Returns items with their names, which are all different in a SELECT inside."""
        texts, names = [], dict[int, str]()
        for item in items:
            name, number = item.name(), item.exprId().id()
            lower = {known.lower() for known in names.values()}
            if not top and name.lower() in lower:
                name = f"{name}_{number}"
            is_alias = item.getClass().getSimpleName() == "Alias"
            text = self._text(item.child() if is_alias else item)
            texts.append(
                text if text == quote_identifier(name) and not is_alias else f"{text} AS {quote_identifier(name)}"
            )
            names[number] = name
        self._names = names
        return tuple(texts)

    def _text(self, expression: Java) -> str:
        kind = expression.getClass().getSimpleName()
        if kind == "AttributeReference":
            name = self._names.get(expression.exprId().id())
            if name is None:
                raise _untranslated(expression)
            return quote_identifier(name)
        if kind == "NamedLambdaVariable":
            return quote_identifier(f"{expression.name()}_{expression.exprId().id()}")
        if kind == "LambdaFunction":
            return lambda_text(map(self._text, _items(expression.arguments())), self._text(expression.function()))
        if kind == "Literal":
            return str(expression.sql())
        if kind in ("PythonUDF", "ScalaUDF", "PythonUDAF"):
            raise RegistrationError(
                f"a function of Python or Java cannot be kept in a view as text - {expression.sql()} - write it with "
                "Spark's own functions; what Python computes is a column of table.search(None).select({...}) with a "
                "UDF of udf_runtime"
            )
        if kind == "Cast" and re.search(r"Add\w*Interval|TimeAdd", expression.child().getClass().getSimpleName()):
            # Spark puts this cast around sums of dates and intervals; it does so again.
            return self._text(expression.child())
        if kind in _DAYS and expression.days().getClass().getSimpleName() == "ExtractANSIIntervalDays":
            days = self._text(_items(expression.days().children())[0])
            return f"({self._text(expression.startDate())} {_DAYS[kind]} {days})"
        if is_instance_of(self._gateway, expression, f"{_CATALYST}.expressions.InheritAnalysisRules"):
            texts = [self._text(one) for one in _items(expression.parameters())]
            if kind == "Extract":  # it writes the unit as a string, which Spark does not read
                return f"date_part({', '.join(texts)})"
            return str(expression.makeSQLString(self._seq(texts)))
        return self._by_children(expression)

    def _by_children(self, expression: Java) -> str:
        """Returns what an expression writes, with the texts of its children in place of theirs."""
        texts: dict[str, str] = {}
        children = []
        for child in _items(expression.children()):
            kind = child.getClass().getSimpleName()
            if kind == "Literal":
                children.append(child)
                continue
            mark = f"mark_{uuid.uuid4().hex}"
            text = self._text(child)
            texts[mark] = text if kind in ("AttributeReference", "LambdaFunction") else f"({text})"
            children.append(self._marked(mark, child))
        text = str((expression.withNewChildren(self._seq(children)) if children else expression).sql())
        for mark, inner in texts.items():
            text = text.replace(mark, inner)
        return text

    def _marked(self, mark: str, child: Java) -> Java:
        """Returns a column of a child's type that writes itself as a mark."""
        some = _items(self._relation.output())[0]
        kind = some.dataType() if child.getClass().getSimpleName() == "LambdaFunction" else child.dataType()
        return getattr(self._jvm, f"{_CATALYST}.expressions.AttributeReference")(
            mark, kind, True, some.metadata(), some.exprId(), some.qualifier()
        )

    def _seq(self, items: Sequence[object]) -> Java:
        kept = self._jvm.java.util.ArrayList()
        for item in items:
            kept.add(item)
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(kept).toSeq()


def _items(seq: Java) -> list[Java]:
    return [seq.apply(i) for i in range(seq.size())]


def _untranslated(expression: Java) -> RegistrationError:
    return RegistrationError(
        f"an expression cannot be written as text in Spark SQL: {expression.sql()} - in the DataFrame - give the query "
        "as a SELECT in Spark SQL"
    )


def _uri_of(relation: Java) -> str:
    """Returns the location of the table that a relation reads, at its latest version."""
    options = dict(relation.options().asCaseSensitiveMap())
    if relation.table().getClass().getName() in _CATALOG_TABLES:
        refuse_options(options)
        if relation.table().isTravelled():
            refuse_options(["version"])
        return str(relation.table().id())
    if relation.table().name() != "lance":
        raise RegistrationError(
            f"a materialized view is over a Lance table, and this is {relation.table().name()!r} - in the DataFrame - "
            "write it as a Lance table first"
        )
    given = {name.lower(): text for name, text in options.items()}
    refuse_options(given)
    if relation.identifier().isDefined():
        fields = json.loads(relation.schema().json())["fields"]
        tables = {field["metadata"][_TABLE] for field in fields if _TABLE in field["metadata"]}
        given["path"] = json.loads(tables.pop())["uri"] if len(tables) == 1 else ""
    if not given.get("path"):
        raise RegistrationError(
            "nothing tells where the table lies - in the DataFrame - read it with spark.read.format('lance').load(path)"
        )
    return str(given["path"])
