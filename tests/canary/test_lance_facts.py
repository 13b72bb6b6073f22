"""Facts of pylance that the design rests on. docs/canary.md lists the code behind each fact."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.commit import CommitConflictError
from lance.file import LanceFileWriter
from lance.fragment import DataFile

ROWS = pa.table({"id": pa.array(range(8), pa.int64()), "x": pa.array(range(8), pa.int64())})
_numbers = itertools.count()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table of two fragments with four rows each."""
    path = str(tmp_path / "table.lance")
    lance.write_dataset(ROWS, path, max_rows_per_file=4, enable_stable_row_ids=True)
    lance.dataset(path).add_columns(
        pa.schema([pa.field("y", pa.int64()), pa.field("z", pa.int64())])
    )
    return path


def column_file(path: str, column: str, values: list[int], name: str = "") -> DataFile:
    """Writes values of a column into a file outside of all versions."""
    name = name or f"column-{next(_numbers)}.lance"
    dataset = lance.dataset(path)
    with LanceFileWriter(
        f"{path}/data/{name}",
        pa.schema([pa.field(column, pa.int64())]),
        version=dataset.data_storage_version,
    ) as writer:
        writer.write_batch(pa.record_batch({column: pa.array(values, pa.int64())}))
    return DataFile.create(dataset, name)


def replacement(path: str, column: str = "y", fragment: int = 0) -> LanceOperation.DataReplacement:
    """Returns an operation with new values of a column for one fragment."""
    file = column_file(path, column, [100, 101, 102, 103])
    return LanceOperation.DataReplacement([LanceOperation.DataReplacementGroup(fragment, file)])


def commit(path: str, operation: LanceOperation.BaseOperation, read_version: int) -> None:
    lance.LanceDataset.commit(path, operation, read_version=read_version, max_retries=0)


def append_rows(path: str) -> None:
    lance.write_dataset(ROWS, path, mode="append")


def replace_other_column(path: str) -> None:
    commit(path, replacement(path, "z"), lance.dataset(path).version)


def replace_other_fragment(path: str) -> None:
    commit(path, replacement(path, fragment=1), lance.dataset(path).version)


def replace_same_column(path: str) -> None:
    commit(path, replacement(path), lance.dataset(path).version)


def restore_first_version(path: str) -> None:
    lance.dataset(path, version=1).restore()


COMMITTED: dict[str, Callable[[str], object]] = {
    "append": append_rows,
    "create an index": lambda path: lance.dataset(path).create_scalar_index("id", "BTREE"),
    "update the configuration": lambda path: lance.dataset(path).update_config({"a": "b"}),
    "drop another column": lambda path: lance.dataset(path).drop_columns(["x"]),
    "delete some rows": lambda path: lance.dataset(path).delete("id = 1"),
    "replace another column": replace_other_column,
    "replace another fragment": replace_other_fragment,
}

REFUSED: dict[str, tuple[Callable[[str], object], bool]] = {
    "add a column": (lambda path: lance.dataset(path).add_columns({"w": "x + 1"}), True),
    "delete a whole fragment": (lambda path: lance.dataset(path).delete("id < 4"), False),
    "update rows": (lambda path: lance.dataset(path).update({"x": "7"}, where="id = 1"), True),
    "compact": (lambda path: lance.dataset(path).optimize.compact_files(), True),
    "replace the same column": (replace_same_column, True),
    "drop the column": (lambda path: lance.dataset(path).drop_columns(["y"]), False),
    "overwrite": (lambda path: lance.write_dataset(ROWS, path, mode="overwrite"), False),
    "restore a version without the column": (restore_first_version, False),
}


@pytest.mark.parametrize("name", COMMITTED)
def test_a_data_replacement_commits_after(name: str, path: str) -> None:
    version, operation = lance.dataset(path).version, replacement(path)
    COMMITTED[name](path)
    commit(path, operation, version)
    values = dict(
        zip(
            *lance.dataset(path).to_table(["id", "y"], filter="y >= 100").to_pydict().values(),
            strict=True,
        )
    )
    assert values.items() >= {0: 100, 2: 102, 3: 103}.items()


@pytest.mark.parametrize("name", REFUSED)
def test_a_data_replacement_is_refused_after(name: str, path: str) -> None:
    version, operation = lance.dataset(path).version, replacement(path)
    change, retryable = REFUSED[name]
    change(path)
    with pytest.raises(CommitConflictError) as caught:
        commit(path, operation, version)
    assert caught.value.retryable == retryable


def test_compaction_keeps_the_order_of_rows_and_their_ids(path: str) -> None:
    dataset = lance.dataset(path)
    dataset.delete("id IN (1, 5)")
    before = dataset.to_table(["id"], with_row_id=True)
    dataset.optimize.compact_files(target_rows_per_fragment=100)
    assert len(lance.dataset(path).get_fragments()) == 1
    assert lance.dataset(path).to_table(["id"], with_row_id=True) == before


def test_a_rewrite_names_its_old_and_new_fragments(path: str) -> None:
    dataset = lance.dataset(path)
    dataset.optimize.compact_files(target_rows_per_fragment=100)
    groups = [
        group
        for version in range(3, lance.dataset(path).version + 1)
        for group in getattr(dataset.read_transaction(version).operation, "groups", [])
    ]
    assert [fragment.id for group in groups for fragment in group.old_fragments] == [0, 1]
    assert len([fragment for group in groups for fragment in group.new_fragments]) == 1


def test_field_ids_are_used_again(path: str) -> None:
    dataset = lance.dataset(path)
    dropped = dataset.lance_schema.field("z").id()
    dataset.drop_columns(["z"])
    dataset.add_columns(pa.schema([pa.field("other", pa.int64())]))
    assert lance.dataset(path).lance_schema.field("other").id() == dropped


def test_a_second_file_of_a_name_changes_committed_data(path: str) -> None:
    file = column_file(path, "y", [1, 2, 3, 4], "fixed.lance")
    group = LanceOperation.DataReplacementGroup(0, file)
    commit(path, LanceOperation.DataReplacement([group]), lance.dataset(path).version)
    column_file(path, "y", [5, 6, 7, 8], "fixed.lance")
    assert lance.dataset(path).to_table(["y"]).column("y").to_pylist()[:4] == [5, 6, 7, 8]


def test_lance_ignores_the_end_of_a_filter(path: str) -> None:
    """lance_spark refuses such a filter, because Lance ignores its end."""
    assert lance.dataset(path).to_table(filter="id = 1 LIMIT 3").num_rows == 1


def test_an_unknown_folder_of_a_table_survives_a_cleanup(path: str) -> None:
    own = Path(path, "_lance_spark", "staging", "marker")
    own.parent.mkdir(parents=True)
    own.touch()
    lance.dataset(path).cleanup_old_versions(delete_unverified=True)
    assert own.exists()


def test_a_tag_ends_the_cleanup_of_its_version(path: str) -> None:
    lance.dataset(path).tags.create("kept", 1)
    append_rows(path)
    lance.dataset(path).cleanup_old_versions(
        delete_unverified=True, error_if_tagged_old_versions=False
    )
    assert lance.dataset(path, version="kept").count_rows() == 8


def test_a_branch_is_a_table_in_a_folder(path: str) -> None:
    lance.dataset(path).create_branch("trial")
    branch = lance.dataset(f"{path}/tree/trial")
    branch.delete("id < 4")
    assert (branch.count_rows(), lance.dataset(path).count_rows()) == (4, 8)
