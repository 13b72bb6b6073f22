"""The decision table in small scope, without Spark: every interleaving of backfills of two fragments with changes by
other writers, up to a bound.

A backfill is a DataFrame write with three moments: read and write files (`B`), look at the head (`L`), commit (`C`). An
operation of a concurrent writer is a single moment (`o`). The test runs all orders of these moments on small tables,
and checks each like a history.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pyarrow as pa
import pytest

from lance_spark.commit.conflicts.identity import TOKEN_KEY
from tests.histories import jobs
from tests.histories.accounts import is_excused
from tests.histories.administration import (
    AddColumn,
    CleanUp,
    DropColumn,
    Index,
    Rename,
    Restore,
    Ruin,
)
from tests.histories.checking import WrongError, check_values, look, world_of
from tests.histories.model import BackfillRun, RecordedVersion, StartBackfill, Story
from tests.histories.operations import (
    Append,
    Compact,
    Delete,
    InsertOnly,
    Operation,
    RewriteInput,
    RewriteTarget,
    Update,
    Upsert,
    new_row,
    read,
)
from tests.histories.processes import Caught

ROWS = 3
"""Rows of each of the two fragments."""

OPERATIONS: dict[str, Operation] = {
    "append": Append((100,)),
    "insert": InsertOnly((101,)),
    "delete": Delete((1,)),
    "delete fragment": Delete((3, 4, 5)),
    "update": Update((1, 4)),
    "update input": Update((1, 4), column="a"),
    "upsert": Upsert((1,), new=(102,), changed=(1,), value="given"),
    "rewrite input": RewriteInput((0, 4)),
    "rewrite target": RewriteTarget((0, 4)),
    "take away": RewriteTarget((0, 4), null=True),
    "compact": Compact(),
    "compact all": Compact(all=True),
    "clean up": CleanUp(),
    "restore": Restore(back=1),
    "add column": AddColumn("e1"),
    "drop column": DropColumn("other"),
    "rename input": Rename("a"),
    "rename target": Rename("v"),
    "index": Index("v"),
    "drop target": Ruin("v", "drop"),
    "cast target": Ruin("v", "cast"),
}

MOVING = (
    "compact all",
    "update input",
    "rewrite input",
    "clean up",
    "restore",
    "upsert",
    "rewrite target",
    "delete",
)
"""Operations to combine with each other."""

Moments = tuple[str, ...]


class _CommitGate(threading.local):
    """The gate of a thread before its commit."""

    gate: threading.Event | None = None
    reached: threading.Event


_THREAD = _CommitGate()


@pytest.fixture(scope="module", autouse=True)
def gates() -> Iterator[None]:
    """Makes a backfill wait once, between its look and its commit."""
    real = lance.LanceDataset.commit

    @functools.wraps(real)
    def waiting_commit(base: Any, operation: Any, *arguments: Any, **more: Any) -> Any:
        what, gate = getattr(operation, "operation", operation), _THREAD.gate
        if gate is not None and isinstance(what, lance.LanceOperation.DataReplacement):
            _THREAD.gate = None
            _THREAD.reached.set()
            gate.wait(30)
        return real(base, operation, *arguments, **more)

    with patch.object(lance.LanceDataset, "commit", waiting_commit):
        yield


class _Write:
    """A backfill, moment by moment."""

    def __init__(self, uri: str, settings: dict[str, Any]) -> None:
        self._commit = jobs.prepare_write(uri, settings)
        self._gate, self._reached = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.outcome: dict[str, Any] | Caught | None = None

    def _run(self) -> None:
        _THREAD.gate, _THREAD.reached = self._gate, self._reached
        try:
            self.outcome = self._commit()
        except Exception as error:  # noqa: BLE001 - it is judged
            self.outcome = Caught(error)
        self._reached.set()

    def look(self) -> None:
        self._thread.start()
        assert self._reached.wait(30)

    def commit(self) -> None:
        self._gate.set()
        self._thread.join(30)
        assert self.outcome is not None


def play(
    template: Path,
    moments: Moments,
    operations: Sequence[str],
    columns: Sequence[str],
    where: str | None,
) -> None:
    """Runs the moments in order on a copy of a table, and checks the outcome."""
    with tempfile.TemporaryDirectory(dir=template.parent) as home:
        uri = f"{home}/t.lance"
        shutil.copytree(template, uri)
        head = lance.dataset(uri)
        story = Story(stable=head.has_stable_row_ids, first=head.version)
        rows, places = read(head)
        story.versions[head.version] = RecordedVersion(
            number=head.version, by="nobody", rows=rows, places=places
        )
        writes: dict[str, _Write] = {}
        ruin: Ruin | None = None
        remaining = iter(operations)
        for moment in moments:
            what, name = moment[0], moment[1:]
            if what == "o":
                operation = OPERATIONS[next(remaining)].fitted(world_of(story, uri))
                if operation is not None and ruin is None:
                    ruin = _act(story, uri, operation)
                continue
            if what == "B":
                column = columns[int(name) - 1]
                if ruin is not None and column in ruin.targets:
                    return
                start = StartBackfill(name, "write", column, where)  # type: ignore[arg-type]
                story.begin(start)
                writes[name] = _Write(uri, {"column": column, "where": where, "options": {}})
            elif what == "L":
                writes[name].look()
            else:
                writes[name].commit()
            # A write without a gate on its way has already ended.
            look(story, uri, name)
            run, outcome = story.runs[name], writes[name].outcome
            if outcome is not None and run.end is None:
                run.outcome = outcome
                story.end(run)
                _check(story, run, ruin)


def _act(story: Story, uri: str, operation: Operation) -> Ruin | None:
    world = world_of(story, uri)
    operation.act(uri)
    expected = (
        None if isinstance(operation, Ruin) else operation.change(deepcopy(story.head.rows), world)
    )
    look(story, uri, operation)
    story.acts.append((story.head.number, operation))
    assert expected is None or story.head.rows == expected
    return operation if isinstance(operation, Ruin) else None


def _check(story: Story, run: BackfillRun, ruin: Ruin | None) -> None:
    ruined = ruin is not None and run.start.column in ruin.targets
    if isinstance(run.outcome, Caught):
        if not is_excused(story, run, run.outcome, ruin.targets if ruin else None):
            raise WrongError(f"{run.name} failed: {run.outcome.trace}")
    elif ruined and not story.commits(run):
        raise WrongError(f"{run.name} did not notice {ruin}: {run.outcome}")
    if not ruined:
        check_values(story, run)


def interleavings(*sequences: Moments) -> Iterator[Moments]:
    """Yields all orders of moments that keep the order within each sequence."""
    present = [sequence for sequence in sequences if sequence]
    if not present:
        yield ()
    for sequence in present:
        tails = [tail if tail is not sequence else tail[1:] for tail in present]
        for rest in interleavings(*tails):
            yield (sequence[0], *rest)


def orders(backfills: int, operations: int) -> list[Moments]:
    """Returns the orders that start with the first backfill and end with a commit."""
    sequences: list[Moments] = [
        (f"L{n}", f"C{n}") if n == 1 else (f"B{n}", f"L{n}", f"C{n}")
        for n in range(1, backfills + 1)
    ]
    all_orders = interleavings(*sequences, ("o",) * operations)
    return [("B1", *order) for order in all_orders if order[-1] != "o"]


@pytest.fixture(scope="module", params=[True, False], ids=["stable", "addresses"])
def template(request: pytest.FixtureRequest) -> Iterator[Path]:
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        path = Path(folder, "template.lance")
        schema = pa.schema([(name, pa.int64()) for name in ("key", "a", "b", "other")])
        for first in (0, ROWS):
            data = [
                {"key": key, **new_row(key, ("a", "b", "other"))}
                for key in range(first, first + ROWS)
            ]
            table = pa.Table.from_pylist(data, schema=schema)
            lance.write_dataset(
                table,
                path,
                mode="append" if first else "create",
                enable_stable_row_ids=request.param,
            )
        targets = [
            pa.field(name, pa.int64(), metadata={TOKEN_KEY: name.encode()}) for name in ("v", "w")
        ]
        lance.dataset(path).add_columns(pa.schema(targets))
        yield path


def check_all_orders(
    template: Path,
    backfills: int,
    operations: int,
    kinds: Sequence[str],
    columns: Sequence[str],
    where: str | None = None,
    *,
    every: int = 1,
) -> int:
    """Runs all orders with all combinations of operations, or a sample of them (`every`), and returns their number.

    The error names every failed order.
    """
    wrong = []
    combinations = itertools.product(
        itertools.product(kinds, repeat=operations), orders(backfills, operations)
    )
    some = list(itertools.islice(combinations, every - 1, None, every))
    for chosen, moments in some:
        try:
            play(template, moments, chosen, columns, where)
        except Exception as error:  # noqa: BLE001 - all that is wrong is told at once
            last = str(error).strip().splitlines() or [""]
            wrong.append(
                f"play(template, {moments}, {chosen}, {tuple(columns)}, {where!r}): {type(error).__name__} {last[0][:100]} ... {last[-1][:300]}"
            )
    assert not wrong, f"{len(wrong)} of {len(some)} are wrong:\n" + "\n".join(wrong[:40])
    return len(some)


def test_the_orders_are_all_there():
    assert orders(1, 1) == [("B1", "L1", "o", "C1"), ("B1", "o", "L1", "C1")]
    assert len(orders(2, 1)) == 50 and len(orders(1, 2)) == 3 and len(orders(1, 3)) == 4
    assert len(set(orders(2, 1))) == 50


SLIPPED, BETWEEN = ("B1", "L1", "o", "o", "C1"), ("B1", "o", "o", "L1", "C1")


@pytest.mark.parametrize(
    ("moments", "operations", "where"),
    [
        # No operation can have moved a row, so the write must not take its commit back.
        (SLIPPED, ("append", "clean up"), None),
        (SLIPPED, ("insert", "clean up"), None),
        # The merge reads the remaining values of a fragment, although the column may have been replaced.
        (BETWEEN, ("clean up", "rename target"), "some"),
        (BETWEEN, ("clean up", "drop target"), "some"),
        (BETWEEN, ("clean up", "cast target"), "some"),
    ],
)
def test_orders_that_once_failed(
    template: Path, moments: Moments, operations: tuple[str, str], where: str | None
):
    play(template, moments, operations, ["v"], where)


@pytest.mark.long
def test_one_backfill_and_one_operation(template: Path):
    assert check_all_orders(template, 1, 1, [*OPERATIONS], ["v"]) == 2 * len(OPERATIONS)


@pytest.mark.long
def test_one_backfill_and_two_operations(template: Path):
    assert check_all_orders(template, 1, 2, MOVING[:4], ["v"]) == 3 * 4**2


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        pytest.param("vv", "update input", marks=pytest.mark.long),
        pytest.param("vv", "compact all", marks=pytest.mark.long),
        pytest.param("vw", "rewrite input", marks=pytest.mark.long),
    ],
)
def test_two_backfills_and_one_operation(template: Path, columns: str, kind: str):
    assert check_all_orders(template, 2, 1, [kind], columns) == 50


@pytest.mark.long
@pytest.mark.parametrize("columns", ["vv", "vw"])
def test_two_backfills_and_each_operation(template: Path, columns: str):
    check_all_orders(template, 2, 1, [*OPERATIONS], columns)
    check_all_orders(template, 2, 2, MOVING, columns, every=7)  # the full set takes hours


@pytest.mark.long
@pytest.mark.parametrize("where", [None, "some"])
def test_one_backfill_and_all_combinations(template: Path, where: str | None):
    check_all_orders(template, 1, 1, [*OPERATIONS], "v", where)
    check_all_orders(template, 1, 2, [*OPERATIONS], "v", where)
    check_all_orders(template, 1, 3, MOVING, "v", where, every=3)
