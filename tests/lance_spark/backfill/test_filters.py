"""Backfills of the rows that a filter selects."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lance_spark import Connection, Table
from tests.support.logs import Log, values
from udf_runtime import UDF, udf

pytestmark = pytest.mark.sample(1, tests=2)

NAMES = ("a1", "b1", "a2", "c1", "b2", "a3", "c2", "b3")


def reading(log: Log, mark: str = "") -> UDF:
    """A UDF in the role of a file download: logs the name, returns the content."""
    path = log.path

    @udf
    def read(filename: str) -> str:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{filename}\n")
        return f"content of {filename}{mark}"

    return read


def embedding(log: Log) -> UDF:
    """A UDF in the role of a model: logs the content's name, returns a vector."""
    path = log.path

    @udf(data_type=pa.list_(pa.float32(), 2))
    def embed(content: str) -> list[float]:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{content.rsplit(maxsplit=1)[-1]}\n")
        return [float(len(content)), 1.0]

    return embed


def files(db: Connection, log: Log) -> Table:
    """Makes a table of file names in two fragments, with columns for content and embedding."""
    table = db.create_table("files", pa.table({"filename": list(NAMES[:4])}))
    table.add(pa.table({"filename": list(NAMES[4:])}))
    table.add_columns({"content": reading(log)})
    table.add_columns({"embedding": embedding(log)})
    return table


def logged_names(log: Log) -> list[str]:
    """Returns the names seen since the last time."""
    lines = sorted(log.lines())
    log_file = open(log.path, "w", encoding="utf-8")  # noqa: SIM115 - truncates
    log_file.close()
    return lines


def filled(table: Table, column: str = "content") -> list[str]:
    """Returns the names of rows with a value."""
    return sorted(
        name for name, value in values(table, column, key="filename").items() if value is not None
    )


STARTS_WITH_A = "starts_with(filename, 'a')"
A_OR_B = "starts_with(filename, 'a') or starts_with(filename, 'b')"


@pytest.mark.guarantee("B29")
def test_a_filter_restricts_the_rows(db: Connection, log: Log) -> None:
    table = files(db, log)
    result = table.backfill("content", where="filename = 'b2' or filename > 'c1'")
    assert logged_names(log) == ["b2", "c2"]
    assert filled(table) == ["b2", "c2"]
    assert (result.rows_selected, result.rows_computed, result.status) == (2, 2, "DONE")


@pytest.mark.guarantee("B30")
def test_functions_of_strings_work_in_filters(db: Connection, log: Log) -> None:
    table = files(db, log)
    table.backfill("content", where=STARTS_WITH_A)
    assert logged_names(log) == ["a1", "a2", "a3"]
    assert values(table, "content", key="filename")["a2"] == "content of a2"


@pytest.mark.guarantee("B31")
def test_a_filter_may_look_at_another_computed_column(db: Connection, log: Log) -> None:
    table = files(db, log)
    table.backfill("content", where=STARTS_WITH_A)
    logged_names(log)
    table.backfill("embedding", where="content is not null")
    assert logged_names(log) == ["a1", "a2", "a3"]
    assert values(table, "embedding", key="filename")["a1"] == [13.0, 1.0]
    assert filled(table, "embedding") == ["a1", "a2", "a3"]


@pytest.mark.guarantee("B32")
def test_the_same_call_computes_rows_that_were_added_and_match(db: Connection, log: Log) -> None:
    """A filter selects rows rather than fragments: selected rows are recomputed even if they have a value."""
    table = files(db, log)
    table.backfill("content", where=STARTS_WITH_A)
    logged_names(log)
    table.add(pa.table({"filename": ["a4", "b4", "a5"]}))
    table.backfill("content", where=STARTS_WITH_A)
    assert filled(table) == ["a1", "a2", "a3", "a4", "a5"]
    assert logged_names(log) == ["a1", "a2", "a3", "a4", "a5"]


@pytest.mark.guarantee("B32")
def test_without_rows_that_have_a_value_only_the_added_ones_are_computed(
    db: Connection, log: Log
) -> None:
    table = files(db, log)
    table.backfill("content")
    logged_names(log)
    table.add(pa.table({"filename": ["a4", "b4", "a5"]}))
    table.backfill("content", where=f"{STARTS_WITH_A} and content is null")
    assert logged_names(log) == ["a4", "a5"]


@pytest.mark.guarantee("B33")
def test_rows_that_a_filter_left_out_are_computed_alone_later(db: Connection, log: Log) -> None:
    table = files(db, log)
    table.backfill("content", where=STARTS_WITH_A)
    logged_names(log)
    table.backfill("content")
    assert logged_names(log) == ["b1", "b2", "b3", "c1", "c2"]
    assert filled(table) == sorted(NAMES)


@pytest.mark.guarantee("B34")
def test_a_wider_filter_adds_rows_and_leaves_the_others_alone(db: Connection, log: Log) -> None:
    table = files(db, log)
    table.backfill("content", where=STARTS_WITH_A)
    logged_names(log)
    table.backfill("content", where=f"({A_OR_B}) and content is null")
    assert logged_names(log) == ["b1", "b2", "b3"]
    assert filled(table) == ["a1", "a2", "a3", "b1", "b2", "b3"]


@pytest.mark.guarantee("B35")
def test_a_filter_can_select_rows_that_have_a_value_to_overwrite_them(
    db: Connection, log: Log
) -> None:
    table = files(db, log)
    table.backfill("content", where=A_OR_B)
    logged_names(log)
    table.backfill("content", where="content is not null and filename < 'b'", udf=reading(log, "!"))
    assert logged_names(log) == ["a1", "a2", "a3"]
    content = values(table, "content", key="filename")
    assert (content["a1"], content["b1"], content["c1"]) == (
        "content of a1!",
        "content of b1",
        None,
    )


@pytest.mark.guarantee("B35")
def test_overwriting_with_the_same_udf_calls_it_again(db: Connection, log: Log) -> None:
    table = files(db, log)
    table.backfill("content", where=A_OR_B)
    logged_names(log)
    table.backfill("content", where="content is not null")
    assert logged_names(log) == ["a1", "a2", "a3", "b1", "b2", "b3"]


@pytest.mark.guarantee("B36")
def test_rows_with_an_input_and_without_a_target_are_selected_together(
    db: Connection, log: Log
) -> None:
    table = files(db, log)
    table.backfill("content", where=STARTS_WITH_A)
    table.backfill("embedding", where="content is not null")
    table.backfill("content", where=f"({A_OR_B}) and content is null")
    logged_names(log)
    table.backfill("embedding", where="content is not null and embedding is null")
    assert logged_names(log) == ["b1", "b2", "b3"]
    assert filled(table, "embedding") == ["a1", "a2", "a3", "b1", "b2", "b3"]
