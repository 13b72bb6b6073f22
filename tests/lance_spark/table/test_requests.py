"""`backfill` reports wrong arguments, and a lack of work, quickly and without starting a job."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from lance_spark import (
    ColumnNotFoundError,
    FilterError,
    JobNotFoundError,
    LanceSparkError,
    OptionError,
    RegistrationError,
    ResourcesUnavailableError,
    Table,
    UnsupportedOperationError,
)
from lance_spark.backfill.request import BackfillParameters
from lance_spark.errors import VersionNotFoundError, counted
from tests.lance_spark.table.call_log import CallLog
from udf_runtime import UDF, udf

pytestmark = pytest.mark.sample(1, tests=2)

QUICK_S = 1.0


@pytest.fixture
def ready(table: Table, call_log: CallLog) -> Table:
    """The table with an empty computed column."""
    table.add_columns({"double": call_log.times(2)})
    return table


@pytest.fixture
def no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails at the start of a job."""
    monkeypatch.setattr(
        "lance_spark.backfill.driver.job.BackfillJob.run",
        lambda self: pytest.fail("a job was started"),
    )


def check_refused(act: Callable[[], object], kind: type[Exception], message: str) -> Exception:
    began = time.perf_counter()
    with pytest.raises(kind, match=message) as error:
        act()
    assert time.perf_counter() - began < QUICK_S
    assert isinstance(error.value, LanceSparkError)
    return error.value


NUMBERS: list[object] = [0, -1, 1.5, "8", True, float("nan")]
WRONG_VALUES: dict[str, list[object]] = {
    "concurrency": NUMBERS,
    "intra_applier_concurrency": [*NUMBERS, None],
    "num_frags": NUMBERS,
    "skip_frags": [-1, 1.5, "8", True, None],
    "commit_granularity": NUMBERS,
    "task_size": NUMBERS,
    "checkpoint_size": NUMBERS,
    "min_checkpoint_size": NUMBERS,
    "max_checkpoint_size": NUMBERS,
    "read_version": [0, -1, 1.5, "1", True],
    "batch_checkpoint_flush_interval_seconds": [-1, "1", True, float("inf"), float("nan")],
    "refresh_status_secs": [0, -1, "2", None, True, float("inf"), float("nan")],
    "blob_read_strategy": ["fast", None, 1, "AUTO"],
    "blob_read_buffer_size": [0, -1, 1.5, "8", True],
    "where": ["", "  ", 1, True, ["id = 1"]],
    "job_id": ["", "  ", 1, b"x", "x" * 51],
    "task_shuffle_diversity": [1, 8, 0],
}


@pytest.mark.parametrize("parameter", WRONG_VALUES)
@pytest.mark.usefixtures("no_jobs")
def test_a_wrong_value_of_a_parameter_is_an_option_error_that_names_it(
    ready: Table, parameter: str
):
    for value in WRONG_VALUES[parameter]:
        for act in (ready.backfill, ready.backfill_async):
            error = check_refused(
                partial(act, "double", **{parameter: value}), OptionError, parameter
            )
            assert (
                isinstance(error, ValueError)
                and isinstance(error, OptionError)
                and error.option == parameter
            )
    assert ready.version == 4 and ready.list_jobs() == []


@pytest.mark.parametrize(
    "parameter", ["num_frags", "skip_frags", "task_size", "concurrency", "read_version", "where"]
)
def test_a_plan_takes_no_wrong_values_either(ready: Table, parameter: str):
    for value in WRONG_VALUES[parameter]:
        check_refused(
            partial(ready.plan_backfill, "double", **{parameter: value}), OptionError, parameter
        )


@pytest.mark.parametrize(
    "columns", ["", [], [""], [3], ["double", "double"], None, 3, ("double", 3)]
)
@pytest.mark.usefixtures("no_jobs")
def test_targets_that_name_no_column_are_refused(ready: Table, columns: object):
    check_refused(lambda: ready.backfill(columns), OptionError, "columns")  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_jobs")
def test_bounds_that_contradict_each_other_are_refused(ready: Table):
    check_refused(
        lambda: ready.backfill("double", min_checkpoint_size=9, max_checkpoint_size=8),
        OptionError,
        "max_checkpoint_size",
    )


@pytest.mark.guarantee("T57")
@pytest.mark.usefixtures("no_jobs")
def test_the_old_name_of_the_checkpoint_size_warns_and_excludes_the_new_one(ready: Table):
    check_refused(
        lambda: ready.backfill("double", batch_size=5, checkpoint_size=5), OptionError, "batch_size"
    )
    with (
        pytest.warns(DeprecationWarning, match="checkpoint_size") as caught,
        pytest.raises(OptionError, match="size"),
    ):
        ready.backfill("double", batch_size=-5)
    assert caught[0].filename == __file__, "the warning does not point at the caller"


def test_the_old_name_of_the_checkpoint_size_works(ready: Table, call_log: CallLog):
    with pytest.warns(DeprecationWarning, match="checkpoint_size"):
        assert ready.backfill("double", batch_size=5).rows_computed == 30


@pytest.mark.usefixtures("no_jobs")
def test_unknown_keywords_are_errors_and_not_ignored(ready: Table):
    for act in (ready.backfill, ready.backfill_async, ready.plan_backfill):
        with pytest.raises(TypeError, match="concurency"):
            act("double", concurency=4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "where",
    [
        "nope = 1",
        "id >",
        "id = 'many' AND",
        "id",
        "unknown_function(id) = 1",
        "1 = 1; x",
        ")(",
        "id IN ()",
    ],
)
@pytest.mark.usefixtures("no_jobs")
def test_a_wrong_filter_is_found_at_once(ready: Table, where: str):
    for act in (ready.backfill, ready.backfill_async, ready.plan_backfill):
        error = check_refused(partial(act, "double", where=where), FilterError, "filter")
        assert where in str(error)
    assert ready.version == 4


@pytest.mark.parametrize("where", ["rlike(text, 'x')", "bround(id) = 1"])
@pytest.mark.usefixtures("no_jobs")
def test_a_function_that_only_spark_knows_gets_a_hint(ready: Table, where: str):
    assert "Spark" in str(
        check_refused(lambda: ready.backfill("double", where=where), FilterError, "filter")
    )


@pytest.mark.usefixtures("no_jobs")
def test_columns_that_cannot_be_filled_are_named(ready: Table):
    check_refused(lambda: ready.backfill("nope"), ColumnNotFoundError, r"'nope'.*add_columns")
    check_refused(
        lambda: ready.backfill("text"),
        RegistrationError,
        r"no UDF is registered for column 'text'.*alter_columns",
    )
    check_refused(lambda: ready.backfill("double.x"), UnsupportedOperationError, "struct")
    check_refused(lambda: ready.backfill("double", read_version=99), VersionNotFoundError, "99")
    check_refused(lambda: ready.backfill("double", read_version=2), ColumnNotFoundError, "double")


def of_type(kind: pa.DataType, name: str = "other") -> UDF:
    @udf(data_type=kind, name=name)
    def another_udf(id: int) -> object:
        return id

    return another_udf


@pytest.mark.usefixtures("no_jobs")
def test_a_udf_that_does_not_fit_the_column_is_refused(ready: Table):
    check_refused(
        lambda: ready.backfill("double", udf=of_type(pa.int32())), RegistrationError, "int32.*int64"
    )
    check_refused(lambda: ready.backfill("double", udf=42), (OptionError, RegistrationError), "udf")  # type: ignore[arg-type]

    @udf
    def elsewhere(nope: int) -> int:
        return nope

    check_refused(lambda: ready.backfill("double", udf=elsewhere), RegistrationError, "'nope'")


def test_a_udf_that_is_given_fills_a_column_that_has_none(table: Table, call_log: CallLog):
    table.to_lance().add_columns(pa.schema([pa.field("mine", pa.int64())]))
    assert table.backfill("mine", udf=call_log.times(7)).rows_computed == 30
    assert call_log.take() == list(range(30)) and table.count_rows("mine = id * 7") == 30
    with pytest.raises(RegistrationError):
        table.backfill("mine")


# Admission


def demanding(**wishes: float) -> UDF:
    @udf(data_type=pa.int64(), input_columns=["id"], **wishes)  # type: ignore[arg-type]
    def big(id: int) -> int:
        return id

    return big


WISHES = [{"num_gpus": 1}, {"num_cpus": 64}, {"memory": 1 << 60}]


@pytest.mark.parametrize("wishes", WISHES, ids=str)
@pytest.mark.usefixtures("no_jobs")
def test_more_than_the_cluster_can_ever_give_is_an_error_before_a_job_starts(
    table: Table, wishes: dict[str, float]
):
    table.add_columns({"x": demanding(**wishes)})
    error = check_refused(
        lambda: table.backfill("x"), ResourcesUnavailableError, "No job was started"
    )
    assert "_admission_check=False" in str(error) and "big" in str(error)
    check_refused(
        lambda: table.backfill_async("x", _admission_strict=True),
        ResourcesUnavailableError,
        "asks for",
    )
    assert table.list_jobs() == [] and table.plan_backfill("x").total_rows_pending == 30


def test_where_it_is_not_strict_it_is_a_warning_and_the_job_runs(table: Table):
    table.add_columns({"x": demanding(num_gpus=0.5, num_cpus=64)})
    with pytest.warns(UserWarning, match=r"0\.5 GPUs.*64 CPUs"):
        assert table.backfill("x", _admission_strict=False).rows_computed == 30


def test_without_the_check_the_job_runs_without_a_warning(table: Table):
    table.add_columns({"x": demanding(num_gpus=1)})
    assert table.backfill("x", _admission_check=False).rows_computed == 30


@pytest.mark.parametrize("value", ["false", "0", "No"])
def test_the_environment_can_turn_the_check_off(
    table: Table, monkeypatch: pytest.MonkeyPatch, value: str
):
    table.add_columns({"x": demanding(num_gpus=1)})
    monkeypatch.setenv("LANCE_SPARK_ADMISSION__CHECK", value)
    check_refused(
        lambda: table.backfill("x", _admission_check=True), ResourcesUnavailableError, "GPUs"
    )
    assert table.backfill("x").rows_computed == 30


def test_the_environment_can_make_it_a_warning(table: Table, monkeypatch: pytest.MonkeyPatch):
    table.add_columns({"x": demanding(num_gpus=1)})
    monkeypatch.setenv("LANCE_SPARK_ADMISSION__STRICT", "false")
    with pytest.warns(UserWarning, match="GPUs"):
        assert table.backfill("x").rows_computed == 30


@pytest.mark.parametrize(
    "variable", ["LANCE_SPARK_ADMISSION__CHECK", "LANCE_SPARK_ADMISSION__STRICT"]
)
@pytest.mark.usefixtures("no_jobs")
def test_a_variable_that_says_neither_is_refused(
    ready: Table, monkeypatch: pytest.MonkeyPatch, variable: str
):
    monkeypatch.setenv(variable, "maybe")
    check_refused(lambda: ready.backfill("double"), OptionError, variable)
    with pytest.raises(OptionError, match=variable):
        BackfillParameters("double")  # before a session of Spark starts


@pytest.mark.parametrize("value", ["much", "0", "-5", "1.5", ""])
@pytest.mark.usefixtures("no_jobs")
def test_a_blob_buffer_of_the_environment_that_is_no_number_is_refused(
    ready: Table, monkeypatch: pytest.MonkeyPatch, value: str
):
    monkeypatch.setenv("LANCE_SPARK_RANGE_BLOB_READ_BUFFER_SIZE", value)
    check_refused(
        lambda: ready.backfill("double"), OptionError, "LANCE_SPARK_RANGE_BLOB_READ_BUFFER_SIZE"
    )


# Nothing to do


@pytest.mark.guarantee("F11")
def test_nothing_to_do_takes_no_time_and_makes_no_version(ready: Table, call_log: CallLog):
    ready.backfill("double")
    call_log.take()
    version, jobs = ready.version, len(ready.list_jobs())
    files = sorted(str(path) for path in Path(ready.uri, "data").iterdir())
    for where in (None, "id > 1000"):
        began = time.perf_counter()
        result = ready.backfill("double", where=where)
        assert time.perf_counter() - began < QUICK_S
        assert (result.status, result.rows_computed, result.rows_selected, result.versions) == (
            "DONE",
            0,
            0,
            (),
        )
        assert result.fragments_total == 0 and result.completed_at is not None
    assert ready.version == version and call_log.take() == [] and len(ready.list_jobs()) == jobs
    assert sorted(str(path) for path in Path(ready.uri, "data").iterdir()) == files


def test_a_window_past_the_end_is_nothing_to_do(ready: Table):
    assert ready.backfill("double", skip_frags=3).status == "DONE"
    assert (
        ready.backfill("double", skip_frags=100, num_frags=5).rows_computed == 0
        and ready.version == 4
    )


def test_an_unknown_job_is_an_error(ready: Table):
    check_refused(lambda: ready.get_job("nope"), JobNotFoundError, "'nope'")
    check_refused(lambda: ready.get_job("it's"), JobNotFoundError, "it's")
    check_refused(
        lambda: ready.get_failed_row_addresses("nope", "double"), JobNotFoundError, "'nope'"
    )
    assert ready.list_jobs() == [] and ready.get_errors("nope") == []


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 rows"), (1, "1 row"), (1.0, "1 row"), (0.5, "0.5 rows"), (2000, "2,000 rows")],
)
def test_counts_in_messages_are_of_one_or_of_many(count: float, text: str):
    assert counted(count, "row") == text
