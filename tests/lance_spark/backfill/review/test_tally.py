"""What the tasks of a job tell is added up: each row once, and in little memory."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np

from lance_spark.backfill.driver.tally import Tally
from lance_spark.backfill.task.messages import FragmentRows, RangeOutcome
from lance_spark.rows.row_set import RowSet


def test_a_job_keeps_numbers_of_fragments_and_not_their_rows():
    scattered = RowSet.of(np.flatnonzero(np.random.default_rng(0).random(1_000_000) < 0.1))
    rows = FragmentRows(computed=scattered, own=scattered)
    tally = Tally()
    for fragment in range(10):
        tally.add(RangeOutcome(fragment_id=fragment, start=0, stop=1_000_000, rows=rows, held=7), is_void=False)
    assert len(pickle.dumps((tally.carried, tally.round))) < 10_000
    assert tally.held_now() == dict.fromkeys(range(10), 7)


def answer(start: int, **numbers: int) -> RangeOutcome:
    return replace(RangeOutcome(fragment_id=0, start=start, stop=start + 10), **numbers)


def test_answers_for_a_fragment_that_comes_to_nothing_do_not_count_whichever_comes_first():
    tally = Tally()
    tally.add(answer(0, selected=10, computed=9, skipped=1, held=9), is_void=False)
    tally.add(answer(10, computed=3), is_void=True)
    tally.add(answer(20, selected=10, computed=10, held=10), is_void=False)
    assert (tally.selected, tally.skipped, tally.processed, tally.computed) == (0, 0, 0, 22)
    assert tally.held_now() == {0: 0}
    tally.round.clear()
    tally.add(answer(0, selected=30, reused=22, computed=7, skipped=1, held=29), is_void=False)
    assert (tally.selected, tally.skipped, tally.processed) == (30, 1, 29)


def test_rows_that_were_carried_over_kept_or_nulled_stay_counted_when_a_later_round_answers():
    tally = Tally()
    tally.add(answer(0, carried=5, kept=2, nulled=3), is_void=False)
    tally.add(answer(0, nulled=2, again=1), is_void=False)
    tally.add(answer(100, carried=1, kept=1, nulled=1, again=1), is_void=False)
    told = tally.carried.values()
    assert [sum(getattr(one, name) for one in told) for name in ("carried", "kept", "nulled")] == [6, 3, 4]
