"""A table's rows: reading in every form, adding, and display."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import lance
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_spark import Connection, FilterError, OptionError, Table
from lance_spark.errors import LanceSparkError, SchemaMismatchError, ValueConversionError
from lance_spark.table import rows
from tests.lance_spark.table.call_log import CallLog
from tests.lance_spark.table.conftest import make_table
from udf_runtime import udf

pytestmark = [pytest.mark.spark, pytest.mark.sample(3, tests=2)]


def test_schema_version_and_versions_are_those_of_the_latest_version(table: Table):
    assert table.schema == pa.schema([("id", pa.int64()), ("text", pa.string())])
    assert table.version == 3 and [version.version for version in table.versions] == [1, 2, 3]
    table.add([{"id": 30, "text": "word 30"}])
    assert table.version == 4 and table.versions[-1].version == 4


def test_another_handle_sees_what_this_one_wrote(db: Connection, table: Table):
    second_handle = db.open_table("words")
    table.add([{"id": 30, "text": "x"}])
    assert second_handle.count_rows() == 31 and second_handle.version == table.version


def test_rows_are_counted_with_and_without_a_filter(table: Table):
    assert table.count_rows() == 30 and table.count_rows("id >= 10 AND text LIKE 'word 1%'") == 10


@pytest.mark.parametrize(
    "filter", ["nope = 1", "id >", "unknown_function(id) = 1", "id = 1; DROP TABLE x", "id"]
)
def test_a_filter_that_is_none_is_an_error_of_its_own_kind_everywhere(table: Table, filter: str):
    for read in (
        table.count_rows,
        lambda f: table.to_arrow(filter=f),
        lambda f: table.to_pandas(filter=f),
    ):
        with pytest.raises(FilterError) as error:
            read(filter)
        assert filter in str(error.value)
    with pytest.raises((FilterError, PySparkException), match="filter"):
        table.to_spark(filter=filter).count()


def test_the_head_is_the_first_rows_in_the_order_of_the_table(table: Table):
    assert table.head()["id"].to_pylist() == [0, 1, 2, 3, 4]
    assert table.head(12)["id"].to_pylist() == list(range(12))
    assert table.head(0).num_rows == 0 and table.head(1000).num_rows == 30


def test_a_head_of_a_negative_number_is_refused(table: Table):
    with pytest.raises(OptionError, match="n"):
        table.head(-1)


def test_rows_come_as_arrow_and_pandas_with_columns_and_a_filter(table: Table):
    assert table.to_arrow().num_rows == 30
    assert table.to_arrow(["text"], "id = 7").to_pylist() == [{"text": "word 7"}]
    frame = table.to_pandas(["id"], "id < 3")
    assert (
        isinstance(frame, pd.DataFrame)
        and frame["id"].tolist() == [0, 1, 2]
        and list(frame.columns) == ["id"]
    )
    assert isinstance(table.to_lance(), lance.LanceDataset)


def test_a_column_that_is_not_there_is_named(table: Table):
    for read in (table.to_arrow, table.to_pandas):
        with pytest.raises(LanceSparkError, match="nope"):
            read(["nope"])
    with pytest.raises((LanceSparkError, PySparkException), match="nope"):
        table.to_spark(["nope"]).count()


def test_a_spark_dataframe_has_the_columns_and_rows_that_were_asked_for(table: Table):
    frame = table.to_spark(["text"], "id < 2")
    assert sorted(row.text for row in frame.collect()) == [
        "word 0",
        "word 1",
    ] and frame.columns == ["text"]
    assert table.to_spark(["text", "id"]).columns == ["text", "id"]


def test_a_spark_dataframe_stays_at_its_version(table: Table):
    frame = table.to_spark()
    assert table.to_spark(version=2).count() == 20
    table.add([{"id": 30, "text": "x"}])
    assert (
        frame.count() == 30
        and table.to_spark().count() == 31
        and table.to_spark(version=3).count() == 30
    )
    with pytest.raises((LanceSparkError, PySparkException), match="99"):
        table.to_spark(version=99).count()


def test_a_tag_and_a_branch_are_versions_too(table: Table):
    table.to_lance().tags.create("first", 1)
    assert table.to_spark(version="first").count() == 10


@pytest.mark.classic
def test_sparks_planner_hands_columns_and_filters_down(table: Table):
    frame = table.to_spark().filter("id > 25").select("text")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    scan = next(line for line in plan.splitlines() if "BatchScan" in line)
    assert "columns: [id, text]; pushed: `id` > 25;" in scan
    assert sorted(row.text for row in frame.collect()) == [f"word {i}" for i in range(26, 30)]


def more_rows(spark: SparkSession) -> dict[str, object]:
    rows = [{"id": 100, "text": "new"}, {"id": 101, "text": None}]
    typed = pa.table({"id": pa.array([100, 101], pa.int64()), "text": ["new", None]})
    return {
        "spark": spark.createDataFrame(rows, "id bigint, text string"),
        "table": typed,
        "batch": typed.to_batches()[0],
        "reader": typed.to_reader(),
        "pandas": pd.DataFrame(rows),
        "dicts": rows,
        "lists": {"id": [100, 101], "text": ["new", None]},
        "batches": iter(typed.to_batches(max_chunksize=1)),
        "tables": (typed.slice(at, 1) for at in range(2)),
    }


FORMS = ["spark", "table", "batch", "reader", "pandas", "dicts", "lists", "batches", "tables"]


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_every_form_are_added_and_computed_columns_are_null(
    table: Table, spark: SparkSession, call_log: CallLog, form: str
):
    table.add_columns({"double": call_log.times(2)})
    table.backfill("double")
    table.add(more_rows(spark)[form])  # type: ignore[arg-type]
    added = table.to_arrow(filter="id >= 100").to_pylist()
    assert sorted(added, key=lambda row: row["id"]) == [
        {"id": 100, "text": "new", "double": None},
        {"id": 101, "text": None, "double": None},
    ]
    assert table.count_rows("double = id * 2") == 30


def test_overwriting_leaves_only_the_new_rows(table: Table, spark: SparkSession):
    for form in ("spark", "table"):
        table.add(more_rows(spark)[form], mode="overwrite")  # type: ignore[arg-type]
        assert sorted(table.to_arrow()["id"].to_pylist()) == [100, 101]


def test_an_unknown_mode_of_adding_is_refused(table: Table):
    with pytest.raises(OptionError, match="append or overwrite"):
        table.add([{"id": 1, "text": "x"}], mode="upsert")  # type: ignore[arg-type]
    assert table.version == 3


@pytest.mark.parametrize("form", ["spark", "table", "pandas", "dicts"])
def test_rows_that_do_not_fit_are_refused_and_nothing_is_written(
    table: Table, spark: SparkSession, form: str
):
    make: dict[str, Callable[[], object]] = {
        "spark": lambda: spark.createDataFrame([(1, "x")], "id bigint, other string"),
        "table": lambda: pa.table({"id": [1], "other": ["x"]}),
        "pandas": lambda: pd.DataFrame({"id": [1], "other": ["x"]}),
        "dicts": lambda: [{"id": 1, "other": "x"}],
    }
    with pytest.raises((SchemaMismatchError, PySparkException), match="other"):
        table.add(make[form]())  # type: ignore[arg-type]
    assert table.version == 3 and table.count_rows() == 30


def test_bytes_are_added_to_a_column_of_blobs(db: Connection):
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = db.create_table("blobs", schema=pa.schema([("id", pa.int64()), blob]))
    table.add([{"id": 1, "b": b"one"}, {"id": 2, "b": None}])
    table.add(pa.table({"id": [3], "b": pa.array([b"three"], pa.binary())}))
    table.add({"b": [b"four"]})
    blobs = table.to_lance().take_blobs("b", indices=[0, 2, 3])
    assert [blob_file.read() for blob_file in blobs] == [
        b"one",
        b"three",
        b"four",
    ] and table.count_rows("id IS NULL") == 1
    # Their positions, or on request their contents.
    assert pa.types.is_struct(table.to_arrow().schema.field("b").type)
    for some in (table.to_arrow, table.head):
        assert some(blob_handling="bytes")["b"].to_pylist() == [b"one", None, b"three", b"four"]  # type: ignore[operator]
    assert table.to_arrow(["b"], "id = 3", blob_handling="bytes").to_pylist() == [{"b": b"three"}]
    assert table.to_pandas(["b"], blob_handling="bytes")["b"].tolist() == [
        b"one",
        None,
        b"three",
        b"four",
    ]
    with pytest.raises(OptionError, match="blob_handling"):
        table.to_arrow(blob_handling="text")  # type: ignore[arg-type]


def test_arguments_other_than_rows_are_refused_with_the_accepted_types(table: Table):
    class Other:
        """Any object."""

    for data, message in (
        ([Other()], "Other is no data.*a list of dicts or of pydantic models"),
        (iter([Other()]), "Other is no data.*an iterator over batches"),
        ([{"id": 1}, Other()], "Other is no data"),
        (iter([{"id": 1}]), "A single dict is no data.*An iterator yields lists"),
        (iter([]), "no batches"),
        ({"id": [1], "other": [2]}, "'other'"),
        ({"id": [1, 2], "text": ["x"]}, "(?i)nothing was written"),
        (5, "int is no data"),
    ):
        with pytest.raises(SchemaMismatchError, match=message):
            table.add(data)  # type: ignore[arg-type]
    assert table.version == 3


def test_rows_of_another_type_are_refused_and_nothing_is_written(table: Table):
    with pytest.raises(SchemaMismatchError, match="id"):
        table.add(pa.table({"id": ["text"], "text": ["x"]}))
    assert table.version == 3


def test_python_values_get_the_types_of_the_tables_columns(db: Connection):
    schema = pa.schema(
        [
            ("id", pa.int16()),
            ("v", pa.list_(pa.float32(), 2)),
            ("d", pa.decimal128(9, 2)),
            ("t", pa.timestamp("ms")),
        ]
    )
    table = db.create_table("t", schema=schema)
    table.add([{"v": [1, 2], "id": 3}, {"id": 4, "d": None}])
    table.add(pd.DataFrame({"id": [5], "v": [[0.5, 1.5]]}))
    assert table.schema == schema
    assert [(row["id"], row["v"]) for row in table.to_arrow().to_pylist()] == [
        (3, [1, 2]),
        (4, None),
        (5, [0.5, 1.5]),
    ]
    for values in ([{"id": 70000}], [{"id": "many"}], pd.DataFrame({"id": ["many"]})):
        with pytest.raises(
            ValueConversionError, match=r"column 'id', row 0 of the data\. Nothing was written"
        ):
            table.add(values)
    assert table.count_rows() == 3


def test_a_table_shows_name_version_rows_columns_and_udfs(table: Table, call_log: CallLog):
    assert repr(table) == "Table('words', version 3, 30 rows, columns [id: int64, text: string])"
    table.add_columns({"double": call_log.times(2)})
    assert "double: int64 = times()" in repr(table)


def test_the_notebooks_view_shows_columns_and_the_first_rows_shortened(db: Connection):
    table = db.create_table(
        "t", [{"id": i, "text": "x" * 500 if i == 0 else None} for i in range(50)]
    )
    page = table._repr_html_()
    assert (
        page.count("<tr>") == 6
        and "<small>int64</small>" in page
        and "None" in page
        and "…" in page
    )
    assert "x" * 80 not in page and "50 rows" in page


def test_the_notebooks_view_escapes_what_others_wrote(db: Connection):
    evil = "<script>alert('x')</script>"

    @udf(data_type=pa.int64(), name="<b>name</b>", input_columns=["id"])
    def double(id: int) -> int:
        return id

    table = db.create_table("a<b>&c", [{"id": 1, "text": evil, "<i>col</i>": "&amp;"}])
    table.add_columns({"made": double})
    page = table._repr_html_()
    for raw in ("<script", "<b>", "<i>col", "a<b"):
        assert raw not in page
    assert "&lt;script&gt;" in page and "&amp;amp;" in page and "a&lt;b&gt;&amp;c" in page
    assert "&lt;i&gt;col&lt;/i&gt;" in page and "&lt;b&gt;name&lt;/b&gt;" in page


def test_a_table_without_rows_shows_itself(db: Connection):
    table = db.create_table("t", schema=pa.schema([("id", pa.int64())]))
    assert (
        "0 rows" in repr(table) and "0 rows" in table._repr_html_() and table.head().num_rows == 0
    )


def test_a_row_with_bytes_and_vectors_is_shown(db: Connection):
    table = make_table(db, "t", rows=2, fragments=1)
    table.to_lance().add_columns({"v": "array[1.0, 2.0]", "b": "cast(text as binary)"})
    assert "[1.0, 2.0]" in table._repr_html_()


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_spark_dataframe_is_added_with_its_own_version_beside_other_writers(
    table: Table, monkeypatch: pytest.MonkeyPatch, mode: Literal["append", "overwrite"]
):
    """Another writer commits after the write, and before the result."""
    write, version = rows.write_rows, table.version

    def write_before_another(*arguments: Any, **more: Any) -> Any:
        write(*arguments, **more)
        monkeypatch.undo()
        table.add(table.to_arrow(filter="id < 1"))

    monkeypatch.setattr(rows, "write_rows", write_before_another)
    result = table.add(table.to_spark(filter="id < 3"), mode)
    assert (result.version, result.rows_inserted) == (
        version + 1,
        3,
    ) and table.version == version + 2
    assert table.versions[-2].properties == {}
    empty = table.add(table.to_spark(filter="id < 0"))
    assert (empty.version, empty.rows_inserted) == (table.version, 0)
