"""Options of reads and writes, parsed once into typed, frozen values.

Spark gives a data source a case-insensitive map of strings. Each option is one field here, with its
type, unit, default and documentation in its metadata, the source of the tables in the documentation
(:func:`options_table`). An unknown or malformed option raises an
:class:`~lance_spark.errors.OptionError` with the option, its value, and the accepted values.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from lance_spark.errors import OptionError
from lance_spark.namespaces.reference import NamespaceTable
from lance_spark.options.values import (
    byte_size,
    option_field,
    parse_boolean,
    parse_branch,
    parse_fragment_ids,
    parse_names,
    parse_not_negative,
    parse_one_of,
    parse_positive,
    parse_text,
    parse_text_query,
    parse_timestamp,
    parse_vector_query,
    parse_version_text,
)

if TYPE_CHECKING:
    from lance_spark.queries.parameters import TextQuery, VectorQuery

WRITE_OPTION = "lancespark.write"
TABLE_OPTION = "lancespark.table"
METADATA_OPTION = "lancespark.metadata"
"""Internal options, made by the planner rule or the SQL catalog and never by a user. `TABLE_OPTION`
names, with commas, the options that a catalog table was made with: those for reading serve its
reads, the others its writes."""

VIEW_MARK = ' {"path":null,"exclusive":false,"input_columns":null,"snapshots":[]}'
"""Value of `WRITE_OPTION` of a view that SQL made with the rule. The value changes no write."""

STORAGE_PREFIX = "storage."

PROPERTY_PREFIX = "snapshot-property."
"""Write options of properties that are kept with the version, named as Iceberg names them."""

OWN_PROPERTIES = ("lance-spark.", "__lance")
"""How names of properties begin that users cannot give."""

WRITE_ID_PROPERTY = "lance-spark.write"
"""The only property with such a name that a write option gives: the random id of a write, by which
`add` recognises its own commit. Its values are no names of anything."""

_ONE_TABLE = "one location: read each table by itself, and call union"
_NO_PARTITIONS = "nothing: a table has fragments and no folders of partitions"
_OF_OTHER_FORMATS = {
    "paths": _ONE_TABLE,
    "pathglobfilter": _ONE_TABLE,
    "recursivefilelookup": _ONE_TABLE,
    "modifiedafter": "nothing: the option timestamp reads the table as it was",
    "modifiedbefore": "nothing: the option timestamp reads the table as it was",
    "versionasof": "the option version",
    "timestampasof": "the option timestamp",
    "readchangefeed": "the option change_feed",
    "mergeschema": "nothing: a table has one schema; as an option of an append it adds columns",
    "overwriteschema": "nothing: an overwrite takes the columns of the DataFrame, and older versions keep theirs",
    "replacewhere": "nothing: delete the rows first, lance.dataset(path).delete(...), then append",
    "basepath": _NO_PARTITIONS,
    "partitionoverwritemode": f"{_NO_PARTITIONS}: delete the rows first, lance.dataset(path).delete(...), then append",
    "maxrecordsperfile": "the option max_rows_per_file",
    "compression": "nothing: Lance encodes each column by what it holds",
    "header": "nothing: a table knows its columns and types",
    "inferschema": "nothing: a table knows its columns and types",
}
"""Options that Spark's users know from other formats, and what to do here."""

_T = TypeVar("_T")


def environment_flag(variable: str, *, default: bool = False) -> bool:
    """Returns a flag of the environment of this process.

    Raises:
        OptionError: The text of the variable is no flag.
    """
    text = os.environ.get(variable, str(default)).strip().lower()
    if text not in ("true", "1", "yes", "false", "0", "no"):
        raise OptionError(variable, text, "true or false")
    return text in ("true", "1", "yes")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of `spark.read.format("lance")`; the metadata of each field documents it."""

    path: str = option_field(
        parse_text,
        "the URI of a Lance table",
        "Location of the table; usually the argument of `load`.",
        default="",
    )
    version: str | None = option_field(
        parse_version_text,
        "a version number, a tag, branch:number, or a branch",
        "Version to read: a number, the name of a tag, `branch:number`, or the name of a branch for its latest. "
        "Without it the latest version is pinned when the DataFrame is made.",
    )
    branch: str | None = option_field(
        parse_branch,
        "the name of a branch",
        "Branch to read; `version` and `timestamp` are then of this branch. See [Branches](versions.md#branches).",
    )
    timestamp: datetime | None = option_field(
        parse_timestamp,
        "an ISO 8601 date and time, such as 2026-01-31T12:00:00Z",
        "Read the newest version that is not newer than this moment (UTC where no offset is given).",
    )
    columns: tuple[str, ...] | None = option_field(
        parse_names,
        "column names, comma-separated or as a JSON array",
        "Columns to read, in this order. Only these are fetched from storage.",
    )
    filter: str | None = option_field(
        parse_text,
        "a filter in Lance SQL",
        "Rows to read, in Lance SQL, for example `lang = 'en' AND size > 100`.",
    )
    limit: int | None = option_field(
        parse_not_negative,
        "a number of rows, 0 or more and less than 2^63",
        "Read at most so many rows.",
    )
    batch_size: int = option_field(
        parse_positive,
        "a number of rows, 1 or more",
        "Most rows of one Arrow batch.",
        default=65536,
    )
    fragments: tuple[int, ...] | None = option_field(
        parse_fragment_ids,
        "fragment ids, comma-separated or as a JSON array",
        "Read only these fragments.",
    )
    with_row_id: bool = option_field(
        parse_boolean, "true or false", "Add the column `_rowid` (bigint).", default=False
    )
    with_row_address: bool = option_field(
        parse_boolean,
        "true or false",
        "Add the column `_rowaddr` (bigint), which a backfill needs; its metadata carries table and version.",
        default=False,
    )
    with_row_versions: bool = option_field(
        parse_boolean,
        "true or false",
        "Add `_row_created_at_version` and `_row_last_updated_at_version` (bigint). The table needs stable row ids.",
        default=False,
    )
    blob_handling: Literal["descriptor", "bytes"] = option_field(
        parse_one_of("descriptor", "bytes"),
        "descriptor or bytes",
        "What a blob column reads as: a struct that says where the bytes are, or the bytes.",
        default="descriptor",
    )
    nearest: VectorQuery | None = option_field(
        parse_vector_query,
        "JSON with `q` and, where wanted, `column`, `k`, `offset`, `metric`, `nprobes`, `maximum_nprobes`, "
        "`lower_bound`, `upper_bound`, `fast_search`, `refine_factor`, `ef`, `use_index`, `prefilter`",
        "Read the `k` (10) rows whose vectors are nearest to `q`, with `_distance`. See [Search](search.md).",
    )
    full_text_query: TextQuery | None = option_field(
        parse_text_query,
        "words, or JSON with `query` and, where wanted, `columns`, `phrase`, `fast_search`, `k`, `offset`, `prefilter`",
        "Read the `k` (10) rows whose text is most about the words, with `_score`. With `nearest`, both are searched "
        "and fused.",
    )
    target_partition_bytes: int = option_field(
        byte_size,
        "a size in bytes, such as 134217728 or 128m",
        "Size that a partition aims at, in stored bytes of the columns read.",
        default=128 << 20,
    )
    parallelism: int | None = option_field(
        parse_positive,
        "a number of tasks, 1 or more",
        "Number of partitions for a table smaller than so many partitions of `target_partition_bytes`; each has at "
        "least 4 MiB. Default: the tasks that the cluster runs at once, and without the jar the cores of the driver's "
        "machine.",
    )
    storage: tuple[tuple[str, str], ...] = dataclasses.field(default=(), metadata={}, repr=False)

    @property
    def searches(self) -> bool:
        """Whether rows are read by rank."""
        return self.nearest is not None or self.full_text_query is not None

    @staticmethod
    def parse(options: Mapping[str, str]) -> ReadOptions:
        """Parses Spark's options.

        Raises:
            OptionError: An option is unknown, malformed, or contradicts another one.
        """
        parsed = parse_options(ReadOptions, select_used_options(ReadOptions, options))
        if parsed.version is not None and parsed.timestamp is not None:
            raise OptionError(
                "timestamp",
                parsed.timestamp.isoformat(),
                "either version or timestamp, not both",
                problem="contradicts option 'version'",
            )
        return parsed


COLUMN_OPTIONS: Mapping[str, tuple[str, str]] = {
    "arrow.fixed-size-list.size": (r"[1-9]\d{0,8}", "a number of elements, from 1 to 999,999,999"),
    "arrow.float16": ("true", "true"),
    "arrow.large_var_char": ("true", "true"),
    "lance.encoding": ("blob", "blob"),
    "lance.compression": ("zstd|lz4|none", "zstd, lz4 or none"),
    "lance.compression-level": (r"-?\d{1,2}", "a compression level"),
}
"""Options of a column, `<column>.<name>`: pattern of the value, and its description."""

_COLUMN_OPTION = re.compile(f"(.+)\\.({'|'.join(map(re.escape, COLUMN_OPTIONS))})", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of `df.write.format("lance")`; the metadata of each field documents it."""

    path: str = option_field(
        parse_text,
        "the URI of a Lance table",
        "Location of the table; usually the argument of `save`.",
        default="",
    )
    mode: Literal["rows", "backfill"] = option_field(
        parse_one_of("rows", "backfill"),
        "rows or backfill",
        "`rows` writes rows. `backfill` writes values of columns into existing rows that `_rowaddr` or `_rowid` names.",
        default="rows",
    )
    branch: str | None = option_field(
        parse_branch,
        "the name of a branch",
        "Branch to write to, which must be there. Row addresses of a backfill must be of this branch.",
    )
    version: int | None = option_field(
        parse_positive,
        "a version number",
        "Backfill: the version that the row addresses were read at, where the DataFrame lost that knowledge.",
    )
    input_columns: tuple[str, ...] | None = option_field(
        parse_names,
        "column names, comma-separated or as a JSON array",
        "Backfill: the columns that the values were computed from. Changes of others are no conflict.",
    )
    verify_columns: tuple[str, ...] | None = option_field(
        parse_names,
        "names of columns that the DataFrame also holds, unchanged",
        "Backfill: columns that are written along only to be compared with the table; a row where they differ is an "
        "error.",
    )
    max_rows_per_file: int = option_field(
        parse_positive, "a number of rows, 1 or more", "Most rows of one fragment.", default=1 << 20
    )
    max_bytes_per_file: int = option_field(
        byte_size,
        "a size in bytes, such as 1g",
        "Size of the Arrow data after which a new fragment is begun.",
        default=90 << 30,
    )
    data_storage_version: str | None = option_field(
        parse_one_of("2.0", "2.1", "2.2", "stable", "next", "legacy"),
        "2.0, 2.1, 2.2, stable, next or legacy",
        "File format of a new table. Existing tables keep theirs.",
    )
    enable_stable_row_ids: bool = option_field(
        parse_boolean, "true or false", "Make a new table with stable row ids.", default=True
    )
    create_only: bool = option_field(
        parse_boolean,
        "true or false",
        "Create a new table. The write fails if the table exists, or if a concurrent writer creates the table first.",
        default=False,
    )
    mergeschema: bool = option_field(
        parse_boolean,
        "true or false",
        "`mergeSchema`: an append adds columns that the table lacks, in a version before that of the rows.",
        default=False,
    )
    commit_message: str | None = option_field(parse_text, "a text", "Kept with the version.")
    commit_max_retries: int | None = option_field(
        parse_not_negative,
        "a number, 0 or more",
        "Rounds without progress after which a commit gives up. Default: the environment variable "
        "LANCE_SPARK_VERSION_CONFLICT_MAX_RETRIES, else 10.",
    )
    commit_timeout: int | None = option_field(
        parse_positive,
        "seconds, 1 or more",
        "Seconds after which a commit that keeps losing races gives up. Default: 1800.",
    )
    on_stale: Literal["null", "error"] = option_field(
        parse_one_of("null", "error"),
        "null or error",
        "Backfill: what becomes of a row whose input columns a concurrent writer changed: it gets no value, or nothing "
        "is committed.",
        default="null",
    )
    carry_over_max_bytes: int | None = option_field(
        byte_size,
        "a size in bytes, such as 1g",
        "Backfill: most bytes of values that the commit carries over to where their rows have moved. With more "
        "it is a conflict, and nothing is committed. Default: no limit.",
    )
    allow_unsafe_commits: bool | None = option_field(
        parse_boolean,
        "true or false",
        "Commit to an object store that ignores conditional puts, where writers at once lose each other's rows. "
        "Default: the environment variable LANCE_SPARK_ALLOW_UNSAFE_COMMITS, else false.",
    )
    txn_app_id: str | None = option_field(
        parse_text,
        "an id of the application, such as nightly-import",
        "Together with `txn_version`: write each transaction of an application once. See "
        "[Streaming](streaming.md#exactly-once-in-foreachbatch).",
    )
    txn_version: int | None = option_field(
        parse_not_negative,
        "a number, 0 or more, that grows with each transaction of the application",
        "Number of the transaction, such as the id of a micro-batch. A write of a committed transaction changes "
        "nothing; a write of an older transaction fails.",
    )
    properties: tuple[tuple[str, str], ...] = dataclasses.field(default=(), metadata={})
    column_options: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = dataclasses.field(
        default=(), metadata={}
    )
    storage: tuple[tuple[str, str], ...] = dataclasses.field(default=(), metadata={}, repr=False)

    @staticmethod
    def parse(options: Mapping[str, str]) -> WriteOptions:
        """Parses Spark's options.

        Options of columns (`COLUMN_OPTIONS`) are collected in `column_options`, and
        `snapshot-property.<name>` in `properties`.

        Raises:
            OptionError: An option is unknown or malformed.
        """
        plain: dict[str, str] = {}
        per_column: dict[str, dict[str, str]] = {}
        properties: dict[str, str] = {}
        for key, value in select_used_options(WriteOptions, options).items():
            if key.lower().startswith(PROPERTY_PREFIX):
                name = key[len(PROPERTY_PREFIX) :]
                check_property(name, value)
                properties[name] = value
                continue
            match = _COLUMN_OPTION.fullmatch(key)
            if match is None or key.startswith(STORAGE_PREFIX):
                plain[key] = value
                continue
            name = match[2].lower()
            values, accepted = COLUMN_OPTIONS[name]
            if not re.fullmatch(values, value):
                raise OptionError(key, value, accepted)
            per_column.setdefault(match[1], {})[name] = value
        parsed = parse_options(WriteOptions, plain)
        pairs = tuple(
            sorted((column, tuple(sorted(values.items()))) for column, values in per_column.items())
        )
        return dataclasses.replace(
            parsed, column_options=pairs, properties=tuple(sorted(properties.items()))
        )


def stored_options(options: Mapping[str, str]) -> frozenset[str]:
    """Returns the options that a catalog table was made with, in lower case."""
    return frozenset(name.lower() for name in options.get(TABLE_OPTION, "").split(","))


def select_used_options(cls: type[object], options: Mapping[str, str]) -> dict[str, str]:
    """Returns the options without options of a catalog table for the other use."""
    stored = stored_options(options)
    reads = {f.name for f in dataclasses.fields(ReadOptions)}

    def serves(name: str) -> bool:
        both = name.startswith(STORAGE_PREFIX) or name == "branch"
        return name not in stored or both or (name in reads) == (cls is ReadOptions)

    return {
        key: text for key, text in options.items() if key != TABLE_OPTION and serves(key.lower())
    }


def parse_options(cls: type[_T], options: Mapping[str, str]) -> _T:
    """Returns Spark's options as an object of a class with :func:`option_field`.

    Raises:
        OptionError: An option is unknown or malformed.
    """
    fields = {f.name: f for f in dataclasses.fields(cls) if "parse" in f.metadata}  # type: ignore[arg-type]
    values: dict[str, object] = {}
    storage: dict[str, str] = {}
    for key, text in options.items():
        name = key.lower()
        if name.startswith(STORAGE_PREFIX):
            storage[key[len(STORAGE_PREFIX) :]] = text
        elif name in fields:
            values[name] = _parse_value(fields[name], key, text)
        elif name != WRITE_OPTION:
            raise _unknown_option(cls, key, text, list(fields))
    NamespaceTable.check_options(storage)
    return cls(**{**values, "storage": tuple(sorted(storage.items()))})


def _parse_value(field: dataclasses.Field[Any], key: str, text: str) -> object:
    try:
        return field.metadata["parse"](text)
    except OptionError:
        raise
    except (ValueError, OverflowError, RecursionError):
        raise OptionError(key, text, field.metadata["accepted"]) from None


def _unknown_option(cls: type[object], key: str, text: str, names: list[str]) -> OptionError:
    name = key.lower()
    if name in _OF_OTHER_FORMATS:
        return OptionError(
            key, text, _OF_OTHER_FORMATS[name], problem="is an option of other formats"
        )
    close = difflib.get_close_matches(name, [*names, *_dotted_names(cls, name)], n=1)
    problem = f"is not known: did you mean {close[0]!r}?" if close else "is not known"
    return OptionError(key, text, f"{', '.join(names)}, {STORAGE_PREFIX}*", problem=problem)


def _dotted_names(cls: type[object], name: str) -> list[str]:
    """Returns possible options with a dot for a misspelt name."""
    first, dot, rest = name.partition(".")
    if not dot:
        return []
    columns = [f"{first}.{option}" for option in COLUMN_OPTIONS]
    return [
        STORAGE_PREFIX + rest,
        *([PROPERTY_PREFIX + rest, *columns] if cls is WriteOptions else []),
    ]


def check_number(name: str, value: object, *, least: int, accepted: str | None = None) -> None:
    """Checks an argument with a whole number. None leaves the number to its default.

    Raises:
        OptionError: The value is no whole number, or less than `least`.
    """
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int) or value < least
    ):
        raise OptionError(name, value, accepted or f"a whole number, {least} or more")


def check_property(name: str, value: str) -> None:
    """Checks the name of a property of a commit: a user's, or :data:`WRITE_ID_PROPERTY`.

    Raises:
        OptionError: The name is empty, or reserved by Lance or this package.
    """
    is_write_id = name == WRITE_ID_PROPERTY and re.fullmatch("[0-9a-f]{32}", value)
    if not is_write_id and (not name or name.startswith(OWN_PROPERTIES)):
        accepted = f"a name that does not begin with {' or '.join(map(repr, OWN_PROPERTIES))}"
        raise OptionError(
            f"{PROPERTY_PREFIX}{name}", value, accepted, problem="has a name that cannot be given"
        )


def options_table(cls: type[object]) -> str:
    """Returns the Markdown table of a class's options, for the documentation."""
    lines = ["| option | accepted | default | meaning |", "| --- | --- | --- | --- |"]
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if "parse" not in field.metadata:
            continue
        default = "" if field.default in (None, "") else f"`{str(field.default).lower()}`"
        lines.append(
            f"| `{field.name}` | {field.metadata['accepted']} | {default} | {field.metadata['doc']} |"
        )
    return "\n".join(lines)
