"""Damaged tables give errors with the table and the fragment."""

from __future__ import annotations

import os
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance.file import LanceFileSession

from lance_spark.dataset import DatasetRef
from lance_spark.errors import FilterError, TableUnreadableError
from lance_spark.read.planning import sizes
from lance_spark.read.planning.partitioning import ScanTask
from lance_spark.read.scan import read_batches
from tests.lance_spark.read.conftest import MakeTable
from tests.lance_spark.read.scans import read


def data_file(path: str, fragment: int) -> Path:
    return Path(path, "data", lance.dataset(path).get_fragment(fragment).metadata.files[0].path)


@pytest.mark.parametrize(
    "target", ["60000", "128m"], ids=["one fragment a partition", "all in one partition"]
)
@pytest.mark.parametrize("damage", ["missing", "truncated", "header", "empty"])
def test_a_damaged_file_is_an_error_that_names_its_fragment(
    make_table: MakeTable, table_path: str, damage: str, target: str
):
    make_table(dirty=False)
    file = data_file(table_path, 2)
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(
            {
                "truncated": whole[: len(whole) // 2],
                "header": b"\xab" * 300 + whole[300:],
                "empty": b"",
            }[damage]
        )
    with pytest.raises(TableUnreadableError, match="fragment") as caught:
        read(table_path, target_partition_bytes=target)
    assert table_path in str(caught.value)
    assert "fragment 2" in str(caught.value)
    assert ".rs:" not in str(caught.value)
    assert read(table_path, fragments="0,1").num_rows == 600


def test_a_file_that_may_not_be_read_is_an_error(make_table: MakeTable, table_path: str):
    if os.geteuid() == 0:
        # Root may read everything, but a folder in place of the file fails for root too.
        make_table(dirty=False)
        file = data_file(table_path, 0)
        file.unlink()
        file.mkdir()
    else:
        make_table(dirty=False)
        data_file(table_path, 0).chmod(0)
    with pytest.raises(TableUnreadableError):
        read(table_path)


def test_a_fragment_that_is_gone_is_an_error(make_table: MakeTable, table_path: str):
    make_table()
    ref = DatasetRef.at(table_path).pin(None)
    with pytest.raises(TableUnreadableError, match="fragment 99 is not in version"):
        list(read_batches(ref, ScanTask(fragments=(99,)), columns=["id"], blobs="descriptor"))


def test_a_filter_that_fails_on_a_value_is_an_error_of_the_filter(table_path: str):
    lance.write_dataset(pa.table({"id": [1, 2, 0]}), table_path)
    with pytest.raises(FilterError, match=r"(?i)divide by zero"):
        read(table_path, filter="10 / id > 1")


def test_a_panic_of_lance_becomes_one_of_our_errors(
    make_table: MakeTable, table_path: str, monkeypatch: pytest.MonkeyPatch
):
    make_table()
    panic = type("PanicException", (BaseException,), {})

    def explode(*_args: object, **_options: object) -> None:
        raise panic("index out of bounds")

    ref = DatasetRef.at(table_path).pin(None)
    monkeypatch.setattr(lance.LanceDataset, "scanner", explode)
    with pytest.raises(TableUnreadableError, match="index out of bounds"):
        list(read_batches(ref, ScanTask(fragments=(0,)), columns=["id"], blobs="descriptor"))


def test_a_panic_while_sizes_are_measured_only_makes_them_estimates(
    make_table: MakeTable, table_path: str, monkeypatch: pytest.MonkeyPatch
):
    make_table()
    rows = read(table_path)

    def explode(*_args: object, **_options: object) -> None:
        raise type("PanicException", (BaseException,), {})(
            "called `Option::unwrap()` on a `None` value"
        )

    sizes._statistics.cache_clear()
    monkeypatch.setattr(LanceFileSession, "open_reader", explode)
    assert read(table_path) == rows


def test_an_interrupt_is_not_taken_for_an_error_of_the_table(
    make_table: MakeTable, table_path: str, monkeypatch: pytest.MonkeyPatch
):
    make_table()

    def interrupt(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    ref = DatasetRef.at(table_path).pin(None)
    monkeypatch.setattr(lance.LanceDataset, "scanner", interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(read_batches(ref, ScanTask(fragments=(0,)), columns=["id"], blobs="descriptor"))
