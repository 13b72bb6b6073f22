"""What a DataFrame backfill leaves where its commit had more to carry over than it may: all that somebody else needs to finish it.

As JSON: nothing that lies in a store is unpickled.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import tempfile
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lance_spark.commit.backoff import CommitPolicy
from lance_spark.commit.changes import ColumnsToCommit, FollowedColumns, FragmentColumns, StagedColumns
from lance_spark.commit.conflicts.identity import FieldIdentity
from lance_spark.dataset import DatasetRef
from lance_spark.rebase.carry_over import CarryPlan
from lance_spark.rows.row_set import RowSet
from lance_spark.staging.area import Staging
from lance_spark.staging.column_file import Targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A backfill that is written and not committed.

    Attributes:
        change: What is to be committed.
        carry: How values are carried over.
        policy: Bounds of the retries, as the write's options and the environment of its driver say.
    """

    change: ColumnsToCommit
    carry: CarryPlan
    policy: CommitPolicy

    def dumps(self) -> bytes:
        """Returns the stored form. Storage options are not in it."""
        change, carry = self.change, self.carry
        values = {
            "uri": carry.snapshot.uri,
            "incarnation": carry.snapshot.incarnation,
            "read_version": change.read_version,
            "targets": [dataclasses.asdict(column) for column in change.targets],
            "new_columns": _dump_schema(change.new_columns),
            "inputs": [dataclasses.asdict(column) for column in change.inputs],
            "inputs_from": change.inputs_from,
            "commit_message": change.commit_message,
            "schema": _dump_schema(carry.targets.schema),
            "existing": list(carry.targets.existing),
            "format": carry.targets.format,
            "on_stale": carry.on_stale,
            "policy": dataclasses.asdict(self.policy),
            "fragments": [dump_columns(part) for part in change.fragments],
        }
        return json.dumps(values).encode()

    @staticmethod
    def loads(payload: bytes, storage_options: tuple[tuple[str, str], ...]) -> Pending:
        """Reads it back."""
        values: dict[str, Any] = json.loads(payload)
        targets, inputs = tuple(map(_column, values["targets"])), tuple(map(_column, values["inputs"]))
        snapshot = DatasetRef(
            uri=values["uri"],
            version=values["read_version"],
            incarnation=values["incarnation"],
            storage_options=storage_options,
        )
        return Pending(
            change=ColumnsToCommit(
                read_version=values["read_version"],
                targets=targets,
                new_columns=_load_schema(values["new_columns"]),
                inputs=inputs,
                inputs_from=values["inputs_from"],
                fragments=tuple(map(load_columns, values["fragments"])),
                commit_message=values["commit_message"],
            ),
            carry=CarryPlan(
                snapshot=snapshot,
                targets=Targets(
                    schema=_load_schema(values["schema"]), existing=tuple(values["existing"]), format=values["format"]
                ),
                identities=targets,
                inputs=inputs,
                on_stale=values["on_stale"],
                max_bytes=None,
            ),
            policy=CommitPolicy(**values["policy"]),
        )


def leave_pending(staging: Staging, pending: Pending) -> None:
    """Leaves what somebody needs to finish a job later."""
    with tempfile.NamedTemporaryFile("wb") as file:
        file.write(pending.dumps())
        file.flush()
        staging.session.upload_file(file.name, staging.pending)


def find_pending(staging: Staging) -> Pending | None:
    """Returns what :func:`leave_pending` left, or None."""
    if not staging.session.contains(staging.pending):
        return None
    with tempfile.TemporaryDirectory() as folder:
        staging.session.download_file(staging.pending, f"{folder}/pending")
        with open(f"{folder}/pending", "rb") as file:
            return Pending.loads(file.read(), staging.storage_options)


def dump_columns(part: FragmentColumns) -> dict[str, Any]:
    """Returns a column file as values of JSON."""
    return {
        "fragment": part.fragment.to_json(),
        "name": part.staged.name,
        "size": part.staged.size_bytes,
        "given": part.given.to_text(),
    }


def load_columns(values: dict[str, Any]) -> FragmentColumns:
    """Reads it back."""
    from lance.fragment import FragmentMetadata

    return FragmentColumns(
        fragment=FragmentMetadata.from_json(json.dumps(values["fragment"])),
        staged=StagedColumns(name=values["name"], size_bytes=values["size"]),
        given=RowSet.from_text(values["given"]),
    )


def dump_followed(one: FollowedColumns) -> bytes:
    """Returns what was carried over to a fragment, as JSON."""
    values = {name: getattr(one, name) for name in ("fragment_id", "carried", "nulled", "covered")}
    return json.dumps({**values, "columns": None if one.columns is None else dump_columns(one.columns)}).encode()


def load_followed(payload: bytes) -> FollowedColumns:
    """Reads it back."""
    values: dict[str, Any] = json.loads(payload)
    columns = values.pop("columns")
    return FollowedColumns(**values, columns=None if columns is None else load_columns(columns))


def _column(values: dict[str, Any]) -> FieldIdentity:
    return FieldIdentity(**{**values, "ids": tuple(values["ids"])})


def _dump_schema(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def _load_schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
