"""Queries whose outcome over Lance tables differs from the outcome over Spark's own tables, each with its reason."""

from __future__ import annotations

DIFFERENCES: dict[str, dict[int, str]] = {}
"""Reasons by file and position of the statement. A fixed difference leaves the list, and no difference joins it."""

_MONTHS = "Lance stores no INTERVAL MONTH"
_COLLATIONS = "Lance compares text by bytes and keeps no collation"
_BYTES = "Lance stores no text whose bytes are not UTF-8"

SPARK_ROWS: dict[str, dict[int, str]] = {
    "collations-aliases.sql": dict.fromkeys((15, 27), _COLLATIONS),
    "collations-basic.sql": dict.fromkeys((6, 17, 33, 58, 79, 85), _COLLATIONS),
    "collations-padding-trim.sql": {15: _COLLATIONS},
    "collations-string-functions.sql": dict.fromkeys((15, 20), _COLLATIONS),
    "hll.sql": {7: _BYTES},
    "mode.sql": {25: _MONTHS},
    "percentiles.sql": {35: _MONTHS},
    "thetasketch.sql": {17: _BYTES},
    "tuplesketch.sql": {19: _BYTES},
    "view-with-default-collation.sql": dict.fromkeys(
        (10, 17, 24, 36, 55, 69, 76, 83, 95, 114), _COLLATIONS
    ),
}
"""Tables and views of `VALUES` that stay Spark's own, by file and position of the statement, each with its reason.

An entry leaves the list when Lance stores the rows, and no entry joins the list.
"""

LEFT_OUT = {
    "sql-on-files.sql": "queries read folders of Parquet, ORC, CSV and JSON by their paths",
    "udf/": "copies of other files whose expressions call functions of Spark's Scala test harness",
    "udaf/": "functions are classes of Spark's test jar",
    "udtf/": "table functions of Spark's Scala test harness",
}
"""Files and folders without queries over tables that a connector can hold, or that need Spark's test harness, each with its reason."""
