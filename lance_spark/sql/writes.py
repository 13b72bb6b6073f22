"""Writes planned for the JVM: commands of the gateway, by their names. On the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    return encode_write(plan_writer(options, schema, overwrite=arguments["overwrite"], spec=arguments["write"]))


def commit_write(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Commits a write after the answers of all tasks.

    Raises:
        CommitError: The commit made no version.
        CommitOutcomeUnknownError: The store did not answer.
    """
    writer = decode_writer(arguments["writer"])
    writer.commit(decode_answers(writer, arguments["messages"]))
    return {}


def abort_write(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Deletes the files of a failed write."""
    decode_writer(arguments["writer"]).abort([])
    return {}
