"""Checks of the values of a UDF's settings."""

from __future__ import annotations

import math
from collections.abc import Mapping

from udf_runtime.arguments import is_whole_number
from udf_runtime.definition.stateful import Stateful
from udf_runtime.errors import UdfDefinitionError


def is_amount(value: object, *, from_zero: bool) -> bool:
    """Tells whether a value is a finite number above zero, or also zero."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return False
    return value > 0 or (from_zero and value == 0)


def check_metadata(metadata: object) -> None:
    """Raises a UdfDefinitionError for metadata that is no mapping of texts."""
    if not isinstance(metadata, Mapping) or not all(
        isinstance(s, str) for pair in metadata.items() for s in pair
    ):
        raise UdfDefinitionError(
            f"The setting field_metadata={metadata!r} of a UDF is no mapping of str to str. Give a dict of texts."
        )


def check_cost(cost: object) -> None:
    """Raises a UdfDefinitionError for a cost that is neither an amount nor a function."""
    is_function = callable(cost) or isinstance(cost, Stateful)
    if cost is not None and not is_function and not is_amount(cost, from_zero=True):
        raise UdfDefinitionError(
            f"The setting cost={cost!r} of a UDF is neither a number of 0 or more nor a function. Give the cost of a "
            "row, or a function of the input arrays that returns an array of costs."
        )


def check_batches(batch_size: object, sort_batch_by: object) -> None:
    """Raises a UdfDefinitionError for a wrong batch size or sort key."""
    if batch_size not in (None, "auto") and not is_whole_number(batch_size):
        raise UdfDefinitionError(
            f'The setting batch_size={batch_size!r} of a UDF is no number of 1 or more, and not "auto". Give a whole '
            'number, "auto", or None.'
        )
    is_key = callable(sort_batch_by) or isinstance(sort_batch_by, (str, Stateful))
    if sort_batch_by is not None and not is_key:
        raise UdfDefinitionError(
            f"The setting sort_batch_by={sort_batch_by!r} of a UDF is neither an input column nor a function. Give a "
            "name, or a function of the input arrays that returns an array of keys."
        )
