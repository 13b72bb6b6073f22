"""The estimate of a scan's size is good enough to split the scan, and costs at most a few file reads."""

from __future__ import annotations

import os

import lance
import numpy as np
import pyarrow as pa
import pytest

from lance_spark.read.planning import sizes
from lance_spark.read.planning.sizes import measure, measure_row


def mixed(rows: int = 5000) -> pa.Table:
    random = np.random.default_rng(7)
    return pa.table(
        {
            "id": pa.array(random.permutation(rows)),
            "lang": pa.array([("en", "de", "fr")[i % 3] for i in range(rows)]),
            "text": pa.array([os.urandom(300).hex() for _ in range(rows)]),
            "vec": pa.FixedSizeListArray.from_arrays(
                pa.array(random.random(rows * 64, dtype=np.float32)), 64
            ),
            "nested": pa.array([{"a": i, "b": os.urandom(50).hex()} for i in range(rows)]),
        }
    )


def stored(dataset: lance.LanceDataset, *paths: str) -> float:
    return sum(f.stored_bytes for f in measure(dataset, paths, None).fragments)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2", "legacy"])
def test_columns_add_up_to_the_files(table_path: str, version: str):
    dataset = lance.write_dataset(
        mixed(), table_path, data_storage_version=version, max_rows_per_file=2000
    )
    total = sum(f.metadata.files[0].file_size_bytes for f in dataset.get_fragments())
    parts = [stored(dataset, name) for name in dataset.schema.names]
    assert sum(parts) == pytest.approx(total, rel=0.1)
    assert stored(dataset, *dataset.schema.names) == pytest.approx(total, rel=0.1)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_a_short_text_beside_a_long_one_counts_as_short(table_path: str, version: str):
    dataset = lance.write_dataset(mixed(), table_path, data_storage_version=version)
    assert stored(dataset, "lang") < 5000 * 10
    assert stored(dataset, "text") > 5000 * 250
    widths = measure(dataset, dataset.schema.names, None).column_bytes
    assert widths["id"] == 8
    assert widths["vec"] == 256
    assert widths["lang"] < 16
    assert widths["text"] > 250
    assert stored(dataset, "`nested`.`a`") < stored(dataset, "nested") / 3


def test_without_readable_files_variable_widths_share_the_rest(
    table_path: str, monkeypatch: pytest.MonkeyPatch
):
    dataset = lance.write_dataset(mixed(), table_path)
    monkeypatch.setattr(sizes, "MAX_SAMPLES", 0)
    total = dataset.get_fragments()[0].metadata.files[0].file_size_bytes
    assert stored(dataset, *dataset.schema.names) == pytest.approx(total, rel=0.01)
    assert stored(dataset, "vec") == pytest.approx(5000 * 256, rel=0.1)
    assert stored(dataset, "lang") == stored(dataset, "text")


def test_a_column_file_of_its_own_counts_by_itself(table_path: str):
    dataset = lance.write_dataset(mixed(), table_path)
    before = stored(dataset, "id")
    dataset.add_columns({"more": "concat(text, text)"})
    assert stored(dataset, "id") == before
    assert stored(dataset, "more") > stored(dataset, "text") / 2


def test_a_row_of_a_list_is_as_large_as_what_it_holds(table_path: str):
    """An update that took a vector in a list for a single number moved rows, although column files were 60 times
    smaller.
    """
    numbers = pa.array(np.random.default_rng(7).random(1000 * 256, dtype=np.float32))
    lists = pa.ListArray.from_arrays(
        pa.array(np.arange(0, 1000 * 256 + 1, 256, dtype=np.int32)), numbers
    )
    dataset = lance.write_dataset(
        pa.table({"id": pa.array(range(1000)), "list": lists}), table_path
    )
    assert measure_row(dataset, ["id"], ()) == 8
    assert 512 < measure_row(dataset, ["list"], ()) < 1100


def test_only_a_few_files_are_looked_at(table_path: str, monkeypatch: pytest.MonkeyPatch):
    lance.write_dataset(mixed(1000), table_path, max_rows_per_file=10)
    files_opened = []
    statistics = sizes._statistics
    monkeypatch.setattr(
        sizes, "_statistics", lambda *key: (files_opened.append(key), statistics(*key))[1]
    )
    measure(lance.dataset(table_path), ["id"], None)
    assert len(files_opened) == 1


def remote(path: str) -> lance.LanceDataset:
    """Returns a table whose files count as files of an object store."""
    return lance.dataset(f"file-object-store://{path}")


@pytest.mark.parametrize("samples", [8, 1], ids=["usual_samples", "one_sample"])
def test_a_small_first_file_does_not_decide_for_larger_files(
    table_path: str, samples: int, monkeypatch: pytest.MonkeyPatch
):
    lance.write_dataset(mixed(3), table_path)
    dataset = lance.write_dataset(mixed(), table_path, mode="append")
    monkeypatch.setattr(sizes, "MAX_SAMPLES", samples)
    for name in dataset.schema.names:
        local, estimated = measure(dataset, [name], [1]), measure(remote(table_path), [name], None)
        assert estimated.fragments[1:] == local.fragments
        assert estimated.column_bytes == local.column_bytes
    assert estimated.fragments[0].stored_bytes < 10_000


def test_footers_of_small_remote_files_are_not_read(
    table_path: str, monkeypatch: pytest.MonkeyPatch
):
    for mode in ("create", "append"):
        dataset = lance.write_dataset(mixed(20), table_path, mode=mode)
    total = sum(f.metadata.files[0].file_size_bytes for f in dataset.get_fragments())
    monkeypatch.setattr(sizes, "_statistics", None)
    assert stored(remote(table_path), *dataset.schema.names) == pytest.approx(total, rel=0.01)
    assert measure_row(remote(table_path), ["text"], ()) > 64
