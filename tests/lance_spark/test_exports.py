"""The public names of `import lance_spark`."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import lance_spark
import lance_spark.errors
import udf_runtime
import udf_runtime.errors


def errors_of(module: ModuleType) -> set[str]:
    classes = inspect.getmembers(module, inspect.isclass)
    return {
        name for name, value in classes if issubclass(value, Exception) and not name.startswith("_")
    }


def test_all_errors_and_everything_that_defines_udfs_are_exported():
    names = errors_of(lance_spark.errors) | errors_of(udf_runtime.errors) | set(udf_runtime.__all__)
    assert names - set(lance_spark.__all__) == set()
    for name in names:
        assert getattr(lance_spark, name) is getattr(
            lance_spark.errors,
            name,
            getattr(udf_runtime.errors, name, getattr(udf_runtime, name, None)),
        )


def test_dir_shows_only_what_is_meant_to_be_used_and_all_of_it_is_there():
    assert dir(lance_spark) == sorted(lance_spark.__all__)
    assert all(getattr(lance_spark, name) is not None for name in dir(lance_spark))
    assert not [name for name in dir(lance_spark) if name.startswith("_") and name != "__version__"]


def test_a_package_without_the_list_of_its_names_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
):
    def get_data(package: str, resource: str) -> bytes:
        raise OSError(0, "", f"{package}/{resource}")

    monkeypatch.setattr(pkgutil, "get_data", get_data)
    with pytest.raises(ImportError, match=r"file lance_spark/__init__\.pyi is missing"):
        lance_spark._modules.__wrapped__()


def test_the_version_is_the_installed_one():
    assert lance_spark.__version__ == importlib.metadata.version("lance-spark")


def test_importing_the_package_does_not_import_what_is_only_needed_later():
    code = "import json, sys, lance_spark; dir(lance_spark); print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    )
    assert not {"udf_runtime", "lance", "lance_spark.table", "lance_spark.backfill"} & set(loaded)
