"""Every row of the table of conflicts, by each API.

The quick suite runs one or two cells of each row, at alternating moments; `make test-long` runs all cells.
"""

from __future__ import annotations

import itertools

import pytest

from tests.lance_spark.conflicts import writes
from tests.lance_spark.conflicts.cases import JOBS, WRITES, Case, Column, Moment
from tests.lance_spark.conflicts.jobs import ConflictLab
from tests.lance_spark.conflicts.others import cast_target
from tests.lance_spark.conflicts.writes import Layout

pytestmark = pytest.mark.sample(40)

STRIDE = 5
"""The step between quick variations; coprime with their numbers, so that each variation occurs."""


def is_quick(row: int, turn: int) -> bool:
    """Tells whether a cell of a row is quick: every other cell."""
    return (row + turn) % 2 == 0 or turn == 0


def jobs() -> list[object]:
    cells, number = [], 0
    for row, case in enumerate(JOBS):
        for turn, moment in enumerate(case.moments.split()):
            number += 1
            for place, stable in enumerate(case.stable):
                marks = (
                    ()
                    if is_quick(row, turn) and place == number % len(case.stable)
                    else pytest.mark.long
                )
                name = f"{case.name}-{moment}-{'stable' if stable else 'addresses'}"
                cells.append(pytest.param(case, moment, stable, id=name, marks=marks))
    return cells


def dataframe_writes() -> list[object]:
    cells, number = [], 0
    for row, case in enumerate(WRITES):
        for turn, moment in enumerate(case.moments.split()):
            columns = {"adding": {"new"}}.get(moment, set(case.columns.split())) & set(
                case.columns.split()
            )
            variations = [*itertools.product(case.stable, ("runs", "direct"), sorted(columns))]
            number += STRIDE
            for place, (stable, layout, column) in enumerate(variations):
                marks = (
                    ()
                    if is_quick(row, turn) and place == number % len(variations)
                    else pytest.mark.long
                )
                name = (
                    f"{case.name}-{moment}-{'stable' if stable else 'addresses'}-{layout}-{column}"
                )
                cells.append(
                    pytest.param(case, moment, stable, layout, column, id=name, marks=marks)
                )
    return cells


@pytest.mark.parametrize(("case", "moment", "stable"), jobs())
def test_a_job(case: Case, moment: Moment, stable: bool, lab: ConflictLab) -> None:
    indexed = stable == (moment in ("before", "slipped")) and case.act is not cast_target
    lab.check_case(case, moment, stable=stable, indexed=indexed)


@pytest.mark.parametrize(("case", "moment", "stable", "layout", "column"), dataframe_writes())
def test_a_dataframe_write(
    case: Case, moment: Moment, stable: bool, layout: Layout, column: Column, path: str
) -> None:
    writes.check_case(path, case, moment, stable=stable, layout=layout, kind=column)


@pytest.mark.parametrize("table", [JOBS, WRITES], ids=["jobs", "writes"])
def test_each_cell_is_there_once(table: tuple[Case, ...]) -> None:
    cells = [
        (case.name, moment, stable, column)
        for case in table
        for moment, stable, column in itertools.product(
            case.moments.split(), case.stable, case.columns.split()
        )
    ]
    assert len(cells) == len(set(cells))
