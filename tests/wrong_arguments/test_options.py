"""Every option of reads and writes with wrong values, by the code of Spark's processes, without Spark."""

from __future__ import annotations

import json
import shutil
import socket
import warnings
from dataclasses import fields
from functools import partial
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lance_spark.datasource import LanceDataSource
from lance_spark.errors import OptionError
from lance_spark.options.io_options import COLUMN_OPTIONS, ReadOptions, WriteOptions
from lance_spark.read.columns import TABLE_METADATA
from lance_spark.sql.indexes import option_value
from tests.malformed.conftest import read
from tests.wrong_arguments.values import TEXTS, judge, sample

QUICK_VALUES = 2
NUMBERS = [
    "00",
    "+1",
    " 1 ",
    "1_000",
    "\uff11",
    "0x10",
    "1e3",
    "9223372036854775807",
    "9223372036854775808",
    str(2**64),
    "4294967295",
    "2.5",
    "-0",
]
SIZES = ["1k", "1kib", "9999999t", "1 parsec", "k", "-1m", "9" * 400 + "g"]
NESTED = ["[]", "[" * 50_000, "[1,", '["id"]', '[["id"]]', "[null]", "[1e400]", '{"q": [1, "x"]}', '{"q": [1e999]}', '{"q": [0.0, 1.0], "k": -1}',
          '{"q": [0.0, 1.0], "k": 1e30}', '{"query": 5}', '{"query": "a", "columns": 5}', '{"a":' * 50_000, '"x"', "NaN"]  # fmt: skip
MOMENTS = [
    "0001-01-01",
    "9999-12-31T23:59:59+00:00",
    "2020-02-30",
    "2020-01-01T00:00:00+99:00",
    "now",
    "-1",
    "1e9",
]
VALUES = list(dict.fromkeys([*TEXTS, *NUMBERS, *SIZES, *NESTED, *MOMENTS]))
ROWS = pa.table({"id": pa.array(range(20), pa.int64()), "text": [f"text {i}" for i in range(20)]})
SCHEMA = StructType([StructField("id", LongType()), StructField("text", StringType())])

READS = [field.name for field in fields(ReadOptions) if field.name not in ("path", "storage")] + [
    "lancespark.scan",
    "lancespark.metadata",
]
WRITES = [
    *(field.name for field in fields(WriteOptions) if field.name not in ("path", "storage", "properties", "column_options")),
    *(f"id.{name}" for name in COLUMN_OPTIONS), "snapshot-property.x", "snapshot-property.", "lancespark.write",
]  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    location = f"{tmp_path_factory.mktemp('template')}/t.lance"
    return lance.write_dataset(ROWS, location, max_rows_per_file=5, enable_stable_row_ids=True).uri


@pytest.fixture
def path(template: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(
        socket, "create_connection", lambda *_, **__: pytest.fail("a connection was made")
    )
    return shutil.copytree(template, f"{tmp_path}/t.lance")


def write(options: dict[str, str], *, backfill: bool) -> None:
    """Appends rows, or fills a new column, as Spark's processes do."""
    schema = SCHEMA
    if backfill:
        options = {"mode": "backfill", **options}
        source = LanceDataSource(
            {"path": options["path"], "with_row_address": "true", "columns": "id"}
        )
        address = source.schema()["_rowaddr"]
        schema = StructType([address, StructField("new", LongType())])
        rows = pa.RecordBatch.from_pydict({"_rowaddr": range(5), "new": range(5)})
    else:
        rows = ROWS.to_batches()[0]
    writer = LanceDataSource(options).writer(schema, False)
    try:
        messages = [writer.write(iter([rows]))]
    except BaseException:
        writer.abort([])
        raise
    writer.commit(messages)


def faults_of(path: str, option: str, kind: str, count: int | None) -> list[str]:
    faults = []
    for value in VALUES if count is None else sample(VALUES, count, kind, option):
        options = {"path": path, option: value}
        version = lance.dataset(path).version
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call = (
                partial(read, options)
                if kind == "read"
                else partial(write, options, backfill=kind == "backfill")
            )
            outcome = judge(
                option, value, call, accepted_names=("q", "k", "query", "columns")
            )  # keys of searches
        if outcome.kind == "fault":
            faults.append(outcome.text)
        if outcome.kind != "works" and lance.dataset(path).version != version:
            faults.append(f"{option}={value[:40]!r}: a call that raised changed the table")
    return faults


CASES = [("read", name) for name in READS] + [
    (kind, name) for kind in ("append", "backfill") for name in WRITES
]


@pytest.mark.parametrize(("kind", "option"), CASES)
def test_an_option_with_a_wrong_value_works_or_raises_an_error_of_ours(
    kind: str, option: str, path: str
):
    if faults := faults_of(path, option, kind, QUICK_VALUES):
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "option"), CASES)
def test_every_option_with_a_wrong_value_works_or_raises_an_error_of_ours(
    kind: str, option: str, path: str
):
    if faults := faults_of(path, option, kind, None):
        pytest.fail("\n".join(faults), pytrace=False)


def misspellings(name: str) -> list[str]:
    return [
        name[:-1],
        name[1:],
        f"{name}s",
        name[0] + name,
        name[:2] + name[3:],
        name.replace("_", "-"),
        name.replace("_", ""),
    ]


@pytest.mark.parametrize("cls", [ReadOptions, WriteOptions])
def test_a_misspelt_option_is_an_error_that_names_it_and_suggests_the_right_one(
    cls: type[ReadOptions] | type[WriteOptions],
):
    names = [field.name for field in fields(cls) if "parse" in field.metadata]
    dotted = [
        "storage.region",
        *([f"id.{name}" for name in COLUMN_OPTIONS] if cls is WriteOptions else []),
    ]
    for name in [*names, *dotted]:
        column, dot, option = name.rpartition("id.")
        for wrong in (
            [column + dot + misspelling for misspelling in misspellings(option)]
            if dot and option
            else misspellings(name)
        ):
            if wrong in [*names, "paths"] or wrong in dotted or wrong.startswith("storage."):
                continue
            with pytest.raises(OptionError) as caught:
                cls.parse({wrong: "1"})
            assert f"{wrong!r} = '1' is not known" in str(caught.value)
            assert f"did you mean {name!r}" in str(caught.value), wrong


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        json.dumps({"path": "x", "exclusive": 1, "input_columns": None, "snapshots": []}),
        "[]",
        "null",
    ],
)
def test_an_internal_option_that_the_rule_did_not_write_is_an_error_by_name(text: str, path: str):
    outcome = judge(
        "lancespark.write",
        text,
        lambda: write({"path": path, "lancespark.write": text}, backfill=True),
    )
    assert outcome.kind == "refuses", outcome


@pytest.mark.parametrize(
    "text", ["[" * 50_000, "{", "5", "[]", '{"uri": 1}', '{"uri": "x", "options": 1}']
)
def test_metadata_of_columns_that_lance_spark_did_not_write_is_an_error_of_ours(
    text: str, path: str
):
    forged = {TABLE_METADATA: text}
    addresses = StructType(
        [StructField("_rowaddr", LongType(), metadata=forged), StructField("new", LongType())]
    )
    column = StructType([StructField("id", LongType(), metadata=forged)])
    calls = {
        "write": lambda: LanceDataSource({"path": path, "mode": "backfill"}).writer(
            addresses, False
        ),
        "read": lambda: LanceDataSource({}).reader(column),
    }
    for name, call in calls.items():
        outcome = judge(TABLE_METADATA, text, call, accepted_names=("path",))
        assert outcome.kind == "refuses", (name, outcome)


def test_an_option_of_an_index_is_a_number_a_truth_value_or_text():
    """In SQL all option values are texts."""
    deep = "[" * 50_000
    assert [option_value(text) for text in ("5", "0.5", "TRUE", "x", "[1]", deep)] == [
        5,
        0.5,
        True,
        "x",
        "[1]",
        deep,
    ]
