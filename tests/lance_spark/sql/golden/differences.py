"""Queries whose outcome over Lance tables differs from the outcome over Spark's own views, each with its reason."""

from __future__ import annotations

DIFFERENCES: dict[str, dict[int, str]] = {}
"""Reasons by file and position of the statement. A fixed difference leaves the list, and no difference joins it."""

LEFT_OUT = {
    "udf/": "copies of other files whose expressions call functions of Spark's Scala test harness",
    "udaf/": "functions are classes of Spark's test jar",
    "udtf/": "table functions of Spark's Scala test harness",
}
"""Folders whose files need Spark's test harness, each with its reason."""
