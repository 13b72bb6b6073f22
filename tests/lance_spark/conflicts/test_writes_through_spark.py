"""The same through `df.write`, whose commit runs in a process of its own: every call of the UDF is counted there too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import pandas_udf

import lance_spark
from lance_spark.commit.changes import CommitResult
from tests.lance_spark.conflicts.others import (
    STEP,
    Act,
    append,
    assert_indexes_agree,
    column,
    compact,
    delete_rows,
    one_after_another,
    overwrite,
    rewrite_input,
    unused_files,
    update_input,
    update_other,
    work_of_others,
)
from tests.lance_spark.conflicts.writes import make, old, ours
from tests.lance_spark.write.backfills import orphans

# Over Connect a DataFrame is resolved when it runs, so that what comes between is no conflict.
pytestmark = pytest.mark.classic


@pytest.fixture
def calls(tmp_path: Path) -> Callable[[], Counter[int]]:
    def read() -> Counter[int]:
        log = tmp_path / "calls"
        return Counter(map(int, log.read_text().split())) if log.exists() else Counter()

    return read


def values(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    """Returns a DataFrame of a snapshot, whose values nobody has computed yet."""
    log = str(Path(path).parent / "calls")

    @pandas_udf("long")  # type: ignore[call-overload]
    def computed(x: pd.Series) -> pd.Series:
        import os

        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, "".join(f"{one}\n" for one in x).encode())
        os.close(file)
        return x * 10

    df = spark.read.format("lance").options(with_row_address=True, **options).load(path)
    return df.select("_rowaddr", computed("x").alias("v"))


def save(df: DataFrame, path: str, **options: Any) -> CommitResult:
    df.write.format("lance").mode("append").options(mode="backfill", **options).save(path)
    result = lance_spark.last_commit(path)
    assert result is not None
    return result


def check(path: str, theirs: Any, changed: dict[int, int | None]) -> None:
    assert work_of_others(path) == theirs
    assert column(path) == {i: changed[i] if i in changed else ours(row["x"]) for i, row in theirs.items()}
    assert_indexes_agree(path)
    assert orphans(path) == set() and unused_files(path) == set()


def test_a_write_beside_everything_that_moves_rows(
    spark: SparkSession, path: str, calls: Callable[[], Counter[int]]
) -> None:
    make(path, indexed=True)
    df = values(spark, path)
    one_after_another(append, delete_rows, update_other, compact, update_input)(path)
    theirs = work_of_others(path)
    result = save(df, path)
    # Row 35 was deleted before its input was to change; 5, 6, 10 and 25 were moved twice.
    assert (result.rows_carried, result.rows_nulled, result.rows_gone, result.new_rows) == (34, 2, 4, 2)
    assert (result.inputs_from, result.input_columns) == ("plan", ("x",))
    check(path, theirs, {5: None, 25: None, 1000: None, 1001: None})
    assert calls() == Counter(range(40))


def test_the_next_write_of_rows_without_a_value_calls_for_these_only(
    spark: SparkSession, path: str, calls: Callable[[], Counter[int]]
) -> None:
    make(path, stable=False, indexed=True)
    df = values(spark, path)
    one_after_another(compact, rewrite_input)(path)
    assert save(df, path).rows_nulled == 2
    save(values(spark, path, filter="v IS NULL"), path)
    assert calls() == Counter([*range(40), 5 + STEP, 35 + STEP])
    check(path, work_of_others(path), {})


@pytest.mark.parametrize(
    ("act", "said", "options"),
    [
        (update_input, "CommitConflictError", {"on_stale": "error"}),
        (overwrite, "CommitImpossibleError", {}),
        (compact, "CommitConflictError.*carry_over_max_bytes", {"carry_over_max_bytes": "16"}),
    ],
    ids=["changed inputs", "overwrite", "too large"],
)
def test_what_is_refused_is_said_and_changes_nothing(
    act: Act, said: str, options: dict[str, str], spark: SparkSession, path: str
) -> None:
    make(path)
    df = values(spark, path)
    act(path)
    version, theirs = lance.dataset(path).version, work_of_others(path)
    with pytest.raises(Exception, match=said):
        save(df, path, **options)
    assert lance.dataset(path).version == version
    assert work_of_others(path) == theirs
    assert column(path) == {i: old(i) for i in range(40)}
