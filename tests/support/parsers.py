"""Parsers of Spark, called by the methods of their interface, like in Spark."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.sql import SparkSession


def parse_plan(spark: SparkSession, parser: Any, text: str) -> Any:
    """Returns the plan of a statement.

    Py4J looks at all methods of the class of an object. The class of a session's parser also has methods with types of Spark 4.3.
    """
    jvm, gateway = spark._jvm, spark.sparkContext._gateway
    assert jvm is not None and gateway is not None
    types, values = (
        gateway.new_array(jvm.java.lang.Class, 1),
        gateway.new_array(jvm.java.lang.Object, 1),
    )
    types[0], values[0] = jvm.java.lang.Class.forName("java.lang.String"), text
    interface = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.parser.ParserInterface")
    try:
        return interface.getMethod("parsePlan", types).invoke(parser, values)
    except Py4JJavaError as error:
        raise convert_exception(error.java_exception.getCause()) from None
