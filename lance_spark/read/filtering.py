"""The filter of a scan: put together, checked, and answered from an index that knows the rows."""

from __future__ import annotations

import functools
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.errors import FilterError, TableUnreadableError, panics_as_errors
from lance_spark.lance_compat import answering_indexes, is_filter_failure, is_unknown_column, plain, unknown_function
from lance_spark.types.fields import BlobHandling, is_blob

if TYPE_CHECKING:
    import lance

    from lance_spark.dataset import DatasetRef

_LOG = logging.getLogger(__name__)

MAX_INDEX_MATCHES = 1 << 20
"""Rows that an index look-up on the driver may find; with more, the executors scan. Their addresses
take 8 MiB."""

MIN_LISTED_ROWS = 1 << 15
"""Rows that a scan reads by their addresses in a table of any size."""

LISTED_SHARE = 16
"""A scan of a large table reads one row in so many by its address at most. Of 800,000 rows, an
index gave 48,000 in the time of a scan with a filter, and 400,000 in ten times as much."""


_EMPTY_LIST = "the list after IN is empty"


def both(*filters: str | None) -> str | None:
    """Returns the conjunction of the filters that are there, or None where none is."""
    # The line break ends a comment that a filter may end with.
    parts = [f"({text}\n)" for text in filters if text is not None]
    return " AND ".join(parts) if parts else None


def check_filter(dataset: lance.LanceDataset, text: str, uri: str, blobs: BlobHandling) -> None:
    """Checks a user's filter in Lance SQL by planning it; nothing is read.

    Lance parses a filter as the end of a statement and ignores what follows it: `id = 1 LIMIT 3`
    and even `id = 1) nonsense` select `id = 1`. In parentheses the first is an error, and
    unbalanced ones are looked for.

    Raises:
        FilterError: It does not parse, names what is not there, or is no condition.
    """
    reason = _malformed(text) or _problem(dataset, text) or _problem(dataset, both(text))
    if reason is None and _reads_null_blobs(dataset, text, blobs):
        reason = "in file format 2.0 a filter cannot tell which blobs are NULL"
    if reason is None:
        return
    function = unknown_function(reason)
    if function is not None and _spark_knows(function):
        hint = f"{function} is a function of Spark: use it in df.filter(...), the option `filter` is Lance SQL"
    elif reason == _EMPTY_LIST:
        hint = "no row is in an empty list: leave the call out where there is nothing to select, or write FALSE"
    elif "which blobs" in reason:
        hint = "set the option blob_handling to bytes"
    elif is_unknown_column(reason):
        hint = (
            "name the table's columns as they are written there, "
            "quoted with backticks where they hold capitals or other signs"
        )
    else:
        hint = "the option `filter` is Lance SQL: a condition such as lang = 'en' AND size > 100"
    raise FilterError(text, reason, uri=uri, hint=hint)


def usable(dataset: lance.LanceDataset, pushed: str | None, blobs: BlobHandling) -> str | None:
    """Returns a pushed filter if Lance accepts it, else None.

    Spark has its own filter above, so leaving it out is safe.
    """
    if pushed is None or _reads_null_blobs(dataset, pushed, blobs):
        return None
    reason = _problem(dataset, pushed)
    if reason is None:
        return pushed
    _LOG.warning("Lance does not take the pushed filter %s (%s); Spark filters alone", pushed, reason)
    return None


def _malformed(text: str) -> str | None:
    """Returns what is wrong with a filter that Lance would take for another or explain badly."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`|--[^\n]*", "", text)
    if re.search(r"\bIN\s*\(\s*\)", bare, re.IGNORECASE):
        return _EMPTY_LIST
    depth = 0
    for sign in bare:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        if depth < 0:
            break
    return None if depth == 0 else "a parenthesis is missing"


def _reads_null_blobs(dataset: lance.LanceDataset, text: str, blobs: BlobHandling) -> bool:
    """Tells whether a filter names a blob column whose NULLs read as descriptors that are not NULL.

    They do in files of format 2.0.
    """
    if blobs == "bytes" or dataset.data_storage_version != "2.0":
        return False
    return any(
        is_blob(field) and re.search(rf"\b{re.escape(field.name)}\b", text, re.IGNORECASE) for field in dataset.schema
    )


def _problem(dataset: lance.LanceDataset, text: str | None) -> str | None:
    """Returns what is wrong with a filter, or None."""
    try:
        with panics_as_errors():
            dataset.scanner(columns=[], filter=text).explain_plan()
    except (ValueError, OSError, RuntimeError, NotImplementedError) as error:
        return plain(error)
    return None


def _spark_knows(function: str) -> bool:
    from pyspark.sql import functions

    return callable(getattr(functions, function.lower(), None))


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAnswer:
    """What scalar indexes know about a filter.

    Attributes:
        exact: Whether they know the rows. If not, they only narrow the search.
        matches: Matching rows of each fragment that they cover and that has any; None where there
            are too many to list.
        covered: Ids of the fragments that they cover; the others have to be searched.
        names: Their names.
        rows: Rows of the fragments that they cover.
    """

    exact: bool
    matches: dict[int, int] | None
    covered: frozenset[int]
    names: tuple[str, ...]
    rows: int = 0

    @property
    def serves(self) -> bool:
        """Whether a scan uses it: not where the matches are many.

        Every task would search the index again then, and reading the column is cheaper.
        """
        if not self.exact:
            return True
        most = max(MIN_LISTED_ROWS, self.rows // LISTED_SHARE)
        return self.matches is not None and sum(self.matches.values()) <= most


@functools.lru_cache(maxsize=64)
def ask_index(ref: DatasetRef, filter: str) -> IndexAnswer | None:
    """Asks the table's scalar indexes which fragments hold matches.

    Runs on the driver; bounded by MAX_INDEX_MATCHES. A point look-up in a table of many fragments
    then reads the one that holds the row, and the executors do not search the index again. Cached,
    because a scan is described and planned one after the other in one process.

    Returns:
        None where no index takes part in the filter.
    """
    dataset = ref.open()
    try:
        with panics_as_errors():
            return _ask(dataset, filter)
    except (ValueError, OSError, RuntimeError) as error:  # a damaged index: the table's own files have the rows too
        _LOG.warning("the indexes of %s are not used: %s", ref.uri, plain(error))
        return None


def _ask(dataset: lance.LanceDataset, filter: str) -> IndexAnswer | None:
    import numpy as np

    indexes = {index.name: index for index in dataset.describe_indices()}
    if not indexes:
        return None
    answered = answering_indexes(dataset.scanner(columns=[], filter=filter).explain_plan(verbose=True), indexes)
    if answered is None:
        return None
    used, exact = answered
    if not exact:
        return IndexAnswer(exact=False, matches=None, covered=frozenset(), names=tuple(used))
    covered: frozenset[int] = frozenset.intersection(
        *(frozenset(f for s in indexes[name].segments for f in s.fragment_ids) for name in used)
    )
    handles = [f for f in dataset.get_fragments() if f.fragment_id in covered]
    scanner = dataset.scanner(columns=["_rowaddr"], filter=filter, fragments=handles, limit=MAX_INDEX_MATCHES + 1)
    addresses = scanner.to_table().column(0).to_numpy()
    if len(addresses) > MAX_INDEX_MATCHES:
        return IndexAnswer(exact=True, matches=None, covered=covered, names=tuple(used))
    ids, counts = np.unique(addresses >> np.uint64(32), return_counts=True)
    matches = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    rows = sum(handle.metadata.num_rows for handle in handles)
    return IndexAnswer(exact=True, matches=matches, covered=covered, names=tuple(used), rows=rows)


def explained(
    error: Exception, dataset: lance.LanceDataset, fragment_id: int, filter: str | None = None
) -> FilterError | TableUnreadableError:
    """Returns one of our errors for what Lance said while a fragment was read."""
    text = plain(error)
    if filter is not None and is_filter_failure(error):
        return FilterError(
            filter, text, uri=dataset.uri, hint=f"it fails on a value of fragment {fragment_id}: exclude that value"
        )
    return TableUnreadableError(
        dataset.uri,
        f"{text} (version {dataset.version}, fragment {fragment_id})",
        hint="a data file is missing or damaged, or the store refused: check the storage",
    )
