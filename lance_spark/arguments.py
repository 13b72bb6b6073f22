"""Checks of the arguments of public functions, by their annotations."""

from __future__ import annotations

from lance_spark.errors import OptionError
from udf_runtime.arguments import ArgumentChecks

ARGUMENTS = ArgumentChecks(OptionError)
"""Decorators of public functions and classes. A wrong argument is an OptionError with its name."""
