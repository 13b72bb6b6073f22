"""Definitions of user-defined functions: `@udf`, `@chunker`, `@udtf`, and their results."""

from __future__ import annotations

from udf_runtime.definition.columns import Columns
from udf_runtime.definition.decorators import UdfFactory, as_udf, chunker, udf, udtf
from udf_runtime.definition.kinds import CHUNKS_OF_ROW, Form, Kind, Parameter
from udf_runtime.definition.spec import UDF, Settings, UnpackedUDF
from udf_runtime.definition.stateful import forget_instances

__all__ = [
    "CHUNKS_OF_ROW",
    "UDF",
    "Columns",
    "Form",
    "Kind",
    "Parameter",
    "Settings",
    "UdfFactory",
    "UnpackedUDF",
    "as_udf",
    "chunker",
    "forget_instances",
    "udf",
    "udtf",
]
