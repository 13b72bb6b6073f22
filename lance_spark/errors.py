"""All errors of this package, in one small hierarchy.

Each class derives from :class:`LanceSparkError` and from a built-in exception, carries its facts as
attributes, and survives pickling, because errors cross process borders on Spark. A message is
sentences: the problem, its place, and the remedy.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar


class LanceSparkError(Exception):
    """Base class of all errors of lance-spark.

    Attributes:
        retryable: Whether the same call can succeed later.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.drop_columns(["title"])
        except lance_spark.LanceSparkError as error:
            print(type(error).__name__, error.retryable)  # ColumnNotFoundError False
        ```
    """

    retryable: ClassVar[bool] = False

    def __reduce__(self) -> tuple[object, ...]:
        # Subclasses take keywords, which the default protocol of Exception does not pass on.
        return (rebuild, (type(self), self.args, self.__dict__))


class _LocatedError(LanceSparkError):
    """Base class of errors with the location of a table."""

    def __init__(self, message: str, *, uri: str) -> None:
        super().__init__(message)
        self.uri = uri


def rebuild(
    cls: type[LanceSparkError], args: tuple[object, ...], state: dict[str, object]
) -> LanceSparkError:
    """Returns the error of another process, from its message and its attributes."""
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


def counted(count: float, noun: str) -> str:
    """Returns a number and its noun, for messages: `1 row`, `2,000 rows`, `0.5 GPUs`."""
    return f"{count:,}".removesuffix(".0") + f" {noun}{'' if count == 1 else 's'}"


_FIRST_WORD = re.compile(r"[a-z]+(?![\w(.=/]|://)")
"""A first word of a text that is no code."""


def _sentences(*texts: str) -> str:
    """Joins texts, each with a capital at its start and a full stop at its end."""
    parts = [text.strip() for text in texts if text]
    parts = [part[0].upper() + part[1:] if _FIRST_WORD.match(part) else part for part in parts]
    return " ".join(part if part.endswith((".", "!", "?")) else f"{part}." for part in parts)


_PANIC = "PanicException"
_MOST_CHARS = 300
"""Characters of a value that a message shows."""
_PLAIN_VERSION = re.compile(r"(?:at )?[\w.:+/-]+")
"""Versions, tags and branches that a message shows without quotes."""


@contextlib.contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turns a panic of Lance into a RuntimeError of the same text.

    The class of a panic is no Exception, and cannot be imported.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise RuntimeError(str(error)) from error


@contextlib.contextmanager
def refusals_as_errors(uri: str) -> Iterator[None]:
    """Turns failures of Lance's writes below a table's location into errors of this package.

    A refusal of the store becomes a TableUnwritableError, a panic a LancePanicError.
    """
    try:
        yield
    except OSError as error:
        raise (
            error if isinstance(error, LanceSparkError) else TableUnwritableError(uri, str(error))
        ) from error
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise LancePanicError(uri, str(error)) from error


def _show_argument(value: object) -> str:
    from udf_runtime.arguments import (
        show_value,
    )  # options are text; arguments come with that package

    return show_value(value)


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}..."


class OptionError(LanceSparkError, ValueError):
    """An option is unknown, malformed, or contradicts another option.

    Attributes:
        option: Name of the option as the user wrote it.
        value: Its value as text, or None for a missing option.
        accepted: Accepted values.
        problem: The problem with the value, as the end of a sentence.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.backfill("price", concurrency=0)
        except lance_spark.OptionError as error:
            print(error.option, error.accepted)
        ```
    """

    def __init__(
        self, option: str, value: object, accepted: str, *, problem: str = "is not valid"
    ) -> None:
        self.value = value if value is None or isinstance(value, str) else _show_argument(value)
        text = _shortened(repr(value)) if isinstance(value, str) else self.value
        value_text = "is missing" if text is None else f"= {text} {problem}"
        super().__init__(_sentences(f"option {option!r} {value_text}", f"accepted: {accepted}"))
        self.option = option
        self.accepted = accepted
        self.problem = problem


class TableNotFoundError(LanceSparkError, FileNotFoundError, ValueError):
    """The location has no Lance table.

    Attributes:
        uri: The location.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            db.open_table("films")
        except lance_spark.TableNotFoundError as error:
            print(error.uri)
        ```
    """

    def __init__(self, uri: str, *, hint: str = "check the path, or write the table first") -> None:
        super().__init__(_sentences(f"no Lance table was found at {uri}", hint))
        self.uri = uri


class TableUnreadableError(LanceSparkError, OSError):
    """The location cannot be read: a damaged table, a refused access, an unreachable store.

    Attributes:
        uri: The location of the table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            lance_spark.open_table("library/books.lance").count_rows()
        except lance_spark.TableUnreadableError as error:
            print(error)
        ```
    """

    def __init__(self, uri: str, reason: str, *, hint: str) -> None:
        super().__init__(_sentences(f"the table at {uri} cannot be read: {reason}", hint))
        self.uri = uri


class DamagedFileError(LanceSparkError, OSError):
    """A file of lance-spark below a table's folder is damaged. Nothing was changed.

    Attributes:
        uri: The location of the table.
        files: Paths of the damaged files, below the table's folder.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.list_jobs()
        except lance_spark.DamagedFileError as error:
            print(error.files)
        ```
    """

    def __init__(self, uri: str, files: Sequence[str], reason: str) -> None:
        names = ", ".join(map(repr, files))
        super().__init__(
            _sentences(
                f"Files of lance-spark in the table {uri} are damaged: {names}. The first cannot be read: {reason}",
                f"Run `lance-spark check {uri} --repair`: the command keeps every row that can be read and moves the "
                "damaged files aside.",
            )
        )
        self.uri = uri
        self.files = tuple(files)


class DamagedRecordWarning(UserWarning):
    """A damaged record of lance-spark was skipped.

    Example:
        ```python
        import warnings

        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        with warnings.catch_warnings(action="error", category=lance_spark.DamagedRecordWarning):
            print(books.list_jobs())  # []
        ```
    """


class TableUnwritableError(LanceSparkError, OSError):
    """The store refuses a write: no permission, no space, a read-only file system.

    Nothing was committed.

    Attributes:
        uri: The location of the table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.add([{"id": 10, "price": 100}])
        except lance_spark.TableUnwritableError as error:
            print(error.uri)
        ```
    """

    def __init__(self, uri: str, reason: str) -> None:
        hint = "Check permissions and space there, and the storage.* options."
        super().__init__(_sentences(f"the table at {uri} cannot be written: {reason}", hint))
        self.uri = uri


class LancePanicError(LanceSparkError, RuntimeError):
    """Lance failed during a write, and should have refused the rows.

    Nothing was committed.

    Attributes:
        uri: The location of the table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.add([{"id": 10, "price": 100}])
        except lance_spark.LancePanicError as error:
            print(error)
        ```
    """

    def __init__(self, uri: str, reason: str) -> None:
        hint = "Nothing was committed. Report this defect with the schema of the rows."
        super().__init__(
            _sentences(f"Lance failed while it wrote rows: {reason}", f"Table: {uri}", hint)
        )
        self.uri = uri


class WorkerPythonError(LanceSparkError, RuntimeError):
    """The Python of Spark's workers lacks this package.

    Attributes:
        python: The interpreter.

    Example:
        ```python
        import lance_spark
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.getOrCreate()
        try:
            lance_spark.enable_pushdown(spark)
        except lance_spark.WorkerPythonError as error:
            print(error.python)
        ```
    """

    def __init__(self, python: str) -> None:
        super().__init__(
            f"Spark's Python workers run {python}, which lacks lance_spark and lance. Set the environment variable "
            f"PYSPARK_PYTHON to the Python of this process, {sys.executable}, before the session is made, or make the "
            "session with lance_spark.configure(SparkSession.builder).getOrCreate()."
        )
        self.python = python


class GatewayError(LanceSparkError, RuntimeError):
    """The JVM and the Python process of its Lance tables do not reach or do not fit each other.

    No Python process with this package could be started, the process ended during a command, or the
    JVM has the jar of another release of this package.

    Example:
        ```python
        import lance_spark
        from pyspark.sql import SparkSession

        spark = lance_spark.configure(SparkSession.builder).getOrCreate()
        lance_spark.catalog(spark, "library", "library")
        try:
            spark.sql("SHOW TABLES IN library").show()
        except lance_spark.GatewayError as error:
            print(error)
        ```
    """


class SparkStartError(LanceSparkError, RuntimeError):
    """Spark did not start: no Java, an unknown master. No job was started.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.to_spark().show()
        except lance_spark.SparkStartError as error:
            print(error)
        ```
    """


class VersionNotFoundError(LanceSparkError, LookupError, ValueError, RuntimeError):
    """The table has no such version, tag or branch, or no version at such a time.

    Attributes:
        uri: The location of the table.
        version: The requested version.
        available: Summary of the available versions.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.checkout(9)
        except lance_spark.VersionNotFoundError as error:
            print(error.version, error.available)
        ```
    """

    def __init__(self, uri: str, version: str, *, available: str, what: str = "version") -> None:
        version_text = version if _PLAIN_VERSION.fullmatch(version) else _shortened(repr(version))
        super().__init__(_sentences(f"{what} {version_text} does not exist in {uri}", available))
        self.available = available
        self.uri = uri
        self.version = version


class ColumnNotFoundError(LanceSparkError, LookupError, ValueError):
    """The table lacks a column.

    Attributes:
        column: The requested name.
        uri: The location of the table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.drop_columns(["title"])
        except lance_spark.ColumnNotFoundError as error:
            print(error.column)  # title
        ```
    """

    def __init__(self, column: str, uri: str, *, hint: str) -> None:
        super().__init__(_sentences(f"column {column!r} does not exist in {uri}", hint))
        self.column = column
        self.uri = uri


class FilterError(LanceSparkError, ValueError):
    """A filter in Lance SQL is not valid, or does not fit the columns of the table.

    Attributes:
        filter: The filter.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.count_rows("price >")
        except lance_spark.FilterError as error:
            print(error.filter)  # price >
        ```
    """

    def __init__(self, filter: str, reason: str, *, uri: str, hint: str) -> None:
        super().__init__(
            _sentences(f"filter {filter!r} is not valid: {reason}", f"Table: {uri}", hint)
        )
        self.filter = filter


class UnsupportedTypeError(LanceSparkError, TypeError, ValueError):
    """The other side cannot hold the type of a column without loss.

    Attributes:
        column: Path of the column, dotted for nested fields.
        type: The unsupported type.

    Example:
        ```python
        import lance_spark
        from pyspark.sql import SparkSession

        spark = lance_spark.configure(SparkSession.builder).getOrCreate()
        intervals = spark.sql("SELECT INTERVAL 1 MONTH AS age")
        try:
            intervals.write.format("lance").mode("append").save("library/ages.lance")
        except Exception as error:  # Spark's error has the text of the UnsupportedTypeError
            print("UnsupportedTypeError" in str(error))  # True
        ```
    """

    def __init__(self, column: str, type: str, *, reason: str, hint: str) -> None:
        super().__init__(
            _sentences(f"type {type} is not supported: {reason}", f"Place: column {column!r}", hint)
        )
        self.column = column
        self.type = type


class SchemaMismatchError(LanceSparkError, ValueError):
    """The columns of a DataFrame do not fit the table.

    Nothing was written.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.add([{"id": 1, "title": "a"}])
        except lance_spark.SchemaMismatchError as error:
            print(error)
        ```
    """


class ValueConversionError(LanceSparkError, ValueError):
    """A value does not fit the type on the other side.

    Attributes:
        column: Path of the column, dotted for nested fields.
        row: 0-based position of the row in the task's stream of rows, or in the data of this
            process; None if unknown.
        reason: The problem with the value.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.add([{"id": "one", "price": 1}])
        except lance_spark.ValueConversionError as error:
            print(error.column, error.row)
        ```
    """

    def __init__(
        self, column: str, row: int | None, reason: str, *, hint: str, rows: str = "its task"
    ) -> None:
        place = f"Place: column {column!r}" + ("" if row is None else f", row {row} of {rows}")
        super().__init__(_sentences(reason, place, hint))
        self.column = column
        self.row = row
        self.reason = reason


class NoLocationError(LanceSparkError, ValueError):
    """Spark gave a write no location. Nothing was written.

    Example:
        ```python
        import lance_spark
        from pyspark.sql import SparkSession

        spark = lance_spark.configure(SparkSession.builder).getOrCreate()
        try:
            spark.range(3).write.format("lance").mode("append").save()
        except Exception as error:  # Spark's error has the text of the NoLocationError
            print("NoLocationError" in str(error))  # True
        ```
    """


class SnapshotError(LanceSparkError, ValueError):
    """Row addresses belong to another table or version.

    Nothing was written.

    Example:
        ```python
        import lance_spark
        from pyspark.sql import SparkSession
        from pyspark.sql import functions as F

        spark = lance_spark.configure(SparkSession.builder).getOrCreate()
        spark.range(10).write.format("lance").mode("append").save("library/books.lance")
        read = spark.read.format("lance").option("with_row_address", True)
        books = read.load("library/books.lance")
        prices = books.select("_rowaddr", F.lit(5).alias("price"))
        spark.range(10).write.format("lance").mode("append").save("library/films.lance")
        films = prices.write.format("lance").mode("append").option("mode", "backfill")
        try:
            films.save("library/films.lance")
        except Exception as error:  # Spark's error has the text of the SnapshotError
            print("SnapshotError" in str(error))  # True
        ```
    """


class RowAddressError(LanceSparkError, ValueError):
    """Rows of a backfill are NULL, negative, duplicate, deleted, or not in the snapshot.

    Nothing was committed.

    Attributes:
        counts: Number of rows of each kind.
        examples: The first addresses of each kind.

    Example:
        ```python
        import lance_spark
        from pyspark.sql import SparkSession
        from pyspark.sql import functions as F

        spark = lance_spark.configure(SparkSession.builder).getOrCreate()
        spark.range(10).write.format("lance").mode("append").save("library/books.lance")
        read = spark.read.format("lance").option("with_row_address", True)
        books = read.load("library/books.lance")
        prices = books.select("_rowaddr", F.lit(5).alias("price"))
        twice = prices.union(prices).write.format("lance").mode("append").option("mode", "backfill")
        try:
            twice.save("library/books.lance")
        except Exception as error:  # Spark's error has the text of the RowAddressError
            print("RowAddressError" in str(error))  # True
        ```
    """

    def __init__(
        self, counts: dict[str, int], examples: dict[str, Sequence[int]], *, where: str, hint: str
    ) -> None:
        parts = []
        for kind, count in counts.items():
            first = ", ".join(str(a) for a in examples.get(kind, ()))
            parts.append(f"{count} {kind}" + (f" (first: {first})" if first else ""))
        problem = f"Row addresses are not usable: {'; '.join(parts)}. Place: {where}. Nothing was committed."
        super().__init__(_sentences(problem, hint))
        self.counts = counts
        self.examples = examples


class CommitError(_LocatedError, RuntimeError):
    """A commit failed. The table is unchanged; a new column of the write may stay, all NULL.

    Attributes:
        uri: The location of the table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.update(values_sql={"price": "price + 1"})
        except lance_spark.CommitError as error:
            print(f"Nothing changed in {error.uri}: {error}")
        ```
    """


class CommitConflictError(CommitError):
    """A concurrent commit changed the same rows or columns. Another read and write can succeed.

    Attributes:
        fragments: Ids of the affected fragments.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.update(values_sql={"price": "price + 1"})
        except lance_spark.CommitConflictError as error:
            print(f"Other writers were first: {error}")
        ```
    """

    retryable: ClassVar[bool] = True

    def __init__(self, message: str, *, uri: str, fragments: Sequence[int] = ()) -> None:
        super().__init__(message, uri=uri)
        self.fragments = tuple(fragments)


class CommitOutcomeUnknownError(CommitError):
    """The store did not answer, so the commit may or may not have happened.

    Written files were left in place.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.update(values_sql={"price": "price + 1"})
        except lance_spark.CommitOutcomeUnknownError as error:
            print(lance_spark.last_commit(error.uri))
        ```
    """


class CommitImpossibleError(CommitError):
    """Written values cannot be applied: the column or the table was dropped or replaced.

    Example:
        ```python
        import lance_spark
        from lance_spark import udf


        @udf
        def double(price: int) -> int:
            return 2 * price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"double": double})
        try:
            books.backfill("double")
        except lance_spark.CommitImpossibleError as error:
            print(f"The column was dropped or replaced: {error}")
        ```
    """


class UnsafeStoreError(CommitError):
    """The object store ignores conditional puts, so concurrent commits would lose rows.

    Nothing was committed.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.add([{"id": 10, "price": 100}])
        except lance_spark.UnsafeStoreError as error:
            print(error)
        ```
    """


class TableExistsError(LanceSparkError, FileExistsError, ValueError):
    """A new table has the location of an existing table.

    Attributes:
        uri: The location of the table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            db.create_table("books", [{"id": 1}])
        except lance_spark.TableExistsError as error:
            print(error.uri)
        ```
    """

    def __init__(self, uri: str, *, hint: str) -> None:
        super().__init__(_sentences(f"there is a table already at {uri}", hint))
        self.uri = uri


class ColumnExistsError(LanceSparkError, ValueError):
    """A new column has the name of an existing column. Nothing was changed.

    Attributes:
        columns: The existing names.
        uri: The location of the table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.add_columns({"price": "0"})
        except lance_spark.ColumnExistsError as error:
            print(error.columns)  # ('price',)
        ```
    """

    def __init__(self, columns: Sequence[str], uri: str, *, hint: str) -> None:
        names = ", ".join(map(repr, columns))
        problem = f"column {names} exists" if len(columns) == 1 else f"columns {names} exist"
        super().__init__(_sentences(f"{problem} already in {uri}", hint))
        self.columns = tuple(columns)
        self.uri = uri


class RegistrationError(LanceSparkError, ValueError):
    """A UDF does not fit the table or its column. Nothing was changed.

    Example:
        ```python
        import lance_spark
        from lance_spark import udf


        @udf
        def double(cost: int) -> int:
            return 2 * cost


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.add_columns({"double": double})
        except lance_spark.RegistrationError as error:
            print(error)
        ```
    """


class ColumnNameError(SchemaMismatchError, RegistrationError):
    """Lance or Spark could not read back the name of a new column. Nothing was changed.

    Attributes:
        column: The name; of a field in a struct its dotted path.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            db.create_table("films", [{"": 1}])
        except lance_spark.ColumnNameError as error:
            print(error.column)
        ```
    """

    def __init__(self, column: str, reason: str, where: str) -> None:
        super().__init__(
            f"The column name {column!r} {reason}. Nothing was changed in {where}. "
            "Choose another name, for example with alias(), or leave the column out with drop()."
        )
        self.column = column


class StoredUdfError(LanceSparkError, RuntimeError):
    """A stored UDF is missing or damaged, cannot be loaded here, or loading is forbidden.

    Example:
        ```python
        import lance_spark
        from lance_spark import udf


        @udf
        def double(price: int) -> int:
            return 2 * price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"double": double})
        try:
            books.backfill("double")
        except lance_spark.StoredUdfError as error:
            print(error)
        ```
    """


class JobNotFoundError(LanceSparkError, LookupError):
    """The history of the table has no job of this id.

    Attributes:
        job_id: The requested id.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.get_job("no-such-job")
        except lance_spark.JobNotFoundError as error:
            print(error.job_id)  # no-such-job
        ```
    """

    def __init__(self, job_id: str, uri: str) -> None:
        super().__init__(
            f"Job {job_id!r} is not known in {uri}. Call list_jobs() for the ids of all jobs."
        )
        self.job_id = job_id


class ResourcesUnavailableError(LanceSparkError, RuntimeError):
    """A UDF needs more resources than the cluster has. No job was started.

    Example:
        ```python
        import lance_spark
        from lance_spark import udf


        @udf(num_gpus=1)
        def double(price: int) -> int:
            return 2 * price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"double": double})
        try:
            books.backfill("double")
        except lance_spark.ResourcesUnavailableError as error:
            print(error)
        ```
    """


class JobTimeoutError(LanceSparkError, TimeoutError):
    """A job did not end in time. The job continues.

    Attributes:
        job: Its handle: `job.result()` waits again, `job.cancel()` ends the job.

    Example:
        ```python
        import lance_spark
        from lance_spark import udf


        @udf
        def double(price: int) -> int:
            return 2 * price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"double": double})
        job = books.backfill_async("double")
        try:
            job.result(timeout=0)
        except lance_spark.JobTimeoutError as error:
            print(error.job.result().rows_computed)  # 10
        ```
    """

    def __init__(self, message: str, *, job: object) -> None:
        super().__init__(message)
        self.job = job


class BackfillIncompleteError(LanceSparkError, RuntimeError):
    """A backfill ended, and selected rows have neither a value nor were skipped by a policy.

    Attributes:
        result: Status, counts and errors of the job.

    Example:
        ```python
        import lance_spark
        from lance_spark import udf


        @udf
        def invert(price: int) -> float:
            return 1 / price


        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.add_columns({"inverse": invert})
        try:
            books.backfill("inverse")
        except lance_spark.BackfillIncompleteError as error:
            print(error.result.status, error.result.rows_failed)
        ```
    """

    def __init__(self, message: str, *, result: object) -> None:
        super().__init__(message)
        self.result: Any = result


class UpkeepIncompleteError(LanceSparkError, RuntimeError):
    """A part of the upkeep of a table failed. Its commits stay.

    Attributes:
        result: The result of the other parts.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.maintain()
        except lance_spark.UpkeepIncompleteError as error:
            print(error.result)
        ```
    """

    def __init__(self, message: str, *, result: object) -> None:
        super().__init__(message)
        self.result: Any = result


class SourceError(LanceSparkError, ValueError):
    """A source of values does not exist, cannot be read, or has no values.

    Attributes:
        source: The source.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.load_columns("titles.parquet", pk="id", columns=["title"])
        except lance_spark.SourceError as error:
            print(error.source)
        ```
    """

    def __init__(self, message: str, *, source: str) -> None:
        super().__init__(message)
        self.source = source


class SourceKeysError(SourceError):
    """Keys of a source are duplicate, NULL, of another type, or without a match.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        twice = [{"id": 1, "title": "a"}, {"id": 1, "title": "b"}]
        try:
            books.load_columns(twice, pk="id", columns=["title"])
        except lance_spark.SourceKeysError as error:
            print(error)
        ```
    """


class SourceChangedError(SourceError):
    """A source changed during a load. No changed value is committed.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.load_columns([{"id": 1, "title": "a"}], pk="id", columns=["title"])
        except lance_spark.SourceChangedError as error:
            print(error.source)
        ```
    """


class ViewError(_LocatedError, ValueError):
    """A table is no materialized view, or cannot be one.

    Attributes:
        uri: Location of the view.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.refresh()
        except lance_spark.ViewError as error:
            print(error.uri)
        ```
    """


class ViewSourceError(ViewError):
    """The source of a view was dropped or created again, or lacks a used column.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        db.create_materialized_view("dear", "SELECT id, price FROM books WHERE price > 50")
        dear = db.open_table("dear")
        db.drop_table("books")
        try:
            dear.refresh()
        except lance_spark.ViewSourceError as error:
            print(error)  # the source was dropped
        ```
    """


class StableRowIdsError(ViewError, RuntimeError):
    """A view cannot follow a source without stable row ids. Nothing was changed.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        db.create_materialized_view("dear", "SELECT id, price FROM books WHERE price > 50")
        dear = db.open_table("dear")
        try:
            dear.refresh()
        except lance_spark.StableRowIdsError as error:
            print(error)
        ```
    """


class MergeError(LanceSparkError, ValueError):
    """A merge of the source is ambiguous or not possible. Nothing was changed.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        twice = [{"id": 1, "price": 1}, {"id": 1, "price": 2}]
        try:
            books.merge_insert("id").when_matched_update_all().execute(twice)
        except lance_spark.MergeError as error:
            print(error)
        ```
    """


class IndexNotFoundError(LanceSparkError, LookupError, RuntimeError):
    """The table has no index of this name.

    Attributes:
        index: The requested name.
        uri: Location of the table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.drop_index("by_title")
        except lance_spark.IndexNotFoundError as error:
            print(error.index)  # by_title
        ```
    """

    def __init__(self, index: str, uri: str, *, available: str) -> None:
        super().__init__(_sentences(f"index {index!r} does not exist in {uri}", available))
        self.index = index
        self.uri = uri


class IndexExistsError(LanceSparkError, ValueError):
    """A new index has the name of an existing index. Nothing was changed.

    Attributes:
        index: The name.
        uri: Location of the table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.create_scalar_index("price", name="by_price")
        try:
            books.create_scalar_index("price", name="by_price", replace=False)
        except lance_spark.IndexExistsError as error:
            print(error.index)  # by_price
        ```
    """

    def __init__(self, index: str, uri: str, *, reason: str, hint: str) -> None:
        super().__init__(
            _sentences(f"index {index!r} already exists{reason}", f"Table: {uri}", hint)
        )
        self.index = index
        self.uri = uri


class IndexBuildError(_LocatedError, RuntimeError):
    """The build of an index failed. The table is unchanged.

    Attributes:
        uri: Location of the table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        try:
            books.create_scalar_index("price")
        except lance_spark.IndexBuildError as error:
            print(error.uri)
        ```
    """


class SearchError(_LocatedError, ValueError):
    """Lance cannot run a search, for example for a phrase with an index without positions.

    Attributes:
        uri: Location of the table.

    Example:
        ```python
        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": 1, "title": "Spark by example"}])
        books.create_fts_index("title", with_position=False)
        try:
            books.search('"by example"').to_pandas()
        except lance_spark.SearchError as error:
            print(error.uri)
        ```
    """


class IndexTimeoutError(_LocatedError, TimeoutError, RuntimeError):
    """Indexes do not cover all rows of the table in time.

    Attributes:
        uri: Location of the table.

    Example:
        ```python
        from datetime import timedelta

        import lance_spark

        db = lance_spark.connect("library")
        books = db.create_table("books", [{"id": i, "price": 10 * i} for i in range(10)])
        books.create_scalar_index("price", name="by_price")
        books.add([{"id": 10, "price": 100}])
        try:
            books.wait_for_index(["by_price"], timeout=timedelta(seconds=1))
        except lance_spark.IndexTimeoutError as error:
            print(error.uri)
        ```
    """


class UnsupportedOperationError(LanceSparkError, NotImplementedError):
    """The operation is not supported; the message names the alternative.

    Nothing was changed.

    Example:
        ```python
        import lance_spark
        from pyspark.sql import SparkSession

        spark = lance_spark.configure(SparkSession.builder).getOrCreate()
        lance_spark.catalog(spark, "library", "library")
        try:
            spark.sql("CALL library.system.no_such_procedure()")
        except Exception as error:  # Spark's error has the text of the UnsupportedOperationError
            print("UnsupportedOperationError" in str(error))  # True
        ```
    """
