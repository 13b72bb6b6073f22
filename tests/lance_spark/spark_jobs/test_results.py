"""Results of tasks on their way to the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from lance_spark import errors
from lance_spark.rows.row_set import RowSet
from lance_spark.spark_jobs.codec import decode, encode
from lance_spark.spark_jobs.tasks import RunTasks, answer_or_error, read_answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    rows: RowSet
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    parts: tuple[Part, ...] = ()
    pairs: list[tuple[int, bytes]] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    ids: frozenset[int] = frozenset()
    fragments: list[Any] = field(default_factory=list)
    best: Part | None = None


WHOLE = Whole(
    parts=(Part(rows=RowSet.of([1, 5])), Part(rows=RowSet.empty(), name="é")),
    pairs=[(1, b"\x00\xff"), (2, b"")],
    counts={7: 3, 1 << 40: 0},
    seconds={"read": 0.5},
    ids=frozenset((3, 1)),
    fragments=[{"id": 1, "files": [None]}],
    best=Part(rows=RowSet.span(0, 1000)),
)


@pytest.mark.parametrize(
    ("kind", "value"),
    [(Whole, WHOLE), (Whole, Whole()), (list[Whole], [WHOLE, Whole()]), (str, "x")],
)
def test_a_result_comes_back_as_it_was(kind: Any, value: object):
    assert decode(kind, encode(value)) == value


def test_what_has_no_form_in_json_is_refused():
    with pytest.raises(TypeError, match="object cannot be the result of a task"):
        encode([object()])


@dataclass(frozen=True, slots=True)
class Double:
    number: int

    def run(self) -> int:
        if self.number == 3:
            raise errors.ColumnNotFoundError("v", "t", hint="h")
        if self.number == 4:
            raise ValueError("four")
        return 2 * self.number


def texts(runner: RunTasks) -> list[str]:
    numbers = pa.RecordBatch.from_pydict({"id": range(len(runner.tasks))})
    return [batch.column(0)[0].as_py() for batch in runner(iter([numbers]))]


def test_tasks_answer_with_their_results():
    assert [read_answer(int, text) for text in texts(RunTasks(tasks=(Double(1), Double(2))))] == [
        2,
        4,
    ]


def test_an_error_of_lance_spark_is_an_answer_where_the_job_says_so():
    with pytest.raises(errors.ColumnNotFoundError):
        texts(RunTasks(tasks=(Double(3),)))
    (text,) = texts(RunTasks(tasks=(Double(3),), answers_errors=True))
    with pytest.raises(errors.ColumnNotFoundError) as caught:
        read_answer(int, text)
    expected = errors.ColumnNotFoundError("v", "t", hint="h")
    assert str(caught.value) == str(expected) and caught.value.__dict__ == expected.__dict__
    with pytest.raises(ValueError, match="four"):
        texts(RunTasks(tasks=(Double(4),), answers_errors=True))


def test_before_an_error_is_the_answer_all_rows_are_read():
    rows = iter([pa.RecordBatch.from_pydict({"id": [1]})])
    answer_or_error(Double(3).run, rows)
    assert next(rows, None) is None
