"""Queries whose outcome over Lance tables differs from the outcome over Spark's own views, each with its reason."""

from __future__ import annotations

DIFFERENCES: dict[str, dict[int, str]] = {
    "group-by.sql": {15: "sums of floating-point numbers depend on the order of rows, in the last digit"},
}
"""Reasons by file and position of the statement. A fixed difference leaves the list, and no difference joins it."""

_MONTHS = "Lance stores no INTERVAL MONTH"

SPARK_VIEWS: dict[str, dict[int, str]] = {
    **{
        name: dict.fromkeys((55, 107), "the name of the view is an IDENTIFIER clause")
        for name in ("identifier-clause.sql", "identifier-clause-legacy.sql")
    },
    "mode.sql": {25: _MONTHS},
    "percentiles.sql": {35: _MONTHS},
}
"""Views of `VALUES` that stay Spark's views, by file and position of the statement, each with its reason.

A view leaves the list when Lance stores its rows, and no view joins the list.
"""

LEFT_OUT = {
    "udf/": "copies of other files whose expressions call functions of Spark's Scala test harness",
    "udaf/": "functions are classes of Spark's test jar",
    "udtf/": "table functions of Spark's Scala test harness",
}
"""Folders whose files need Spark's test harness, each with its reason."""
