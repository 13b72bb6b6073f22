"""Rows that earlier rounds of a job have left without a value: they failed, or became NULL because their inputs changed. On executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lance_spark.backfill.planning.selection import without
from lance_spark.backfill.reuse.value_finder import Finder
from lance_spark.rows.merge import Offsets, distinct, no_rows

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata


def left_without_value(versions: Sequence[int], fragment: FragmentMetadata, finder: Finder) -> Offsets:
    """Returns such rows of a fragment, whatever their inputs are now, ascending.

    Args:
        versions: What the job has read before, the newest first.
        fragment: The fragment.
        finder: What knows where its rows were.
    """
    known, left = no_rows(), no_rows()
    for version in versions:
        told = [no_rows()]
        for origin in finder.found(fragment, version).origins:
            valued, failed = (rows.to_numpy() for rows in finder.own(origin.fragment))
            was = origin.moved.old
            last = without(origin.moved.new[np.isin(was, failed, assume_unique=True)], known)
            left = distinct(left, last)
            told += [origin.moved.new[np.isin(was, valued, assume_unique=True)], last]
        # What a newer version says of a row is its last word.
        known = distinct(known, *told)
    return left
