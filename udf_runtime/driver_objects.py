"""Objects of PySpark that live on the driver: no UDF can take such an object to another process."""

from __future__ import annotations

from collections.abc import Callable

from udf_runtime.errors import DRIVER_HINT, UdfDefinitionError

_NAMES = frozenset(
    {"Catalog", "Column", "DataFrame", "GroupedData", "RDD", "SQLContext", "SparkContext", "SparkSession"}
)


def refuse_driver_object(value: object, where: Callable[[], str]) -> None:
    """Refuses an object of Spark's driver, classic or of Connect. Imports no Spark.

    Args:
        value: What the code of a UDF holds.
        where: Says how the UDF holds the object, for the message.

    Raises:
        UdfDefinitionError: The object is one.
    """
    for cls in type(value).__mro__:
        if cls.__name__ in _NAMES and cls.__module__.partition(".")[0] == "pyspark":
            raise UdfDefinitionError(
                f"the UDF uses a {cls.__name__} of Spark, which works on the driver alone - {where()} - {DRIVER_HINT}"
            )
