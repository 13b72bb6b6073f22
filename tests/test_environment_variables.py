"""The page of environment variables is complete and says the true defaults."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lance_spark.backfill.request import (
    ADMISSION_CHECK,
    ADMISSION_STRICT,
    BLOB_BUFFER,
    blob_buffer_of,
    flag_of,
)
from lance_spark.columns.binding import ALLOW_VARIABLE
from lance_spark.commit.commit_loop import RETRIES_VARIABLE, CommitPolicy
from lance_spark.commit.store_check import ALLOW_VARIABLE as UNSAFE_VARIABLE
from lance_spark.commit.store_check import allowed_by_environment
from lance_spark.errors import OptionError
from lance_spark.namespaces.reference import REGISTERED
from lance_spark.options.io_options import environment_flag
from lance_spark.views.source_pin import ALLOW_VARIABLE as UNPINNED_VARIABLE
from udf_runtime.environments.installer import INSTALLER_VARIABLE
from udf_runtime.execute.isolation.process_limits import IDLE_S, IDLE_VARIABLE, MEMORY_VARIABLE

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "environment-variables.md"
NAME = re.compile(r"LANCE_SPARK_[A-Z0-9_]+")
ROW = re.compile(r"^\| `(LANCE_SPARK_\w+)` \| `([^`]*)` \| .{20,} \|$", re.MULTILINE)

READERS: dict[str, Callable[[], object]] = {
    ADMISSION_CHECK: lambda: flag_of(None, ADMISSION_CHECK),
    ADMISSION_STRICT: lambda: flag_of(None, ADMISSION_STRICT),
    BLOB_BUFFER: lambda: blob_buffer_of(None),
    RETRIES_VARIABLE: lambda: CommitPolicy.of(None),
    UNSAFE_VARIABLE: allowed_by_environment,
    UNPINNED_VARIABLE: lambda: environment_flag(UNPINNED_VARIABLE),
}
"""Variables with more than two values, or with a value as their effect, and how the code reads them."""


def documented() -> dict[str, str]:
    return dict(ROW.findall(PAGE.read_text(encoding="utf-8")))


def test_every_variable_in_the_code_is_in_the_table():
    files = [
        path
        for package in ("lance_spark", "udf_runtime")
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".java")
    ]
    variables = {
        name
        for path in [*files, ROOT / "pyspark_lance.py"]
        for name in NAME.findall(path.read_text("utf-8"))
    }
    assert variables == set(documented())


def test_every_variable_has_one_row():
    rows = [name for name, _ in ROW.findall(PAGE.read_text(encoding="utf-8"))]
    assert len(rows) == len(set(rows)) > 0
    # Tests of the parts have their tests.
    of_executors = {INSTALLER_VARIABLE, IDLE_VARIABLE, MEMORY_VARIABLE, REGISTERED}
    assert set(READERS) | of_executors | {ALLOW_VARIABLE} == set(rows)
    assert documented()[IDLE_VARIABLE] == f"{IDLE_S:.0f}"


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_documented_default_is_the_default(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(name, raising=False)
    unset = READERS[name]()
    monkeypatch.setenv(name, documented()[name])
    assert READERS[name]() == unset


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_value_that_cannot_be_read_is_an_error_that_names_the_variable(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(name, "perhaps")
    with pytest.raises(OptionError, match=name):
        READERS[name]()
