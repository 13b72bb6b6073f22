"""Objects of PySpark on the driver, which no UDF can take to another process."""

from __future__ import annotations

from collections.abc import Callable

from udf_runtime.errors import DRIVER_HINT, UdfDefinitionError

_NAMES = frozenset(
    {"Catalog", "Column", "DataFrame", "GroupedData", "RDD", "SQLContext", "SparkContext", "SparkSession"}
)


def refuse_driver_object(value: object, where: Callable[[], str]) -> None:
    """Raises an error for an object of Spark's driver, classic or Connect; imports no Spark.

    Args:
        value: An object in the code of a UDF.
        where: Describes for the message how the UDF holds the object.

    Raises:
        UdfDefinitionError: The object belongs to Spark's driver.
    """
    for cls in type(value).__mro__:
        if cls.__name__ in _NAMES and cls.__module__.partition(".")[0] == "pyspark":
            raise UdfDefinitionError(
                f"The UDF uses a {cls.__name__} of Spark, which works on the driver alone. Place: {where()}. "
                f"{DRIVER_HINT}"
            )
