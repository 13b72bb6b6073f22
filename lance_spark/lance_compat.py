"""Workarounds for undocumented pylance behaviour: private attributes, bugs, error messages.

Check this module with each release of pylance.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    import lance
    import pyarrow as pa
    from lance.dataset import Transaction
    from lance.fragment import DataFile, LanceFragment
    from lance.lance.schema import LanceField
    from lance.optimize import RewriteResult
    from lance.schema import LanceSchema

_LOG_LEVELS = "LANCE_LOG"
_QUIET = "warn,lance_table::transaction::manifest_build=error,lance::dataset::optimize=error"
"""pylance's default, without two warnings: `DataReplacement` is not stable yet, and a concurrent
commit preceded the commit of a compaction."""


def load_lance() -> None:
    """Imports Lance with log levels that hide messages about commits of this package.

    Lance reads the levels at its import. A LANCE_LOG of the user, and an earlier import of Lance,
    keep their levels.
    """
    if "lance" in sys.modules or _LOG_LEVELS in os.environ:
        return
    os.environ[_LOG_LEVELS] = _QUIET
    try:
        import lance
    finally:
        os.environ.pop(_LOG_LEVELS, None)
    lance.log.LOGGER.setLevel(lance.log.get_log_level())  # type: ignore[no-untyped-call]


def is_spark_worker() -> bool:
    """Tells whether Spark started this Python process for tasks, plans or commits."""
    started = getattr(sys.modules.get("__main__"), "__spec__", None)
    return started is not None and started.name.startswith(
        ("pyspark.", "lance_spark.session.daemon")
    )


# Values in a process of Spark hold objects of pylance, so unpickling imports Lance before any
# function here runs. This module comes first, with the class of the value. The process is not the
# user's, so its environment may keep the setting.
if is_spark_worker():
    os.environ.setdefault(_LOG_LEVELS, _QUIET)


# --- private names and bugs ----------------------------------------------------------------------


def version_of(dataset: lance.LanceDataset) -> Mapping[str, Any]:
    """Returns the manifest's description of the dataset's version.

    Its `timestamp` is in nanoseconds since the epoch. The public `versions()` converts it to local
    time without a zone, which is ambiguous when clocks go back, and differs between processes.
    """
    return cast(Mapping[str, Any], dataset._ds.current_version())  # noqa: SLF001 - nothing public has the nanoseconds


def moment_of(version: Mapping[str, Any]) -> datetime:
    """Returns the time of a version's commit, with the arithmetic of pylance's `versions()`.

    So a version is found by a time from `versions()`.
    """
    nanoseconds: int = version["timestamp"]
    microseconds = (nanoseconds % 1e9) // 1e3
    return datetime.fromtimestamp(nanoseconds // 1e9, UTC) + timedelta(microseconds=microseconds)


def path_of(file: DataFile) -> str:
    """Returns the path of a data file.

    The public `path` makes a class at each access: 1 s for 100,000 files, and as much for the
    garbage collector (measured with pylance 14).
    """
    return file._path  # noqa: SLF001


def take_known_rows(
    dataset: lance.LanceDataset, row_ids: list[int], columns: list[str] | dict[str, str]
) -> pa.Table:
    """Returns columns of the rows with stable row ids; missing ids are left out.

    The row id index serves the call, which can return addresses. The public `take_rows` fails on a
    missing id.
    """
    return dataset._take_rows(row_ids, columns=columns)  # noqa: SLF001


def read_transaction(dataset: lance.LanceDataset, version: int) -> Transaction | None:
    """Returns the transaction of a version.

    Raises:
        OSError, ValueError: The transaction was cleaned up, or cannot be read.
    """
    from lance import LanceOperation

    try:
        return dataset.read_transaction(version)
    except TypeError:
        # pylance 14 cannot read back a compaction with a rewritten index: it makes its own class
        # without three arguments. The three arguments do not concern rows.
        make: Any = LanceOperation.RewrittenIndex.__init__
        make.__defaults__ = ("", b"", 0)
        return dataset.read_transaction(version)


def files_of_rewrite(rewrite: str) -> tuple[tuple[str, ...], ...]:
    """Returns the names of the data files of each fragment of a compaction task.

    The names come from the JSON: the attribute `new_fragments` has the old names (pylance 14).
    """
    return tuple(
        tuple(file["path"] for file in fragment["files"])
        for fragment in json.loads(rewrite)["new_fragments"]
    )


def tells_rows(rewrite: str) -> bool:
    """Tells whether the result of a compaction task maps rows to their new places.

    The result has the map if an index needed the map at the time of the plan.
    """
    return json.loads(rewrite)["row_addrs"] is not None


def rewrite_as_of(rewrite: str, version: int) -> RewriteResult:
    """Returns the result of a compaction task with another read version.

    A commit looks for conflicts from the read version on. Correct only if the version has the same
    input fragments.
    """
    from lance.optimize import RewriteResult

    rewrite_class: Any = RewriteResult
    return cast(
        "RewriteResult",
        rewrite_class.from_json(json.dumps({**json.loads(rewrite), "read_version": version})),
    )


def with_replaced_field(
    schema: LanceSchema, column: str, field: pa.Field[Any], first_id: int
) -> LanceSchema:
    """Returns a schema with another field in the place of a column.

    The other columns keep their field ids, and the new field and its descendants get the ids from
    `first_id` on. The public `LanceSchema.from_pyarrow` numbers all fields from 0.
    """
    import pyarrow as pa
    from lance.schema import LanceSchema

    fillers = [pa.field(str(number), pa.null()) for number in range(first_id)]
    numbered: Any = LanceSchema.from_pyarrow(pa.schema([*fillers, field])).__reduce__()
    return _replace_messages(schema, {column: numbered[1][1 + first_id :]})


def arrow_field_of(field: LanceField) -> pa.Field[Any]:
    """Returns a field as an Arrow field; pylance's stubs lack the method."""
    return cast("pa.Field[Any]", cast(Any, field).to_arrow())


def without_fields(schema: LanceSchema, columns: Iterable[str]) -> LanceSchema:
    """Returns a schema without some columns; the others keep their field ids."""
    return _replace_messages(schema, dict.fromkeys(columns, ()))


def _replace_messages(
    schema: LanceSchema, replacements: Mapping[str, Sequence[bytes]]
) -> LanceSchema:
    """Returns a schema with other messages for the fields of some columns."""
    restore, (metadata, *messages) = cast("tuple[Any, tuple[Any, ...]]", schema.__reduce__())
    field_messages: list[bytes] = []
    start = 0
    for top in schema.fields():
        stop = start + _count_fields(top)
        field_messages += replacements.get(top.name(), messages[start:stop])
        start = stop
    return cast("LanceSchema", restore(metadata, *field_messages))


def _count_fields(field: LanceField) -> int:
    return 1 + sum(map(_count_fields, field.children()))


# --- what messages mean --------------------------------------------------------------------------


def plain(error: BaseException) -> str:
    """Returns Lance's message without its final full stop and the locations in source files."""
    return (
        re.sub(r",\s*/[^\s,]+\.rs:\d+:\d+", "", str(error)).strip().replace("\n", " ").rstrip(".")
    )


def _says(*texts: str, error: BaseException) -> bool:
    return any(text in str(error) for text in texts)


def claims_missing_rows(fragment: LanceFragment) -> bool:
    """Tells whether a fragment's metadata and its data files differ in their rows.

    Reads the footers of the data files.
    """
    try:
        fragment.validate()
    except (OSError, ValueError, RuntimeError) as error:
        return "incorrect physical_rows" in str(error)
    return False


def is_missing(error: BaseException) -> bool:
    """Tells whether a table, version, tag or branch does not exist."""
    texts = (
        "was not found",
        "Ref not found",
        "does not exist",
        "Ref is invalid",
        "Table version not found",
    )
    return _says(*texts, error=error)


def is_unknown_scheme(error: BaseException) -> bool:
    """Tells whether Lance has no store for the scheme of a URI."""
    return _says("No object store provider", error=error)


def is_taken_slot(error: BaseException) -> bool:
    """Tells whether a commit only lost the race for a version number.

    pylance raises the same type for a conflict of contents.
    """
    return _says("Failed to commit the transaction after", error=error)


def is_conflict(error: BaseException) -> bool:
    """Tells whether a change was refused because of a concurrent change.

    For its own commits, pylance raises an OSError: for two changes of a key of the configuration,
    and for an update of indexes with concurrently compacted fragments.
    """
    return _says("Incompatible transaction", "Retryable commit conflict", error=error)


def is_preempted(error: BaseException) -> bool:
    """Tells whether the commit of a compaction was refused because of a concurrent commit.

    pylance raises one type for all of them. About a concurrently built index of some of the
    fragments, it reports a wrong plan.
    """
    return (
        is_conflict(error)
        or is_taken_slot(error)
        or _says("split of indexed and non-indexed", error=error)
    )


def is_created_meanwhile(error: BaseException) -> bool:
    """Tells whether the creation of a table was refused because of a concurrent creation.

    Nothing was overwritten.
    """
    texts = (
        "Dataset already exists",
        "_versions/0.manifest",
        "Table version not found: version 0 ",
    )
    return _says(*texts, error=error)


def is_fragment_gone(error: BaseException) -> bool:
    """Tells whether a commit was refused because a fragment of its column files was deleted."""
    return _says("Fragment being replaced not found", error=error)


def is_unanswered(error: BaseException) -> bool:
    """Tells whether a store gave no answer, or only answers that allow a retry."""
    refusal = re.search(r"status code: 4(?!08|29)", str(error))
    return refusal is None and _says(" retries, max_retries: ", error=error)


def is_broken_connection(error: BaseException) -> bool:
    """Tells whether a connection to a store broke, or a request timed out."""
    return _says("HTTP error", error=error)


def is_denied(error: BaseException) -> bool:
    """Tells whether a store needs other credentials."""
    return _says("credentials", "status code: 401", "status code: 403", error=error)


def is_missing_bucket(error: BaseException) -> bool:
    """Tells whether a store has no bucket of the name."""
    return _says("NoSuchBucket", "Failed to resolve region for bucket", error=error)


def is_bad_request(error: BaseException) -> bool:
    """Tells whether Lance refuses a request as invalid.

    Lance raises the same type for failures of the store.
    """
    return str(error).startswith("Invalid user input")


def is_bad_search(error: BaseException) -> bool:
    """Tells whether Lance refuses the parameters of a search."""
    return _says("Invalid user input", "ef must be", error=error)


def is_bad_value(error: BaseException) -> bool:
    """Tells whether an expression or a cast failed on the table's values."""
    return _says("LanceError(Arrow)", error=error)


def is_filter_failure(error: BaseException) -> bool:
    """Tells whether a filter failed on a value, such as a division by zero."""
    return _says("filter expression", error=error)


def unknown_function(message: str) -> str | None:
    """Returns the unknown function of a message about Lance SQL, or None."""
    match = re.search(r"Invalid function '([^']+)'", message)
    return None if match is None else match[1]


def is_unknown_column(message: str) -> bool:
    """Tells whether a filter names an unknown column."""
    return "No field named" in message


def unsupported_reason(error: BaseException) -> str:
    """Returns the reason why Lance cannot write a type, without prefixes."""
    return plain(error).removeprefix("Not supported: ").removeprefix("Invalid user input: ")


def answering_indexes(plan: str, names: Iterable[str]) -> tuple[list[str], bool] | None:
    """Returns the scalar indexes of a scan's filter, and whether they alone determine its rows.

    Lance shows this only in the text of a plan. An unknown text costs only time.

    Args:
        plan: The verbose plan of a scan.
        names: Names of the table's indexes.

    Returns:
        None without an index.
    """
    if "ScalarIndexQuery" not in plan:
        return None
    used = [name for name in names if f"@{name}(" in plan]
    return used, bool(used) and "refine_filter=--" in plan
