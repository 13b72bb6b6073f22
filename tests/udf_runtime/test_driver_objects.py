"""UDFs that use Spark: refused if the object is visible, otherwise an error of the call with advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import LongType

from udf_runtime import UDF, UdfDefinitionError, UdfFailedError, as_udf, udf
from udf_runtime.execute import UdfRunner

SPARK_CLASSES = [SparkSession, SparkContext, DataFrame, Column]


class SomeSession(SparkSession):
    """A session of a subclass, as Spark Connect has its own."""


def new_object(cls: Any) -> Any:
    """Returns an object without the JVM of its constructor."""
    return object.__new__(cls)


def in_closure(held: object) -> Callable[[int], int]:
    return lambda a: a if held else 0


def in_default(held: object) -> Callable[[int], int]:
    def function(a: int, held: object = held) -> int:
        return a

    return function


class Holder:
    def __init__(self, held: object) -> None:
        self.parts = {"held": [held]}

    def __call__(self, a: int) -> int:
        return a


@pytest.mark.parametrize("version", [None, "1"])
@pytest.mark.parametrize("form", [in_closure, in_default, Holder])
@pytest.mark.parametrize("cls", [*SPARK_CLASSES, SomeSession])
def test_a_udf_that_holds_an_object_of_the_driver_is_refused_with_a_way_out(
    cls: Any, form: Any, version: str | None
) -> None:
    def define() -> None:
        if form is Holder:
            function = as_udf(
                udf(data_type=pa.int64(), version=version, input_columns=["a"])(
                    form(new_object(cls))
                )
            )
        else:
            function = as_udf(
                udf(
                    form(new_object(cls)),
                    data_type=pa.int64(),
                    version=version,
                    input_columns=["a"],
                )
            )
        assert isinstance(function, UDF)
        assert function.version
        function.dumps()

    with pytest.raises(
        UdfDefinitionError, match=r"works on the driver alone.*load_columns"
    ) as caught:
        define()
    assert ("SparkSession" if cls is SomeSession else cls.__name__) in str(caught.value)


def test_classes_and_types_of_spark_are_no_objects_of_the_driver() -> None:
    function = udf(
        in_closure((SparkSession, DataFrame, LongType())), data_type=pa.int64(), version="1"
    )
    assert UDF.loads(function.dumps()).version == "1"


@pytest.mark.parametrize(
    "error",
    [
        PySparkRuntimeError(errorClass="CONTEXT_ONLY_VALID_ON_DRIVER", messageParameters={}),
        PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={}),
        TypeError("'JavaPackage' object is not callable"),
    ],
    ids=["context", "gateway", "package"],
)
def test_a_call_that_makes_a_session_is_an_error_that_says_what_to_do(error: Exception) -> None:
    def function(a: int) -> int:
        raise error

    with UdfRunner(udf(function, data_type=pa.int64(), version="1")) as runner:
        with pytest.raises(
            UdfFailedError, match=r"a SparkSession works on the driver alone.*load_columns"
        ) as caught:
            list(runner.run([pa.record_batch({"a": [1]})]))
        assert caught.value.row == 0 and type(error).__name__ in caught.value.error_type
