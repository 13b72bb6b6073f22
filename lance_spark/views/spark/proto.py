"""Takes a DataFrame of Spark Connect apart, by the plan that its client would send.

Names are not resolved yet there; the server says afterwards whether the text means the same.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from lance_spark.errors import RegistrationError
from lance_spark.types.names import quote_identifier
from lance_spark.views.spark.form import Block, refuse_options
from lance_spark.views.spark.text import FULL_REFRESH, lambda_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Proto: TypeAlias = Any
"""A message of Spark Connect."""

_STEPS = {
    "join": ("a join", FULL_REFRESH),
    "as_of_join": ("a join", FULL_REFRESH),
    "lateral_join": ("a join", FULL_REFRESH),
    "aggregate": ("aggregates", FULL_REFRESH),
    "deduplicate": ("distinct rows", FULL_REFRESH),
    "set_op": ("a set operation", FULL_REFRESH),
    "limit": ("a limit", "leave it to the queries over the view"),
    "offset": ("a limit", "leave it to the queries over the view"),
    "tail": ("a limit", "leave it to the queries over the view"),
    "sort": ("an order", "leave it to the queries over the view"),
    "repartition": ("an order", "leave it to the queries over the view"),
    "sample": ("a sample", "select rows with where"),
    "sql": ("a text of spark.sql(...)", "give the text itself as the query"),
}

_INFIX = {"and": "AND", "or": "OR"}


class ProtoReader:
    """The parts of one DataFrame of Spark Connect.

    Attributes:
        path: Location of its table.
        blocks: Its SELECTs, the innermost first; filled by :meth:`read`.

    Raises:
        RegistrationError: It is something else than rows and columns of one table.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._session: Any = frame.sparkSession
        plan: Any = frame._plan  # noqa: SLF001 - the client has no public way to it
        self._root: Proto = plan.to_proto(self._session.client).root
        self.blocks: tuple[Block, ...] = ()
        self.path = self._table(self._root)

    def read(self, leaf: DataFrame, view: str) -> DataFrame:
        """Fills the blocks, and returns the DataFrame over a view in place of its table."""
        from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame
        from pyspark.sql.connect.plan import LogicalPlan

        relation = type(self._root)()
        relation.CopyFrom(self._root)
        self.blocks = tuple(self._blocks(relation, leaf))
        read = _innermost(relation)  # columns refer to the number of the plan that it has
        read.read.Clear()
        read.read.named_table.unparsed_identifier = quote_identifier(view)

        class Given(LogicalPlan):
            """A plan that is there already."""

            def plan(self, session: object) -> Proto:  # noqa: ARG002 - as PySpark calls it
                return relation

        return ConnectDataFrame(Given(None), self._session)

    def _table(self, relation: Proto) -> str:
        read = _innermost(relation).read
        if read.WhichOneof("read_type") != "data_source" or read.data_source.format.lower() != "lance":
            raise RegistrationError(
                "nothing tells where the table lies, or it is no Lance table - in the DataFrame - over Spark Connect "
                "read it with spark.read.format('lance').load(path)"
            )
        source = read.data_source
        options = {key.lower(): text for key, text in source.options.items()}
        paths = [*source.paths, *([options["path"]] if "path" in options else [])]
        if len(paths) != 1:
            raise RegistrationError(
                f"a materialized view is over one table, and not over {paths} - in the DataFrame - load one path"
            )
        refuse_options(options)
        return str(paths[0])

    def _blocks(self, relation: Proto, leaf: DataFrame) -> list[Block]:
        kind = relation.WhichOneof("rel_type")
        if kind == "read":
            return []
        step = getattr(relation, kind)
        below = self._blocks(step.input, leaf)

        def names() -> list[str]:
            frame = leaf
            for block in below:
                frame = block.over(frame)
            return list(frame.columns)

        return [*below, _block(kind, step, names)]


def _innermost(relation: Proto) -> Proto:
    """Returns the relation that reads, below steps of one input."""
    kind = relation.WhichOneof("rel_type")
    if kind == "read":
        return relation
    known = ("project", "filter", "subquery_alias", "with_columns", "with_columns_renamed", "drop", "to_df")
    if kind not in known:
        what, instead = _STEPS.get(kind, (f"a step {kind}", "select columns and rows of one table, or give SQL text"))
        raise RegistrationError(
            "a materialized view selects rows of one Lance table, and computes columns row by row, so it cannot have "
            f"{what} - in the DataFrame - {instead}"
        )
    return _innermost(getattr(relation, kind).input)


def _block(kind: str, step: Proto, names: Callable[[], list[str]]) -> Block:
    if kind == "filter":
        return Block(where=text_of(step.condition))
    if kind == "subquery_alias":
        return Block(alias=step.alias)
    if kind == "project":
        return Block(select=tuple(map(text_of, step.expressions)))
    if kind == "to_df":
        return _renamed(names(), dict(enumerate(step.column_names)))
    if kind == "with_columns_renamed":
        pairs = [(one.col_name, one.new_col_name) for one in step.renames] or list(step.rename_columns_map.items())
        known = names()
        changes: dict[int, str] = {}
        for old, new in pairs:
            now = [changes.get(i, name) for i, name in enumerate(known)]
            changes.update({i: new for i, name in enumerate(now) if name.lower() == old.lower()})
        return _renamed(known, changes)
    if kind == "drop":
        gone = {name.lower() for name in (*step.column_names, *(_column(one) for one in step.columns))}
        return Block(select=tuple(quote_identifier(name) for name in names() if name.lower() not in gone))
    new = {alias.name[0].lower(): alias for alias in step.aliases}
    items = [_aliased(new.pop(name.lower())) if name.lower() in new else quote_identifier(name) for name in names()]
    return Block(select=(*items, *map(_aliased, new.values())))


def _renamed(names: Sequence[str], changes: dict[int, str]) -> Block:
    pairs = [(name, changes.get(i, name)) for i, name in enumerate(names)]
    return Block(
        select=tuple(
            quote_identifier(old) if i not in changes else f"{quote_identifier(old)} AS {quote_identifier(new)}"
            for i, (old, new) in enumerate(pairs)
        )
    )


def _aliased(alias: Proto) -> str:
    return f"{text_of(alias.expr)} AS {quote_identifier(alias.name[0])}"


def _column(expression: Proto) -> str:
    if expression.WhichOneof("expr_type") == "unresolved_attribute":
        parts = _parts(expression.unresolved_attribute.unparsed_identifier)
        if len(parts) == 1:
            return parts[0]
    raise _untranslated(expression)


def text_of(expression: Proto) -> str:
    """Returns an expression as text in Spark SQL.

    Raises:
        RegistrationError: It cannot be written so.
    """
    kind = expression.WhichOneof("expr_type")
    write = _WRITERS.get(kind)
    if write is None:
        raise _untranslated(expression)
    return write(getattr(expression, kind))


def _attribute(one: Proto) -> str:
    return ".".join(map(quote_identifier, _parts(one.unparsed_identifier)))


def _parts(name: str) -> list[str]:
    """Returns the parts of a column's name as Spark reads it in a DataFrame's call."""
    found = re.findall(r"`((?:[^`]|``)*)`(?:\.|$)|([^.`]+)(?:\.|$)", name)
    return [quoted_part.replace("``", "`") or plain_part for quoted_part, plain_part in found]


def _function(one: Proto) -> str:
    name = one.function_name
    if one.is_distinct:
        raise RegistrationError(f"a materialized view cannot have distinct values ({name}) - {FULL_REFRESH}")
    arguments = [text_of(argument) for argument in one.arguments]
    if name == "when":
        pairs = zip(arguments[::2], arguments[1::2], strict=False)
        cases = " ".join(f"WHEN {condition} THEN {value}" for condition, value in pairs)
        rest = f" ELSE {arguments[-1]}" if len(arguments) % 2 else ""
        return f"CASE {cases}{rest} END"
    if name == "in":
        return f"({arguments[0]} IN ({', '.join(arguments[1:])}))"
    if name in _INFIX:
        return f"({f' {_INFIX[name]} '.join(arguments)})"
    return f"{quote_identifier(name)}({', '.join(arguments)})"


def _cast(one: Proto) -> str:
    from pyspark.sql.connect.types import proto_schema_to_pyspark_data_type

    kind = one.type_str or proto_schema_to_pyspark_data_type(one.type).simpleString()
    tries = one.eval_mode == type(one).EVAL_MODE_TRY
    return f"{'TRY_CAST' if tries else 'CAST'}({text_of(one.expr)} AS {kind})"


def _alias(one: Proto) -> str:
    if len(one.name) != 1:
        raise _untranslated(one)
    return _aliased(one)


def _lambda(one: Proto) -> str:
    return lambda_text(map(_variable, one.arguments), text_of(one.function))


def _variable(one: Proto) -> str:
    return quote_identifier("_".join(one.name_parts))


def _extract(one: Proto) -> str:
    return f"{text_of(one.child)}[{text_of(one.extraction)}]"


def _call(one: Proto) -> str:
    return f"{one.function_name}({', '.join(map(text_of, one.arguments))})"


def _python(one: Proto) -> str:
    raise RegistrationError(
        f"a function of Python or Java cannot be kept in a view as text - {one.function_name} - write it with Spark's "
        "own functions; what Python computes is a column of table.search(None).select({...}) with a UDF of udf_runtime"
    )


def _star(one: Proto) -> str:
    return f"{one.unparsed_target.removesuffix('.*')}.*" if one.unparsed_target else "*"


def _literal(one: Proto) -> str:
    kind = one.WhichOneof("literal_type")
    write = _LITERALS.get(kind)
    if write is None:
        raise _untranslated(one)
    return write(getattr(one, kind))


def _string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _floating(suffix: str) -> Callable[[float], str]:
    def write(value: float) -> str:
        if not math.isfinite(value):
            kind = "DOUBLE" if suffix == "D" else "FLOAT"
            return f"CAST('{value}' AS {kind})"
        return f"{value!r}{suffix}"

    return write


def _moment(micros: int) -> str:
    at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    return at.replace(tzinfo=None).isoformat(sep=" ")


def _interval(micros: int) -> str:
    sign, rest = ("-" if micros < 0 else ""), abs(micros)
    seconds, micros = divmod(rest, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"INTERVAL '{sign}{days} {hours:02}:{minutes:02}:{seconds:02}.{micros:06}' DAY TO SECOND"


_LITERALS: dict[str, Callable[[Any], str]] = {
    "null": lambda _: "NULL",
    "boolean": lambda value: str(value).lower(),
    "byte": lambda value: f"{value}Y",
    "short": lambda value: f"{value}S",
    "integer": str,
    "long": lambda value: f"{value}L",
    "float": _floating("F"),
    "double": _floating("D"),
    "string": _string,
    "binary": lambda value: f"X'{value.hex()}'",
    "decimal": lambda value: f"{value.value}BD",
    "date": lambda days: f"DATE '{dt.date(1970, 1, 1) + dt.timedelta(days=days)}'",
    "timestamp": lambda micros: f"TIMESTAMP_LTZ '{_moment(micros)}+00:00'",
    "timestamp_ntz": lambda micros: f"TIMESTAMP_NTZ '{_moment(micros)}'",
    "day_time_interval": _interval,
}

_WRITERS: dict[str, Callable[[Proto], str]] = {
    "literal": _literal,
    "unresolved_attribute": _attribute,
    "unresolved_function": _function,
    "unresolved_extract_value": _extract,
    "unresolved_star": _star,
    "unresolved_named_lambda_variable": _variable,
    "expression_string": lambda one: one.expression,
    "alias": _alias,
    "cast": _cast,
    "lambda_function": _lambda,
    "call_function": _call,
    "common_inline_user_defined_function": _python,
}


def _untranslated(expression: Proto) -> RegistrationError:
    shown = " ".join(str(expression).split())
    return RegistrationError(
        f"an expression cannot be written as text in Spark SQL: {shown[:200]} - in the DataFrame - give the query as a "
        "SELECT in Spark SQL"
    )
