"""Queries whose outcome over Lance tables differs from the outcome over Spark's own tables, each with its reason."""

from __future__ import annotations

DIFFERENCES: dict[str, dict[int, str]] = {}
"""Reasons by file and position of the statement. A fixed difference leaves the list, and no difference joins it."""

_MONTHS = "Lance stores no INTERVAL MONTH"

SPARK_ROWS: dict[str, dict[int, str]] = {
    "mode.sql": {25: _MONTHS},
    "percentiles.sql": {35: _MONTHS},
}
"""Tables and views of `VALUES` that stay Spark's own, by file and position of the statement, each with its reason.

An entry leaves the list when Lance stores the rows, and no entry joins the list.
"""

SPARK_TABLES = frozenset(
    {
        "alias-resolution-edge-cases.sql",
        "collations-aliases.sql",
        "collations-basic.sql",
        "collations-padding-trim.sql",
        "collations-string-functions.sql",
        "columnresolution-negative.sql",
        "columnresolution.sql",
        "conditional-functions.sql",
        "cte-command.sql",
        "cte-recursion.sql",
        "cte.sql",
        "execute-immediate.sql",
        "extract-value-resolution-edge-cases.sql",
        "hll.sql",
        "identifier-clause-legacy.sql",
        "join-resolution-edge-cases.sql",
        "kllquantiles.sql",
        "metadata_column_resolution.sql",
        "nonansi/conditional-functions.sql",
        "nonansi/decimalArithmeticOperations.sql",
        "null-handling.sql",
        "order-by-nulls-ordering.sql",
        "pipe-operators.sql",
        "postgreSQL/boolean.sql",
        "postgreSQL/case.sql",
        "postgreSQL/create_view.sql",
        "postgreSQL/date.sql",
        "postgreSQL/float4.sql",
        "postgreSQL/float8.sql",
        "postgreSQL/insert.sql",
        "postgreSQL/int2.sql",
        "postgreSQL/int8.sql",
        "postgreSQL/numeric.sql",
        "postgreSQL/select.sql",
        "postgreSQL/select_having.sql",
        "postgreSQL/select_implicit.sql",
        "postgreSQL/strings.sql",
        "postgreSQL/text.sql",
        "postgreSQL/timestamp.sql",
        "postgreSQL/window_part2.sql",
        "postgreSQL/window_part3.sql",
        "postgreSQL/with.sql",
        "selectExcept.sql",
        "session-variable-precedence.sql",
        "sql-udf.sql",
        "st-functions.sql",
        "subquery/resolution-edge-cases.sql",
        "subquery/subquery-nested-data.sql",
        "subquery/subquery-offset.sql",
        "tablesample-negative.sql",
        "thetasketch.sql",
        "timestamp-ntz.sql",
        "timezone.sql",
        "to_from_avro.sql",
        "tuplesketch.sql",
        "type-coercion-edge-cases.sql",
        "union-per-child-output-deduplication.sql",
        "union-resolution-edge-cases.sql",
        "union.sql",
        "view-schema-binding-config.sql",
        "view-schema-binding.sql",
        "view-schema-compensation.sql",
        "view-schema-evolution.sql",
        "view-schema-type-evolution.sql",
        "view-with-default-collation.sql",
    }
)
"""Files whose tables stay Spark's own, because no run has compared them yet. Views of `VALUES` are Lance tables. No file joins the list."""

LEFT_OUT = {
    "udf/": "copies of other files whose expressions call functions of Spark's Scala test harness",
    "udaf/": "functions are classes of Spark's test jar",
    "udtf/": "table functions of Spark's Scala test harness",
}
"""Folders whose files need Spark's test harness, each with its reason."""
