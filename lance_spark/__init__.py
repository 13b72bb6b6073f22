"""Feature engineering on Lance tables with Spark.

After `pip install lance-spark`, `spark.read.format("lance")` and `df.write.format("lance")` work;
`enable_pushdown(spark)` lets Spark's planner hand columns, filters, limits and simple aggregates
down to Lance. `connect(uri)` opens a folder of tables, whose computed columns are defined once with
`udf_runtime.udf` and filled by resumable jobs.
"""

import ast
import functools
import pkgutil
from importlib import import_module

from lance_spark import (
    errors as errors,
)  # so that `import lance_spark` is enough for `lance_spark.errors`


@functools.cache
def _modules() -> dict[str, str]:
    """Returns the module of each public name, from the imports of `__init__.pyi`.

    A module is imported when a program first asks for one of its names. Spark's worker processes
    import this package to read and write, and need none of these modules.
    """
    try:
        stub = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
    except OSError as error:
        raise ImportError(
            f"The file {__name__}/__init__.pyi is missing, and it lists the public names. Put all files of the "
            "package into the zip or the folder, not only those that end in .py."
        ) from error
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> object:
    value: object
    if name == "__version__":
        value = import_module("importlib.metadata").version("lance-spark")
    elif name == "__all__":
        value = __dir__()
    elif name.startswith("_") or name not in _modules():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    else:
        value = getattr(import_module(_modules()[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*_modules(), "__version__"])
