"""A row of the table of conflicts for each kind of concurrent commit, on Spark: jobs with concurrent tasks in other
processes, and `df.write`, which commits in its own process. The tests count every call of the UDF.
"""

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
from tests.lance_spark.conflicts.cases import JOBS, WRITES, Moment, Refused, case_of
from tests.lance_spark.conflicts.jobs import SparkLab
from tests.lance_spark.conflicts.others import (
    STEP,
    Act,
    ForeignState,
    append,
    clean_up_all,
    compact,
    compact_in_rounds,
    delete_fragment,
    delete_rows,
    drop_target,
    name_of,
    one_after_another,
    overwrite,
    rename_target,
    rewrite_input,
    update_input,
    update_other,
)
from tests.lance_spark.conflicts.writes import WriteOutcome, check_done, make

pytestmark = pytest.mark.sample(8, tests=2)

JOB_CELLS: list[tuple[Act, Moment, bool]] = [
    (append, "before", True),
    (delete_fragment, "between", True),
    (update_other, "before", True),
    (update_input, "between", False),
    (rewrite_input, "between", True),
    (compact, "between", False),
    (compact_in_rounds, "staged", True),
    (rename_target, "staged", True),
    (drop_target, "staged", True),
    (clean_up_all, "before", True),
]

WRITE_CELLS: list[tuple[Act, bool]] = [
    (append, True),
    (delete_rows, False),
    (update_other, True),
    (rewrite_input, False),
    (compact, True),
    (rename_target, True),
    (drop_target, True),
    (overwrite, True),
]


@pytest.mark.guarantee("F01", "F02", "F03")
@pytest.mark.parametrize(
    ("act", "moment", "stable"), JOB_CELLS, ids=[f"{name_of(act)}-{at}" for act, at, _ in JOB_CELLS]
)
def test_a_job(act: Act, moment: Moment, stable: bool, spark_lab: SparkLab) -> None:
    spark_lab.check_case(
        case_of(JOBS, act, moment, stable=stable), moment, stable=stable, indexed=True
    )


# Over Connect a DataFrame is resolved when it runs, so a change between its definition and its run is no conflict.
classic = pytest.mark.classic


@pytest.fixture
def calls(tmp_path: Path) -> Callable[[], Counter[int]]:
    def read() -> Counter[int]:
        log = tmp_path / "calls"
        return Counter(map(int, log.read_text().split())) if log.exists() else Counter()

    return read


def values(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    """Returns a DataFrame of a snapshot, whose values are computed during the write."""
    log = str(Path(path).parent / "calls")

    @pandas_udf("long")  # type: ignore[call-overload]
    def computed(x: pd.Series) -> pd.Series:
        import os

        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, "".join(f"{value_}\n" for value_ in x).encode())
        os.close(file)
        return x * 10

    df = spark.read.format("lance").options(with_row_address=True, **options).load(path)
    return df.select("_rowaddr", computed("x").alias("v"))


def save(df: DataFrame, path: str, **options: Any) -> CommitResult:
    df.write.format("lance").mode("append").options(mode="backfill", **options).save(path)
    result = lance_spark.last_commit(path)
    assert result is not None
    return result


@classic
@pytest.mark.parametrize(
    ("act", "stable"), WRITE_CELLS, ids=[name_of(act) for act, _ in WRITE_CELLS]
)
def test_a_dataframe_write(
    act: Act, stable: bool, spark: SparkSession, path: str, calls: Callable[[], Counter[int]]
) -> None:
    make(path, stable=stable, indexed=True)
    df = values(spark, path)
    act(path)
    foreign_state, version = ForeignState.at(path), lance.dataset(path).version
    case = case_of(WRITES, act, "before", stable=stable)
    if isinstance(case.expected, Refused):
        with pytest.raises(
            Exception, match=f"(?s){case.expected.error.__name__}.*{case.expected.message}"
        ):
            save(df, path)
        assert (ForeignState.at(path), lance.dataset(path).version) == (foreign_state, version)
    else:
        outcome = WriteOutcome(path=path, others=foreign_state, result=save(df, path))
        check_done(outcome, case.expected, "ours")
    assert calls() == Counter(range(40))


@classic
def test_a_write_beside_everything_that_moves_rows(
    spark: SparkSession, path: str, calls: Callable[[], Counter[int]]
) -> None:
    make(path, indexed=True)
    df = values(spark, path)
    one_after_another(append, delete_rows, update_other, compact, update_input)(path)
    foreign_state = ForeignState.at(path)
    result = save(df, path)
    # Row 35 was deleted before its input was to change; 5, 6, 10 and 25 were moved twice.
    assert (result.rows_carried, result.rows_nulled, result.rows_gone, result.new_rows) == (
        34,
        2,
        4,
        2,
    )
    assert (result.inputs_from, result.input_columns) == ("plan", ("x",))
    WriteOutcome(path=path, others=foreign_state, result=result).check(
        {5: None, 25: None, 1000: None, 1001: None}
    )
    assert calls() == Counter(range(40))


@classic
def test_the_next_write_of_rows_without_a_value_calls_for_these_only(
    spark: SparkSession, path: str, calls: Callable[[], Counter[int]]
) -> None:
    make(path, stable=False, indexed=True)
    df = values(spark, path)
    one_after_another(compact, rewrite_input)(path)
    assert save(df, path).rows_nulled == 2
    foreign_state = ForeignState.at(path)
    result = save(values(spark, path, filter="v IS NULL"), path)
    assert calls() == Counter([*range(40), 5 + STEP, 35 + STEP])
    WriteOutcome(path=path, others=foreign_state, result=result).check(rows=2)
