"""Commands of the gateway for writes and micro-batches of the JVM. They run on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from lance_spark.streaming.upserts import UpsertWriter
from lance_spark.streaming.writes import LanceStreamWriter, StreamWrite
from lance_spark.types import parse_spark_schema
from lance_spark.write.by_path import plan_writer
from lance_spark.write.planned import decode_answers, decode_writer, encode_write


def plan_write(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Plans a write, and answers with the function of its tasks and with its writer.

    Raises:
        As :func:`~lance_spark.write.by_path.plan_writer`.
    """
    options = {key.lower(): value for key, value in arguments["options"].items()}
    schema = parse_spark_schema(arguments["schema"])
    return encode_write(
        plan_writer(options, schema, overwrite=arguments["overwrite"], spec=arguments["write"])
    )


def commit_write(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Commits a write after the answers of all tasks, and answers with the metrics of the commit.

    Raises:
        CommitError: The commit made no version.
        CommitOutcomeUnknownError: The store did not answer.
    """
    writer = decode_writer(arguments["writer"])
    result = writer.commit_tasks(decode_answers(writer, arguments["messages"]))
    if result is None:
        return {}
    return {
        "rows": result.rows,
        "fragments": result.fragments,
        "attempts": result.retries + 1,
        "conflicting_rows": result.rows_carried + result.rows_nulled + result.rows_gone,
    }


def abort_write(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Deletes the files of a failed write."""
    decode_writer(arguments["writer"]).abort([])
    return {}


def plan_batch(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Plans a micro-batch, and answers with the function of its tasks and with its writer.

    Raises:
        OptionError, SchemaMismatchError, UnsupportedTypeError: The rows or an option do not fit
            the table.
    """
    options = {key.lower(): value for key, value in arguments["options"].items()}
    schema = parse_spark_schema(arguments["schema"])
    stream = StreamWrite.of(
        options,
        schema,
        overwrite=arguments["overwrite"],
        query_id=arguments["query_id"],
        updates=arguments["updates"],
    )
    return encode_write(
        UpsertWriter.plan(stream) if stream.keys else LanceStreamWriter(stream, stream.plan())
    )


def commit_batch(arguments: Mapping[str, Any], session: object) -> dict[str, Any]:
    """Commits a micro-batch after the answers of all tasks.

    `session` is the session of the query in the JVM.

    Raises:
        StreamRewoundError: The table has a later batch of the query.
        CommitError: The commit made no version.
        CommitOutcomeUnknownError: The store did not answer.
    """
    writer = _read_writer(arguments)
    answers = decode_answers(writer, arguments["messages"])
    if isinstance(writer, UpsertWriter):
        writer.commit(answers, arguments["batch"], session)
    else:
        writer.commit(answers, arguments["batch"])
    return {}


def abort_batch(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Deletes the files of a failed micro-batch."""
    _read_writer(arguments).abort([], arguments["batch"])
    return {}


def _read_writer(arguments: Mapping[str, Any]) -> LanceStreamWriter | UpsertWriter:
    return cast("LanceStreamWriter | UpsertWriter", decode_writer(arguments["writer"]))
