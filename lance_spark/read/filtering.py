"""The filter of a scan: combination, validation, and evaluation with scalar indexes."""

from __future__ import annotations

import functools
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_spark.errors import FilterError, TableUnreadableError, panics_as_errors
from lance_spark.lance_compat import (
    answering_indexes,
    is_filter_failure,
    is_unknown_column,
    plain,
    unknown_function,
)
from lance_spark.types.fields import BlobHandling, is_blob

if TYPE_CHECKING:
    import lance

    from lance_spark.dataset import DatasetRef

_LOG = logging.getLogger(__name__)

MAX_INDEX_MATCHES = 1 << 20
"""Maximum number of matches of an index look-up on the driver. With more matches, the executors
scan. The addresses and ids take 16 MiB."""

MAX_MASKED_MATCHES = 1 << 10
"""Maximum number of matches that travel with the tasks. Executors then do not search the index."""

MIN_LISTED_ROWS = 1 << 15
"""Rows that a scan reads by address, for tables of any size."""

LISTED_SHARE = 16
"""A scan of a large table reads at most one row in 16 by address. Of 800,000 rows, 48,000 rows by
address took as long as a filtered scan, and 400,000 rows ten times as long."""

_EMPTY_LIST = "the list after IN is empty"
_NULL_BLOBS = "in file format 2.0 a filter cannot tell which blobs are NULL"


def conjunction(*filters: str | None) -> str | None:
    """Returns the conjunction of the filters that are not None, or None without a filter."""
    # The line break ends a trailing comment of a filter.
    parts = [f"({text}\n)" for text in filters if text is not None]
    return " AND ".join(parts) if parts else None


def check_filter(dataset: lance.LanceDataset, text: str, uri: str, blobs: BlobHandling) -> None:
    """Validates a user's filter in Lance SQL by planning it. Reads no data.

    Lance parses a filter as the end of a statement and ignores trailing text: `id = 1 LIMIT 3` and
    even `id = 1) nonsense` select `id = 1`. Inside parentheses, the first filter raises an error.
    Unbalanced parentheses are checked separately.

    Raises:
        FilterError: The filter does not parse, names an unknown column or function, or is not
            boolean.
    """
    reason = _malformed(text) or _problem(dataset, text) or _problem(dataset, conjunction(text))
    if reason is None and _reads_null_blobs(dataset, text, blobs):
        reason = _NULL_BLOBS
    if reason is not None:
        raise FilterError(text, reason, uri=uri, hint=_remedy(reason))


def _remedy(reason: str) -> str:
    """Returns the hint for the reason why a filter is not valid."""
    function = unknown_function(reason)
    if function is not None and _spark_knows(function):
        return f"Use {function}, a function of Spark, in df.filter(...). The option `filter` is Lance SQL."
    if reason == _EMPTY_LIST:
        return "Write FALSE to select no row, or skip the call."
    if reason == _NULL_BLOBS:
        return "Set the option blob_handling to bytes."
    if is_unknown_column(reason):
        return "Spell columns as in the table. Quote names with capitals or special characters in backticks."
    return "Write a condition in Lance SQL, such as lang = 'en' AND size > 100."


def pushable(dataset: lance.LanceDataset, pushed: str | None, blobs: BlobHandling) -> str | None:
    """Returns a pushed filter if Lance accepts it, else None.

    Spark applies its own filter above the scan, so dropping the pushed filter is safe.
    """
    if pushed is None or _reads_null_blobs(dataset, pushed, blobs):
        return None
    reason = _problem(dataset, pushed)
    if reason is None:
        return pushed
    _LOG.warning(
        "Lance does not take the pushed filter %s (%s); Spark filters alone", pushed, reason
    )
    return None


def _malformed(text: str) -> str | None:
    """Returns the syntax error of a filter that Lance would misread or explain badly."""
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
    """Tells whether a filter reads the NULLs of a blob column in file format 2.0.

    In that format, a NULL blob reads as a descriptor that is not NULL.
    """
    if blobs == "bytes" or dataset.data_storage_version != "2.0":
        return False
    return any(
        is_blob(field) and re.search(rf"\b{re.escape(field.name)}\b", text, re.IGNORECASE)
        for field in dataset.schema
    )


def _problem(dataset: lance.LanceDataset, text: str | None) -> str | None:
    """Returns Lance's error for a filter, or None."""
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
    """The matches of a filter according to scalar indexes.

    Attributes:
        exact: Whether the indexes know the matching rows. Otherwise they only narrow the search.
        matches: Number of matching rows of each covered fragment with a match. None if the matches
            exceed the limit.
        covered: Ids of the fragments that the indexes cover. The remaining fragments are scanned.
        names: Names of the indexes.
        rows: Number of rows of the covered fragments.
        mask: Mask of the matching rows in covered fragments (:mod:`lance_spark.read.masks`), for at
            most MAX_MASKED_MATCHES matches.
    """

    exact: bool
    matches: dict[int, int] | None
    covered: frozenset[int]
    names: tuple[str, ...]
    rows: int = 0
    mask: bytes | None = None

    @property
    def serves(self) -> bool:
        """Whether a scan uses the indexes. A scan with many matches does not.

        Every task would search the index again, and reading the column is cheaper.
        """
        if not self.exact:
            return True
        most = max(MIN_LISTED_ROWS, self.rows // LISTED_SHARE)
        return self.matches is not None and sum(self.matches.values()) <= most


@functools.lru_cache(maxsize=64)
def ask_index(ref: DatasetRef, filter: str) -> IndexAnswer | None:
    """Looks up the fragments with matches in the table's scalar indexes.

    Runs on the driver and finds at most MAX_INDEX_MATCHES rows. A point look-up then reads a single
    fragment, and the executors do not search the index again. The result is cached, because a
    process describes a scan and then plans it.

    Returns:
        None if no index takes part in the filter.
    """
    dataset = ref.open()
    try:
        with panics_as_errors():
            return _ask(dataset, filter)
    # A damaged index is skipped: the data files hold the rows too.
    except (ValueError, OSError, RuntimeError) as error:
        _LOG.warning("The indexes of %s are not used: %s", ref.uri, plain(error))
        return None


def _ask(dataset: lance.LanceDataset, filter: str) -> IndexAnswer | None:
    import numpy as np

    from lance_spark.read.masks import serialize_ids

    indexes = {index.name: index for index in dataset.describe_indices()}
    if not indexes:
        return None
    answered = answering_indexes(
        dataset.scanner(columns=[], filter=filter).explain_plan(verbose=True), indexes
    )
    if answered is None:
        return None
    used, exact = answered
    if not exact:
        return IndexAnswer(exact=False, matches=None, covered=frozenset(), names=tuple(used))
    covered = frozenset.intersection(*(indexed_fragments(indexes[name]) for name in used))
    handles = [f for f in dataset.get_fragments() if f.fragment_id in covered]
    # A mask holds row ids. Without stable ids, these are the addresses.
    columns = ["_rowaddr", "_rowid"] if dataset.has_stable_row_ids else ["_rowaddr"]
    scanner = dataset.scanner(
        columns=columns, filter=filter, fragments=handles, limit=MAX_INDEX_MATCHES + 1
    )
    table = scanner.to_table()
    addresses = table.column(0).to_numpy()
    if len(addresses) > MAX_INDEX_MATCHES:
        return IndexAnswer(exact=True, matches=None, covered=covered, names=tuple(used))
    ids, counts = np.unique(addresses >> np.uint64(32), return_counts=True)
    matches = dict(zip(ids.tolist(), counts.tolist(), strict=True))
    rows = sum(handle.metadata.num_rows for handle in handles)
    mask = (
        serialize_ids(table.column(columns[-1]).to_numpy())
        if 0 < len(addresses) <= MAX_MASKED_MATCHES
        else None
    )
    return IndexAnswer(
        exact=True, matches=matches, covered=covered, names=tuple(used), rows=rows, mask=mask
    )


def indexed_fragments(index: lance.IndexDescription) -> frozenset[int]:
    """Returns the ids of the fragments that an index covers."""
    return frozenset(number for segment in index.segments for number in segment.fragment_ids)


def as_filter_error(
    error: Exception, dataset: lance.LanceDataset, fragment_id: int, filter: str | None = None
) -> FilterError | TableUnreadableError:
    """Converts an error of Lance while reading a fragment to an error of this package."""
    text = plain(error)
    if filter is not None and is_filter_failure(error):
        hint = (
            f"A value of fragment {fragment_id} makes the filter fail. Exclude this value in the filter. Functions of "
            "the filter are Lance's, even with a name of a Spark function: use df.filter(...) for functions of Spark."
        )
        return FilterError(filter, text, uri=dataset.uri, hint=hint)
    return TableUnreadableError(
        dataset.uri,
        f"{text} (version {dataset.version}, fragment {fragment_id})",
        hint="A data file is missing or damaged, or the store refused. Check the storage.",
    )
