"""Storage of a UDF: JSON in field metadata, the pickle next to the table, and the permission to load the pickle."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lance_spark import Connection, StoredUdfError, Table
from tests.lance_spark.table.call_log import CallLog
from tests.lance_spark.table.conftest import make_table
from udf_runtime import udf

pytestmark = [pytest.mark.spark, pytest.mark.sample(1, tests=3)]


class Bomb:
    """Its unpickling makes a file."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (self.marker, "w"))


def metadata_of(table: Table, column: str) -> dict[str, str]:
    return {
        key.decode(): value.decode() for key, value in table.schema.field(column).metadata.items()
    }


def stored(table: Table) -> list[Path]:
    return sorted(Path(table.uri, "_lance_spark", "udfs").iterdir())


def test_field_metadata_says_what_computes_the_column(table: Table):
    @udf(
        data_type=pa.float32(),
        version="v7",
        input_columns=["id", "text"],
        field_metadata={"unit": "metres"},
    )
    def score(a: int, b: str) -> float:
        return 0.0

    table.add_columns({"score": score})
    metadata = metadata_of(table, "score")
    assert metadata["unit"] == "metres"
    stored_json = json.loads(metadata["lance-spark:udf"])
    assert (
        stored_json["udf_name"] == "score"
        and stored_json["udf_version"] == "v7"
        and stored_json["kind"] == "scalar"
    )
    assert (
        stored_json["inputs"] == ["id", "text"]
        and stored_json["output_type"] == "float"
        and stored_json["manifest"] is None
    )
    assert stored_json["input_ids"] == [
        field.id() for field in table.to_lance().lance_schema.fields()[:2]
    ]
    assert [path.name for path in stored(table)] == [stored_json["payload"]]
    assert hashlib.sha256(stored(table)[0].read_bytes()).hexdigest() == stored_json["payload"]


def test_one_payload_is_stored_for_all_columns_of_a_udf(table: Table, call_log: CallLog):
    double = call_log.times(2)
    table.add_columns({"a": double, "b": double})
    table.add_columns({"c": double})
    assert len(stored(table)) == 1
    table.add_columns({"d": call_log.times(3)})
    assert len(stored(table)) == 2
    assert {table.backfill(column).rows_computed for column in "abcd"} == {30}
    assert table.count_rows("a = id * 2 AND b = a AND c = a AND d = id * 3") == 30


def test_each_column_has_a_token_of_its_own_and_siblings_share_one(table: Table, call_log: CallLog):
    table.add_columns({"a": call_log.times(2), "b": call_log.times(2)})
    tokens = {
        column: {k: v for k, v in metadata_of(table, column).items() if k != "lance-spark:udf"}
        for column in "ab"
    }
    assert tokens["a"] != tokens["b"]


def test_what_is_stored_does_not_look_like_table_data_to_other_readers(
    table: Table, call_log: CallLog, spark: SparkSession
):
    table.add_columns({"double": call_log.times(2)})
    table.backfill("double")
    assert table.to_lance().to_table().column_names == ["id", "text", "double"]
    table.to_lance().cleanup_old_versions()
    assert stored(table)


@pytest.mark.sample(1)
def test_nothing_but_a_backfill_with_the_stored_udf_unpickles_it(
    db: Connection, table: Table, call_log: CallLog, tmp_path: Path, spark: SparkSession
):
    double = call_log.times(2)
    table.add_columns({"double": double, "other": call_log.times(3)})
    table.backfill("double", num_frags=1, job_id="first")
    marker = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(str(marker)))
    pickle.loads(bomb).close()
    assert marker.exists(), "the bomb is none"
    marker.unlink()
    for path in stored(table):
        path.write_bytes(bomb)

    again = db.open_table("words")
    assert (
        again.schema.names
        and again.version
        and again.versions
        and again.count_rows("double IS NULL")
    )
    assert again.head().num_rows and again.to_arrow().num_rows and len(again.to_pandas())
    assert again.to_spark().count() == 30 and repr(again) and again._repr_html_()
    assert again.list_jobs() and again.get_job("first") and again.get_errors() == []
    assert again.get_failed_row_addresses("first", "double") == []
    again.add([{"id": 30, "text": "x"}])
    again.add_columns({"third": call_log.times(4)})
    assert again.plan_backfill("double", udf=double).total_rows_pending == 21
    assert again.backfill("double", udf=double).rows_computed == 21
    again.alter_columns({"path": "other", "name": "renamed"})
    again.alter_columns({"path": "renamed", "udf": call_log.times(5)})
    again.drop_columns("renamed")
    assert not marker.exists(), "a stored UDF was unpickled"

    with pytest.raises(StoredUdfError, match="was altered") as error:
        again.backfill("double")
    assert "alter_columns" in str(error.value) and not marker.exists()
    assert again.plan_backfill("double").total_rows_pending == 0
    assert not marker.exists(), "a plan needs no UDF"


@pytest.mark.parametrize("value", ["0", "false", "no", " FALSE "])
def test_loading_stored_udfs_can_be_forbidden(
    table: Table, call_log: CallLog, monkeypatch: pytest.MonkeyPatch, value: str
):
    table.add_columns({"double": call_log.times(2)})
    monkeypatch.setenv("LANCE_SPARK_ALLOW_STORED_UDFS", value)
    monkeypatch.setattr("udf_runtime.UDF.loads", lambda payload: pytest.fail("it was loaded"))
    assert table.plan_backfill("double").rows_to_compute == 30
    for act in (table.backfill, table.backfill_async):
        with pytest.raises(StoredUdfError, match="LANCE_SPARK_ALLOW_STORED_UDFS") as error:
            act("double")
        assert "udf=" in str(error.value)
    assert table.version == 4 and call_log.take() == []


def test_where_loading_is_forbidden_a_udf_that_is_given_works(
    table: Table, call_log: CallLog, monkeypatch: pytest.MonkeyPatch
):
    table.add_columns({"double": call_log.times(2)})
    monkeypatch.setenv("LANCE_SPARK_ALLOW_STORED_UDFS", "0")
    assert table.plan_backfill("double", udf=call_log.times(2)).rows_to_compute == 30
    assert table.backfill("double", udf=call_log.times(2)).rows_computed == 30


def test_a_flag_that_says_neither_yes_nor_no_forbids(
    table: Table, call_log: CallLog, monkeypatch: pytest.MonkeyPatch
):
    table.add_columns({"double": call_log.times(2)})
    monkeypatch.setenv("LANCE_SPARK_ALLOW_STORED_UDFS", "off")
    with pytest.raises(StoredUdfError, match="LANCE_SPARK_ALLOW_STORED_UDFS='off'"):
        table.backfill("double")


def test_a_missing_payload_is_an_error_with_a_remedy_that_works(table: Table, call_log: CallLog):
    double = call_log.times(2)
    table.add_columns({"double": double})
    stored(table)[0].unlink()
    with pytest.raises(StoredUdfError, match=r"is missing.*udf="):
        table.backfill("double")
    table.alter_columns({"path": "double", "udf": double})
    assert table.backfill("double").rows_computed == 30 and call_log.take() == list(range(30))


@pytest.mark.sample(1)
def test_a_payload_that_holds_something_else_is_refused(table: Table, call_log: CallLog):
    table.add_columns({"double": call_log.times(2)})
    payload = pickle.dumps({"not": "a UDF"})
    digest = hashlib.sha256(payload).hexdigest()
    Path(table.uri, "_lance_spark", "udfs", digest).write_bytes(payload)
    stored = json.loads(metadata_of(table, "double")["lance-spark:udf"]) | {"payload": digest}
    table.to_lance().update_field_metadata({"double": {"lance-spark:udf": json.dumps(stored)}})
    with pytest.raises(StoredUdfError, match=r"cannot be loaded here: .*[^.]\. Stored: UDF "):
        table.backfill("double")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"udf_name": "x"}', "7"])
def test_damaged_metadata_is_an_error_of_the_backfill_and_of_nothing_else(
    table: Table, call_log: CallLog, text: str
):
    table.add_columns({"double": call_log.times(2)})
    table.to_lance().update_field_metadata({"double": {"lance-spark:udf": text}})
    with pytest.raises(StoredUdfError, match=r"damaged.*alter_columns"):
        table.backfill("double")
    assert (
        table.to_arrow().num_rows == 30
        and repr(table)
        and table._repr_html_()
        and table.list_jobs() == []
    )
    table.alter_columns({"path": "double", "udf": call_log.times(2)})
    assert table.backfill("double").rows_computed == 30


@pytest.mark.sample(1)
@pytest.mark.parametrize("path", ["../../../secret", "/etc/passwd", ".."])
def test_a_payload_elsewhere_is_not_read(table: Table, call_log: CallLog, path: str):
    table.add_columns({"double": call_log.times(2)})
    stored = json.loads(metadata_of(table, "double")["lance-spark:udf"]) | {"payload": path}
    table.to_lance().update_field_metadata({"double": {"lance-spark:udf": json.dumps(stored)}})
    with pytest.raises(StoredUdfError):
        table.backfill("double")


def test_a_stored_udf_works_from_a_renamed_table(db: Connection, call_log: CallLog):
    table = make_table(db, "old")
    table.add_columns({"double": call_log.times(2)})
    table.backfill("double", num_frags=1)
    db.rename_table("old", "new")
    result = db.open_table("new").backfill("double")
    assert result.rows_computed == 20 and call_log.take() == list(range(30))
