"""Numbers of the SQL tab of Spark's web UI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

MOST_EXECUTIONS = 10


def sql_metrics(spark: SparkSession, act: Callable[[], object]) -> dict[str, int]:
    """Runs a query or a statement, and returns the numbers of its plans as the web UI shows them, without units."""
    session: Any = spark._jsparkSession
    plans = session.sharedState().statusStore()
    before = {execution.executionId() for execution in latest(plans)}
    act()
    session.sparkContext().listenerBus().waitUntilEmpty()
    shown = {}
    for execution in latest(plans):
        if execution.executionId() in before:
            continue
        values = plans.executionMetrics(execution.executionId())
        for index in range(execution.metrics().size()):
            metric = execution.metrics().apply(index)
            text = values.get(metric.accumulatorId())
            if text.isDefined() and text.get().replace(",", "").isdigit():
                shown[metric.name()] = int(text.get().replace(",", ""))
    return shown


def latest(plans: Any) -> list[Any]:
    """Returns the latest executions of the application."""
    first = max(0, plans.executionsCount() - MOST_EXECUTIONS)
    executions = plans.executionsList(first, MOST_EXECUTIONS)
    return [executions.apply(index) for index in range(executions.size())]
