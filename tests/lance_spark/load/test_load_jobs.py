"""Loads as jobs: plans, handles, the history, parameters, versions, checkpoints, and going on after an interruption."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_spark import BackfillIncompleteError, Connection, Job, Table
from lance_spark.dataset import FOLDER
from lance_spark.errors import (
    ColumnExistsError,
    OptionError,
    ResourcesUnavailableError,
    SourceChangedError,
)
from lance_spark.load.files import PieceReader
from lance_spark.load.request import DEFAULT_INTERVAL_S, LoadParameters
from tests.lance_spark.load.loads import (
    Stop,
    around_commits,
    joins,
    load,
    make_table,
    nothing_changes,
    numbered,
    of_ids,
    stop,
    values,
    write_file,
)

pytestmark = pytest.mark.sample(3, tests=3)

OLD = pa.array([-i for i in range(30)], pa.int64())


@pytest.fixture
def table(db: Connection) -> Table:
    return make_table(db, numbered(v=OLD))


# Plans


def test_a_plan_says_what_a_load_would_do_and_starts_nothing(
    table: Table, files: Path, spark: SparkSession
) -> None:
    path = write_file(of_ids([1, 2, 99], w=[1, 2, 3]), files / "x.parquet")
    with (
        nothing_changes(table),
        patch.object(Table, "_run", side_effect=AssertionError),
        patch.object(PieceReader, "__call__", side_effect=AssertionError),
    ):
        plan = table.plan_load_columns(path, "id", ["v", "w"])
    assert (plan.table_name, plan.table_uri, plan.version) == (table.name, table.uri, table.version)
    assert (plan.source, plan.source_format, plan.source_rows) == (path, "parquet", 3)
    assert plan.source_bytes == Path(path).stat().st_size
    assert (plan.keys, plan.columns, plan.new_columns, plan.on_missing) == (
        ("id",),
        ("v", "w"),
        ("w",),
        "carry",
    )
    assert (plan.total_rows, plan.total_fragments, plan.job_type) == (30, 3, "load_columns")
    text = plan.explain()
    assert (
        f"Load of v, w into t, version {table.version}" in text
        and f"{path} (parquet, 3 rows, 0.0 MiB)" in text
    )
    assert (
        "key          id\n" in text
        and "30 rows in 3 fragments" in text
        and "rows keep their values" in text
    )
    assert text.endswith("new columns  w")
    assert table.list_jobs() == []


@pytest.mark.parametrize(
    ("on_missing", "says"),
    [("null", "rows become NULL"), ("error", "rows are an error"), ("carry", "keep")],
)
def test_a_plan_of_a_source_in_memory_names_it(
    on_missing: Any, says: str, table: Table, spark: SparkSession
) -> None:
    plan = table.plan_load_columns(of_ids([1]).to_pylist(), ["id"], ["v"], on_missing=on_missing)
    assert says in plan.explain() and (plan.source_format, plan.source_rows, plan.new_columns) == (
        "data",
        1,
        (),
    )
    plan = table.plan_load_columns(spark.range(3).selectExpr("id", "id AS v"), "id", ["v"])
    assert (plan.source_format, plan.source_rows, plan.source_bytes) == ("DataFrame", None, None)


# Handles and the history


@pytest.mark.guarantee("L17", "L18", "L19")
def test_a_load_returns_the_id_of_its_job_of_which_the_history_knows_all(
    table: Table, files: Path
) -> None:
    path = write_file(of_ids([1, 2, 99]), files / "x.parquet")
    assert table.load_columns(path, "id", ["v"], job_id="mine") == "mine"
    other_result = table.load_columns(path, "id", ["v"])
    assert len(table.list_jobs()) == 2 and other_result != "mine"
    record = table.get_job("mine")
    assert (record.job_type, record.status, record.job_id) == ("load_columns", "DONE", "mine")
    assert set(record.columns) == {"v"} and record.read_version == 1
    assert (record.rows_selected, record.rows_computed) == (30, 2)
    assert table.load_columns(path, "id", ["v"], enable_job_tracker_saves=False)
    assert len(table.list_jobs()) == 2


@pytest.mark.guarantee("L02")
def test_a_handle_shows_the_job_while_it_runs_and_its_result(table: Table) -> None:
    gate, reached = threading.Event(), threading.Event()

    def wait() -> None:
        reached.set()
        assert gate.wait(60)

    with joins(before=wait):
        job = table.load_columns_async(
            of_ids([1, 2], w=["a", "b"]), "id", ["v", "w"], job_id="mine"
        )
        assert isinstance(job, Job) and (job.job_id, job.column_names) == ("mine", ("v", "w"))
        assert reached.wait(60) and not job.done() and job.status == "RUNNING"
        assert table.get_job("mine").status == "RUNNING"
        gate.set()
        result = job.result(120)
    assert (result.status, result.rows_computed, job.status) == ("DONE", 2, "DONE")
    assert result.versions == (table.version,) and table.to_lance().schema.names == ["id", "v", "w"]


def test_a_load_that_is_cancelled_commits_nothing_and_goes_on_with_the_same_call(
    table: Table, files: Path
) -> None:
    path = write_file(of_ids(range(30)), files / "x.parquet")
    jobs: list[Job] = []
    is_selected = threading.Event()

    def cancel() -> None:
        assert is_selected.wait(60)
        jobs[0].cancel()

    with nothing_changes(table), joins(before=cancel):
        jobs.append(table.load_columns_async(path, "id", ["v"]))
        is_selected.set()
        with pytest.raises(
            BackfillIncompleteError, match="load is incomplete: the job was cancelled"
        ):
            jobs[0].result(120)
    assert jobs[0].status == table.get_job(jobs[0].job_id).status == "CANCELLED"
    assert load(table, path, "id", ["v"]).status == "DONE"
    assert values(table) == {i: 10 * i for i in range(30)}


# Parameters


WRONG: list[tuple[str, Any]] = [
    *(("pk", value) for value in ([], "", ["id", "id"], 3, [None])),
    *(("columns", value) for value in ([], ["v", "v"], [1], ["id"])),
    *(("on_missing", value) for value in ("keep", None, "CARRY")),
    *(("source_format", value) for value in ("csv", "Parquet")),
    *(("concurrency", value) for value in (0, -1, 1.5, True)),
    *(("task_size", value) for value in (0, "4")),
    *(("checkpoint_size", value) for value in (0, 2.5, True)),
    *(("min_checkpoint_size", value) for value in (0, "1")),
    *(("max_checkpoint_size", value) for value in (0, "1")),
    *(
        ("checkpoint_interval_seconds", value)
        for value in (-1, "1", True, float("nan"), float("inf"))
    ),
    *(("_loader_cpus", value) for value in (0, -1, "1", True)),
    *(("_loader_memory", value) for value in (0, 1.5, True)),
    *(("commit_granularity", value) for value in (0, "1")),
    *(("refresh_status_secs", value) for value in (0, -1, "1")),
    *(("job_id", value) for value in ("", " ", 3, "x" * 10_000)),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "value"), WRONG, ids=[f"{name}={str(value)[:20]!r}" for name, value in WRONG]
)
def test_a_parameter_that_is_wrong_is_named_and_nothing_is_changed(
    name: str, value: Any, table: Table
) -> None:
    call: dict[str, Any] = {
        "source": of_ids([1], w=[1]),
        "pk": "id",
        "columns": ["v", "w"],
        name: value,
    }
    with nothing_changes(table), pytest.raises(OptionError) as caught:
        table.load_columns_async(**call)
    assert caught.value.option == name and f"Option {name!r}" in str(caught.value)


@pytest.mark.guarantee("L15")
def test_more_than_the_cluster_has_is_refused_before_a_column_is_added(table: Table) -> None:
    for more, what in (
        ({"_loader_cpus": 100}, "100 CPUs"),
        ({"_loader_memory": 1 << 60}, "of memory"),
    ):
        with nothing_changes(table), pytest.raises(ResourcesUnavailableError, match=what):
            table.load_columns(of_ids([1], w=[1]), "id", ["w"], **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [{"max_checkpoint_size": 4}, {"checkpoint_size": 4}], ids=str)
def test_a_least_size_above_the_most_is_refused_before_a_column_is_added(
    more: dict[str, Any], table: Table
) -> None:
    with (
        nothing_changes(table),
        pytest.raises(OptionError, match=r"'min_checkpoint_size'.*too large"),
    ):
        table.load_columns(of_ids([1], w=[1]), "id", ["w"], min_checkpoint_size=5, **more)


def test_a_least_size_alone_may_be_any_as_nothing_bounds_a_checkpoint_then(table: Table) -> None:
    assert load(table, of_ids([1]), "id", ["v"], min_checkpoint_size=50_000_000).rows_computed == 1


def test_a_new_column_that_differs_from_another_only_in_capitals_is_refused(table: Table) -> None:
    source = pa.table({"id": [1], "V": [1]})
    for call in (table.plan_load_columns, table.load_columns):
        with nothing_changes(table), pytest.raises(ColumnExistsError, match="V"):
            call(source, "id", ["V"])


@pytest.mark.guarantee("L12", "L14")
def test_load_columns_and_its_async_form_and_plan_share_their_parameters() -> None:
    signatures = [
        inspect.signature(parameter).parameters
        for parameter in (Table.load_columns, Table.load_columns_async)
    ]
    assert [str(parameter) for parameter in signatures[0].values()] == [
        str(parameter) for parameter in signatures[1].values()
    ]
    plan = inspect.signature(Table.plan_load_columns).parameters
    assert list(plan) == [name for name in signatures[0] if name in plan]
    assert all(str(plan[name]) == str(signatures[0][name]) for name in plan)
    defaults = {
        name: parameter.default
        for name, parameter in signatures[0].items()
        if parameter.default is not inspect.Parameter.empty
    }
    nones = (
        "source_format",
        "task_size",
        "checkpoint_size",
        "min_checkpoint_size",
        "max_checkpoint_size",
        "job_id",
    )
    nones += ("checkpoint_interval_seconds", "_loader_cpus", "_loader_memory", "commit_granularity")
    assert defaults == {
        **dict.fromkeys((*nones, "source_storage_options")),
        "on_missing": "carry",
        "concurrency": 8,
        "refresh_status_secs": 2.0,
        "enable_job_tracker_saves": True,
    }
    assert {parameter.kind for name, parameter in signatures[0].items() if name in defaults} == {
        inspect.Parameter.KEYWORD_ONLY
    }
    assert DEFAULT_INTERVAL_S == 60


# Versions and checkpoints


@pytest.mark.guarantee("L16")
@pytest.mark.parametrize(("granularity", "versions"), [(1, 3), (2, 2), (None, 1)])
def test_a_commit_is_made_for_so_many_fragments(
    granularity: int | None, versions: int, table: Table
) -> None:
    before, version_gaps = table.version, list[int]()
    look = dict.fromkeys(
        range(versions), lambda: version_gaps.append(table.count_rows("v = 10 * id AND id > 0"))
    )
    with around_commits(after=look):
        result = load(
            table,
            of_ids(range(30)),
            "id",
            ["v"],
            commit_granularity=granularity,
            concurrency=1,
            task_size=10,
            refresh_status_secs=0.05,
        )
    assert (
        result.versions == tuple(range(before + 1, before + 1 + versions))
        and table.version == result.versions[-1]
    )
    assert (
        version_gaps == sorted(version_gaps)
        and version_gaps[-1] == 29
        and (versions == 1 or version_gaps[0] < 29)
    )


@pytest.mark.sample(4)
@pytest.mark.guarantee("L13")
@pytest.mark.parametrize(
    ("more", "rows"),
    [
        ({}, [10, 10, 10]),
        ({"checkpoint_size": 4}, [2, 2, 2, 4, 4, 4, 4, 4, 4]),
        ({"max_checkpoint_size": 7}, [3, 3, 3, 7, 7, 7]),
        ({"checkpoint_size": 9, "max_checkpoint_size": 5}, [5] * 6),
    ],
)
def test_a_checkpoint_has_at_most_so_many_rows(
    more: dict[str, Any], rows: list[int], table: Table
) -> None:
    with around_commits(before={0: stop}), pytest.raises(Stop):
        load(table, of_ids(range(30)), "id", ["v"], **more)
    sizes = [
        path.name.split(".")[1] for path in Path(table.uri, FOLDER, "checkpoints").rglob("*.rows")
    ]
    assert sorted(map(int, sizes)) == rows


# Going on


@pytest.mark.long
@pytest.mark.guarantee("F09")
def test_the_same_call_goes_on_and_another_source_or_rule_for_missing_rows_does_not(
    table: Table, files: Path
) -> None:
    path = write_file(of_ids([i for i in range(30) if i % 3]), files / "x.parquet")

    def interrupted(**more: Any) -> None:
        before = table.version
        with around_commits(before={0: stop}), pytest.raises(Stop):
            load(table, path, "id", ["v"], **more)
        assert table.version == before

    interrupted()
    interrupted(on_missing="null")
    with joins() as join_calls:
        result = load(table, path, "id", ["v"])
    assert (result.rows_from_checkpoint, result.rows_computed, join_calls.rows) == (20, 0, [10])
    assert values(table) == {i: 10 * i if i % 3 else -i for i in range(30)}
    with joins() as join_calls:
        result = load(table, path, "id", ["v"])
    assert (result.rows_from_checkpoint, result.rows_computed, join_calls.rows) == (0, 20, [30]), (
        "a finished one begins anew"
    )
    interrupted()
    write_file(of_ids([i for i in range(30) if i % 3], factor=-7), Path(path))
    result = load(table, path, "id", ["v"])
    assert (result.rows_from_checkpoint, result.rows_computed) == (0, 20)
    assert values(table) == {i: -7 * i if i % 3 else -i for i in range(30)}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["data", "a DataFrame", "a DataFrame of its id"])
def test_data_is_known_by_its_rows_and_a_dataframe_by_the_id_of_the_job(
    kind: str, table: Table, spark: SparkSession
) -> None:
    data = of_ids(range(20))
    more = {"job_id": "mine"} if kind == "a DataFrame of its id" else {}

    def source() -> Any:
        return data.to_pylist() if kind == "data" else spark.createDataFrame(data.to_pandas())

    with around_commits(before={0: stop}), pytest.raises(Stop):
        load(table, source(), "id", ["v"], **more)
    result = load(table, source(), "id", ["v"], **more)
    assert (result.rows_from_checkpoint > 0) == (kind != "a DataFrame")
    assert values(table) == {i: 10 * i if i < 20 else -i for i in range(30)}


# Changing sources


def test_a_file_that_is_written_again_after_its_keys_were_checked_ends_the_load(
    table: Table, files: Path
) -> None:
    path = files / "x.parquet"

    def rewrite() -> None:
        write_file(of_ids(range(30), factor=-7), path)

    moments = [joins(before=rewrite), joins(after=rewrite), around_commits(before={0: rewrite})]
    for number, moment in enumerate(moments):
        write_file(of_ids(range(30), factor=number + 2), path)
        with (
            moment,
            pytest.raises(
                (SourceChangedError, BackfillIncompleteError), match="written again since the load"
            ),
        ):
            load(table, str(path), "id", ["v"])
        assert table.count_rows("v = -7 * id AND id > 0") == 0, "nothing of the new file"
    assert {job.status for job in table.list_jobs()} <= {"FAILED", "PARTIAL"}


@pytest.mark.parametrize("is_deleted", [False, True], ids=["written", "deleted"])
def test_a_file_that_changes_while_keys_are_checked_is_named_and_nothing_is_changed(
    is_deleted: bool, table: Table, files: Path
) -> None:
    path = Path(write_file(of_ids(range(30), w=[1] * 30), files / "x.parquet"))
    job = table._load(
        LoadParameters(str(path), "id", ["w"]),
        table._spark(),
    )
    path.unlink() if is_deleted else write_file(of_ids(range(29)), path)
    with nothing_changes(table), pytest.raises(SourceChangedError, match=r"x\.parquet"):
        job.prepare(
            table._spark(),
            lambda columns, version: table.to_spark(columns, version=version),
            checkpoints=None,
        )
