"""Definitions of user-defined functions: what `@udf` makes of a function or class."""

from __future__ import annotations

from udf_runtime.definition.columns import Columns
from udf_runtime.definition.decorators import UdfFactory, as_udf, udf
from udf_runtime.definition.kinds import Form, Kind, Parameter
from udf_runtime.definition.spec import UDF, Settings, UnpackedUDF
from udf_runtime.definition.stateful import forget_instances

__all__ = [
    "UDF",
    "Columns",
    "Form",
    "Kind",
    "Parameter",
    "Settings",
    "UdfFactory",
    "UnpackedUDF",
    "as_udf",
    "forget_instances",
    "udf",
]
