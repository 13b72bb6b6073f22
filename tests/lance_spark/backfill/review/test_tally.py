"""What the tasks of a job tell is added up: each row once, and in little memory."""

from __future__ import annotations

import pickle

import numpy as np

from lance_spark.backfill.spec import FragmentRows, RangeOutcome
from lance_spark.backfill.tally import Tally
from lance_spark.commit.rowsets import RowSet


def test_a_job_keeps_numbers_of_fragments_and_not_their_rows():
    scattered = RowSet.of(np.flatnonzero(np.random.default_rng(0).random(1_000_000) < 0.1))
    rows = FragmentRows(computed=scattered, own=scattered)
    tally = Tally()
    for fragment in range(10):
        tally.add(RangeOutcome(fragment_id=fragment, start=0, stop=1_000_000, rows=rows, held=7), is_void=False)
    assert len(pickle.dumps((tally.carried, tally.round))) < 10_000
    assert tally.held_now() == dict.fromkeys(range(10), 7)
