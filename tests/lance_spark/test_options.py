"""Options are parsed once. Errors name the unknown or malformed option and the accepted values."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_spark.errors import OptionError
from lance_spark.options.io_options import VIEW_MARK, ReadOptions, WriteOptions, options_table
from lance_spark.options.statements import options_of_create_table, refuse_internal

GOOD_READ = [
    ("version", "7", "7"),
    ("version", "nightly-2026.01", "nightly-2026.01"),
    ("version", "audit:3", "audit:3"),
    ("timestamp", "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ("timestamp", "2026-01-31 12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ("timestamp", "2026-01-31T13:00:00+01:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ("columns", "a, b", ("a", "b")),
    ("columns", '["a, b", "c"]', ("a, b", "c")),
    ("limit", "0", 0),
    ("limit", "9223372036854775807", (1 << 63) - 1),
    ("fragments", "3,1,1", (1, 3)),
    ("fragments", "[5]", (5,)),
    ("with_row_address", "TRUE", True),
    ("blob_handling", "BYTES", "bytes"),
    ("target_partition_bytes", "64m", 64 << 20),
    ("target_partition_bytes", "1GiB", 1 << 30),
    ("target_partition_bytes", "1000", 1000),
    ("parallelism", "200", 200),
]

BAD_READ = [
    ("version", "a:b:c"),
    ("version", "branch:x"),
    ("version", ""),
    ("timestamp", "yesterday"),
    ("columns", "a,,b"),
    ("columns", "a,a"),
    ("columns", "[1]"),
    ("columns", '["a"'),
    ("limit", "-1"),
    ("limit", "ten"),
    ("limit", "9223372036854775808"),
    ("batch_size", "0"),
    ("fragments", "-1"),
    ("fragments", "4294967296"),
    ("fragments", "[true]"),
    ("fragments", "[1.5]"),
    ("with_row_id", "yes"),
    ("blob_handling", "lazy"),
    ("target_partition_bytes", "0"),
    ("parallelism", "0"),
    ("target_partition_bytes", "64x"),
    ("path", " "),
]


@pytest.mark.parametrize(("name", "text", "value"), GOOD_READ)
def test_a_read_option_is_parsed_to_its_type(name: str, text: str, value: object) -> None:
    assert getattr(ReadOptions.parse({"path": "/t", name: text}), name) == value


@pytest.mark.parametrize(("name", "text"), BAD_READ)
def test_a_malformed_read_option_is_named_with_its_value_and_what_is_accepted(
    name: str, text: str
) -> None:
    with pytest.raises(OptionError) as caught:
        ReadOptions.parse({"path": "/t", name: text})
    assert caught.value.option == name
    assert caught.value.value == text
    assert (
        name in str(caught.value)
        and repr(text) in str(caught.value)
        and "Accepted:" in str(caught.value)
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mode", "upsert"),
        ("version", "0"),
        ("version", "latest"),
        ("max_rows_per_file", "0"),
        ("max_bytes_per_file", "big"),
        ("data_storage_version", "3"),
        ("enable_stable_row_ids", "1"),
        ("commit_max_retries", "-1"),
        ("emb.arrow.fixed-size-list.size", "0"),
        ("emb.arrow.fixed-size-list.size", "x"),
        ("img.lance.encoding", "blobby"),
    ],
)
def test_a_malformed_write_option_is_named_with_its_value(name: str, text: str) -> None:
    with pytest.raises(OptionError, match="Accepted") as caught:
        WriteOptions.parse({"path": "/t", name: text})
    assert (caught.value.option, caught.value.value) == (name, text)


@pytest.mark.parametrize(
    ("wrong", "suggestion"),
    [("with_row_adress", "with_row_address"), ("colums", "columns"), ("versoin", "version")],
)
def test_an_unknown_option_gets_the_nearest_known_name(wrong: str, suggestion: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean '{suggestion}'"):
        ReadOptions.parse({"path": "/t", wrong: "1"})


def test_version_and_timestamp_contradict_each_other() -> None:
    with pytest.raises(OptionError, match="not both"):
        ReadOptions.parse({"path": "/t", "version": "1", "timestamp": "2026-01-01"})


def test_storage_options_and_column_options_are_collected() -> None:
    options = WriteOptions.parse(
        {
            "path": "s3://b/t",
            "storage.aws_region": "eu-west-1",
            "emb.arrow.fixed-size-list.size": "4",
            "a.b.lance.encoding": "blob",
            "MODE": "Backfill",
        }
    )
    assert options.storage == (("aws_region", "eu-west-1"),)
    assert options.column_options == (
        ("a.b", (("lance.encoding", "blob"),)),
        ("emb", (("arrow.fixed-size-list.size", "4"),)),
    )
    assert options.mode == "backfill"


def test_what_the_planner_rule_adds_is_not_taken_for_a_users_option() -> None:
    added = {"path": "/t", "lancespark.write": VIEW_MARK}
    assert ReadOptions.parse(added) == ReadOptions.parse({"path": "/t"})


CREATED = {
    "path": "/t",
    "owner": "o",
    "provider": "lance",
    "location": "file:/t",
    "external": "true",
    "a property": "of the table",
    "version": "3",
    "option.version": "3",
    "option.max_rows_per_file": "7",
    "option.storage.region": "x",
}


def test_a_catalog_table_is_made_with_options_for_its_reads_and_for_its_writes() -> None:
    options = options_of_create_table(CREATED)
    assert options == {
        "path": "/t",
        "version": "3",
        "max_rows_per_file": "7",
        "storage.region": "x",
    }
    stored = {**options, "lancespark.table": "version,max_rows_per_file,storage.region"}
    reads, writes = ReadOptions.parse(stored), WriteOptions.parse(stored)
    assert (reads.version, reads.storage, reads.path) == ("3", (("region", "x"),), "/t")
    assert (writes.version, writes.max_rows_per_file, writes.storage) == (
        None,
        7,
        (("region", "x"),),
    )
    with pytest.raises(OptionError, match="max_rows_per_file"):
        ReadOptions.parse({**stored, "lancespark.table": "version"})


@pytest.mark.parametrize("option", ["paths", "mergeSchema", "overwriteSchema", "replaceWhere"])
@pytest.mark.parametrize("cls", [ReadOptions, WriteOptions])
def test_options_of_other_formats_are_refused_with_what_to_do(
    cls: type[ReadOptions] | type[WriteOptions], option: str
) -> None:
    if (cls, option) == (WriteOptions, "mergeSchema"):
        assert WriteOptions.parse({"path": "/t", "mergeSchema": "true"}).mergeschema
        return
    with pytest.raises(OptionError, match=f"{option.lower()}.*of other formats.*:"):
        cls.parse({"path": "/t", option.lower(): "true"})


@pytest.mark.parametrize(
    "wrong", [{"option.max_rows_per_file": "many"}, {"option.max_rows_per_fil": "3"}]
)
def test_a_wrong_option_of_a_catalog_table_is_refused_when_it_is_made(
    wrong: dict[str, str],
) -> None:
    with pytest.raises(OptionError, match="max_rows_per_file"):
        options_of_create_table({**CREATED, **wrong})


@pytest.mark.parametrize("cls", [ReadOptions, WriteOptions])
def test_every_option_is_documented_and_its_values_survive_pickling(
    cls: type[ReadOptions] | type[WriteOptions],
) -> None:
    table = options_table(cls)
    for field in dataclasses.fields(cls):
        if field.name not in ("storage", "column_options", "properties"):
            assert f"| `{field.name}` |" in table
            assert field.metadata["doc"].endswith(".")
    parsed = cls.parse({"path": "/t"})
    assert pickle.loads(pickle.dumps(parsed)) == parsed


@given(st.text(), st.text())
def test_any_text_gives_options_or_our_error(name: str, text: str) -> None:
    for cls in (ReadOptions, WriteOptions):
        with contextlib.suppress(OptionError):
            assert cls.parse({"path": "/t", name: text}) is not None


def test_internal_options_are_errors() -> None:
    refuse_internal({"path": "/t", "limit": "1", "lancespark.write": VIEW_MARK})
    for options in (
        {"path": "/t", "lancespark.write": "{}"},
        {"lancespark.table": "a"},
        {"lancespark.by": "0"},
    ):
        with pytest.raises(
            OptionError,
            match=r"Option 'lancespark\.\w+' is internal\. Nothing was done\. Leave it out",
        ):
            refuse_internal(options)


def test_the_mark_of_a_view_is_the_one_that_the_rule_sets() -> None:
    source = (
        Path(__file__).parents[2] / "java/src/main/java/lancespark/LanceSource.java"
    ).read_text()
    quoted = VIEW_MARK.replace('"', '\\"')
    assert f'VIEW_MARK = "{quoted}"' in re.sub(r"\s+", " ", source)


@pytest.mark.parametrize(
    ("value", "display"),
    [
        ("it", "= 'it' is not valid"),
        ("it's", '= "it\'s" is not valid'),
        (5, "= 5 is not valid"),
        (1.5, "= 1.5 is not valid"),
        (timedelta(days=-1), "= datetime.timedelta(days=-1) is not valid"),
        (["secret"], "= a value of type list is not valid"),
        (None, "is missing"),
    ],
)
def test_a_wrong_value_is_shown_and_quoted_once(value: object, display: str):
    error = OptionError("k", value, "something else")
    assert str(error) == f"Option 'k' {display}. Accepted: something else."
    assert isinstance(pickle.loads(pickle.dumps(error)), OptionError)
