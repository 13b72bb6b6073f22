"""Parameters shared by backfill and backfill_async: targets, filters, resources, sizes, windows."""

from __future__ import annotations

import dataclasses
import inspect
import pydoc
import re
import warnings
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from lance_spark import (
    BackfillJobResult,
    Connection,
    Job,
    OptionError,
    ResourcesUnavailableError,
    Table,
    UnsupportedOperationError,
)
from lance_spark.backfill.request import BackfillRequest, StartedBackfill, WaitingBackfill
from lance_spark.load.request import LoadParameters, SourceParameters
from lance_spark.views.request import RefreshRequest
from tests.support.logs import Log, doubled, make, most_at_once, values, with_column
from udf_runtime import UDF, Columns, udf

ONE_TASK = 1000

DOCUMENTED = {
    "udf": None,
    "where": None,
    "concurrency": 8,
    "intra_applier_concurrency": 1,
    "_admission_check": None,
    "_admission_strict": None,
    "min_checkpoint_size": None,
    "max_checkpoint_size": None,
    "batch_checkpoint_flush_interval_seconds": None,
    "blob_read_strategy": "auto",
    "blob_read_buffer_size": None,
    "_enable_job_tracker_saves": True,
    "job_id": None,
    "commit_granularity": 64,
    "read_version": None,
    "task_shuffle_diversity": None,
    "batch_size": None,
    "checkpoint_size": None,
    "task_size": None,
    "num_frags": None,
    "skip_frags": 0,
}


def run(table: Table, method: str, *args: Any, **options: Any) -> BackfillJobResult:
    """Runs a backfill to its end through one of the two methods."""
    if method == "backfill":
        return table.backfill(*args, **options)
    job = table.backfill_async(*args, **options)
    assert isinstance(job, Job)
    return job.result(60)


both = pytest.mark.parametrize(
    "method", ["backfill", pytest.param("backfill_async", marks=pytest.mark.long)]
)


def keywords(method: str) -> dict[str, Any]:
    """Returns the keywords of a method with their defaults, and asserts that there is no catch-all."""
    parameters = list(inspect.signature(getattr(Table, method)).parameters.values())[2:]
    assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    return {parameter.name: parameter.default for parameter in parameters}


REQUESTS: dict[str, type[Any]] = {
    "backfill": WaitingBackfill,
    "backfill_async": StartedBackfill,
    "load_columns": LoadParameters,
    "load_columns_async": LoadParameters,
    "plan_load_columns": SourceParameters,
    "refresh": RefreshRequest,
    "refresh_async": RefreshRequest,
}


@pytest.mark.parametrize("method", REQUESTS)
def test_a_signature_shows_the_fields_of_the_request_class(method: str) -> None:
    request = [field for field in dataclasses.fields(REQUESTS[method]) if field.init]
    own, *parameters = inspect.signature(getattr(Table, method)).parameters.values()
    assert own.name == "self"
    defaults = {
        field.name: inspect.Parameter.empty
        if field.default is dataclasses.MISSING
        else field.default
        for field in request
    }
    assert {parameter.name: parameter.default for parameter in parameters} == defaults
    assert all(
        parameter.name in pydoc.render_doc(getattr(Table, method)) for parameter in parameters
    )


def test_methods_with_parameters_of_their_own_have_the_defaults_of_the_request_class() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(BackfillRequest)}
    for method in (Table.plan_backfill, Table.watch):
        shared = [
            one for one in inspect.signature(method).parameters.values() if one.name in defaults
        ]
        assert shared
        assert {one.name: one.default for one in shared} == {
            one.name: defaults[one.name] for one in shared
        }


@pytest.mark.parametrize("method", ["backfill", "load_columns", "refresh"])
def test_the_docstring_describes_each_parameter(method: str) -> None:
    function = getattr(Table, method)
    arguments = (inspect.getdoc(function) or "").partition("Args:")[2].partition("Raises:")[0]
    described = re.findall(r"^    (\w+): ", arguments, re.MULTILINE)
    assert sorted(described) == sorted(set(inspect.signature(function).parameters) - {"self"})


@pytest.mark.parametrize("method", REQUESTS)
def test_an_unknown_parameter_is_an_error_with_its_name(
    method: str, db: Connection, log: Log
) -> None:
    table = with_column(db, log.doubling())
    with pytest.raises(TypeError, match=rf"^\w+\.{method}\(\) .*'colour'"):
        getattr(table, method)(colour="blue")
    assert log.rows() == []


def demanding(log: Log) -> UDF:
    """A UDF that requests a resource absent from all machines of these tests."""
    return log.doubling(num_gpus=1)


@pytest.mark.guarantee("T28")
@both
def test_the_target_is_a_string_or_a_list_of_one(db: Connection, log: Log, method: str) -> None:
    table = with_column(db, log.doubling())
    run(table, method, "y", num_frags=1)
    run(table, method, ["y"])
    assert values(table) == doubled(range(40))
    assert log.rows() == list(range(40))


@pytest.mark.guarantee("T29")
@both
def test_several_independent_columns_are_refused(db: Connection, log: Log, method: str) -> None:
    table = with_column(db, log.doubling())
    table.add_columns({"z": log.doubling()})
    with pytest.raises(NotImplementedError, match="call backfill for each") as caught:
        run(table, method, ["y", "z"])
    assert isinstance(caught.value, UnsupportedOperationError)
    assert table.list_jobs() == []


@pytest.mark.guarantee("T29")
@both
def test_a_list_of_all_siblings_of_one_udf_is_one_target(
    db: Connection, log: Log, method: str
) -> None:
    class Pair(NamedTuple):
        once: int
        twice: int

    @udf
    def both_of(x: int) -> Columns[Pair]:
        return Pair(x, 2 * x)

    table = make(db)
    table.add_columns(both_of)
    run(table, method, ["twice", "once"])
    assert values(table, "twice") == doubled(range(40))


@pytest.mark.guarantee("T30")
@both
def test_a_udf_is_used_instead_of_the_stored_one(db: Connection, log: Log, method: str) -> None:
    table = with_column(db, log.doubling(), rows=10, fragments=1)
    run(table, method, "y", where="x < 5", udf=log.doubling(factor=3))
    assert values(table) == {**{x: 3 * x for x in range(5)}, **dict.fromkeys(range(5, 10))}
    run(table, method, "y")
    assert values(table) == {**{x: 3 * x for x in range(5)}, **doubled(range(5, 10))}


@pytest.mark.guarantee("T31")
@both
def test_without_a_filter_only_rows_without_a_value_are_computed(
    db: Connection, log: Log, method: str
) -> None:
    table = with_column(db, log.doubling())
    run(table, method, "y", where="x % 2 = 0")
    assert log.take() == list(range(0, 40, 2))
    run(table, method, "y")
    assert log.take() == list(range(1, 40, 2))
    run(table, method, "y")
    assert log.take() == []


@pytest.mark.guarantee("T31")
def test_rows_whose_computed_value_is_null_count_as_computed(db: Connection, log: Log) -> None:
    path = log.path

    @udf(data_type=pa.int64())
    def even(x: int) -> int | None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{x}\n")
        return None if x % 2 else x

    table = with_column(db, even)
    table.backfill("y")
    assert log.take() == list(range(40))
    assert not table.plan_backfill("y").has_work
    assert table.backfill("y").versions == ()
    assert log.take() == []
    assert table.to_lance().optimize.compact_files().fragments_added == 1
    table.backfill("y")
    assert log.take() == []


@pytest.mark.guarantee("T31")
def test_a_value_that_another_writer_removed_is_put_back_without_a_call(
    db: Connection, log: Log
) -> None:
    """The input is unchanged and the row has not moved, so the computed value still serves."""
    table = make(db, id=lambda x: x)
    table.add_columns({"y": log.doubling()})
    table.backfill("y")
    log.take()
    source = pa.table({"id": [3, 4], "y": pa.array([None, None], pa.int64())})
    table.to_lance().merge_insert("id").when_matched_update_all().write_mode(
        "rewrite_columns"
    ).execute(source)
    assert table.count_rows("y is null") == 2
    assert table.backfill("y").rows_from_checkpoint == 2
    assert log.take() == []
    assert values(table) == doubled(range(40))


@pytest.mark.guarantee("T32")
@both
def test_a_filter_that_is_always_true_computes_all_again(
    db: Connection, log: Log, method: str
) -> None:
    table = with_column(db, log.doubling())
    for _ in range(2):
        run(table, method, "y", where="1=1")
        assert log.take() == list(range(40))


@pytest.mark.guarantee("T34")
def test_without_the_check_a_demanding_udf_runs(db: Connection, log: Log) -> None:
    table = with_column(db, demanding(log), rows=4, fragments=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table.backfill("y", _admission_check=False)
    assert values(table) == doubled(range(4))


@pytest.mark.guarantee("T35")
def test_the_environment_decides_about_the_check(
    db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = with_column(db, demanding(log), rows=4, fragments=1)
    with pytest.raises(ResourcesUnavailableError):
        table.backfill("y")
    monkeypatch.setenv("LANCE_SPARK_ADMISSION__CHECK", "false")
    assert table.backfill("y").rows_computed == 4
    with pytest.raises(ResourcesUnavailableError):
        table.backfill("y", where="1=1", _admission_check=True)


@pytest.mark.guarantee("T36")
@both
def test_strictly_a_lack_of_resources_is_an_error_before_anything_starts(
    db: Connection, log: Log, method: str
) -> None:
    table = with_column(db, demanding(log), rows=4, fragments=1)
    with pytest.raises(ResourcesUnavailableError, match=r"1 GPU.*_admission_check=False"):
        run(table, method, "y", _admission_strict=True)
    assert (log.rows(), table.list_jobs()) == ([], [])


@pytest.mark.guarantee("T37")
@both
def test_not_strictly_it_is_a_warning(db: Connection, log: Log, method: str) -> None:
    table = with_column(db, demanding(log), rows=4, fragments=1)
    with pytest.warns(UserWarning, match="1 GPU, .*The job runs all the same") as warned:
        run(table, method, "y", _admission_strict=False)
    assert warned[0].filename == __file__
    assert values(table) == doubled(range(4))


@pytest.mark.guarantee("T38")
def test_the_environment_decides_about_strictness(
    db: Connection, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = with_column(db, demanding(log), rows=4, fragments=1)
    monkeypatch.setenv("LANCE_SPARK_ADMISSION__STRICT", "false")
    with pytest.warns(UserWarning, match="1 GPU"):
        table.backfill("y")
    monkeypatch.setenv("LANCE_SPARK_ADMISSION__STRICT", "perhaps")
    with pytest.raises(OptionError, match=r"LANCE_SPARK_ADMISSION__STRICT.*true or false"):
        table.backfill("y")


@pytest.mark.guarantee("T49")
@both
def test_the_job_has_the_id_that_it_was_given(db: Connection, log: Log, method: str) -> None:
    table = with_column(db, log.doubling())
    assert run(table, method, "y", job_id="nightly-7").job_id == "nightly-7"
    assert table.get_job("nightly-7").status == "DONE"


OURS: dict[str, object] = {
    "stale": False,
    "on_stale": "recompute",
    "commit_max_retries": None,
    "commit_timeout": None,
    "protect_snapshot": False,
    "max_calls": None,
    "max_seconds": None,
    "max_cost": None,
    "txn_app_id": None,
    "txn_version": None,
}
"""Parameters beyond the documented API."""


@pytest.mark.guarantee("T50")
def test_every_parameter_of_backfill_is_an_explicit_keyword() -> None:
    assert keywords("backfill") == {
        **DOCUMENTED,
        **OURS,
        "refresh_status_secs": 2.0,
        "timeout": None,
    }


@pytest.mark.guarantee("T51")
def test_every_parameter_of_backfill_async_is_an_explicit_keyword() -> None:
    assert keywords("backfill_async") == {
        **DOCUMENTED,
        **OURS,
        "refresh_status_secs": 2.0,
        "_return_future": False,
    }


@pytest.mark.guarantee("T52")
def test_sixty_four_fragments_make_a_commit_by_default(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling(), rows=70, fragments=70)
    result = table.backfill("y")
    assert result.fragments_done == 70
    assert 1 <= len(result.versions) <= 2, "65 fragments or more are one commit, or two"
    assert keywords("backfill")["commit_granularity"] == 64


@pytest.mark.guarantee("T55")
def test_the_latest_version_is_read_by_default(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling(), rows=20, fragments=2)
    make_more(db.open_table("t"), 20, 30)
    version = table.version
    assert table.backfill("y").read_version == version
    assert values(table) == doubled(range(30))


def make_more(table: Table, first: int, last: int) -> None:
    """Appends rows as one fragment."""
    table.add([{"x": x} for x in range(first, last)])


@pytest.mark.guarantee("T56")
@both
def test_shuffling_of_tasks_is_refused_by_name(db: Connection, log: Log, method: str) -> None:
    table = with_column(db, log.doubling())
    with pytest.raises(
        OptionError, match=r"task_shuffle_diversity.*any free slot takes the next range"
    ):
        run(table, method, "y", task_shuffle_diversity=8)
    assert log.rows() == []


@pytest.mark.guarantee("T61")
def test_a_task_has_so_many_rows(db: Connection, log: Log) -> None:
    table = with_column(db, log.sizes(min_checkpoint_size=100), rows=60, fragments=1)
    assert table.plan_backfill("y", task_size=15).total_tasks == 4
    table.backfill("y", task_size=15)
    assert log.take() == [15] * 4


@pytest.mark.guarantee("T61")
def test_a_task_is_at_most_a_fragment_range_but_takes_several_small_fragments(
    db: Connection, log: Log
) -> None:
    table = with_column(db, log.doubling(), rows=60, fragments=6)
    assert table.plan_backfill("y", task_size=30).total_tasks == 2
    table.backfill("y", task_size=30)
    assert values(table) == doubled(range(60))


@pytest.mark.guarantee("T62")
def test_by_default_a_task_has_half_of_a_workers_share(db: Connection, log: Log) -> None:
    table = with_column(db, log.sizes(min_checkpoint_size=100), rows=80, fragments=1)
    assert table.plan_backfill("y", concurrency=2).total_tasks == 4
    table.backfill("y", concurrency=2)
    assert log.take() == [20] * 4, "two workers, half of 40 rows each"
    assert table.plan_backfill("y", where="1=1", concurrency=1).total_tasks == 1, (
        "a single worker shares with none"
    )


@pytest.mark.guarantee("T62")
def test_fragments_share_the_tasks_of_the_workers_evenly(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling(), rows=90, fragments=9)
    assert table.plan_backfill("y", concurrency=2).total_tasks == 4


@pytest.mark.guarantee("T64")
def test_skip_frags_and_num_frags_are_a_window(db: Connection, log: Log) -> None:
    table = with_column(db, log.doubling())
    table.backfill("y", skip_frags=1, num_frags=2)
    assert log.take() == list(range(10, 30))
    table.backfill("y", skip_frags=1, num_frags=2)
    assert log.take() == [], "finished fragments count, so the window does not move"
    table.backfill("y", skip_frags=3)
    assert log.take() == list(range(30, 40))
    table.backfill("y", skip_frags=9)
    assert log.take() == []
    assert values(table) == {**dict.fromkeys(range(10)), **doubled(range(10, 40))}


@pytest.mark.guarantee("T33")
def test_processes_times_threads_bounds_the_calls_at_once(db: Connection, log: Log) -> None:
    path = log.path

    def span(x: int) -> int:
        import time

        began = time.monotonic()
        time.sleep(0.005)
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{began}:{time.monotonic()}\n")
        return x

    column = udf(span, min_checkpoint_size=1, max_checkpoint_size=1)
    table = with_column(db, column, rows=24, fragments=4)
    table.backfill("y", concurrency=1, intra_applier_concurrency=3, task_size=6)
    assert len(log.lines()) == 24
    assert most_at_once(log) <= 3
    table.backfill("y", concurrency=1, intra_applier_concurrency=1, task_size=6, where="x < 3")
    assert len(log.lines()) == 27


@pytest.mark.guarantee("T50")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("concurrency", 0),
        ("intra_applier_concurrency", 0),
        ("num_frags", -1),
        ("skip_frags", -1),
        ("commit_granularity", 0),
        ("task_size", 0),
        ("checkpoint_size", 0),
        ("refresh_status_secs", 0),
        ("batch_checkpoint_flush_interval_seconds", -1),
        ("where", ""),
        ("job_id", ""),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(
    db: Connection, log: Log, option: str, value: Any
) -> None:
    table = make(db)
    table.add_columns({"y": log.doubling()})
    with pytest.raises(OptionError, match=option):
        table.backfill("y", **{option: value})
    assert log.rows() == []
