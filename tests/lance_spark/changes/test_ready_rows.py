"""A stream with `ready_columns` reads each row in the version in which its columns are computed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lance_spark import BackfillIncompleteError, ColumnNotFoundError, Connection, OptionError, Table
from lance_spark.backfill.driver.group_commit import GroupCommits
from lance_spark.changes.by_path import open_changes
from lance_spark.changes.stream_units import StreamPosition
from lance_spark.changes.streams import make_stream_reader
from lance_spark.staging.null_marks import MARKS_KEY, NO_MARKS, NullMarks
from tests.lance_spark.table.conftest import make_table
from udf_runtime import Columns, skip_on_error, udf


class Halves(NamedTuple):
    """The values of two columns, one of which is NULL."""

    even: int | None
    odd: int | None


@dataclass(slots=True)
class ReadyStream:
    """A stream driven without Spark, which continues at each call.

    Attributes:
        offset: The end of the last micro-batch.
    """

    table: Table
    options: dict[str, str] = field(default_factory=lambda: {"ready_columns": "v"})
    offset: dict[str, Any] | None = None

    def read(self) -> Counter[int]:
        """Returns the ids of the rows up to the latest version, with a new reader."""
        options = {"path": self.table.uri, **self.options}
        stream = make_stream_reader(options, open_changes(options)[1])
        start = self.offset or stream.initialOffset()
        end = json.loads(json.dumps(stream.find_end(StreamPosition.of(start)).offset))
        batches = [batch for part in stream.partitions(start, end) for batch in stream.read(part)]
        self.offset = end
        return Counter(row["id"] for batch in batches for row in batch.to_pylist())


def update_rows(uri: str, condition: Path) -> None:
    """Updates the rows of a condition in a file, and deletes the file."""
    try:
        where = condition.read_text()
        condition.unlink()
    except FileNotFoundError:
        return
    lance.dataset(uri).update({"text": "'changed meanwhile'"}, where=where)


@dataclass(slots=True)
class Lab:
    """A table with a column `v`: NULL for ids divisible by 4, and a failure for 7, 17, ... at first.

    Attributes:
        repaired: An existing file ends the failures.
        update: The condition in this file names the rows that a call of the UDF updates once.
    """

    table: Table
    repaired: Path
    update: Path

    @staticmethod
    def of(db: Connection, folder: Path, **options: Any) -> Lab:
        """Makes the table with two fragments of ten rows."""
        table, flag, update = (
            make_table(db, fragments=2, **options),
            str(folder / "repaired"),
            str(folder / "update"),
        )
        uri = table.uri

        def compute(id: int) -> int | None:
            if id % 10 == 9:
                update_rows(uri, Path(update))
            if id % 10 == 7 and not Path(flag).exists():
                raise ValueError("broken")
            return None if id % 4 == 0 else id

        table.add_columns(
            {"v": udf(compute, data_type=pa.int64(), version="1", on_error=skip_on_error())}
        )
        return Lab(table, Path(flag), Path(update))

    def fill(self, where: str | None = None, **options: Any) -> None:
        """Fills rows of the column."""
        try:
            self.table.backfill("v", where=where, **options)
        except BackfillIncompleteError:
            assert not self.repaired.exists()


def test_a_row_comes_once_with_its_value_or_as_computed_null(
    db: Connection, tmp_path: Path
) -> None:
    lab = Lab.of(db, tmp_path)
    stream = ReadyStream(lab.table)
    assert not stream.read()
    lab.fill("id < 5")
    assert stream.read() == Counter(range(5))
    lab.table.add([{"id": 20, "text": "new"}])
    assert not stream.read()
    lab.fill()
    assert stream.read() == Counter({*range(5, 21)} - {7, 17})
    lab.table.to_lance().optimize.compact_files()
    lab.table.to_lance().update({"text": "'changed'"}, where="id = 8")
    lab.repaired.touch()
    lab.table.add([{"id": 24, "text": "new"}, {"id": 25, "text": "new"}])
    lab.fill()
    assert stream.read() == Counter({7, 17, 24, 25})
    lab.fill("id < 12")
    assert not stream.read()
    # A new stream begins with the ready rows; those computed as NULL before a compaction are missing.
    ready = ReadyStream(lab.table).read()
    assert ready == Counter(set(ready)) and {*range(21), 24, 25} - {0, 4, 8, 12, 16, 20} <= set(
        ready
    )


def test_a_computed_null_comes_once_if_an_update_moves_its_row(
    db: Connection, tmp_path: Path
) -> None:
    lab = Lab.of(db, tmp_path)
    stream = ReadyStream(lab.table)
    lab.fill("id < 5")
    assert stream.read() == Counter(range(5))
    lab.update.write_text("id IN (4, 5, 8)")
    lab.fill()
    assert not lab.update.exists()
    assert stream.read() == Counter({*range(5, 20)} - {7, 17})
    # Between two jobs, the file of the first job serves the moved row.
    lab.table.to_lance().update({"text": "'changed'"}, where="id IN (4, 8)")
    lab.fill()
    assert not stream.read()


def test_a_computed_null_comes_once_with_filtered_backfills(db: Connection, tmp_path: Path) -> None:
    lab = Lab.of(db, tmp_path)
    stream = ReadyStream(lab.table)
    lab.fill()
    assert stream.read() == Counter({*range(20)} - {7, 17})
    lab.table.to_lance().update({"text": "'changed'"}, where="id IN (4, 8, 12)")
    # A filter selects computed rows again.
    lab.fill("id < 5")
    lab.table.to_lance().optimize.compact_files()
    # The records of the first filter have a part of the fragment with the moved rows.
    lab.fill("id IN (8, 16)")
    lab.fill()
    assert not stream.read()


@pytest.mark.long
def test_a_computed_null_comes_once_if_its_record_is_missing(
    db: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab.of(db, tmp_path)
    stream = ReadyStream(lab.table)
    assert not stream.read()

    def die(*_: object) -> None:
        raise KeyboardInterrupt("between the commit and its record")

    with monkeypatch.context() as patch:
        patch.setattr(GroupCommits, "_record", die)
        with pytest.raises(KeyboardInterrupt, match="between the commit and its record"):
            lab.fill()
    assert stream.read() == Counter({*range(20)} - {7, 17})
    lab.table.to_lance().optimize.compact_files()
    lab.fill()
    assert not stream.read()


def test_only_marks_of_this_kind_make_a_null_ready(db: Connection, tmp_path: Path) -> None:
    lab = Lab.of(db, tmp_path)
    lab.fill()
    expected = Counter({*range(20)} - {7, 17})
    assert ReadyStream(lab.table, {"ready_columns": "v", "columns": "id"}).read() == expected
    assert ReadyStream(lab.table, {"ready_columns": "v", "filter": "id < 9"}).read() == Counter(
        {*range(9)} - {7}
    )
    assert (
        ReadyStream(lab.table, {"ready_columns": "v", "startingversion": "latest"}).read()
        == Counter()
    )
    lab.table.to_lance().update({"v": "NULL"}, where="id = 5")
    assert ReadyStream(lab.table).read() == expected - Counter([5])
    damaged = {MARKS_KEY.encode(): json.dumps({"rows": "x", "new": "x"}).encode()}
    assert NullMarks.of(damaged) == NullMarks.of({}) == NO_MARKS


def test_columns_of_one_udf_are_ready_together_and_of_two_are_refused(db: Connection) -> None:
    table = make_table(db, fragments=1)

    def halves(id: int) -> Columns[Halves]:
        return Halves(even=None if id % 2 else id, odd=id if id % 2 else None)

    def double(id: int) -> int:
        return id * 2

    table.add_columns(udf(halves, version="1"))
    table.add_columns({"double": udf(double, version="1")})
    streams = [ReadyStream(table, {"ready_columns": names}) for names in ("even", "even,odd")]
    assert [stream.read() for stream in streams] == [Counter()] * 2
    table.backfill("odd")
    assert [stream.read() for stream in streams] == [Counter(range(10))] * 2
    with pytest.raises(OptionError, match=r"ready_columns.*single UDF"):
        ReadyStream(table, {"ready_columns": "even,double"}).read()
    with pytest.raises(ColumnNotFoundError, match="'nothing' does not exist"):
        ReadyStream(table, {"ready_columns": "nothing"}).read()
    with pytest.raises(OptionError, match="without change_feed"):
        ReadyStream(table, {"ready_columns": "even", "change_feed": "true"}).read()
    table.to_lance().add_columns({"x": "id", "y": "nullif(id, 3)"})
    assert ReadyStream(table, {"ready_columns": "x,y"}).read() == Counter({*range(10)} - {3})


STEPS = [
    "append",
    "valued",
    "compact",
    "update",
    "delete",
    "fill",
    "fill some",
    "fill one",
    "fill and update",
    "repair",
]


def take(lab: Lab, step: str, number: int) -> None:
    """Takes a step of a history."""
    dataset = lab.table.to_lance()
    match step:
        case "append":
            lab.table.add([{"id": 100 + 10 * number + i, "text": "new"} for i in range(7)])
        case "valued":
            lab.table.add([{"id": 9000 + number, "text": "new", "v": number}])
        case "compact":
            dataset.optimize.compact_files()
        case "update":
            dataset.update({"text": f"'changed {number}'"}, where=f"id % 5 = {number % 5}")
        case "delete":
            dataset.delete(f"id = {number}")
        case "fill":
            lab.fill()
        case "fill some":
            lab.fill(f"id % 3 = {number % 3}")
        case "fill one":
            lab.fill(num_frags=1, commit_granularity=1)
        case "fill and update":
            lab.update.write_text(f"id % 4 = {number % 4}")
            lab.fill()
            lab.update.unlink(missing_ok=True)
        case "repair":
            lab.repaired.touch()


def values_of(dataset: lance.LanceDataset) -> dict[int, int | None]:
    """Returns the values of a version by id."""
    rows = dataset.to_table().to_pylist()
    return {row["id"]: row.get("v") for row in rows}


def first_valued(table: Table) -> Iterator[tuple[int, int]]:
    """Yields ids with the first version in which the row has a value, according to plain pylance."""
    seen = set[int]()
    for entry in table.to_lance().versions():
        values = values_of(table.to_lance().checkout_version(entry["version"]))
        for row in [row for row, value in values.items() if value is not None and row not in seen]:
            seen.add(row)
            yield row, entry["version"]


@pytest.mark.long
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.sampled_from(STEPS), min_size=3, max_size=9), data=st.data())
def test_each_row_of_a_random_history_comes_once(
    db: Connection, tmp_path_factory: pytest.TempPathFactory, steps: list[str], data: st.DataObject
) -> None:
    name = f"t{len(list(tmp_path_factory.getbasetemp().iterdir()))}"
    lab = Lab.of(db, tmp_path_factory.mktemp("flag"), name=name)
    stream = ReadyStream(lab.table)
    # A stream that begins later lacks NULLs that moved before.
    reads = [(lab.table.version, stream.read())]
    computed = set[int]()
    for number, step in enumerate([*steps, "fill"]):
        take(lab, step, number)
        if step == "fill":
            computed |= {row for row in values_of(lab.table.to_lance()) if row % 4 == 0}
        if step == "fill" or data.draw(st.booleans()):
            reads.append((lab.table.version, stream.read()))
            # A NULL comes as soon as a default backfill has filled the whole table.
            assert computed <= set().union(*(rows for _, rows in reads))
    everything = sum((rows for _, rows in reads), Counter[int]())
    assert not [row for row, count in everything.items() if count > 1]
    assert lab.repaired.exists() or not any(row % 10 == 7 for row in everything if row < 9000)
    ends = {row: version for version, rows in reversed(reads) for row in rows}
    for row, version in first_valued(lab.table):
        # The row comes with the first read after the version of its value.
        expected = next((end for end, _ in reads if end >= version), None)
        assert ends.get(row) == expected or row not in values_of(lab.table.to_lance()), (
            row,
            version,
        )
