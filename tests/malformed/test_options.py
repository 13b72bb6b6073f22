"""Unknown, malformed or contradictory options of reads and writes."""

from __future__ import annotations

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lance_spark.datasource import LanceDataSource
from lance_spark.errors import (
    ColumnNotFoundError,
    FilterError,
    LanceSparkError,
    NoLocationError,
    OptionError,
    SchemaMismatchError,
    VersionNotFoundError,
)
from tests.malformed.conftest import Refused, read

READS: list[
    tuple[
        dict[str, str], type[LanceSparkError] | tuple[type[LanceSparkError], ...], tuple[str, ...]
    ]
] = [
    ({"verson": "1"}, OptionError, ("verson", "did you mean 'version'")),
    ({"pushdown": "on"}, OptionError, ("pushdown", "with_row_address")),
    ({"nearest": "[1.0]"}, OptionError, ("nearest",)),
    ({"nearest": '{"q": []}'}, OptionError, ("'q'", "finite numbers")),
    ({"nearest": '{"q": [1.0], "column": "id"}'}, OptionError, ("'id'", "vectors")),
    ({"full_text_query": "words"}, OptionError, ("full_text_query", "create_fts_index")),
    (
        {"full_text_query": '{"query": "words", "columns": ["nosuch"]}'},
        ColumnNotFoundError,
        ("nosuch",),
    ),
    (
        {"full_text_query": '{"query": "words", "columns": ["text"]}', "limit": "1"},
        OptionError,
        ("limit", "k in nearest"),
    ),
    ({"version": ""}, OptionError, ("version", "branch:number")),
    ({"version": "1 2"}, OptionError, ("version", "1 2")),
    ({"version": "branch:two"}, OptionError, ("version", "branch:two")),
    ({"version": ":1"}, OptionError, ("version",)),
    ({"version": "99"}, VersionNotFoundError, ("99", "latest version is 2")),
    ({"version": "0"}, (VersionNotFoundError, OptionError), ("0",)),
    ({"version": "-1"}, (VersionNotFoundError, OptionError), ("-1",)),
    (
        {"version": "99999999999999999999999"},
        (VersionNotFoundError, OptionError),
        ("99999999999999999999999",),
    ),
    ({"version": "no_such_tag"}, VersionNotFoundError, ("no_such_tag", "latest version is 2")),
    ({"version": "no_such_branch:1"}, VersionNotFoundError, ("no_such_branch",)),
    ({"timestamp": "yesterday"}, OptionError, ("timestamp", "yesterday", "ISO 8601")),
    ({"timestamp": "2026-13-01"}, OptionError, ("timestamp", "2026-13-01")),
    ({"timestamp": "1999-01-01"}, VersionNotFoundError, ("1999-01-01", "oldest version")),
    ({"timestamp": "2030-01-01", "version": "1"}, OptionError, ("version", "timestamp")),
    ({"columns": ""}, OptionError, ("columns",)),
    ({"columns": "id,,text"}, OptionError, ("columns", "id,,text")),
    ({"columns": "id,id"}, OptionError, ("columns", "id,id")),
    ({"columns": "[1, 2]"}, OptionError, ("columns", "[1, 2]")),
    ({"columns": '["id"'}, OptionError, ("columns", '["id"')),
    ({"columns": "id,nosuch"}, ColumnNotFoundError, ("nosuch",)),
    ({"columns": "txt"}, ColumnNotFoundError, ("txt", "text")),
    ({"filter": ""}, OptionError, ("filter",)),
    ({"filter": "id >"}, FilterError, ("id >",)),
    ({"filter": "nosuch = 1"}, (FilterError, ColumnNotFoundError), ("nosuch",)),
    ({"filter": "no_function(id) = 1"}, FilterError, ("no_function",)),
    ({"filter": "id + 1"}, FilterError, ("id + 1",)),
    ({"filter": "SELECT * FROM t"}, FilterError, ("SELECT",)),
    ({"filter": "pair.c = 1"}, (FilterError, ColumnNotFoundError), ("pair.c",)),
    ({"limit": "-1"}, OptionError, ("limit", "-1", "0 or more")),
    ({"limit": "ten"}, OptionError, ("limit", "ten")),
    ({"limit": "1.5"}, OptionError, ("limit", "1.5")),
    ({"batch_size": "0"}, OptionError, ("batch_size", "1 or more")),
    ({"batch_size": "big"}, OptionError, ("batch_size", "big")),
    ({"fragments": ""}, OptionError, ("fragments",)),
    ({"fragments": "first"}, OptionError, ("fragments", "first")),
    ({"fragments": "[1.5]"}, OptionError, ("fragments", "[1.5]")),
    ({"fragments": "[true]"}, OptionError, ("fragments",)),
    ({"fragments": "-1"}, OptionError, ("fragments", "-1")),
    ({"fragments": "4294967296"}, OptionError, ("fragments",)),
    ({"fragments": "99"}, OptionError, ("fragments", "99")),
    ({"with_row_id": "yes"}, OptionError, ("with_row_id", "yes", "true or false")),
    ({"with_row_address": "1"}, OptionError, ("with_row_address", "true or false")),
    ({"with_row_versions": "perhaps"}, OptionError, ("with_row_versions", "perhaps")),
    ({"blob_handling": "base64"}, OptionError, ("blob_handling", "descriptor or bytes")),
    ({"target_partition_bytes": "0"}, OptionError, ("target_partition_bytes",)),
    (
        {"target_partition_bytes": "12 parsecs"},
        OptionError,
        ("target_partition_bytes", "12 parsecs", "128m"),
    ),
]


@pytest.mark.parametrize(("options", "error", "says"), READS, ids=[str(case[0]) for case in READS])
def test_a_read_refuses(
    options: dict[str, str],
    error: type[LanceSparkError],
    says: tuple[str, ...],
    table: str,
    check_refused: Refused,
):
    with check_refused(error, *says):
        read({"path": table, **options})


def test_a_read_without_a_path_is_refused(check_refused: Refused):
    with check_refused(OptionError, "path", "load(path)"):
        read({})


def test_row_versions_are_refused_where_the_table_has_none(tmp_path, check_refused: Refused):
    from tests.malformed.conftest import make_table

    path = make_table(str(tmp_path / "plain.lance"), stable_row_ids=False)
    with check_refused(OptionError, "with_row_versions", "stable row ids", at=path):
        read({"path": path, "with_row_versions": "true"})


WRITES: list[
    tuple[
        dict[str, str], type[LanceSparkError] | tuple[type[LanceSparkError], ...], tuple[str, ...]
    ]
] = [
    ({"mode": "bacfill"}, OptionError, ("mode", "bacfill", "rows or backfill")),
    ({"overwriteSchema": "true"}, OptionError, ("overwriteSchema",)),
    ({"max_row_per_file": "5"}, OptionError, ("did you mean 'max_rows_per_file'",)),
    ({"max_rows_per_file": "0"}, OptionError, ("max_rows_per_file", "1 or more")),
    ({"max_rows_per_file": "many"}, OptionError, ("max_rows_per_file", "many")),
    ({"max_bytes_per_file": "-1g"}, OptionError, ("max_bytes_per_file", "-1g")),
    ({"data_storage_version": "9.9"}, OptionError, ("data_storage_version", "9.9", "2.1")),
    ({"enable_stable_row_ids": "ja"}, OptionError, ("enable_stable_row_ids", "ja")),
    ({"commit_message": " "}, OptionError, ("commit_message",)),
    ({"commit_max_retries": "-1"}, OptionError, ("commit_max_retries", "-1")),
    (
        {"vec.arrow.fixed-size-list.size": "0"},
        OptionError,
        ("vec.arrow.fixed-size-list.size", "from 1 to 999,999,999"),
    ),
    (
        {"vec.arrow.fixed-size-list.size": "three"},
        OptionError,
        ("vec.arrow.fixed-size-list.size", "three"),
    ),
    ({"text.lance.encoding": "zip"}, OptionError, ("text.lance.encoding", "zip", "blob")),
    ({"input_columns": "[]"}, OptionError, ("input_columns",)),
    ({"version": "latest"}, OptionError, ("version", "latest")),
]

PLAIN = StructType([StructField("id", LongType(), False), StructField("text", StringType())])


@pytest.mark.parametrize(
    ("options", "error", "says"), WRITES, ids=[str(case[0]) for case in WRITES]
)
def test_a_write_refuses(
    options: dict[str, str],
    error: type[LanceSparkError],
    says: tuple[str, ...],
    table: str,
    check_refused: Refused,
):
    with check_refused(error, *says):
        LanceDataSource({"path": table, **options}).writer(PLAIN, False)


NEW_TABLES: list[tuple[dict[str, str], tuple[str, ...]]] = [
    ({"nosuch.arrow.fixed-size-list.size": "3"}, ("nosuch",)),
    ({"text.arrow.fixed-size-list.size": "3"}, ("text",)),
    ({"nosuch.lance.encoding": "blob"}, ("nosuch",)),
    ({"id.lance.encoding": "blob"}, ("id",)),
]


@pytest.mark.parametrize(("options", "says"), NEW_TABLES, ids=[str(case[0]) for case in NEW_TABLES])
def test_a_new_table_refuses(
    options: dict[str, str],
    says: tuple[str, ...],
    table_path: str,
    tmp_path,
    check_refused: Refused,
):
    with check_refused(
        (OptionError, SchemaMismatchError, ColumnNotFoundError, LanceSparkError),
        *says,
        at=str(tmp_path),
    ):
        LanceDataSource({"path": table_path, **options}).writer(PLAIN, False)


def test_a_write_without_a_place_is_refused(check_refused: Refused):
    with check_refused(NoLocationError, "nothing was written", "save(path)"):
        LanceDataSource({}).writer(PLAIN, False)
