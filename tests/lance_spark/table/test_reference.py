"""References to tables: values that can be pickled, without secrets."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import lance_spark
from lance_spark import Connection, OptionError, Table, TableReference, UnsupportedOperationError
from tests.lance_spark.table.call_log import CallLog
from tests.lance_spark.table.conftest import make_table


@pytest.mark.guarantee("U10")
def test_a_reference_opens_the_same_table(table: Table):
    table.tags.create("first", 1)
    reference = pickle.loads(pickle.dumps(table.get_reference()))
    assert reference == table.get_reference() and reference.version is None
    table.add([{"id": 100, "text": "late"}])
    assert reference.open().count_rows() == 31 and reference.open_db().table_names() == ["words"]
    table.checkout("first")
    pinned = pickle.loads(pickle.dumps(table.get_reference()))
    assert pinned.version == 1 and pinned.open().count_rows() == table.count_rows() == 10


@pytest.mark.guarantee("U10")
def test_secrets_stay_where_they_are():
    options = {
        "aws_access_key_id": "AKIA",
        "aws_secret_access_key": "hidden",
        "aws_session_token": "hidden",
        "azure_storage_sas_token": "hidden",
        "google_service_account": "hidden",
        "headers": "Authorization: hidden",
        "default_headers": "x: hidden",
        "Authorization": "hidden",
        "proxy_url": "http://user:hidden@proxy",
        "aws_endpoint": "http://here",
        "region": "eu",
    }
    reference = TableReference(uri="s3://bucket/t.lance", name="t", storage_options=options)
    assert dict(reference.storage_options) == {"aws_endpoint": "http://here", "region": "eu"}
    assert (
        b"hidden" not in pickle.dumps(reference)
        and "hidden" not in repr(reference)
        and "AKIA" not in repr(reference)
    )
    db = reference.open_db({"aws_secret_access_key": "hidden"})
    assert db.uri == "s3://bucket" and db.storage_options["aws_secret_access_key"] == "hidden"


@pytest.mark.guarantee("U11")
def test_system_tables_and_checkpoints_are_found(tmp_path: Path, jobs: Any, call_log: CallLog):
    db = Connection(
        str(tmp_path / "db"), jobs, {}, checkpoint=str(tmp_path / "kept"), progress=False
    )
    table = make_table(db)
    table.add_columns({"double": call_log.times(2)})
    table.backfill("double")
    reference = table.get_reference()
    history = reference.as_system_table("jobs")
    assert history.open().to_arrow(["status"])["status"].to_pylist() == ["RUNNING", "DONE"]
    assert reference.as_system_table("errors").uri.endswith("/errors.lance")
    assert reference.open_checkpoint_store() == table.get_reference().open_checkpoint_store()
    assert reference.open().get_reference() == reference and reference.checkpoint
    with pytest.raises(OptionError, match="jobs or errors"):
        reference.as_system_table("manifests")


@pytest.mark.guarantee("U12")
def test_what_has_no_counterpart_is_refused_by_name(table: Table):
    reference = table.get_reference()
    for name in ("namespace_client_properties", "namespace_client_pushdown_operations"):
        with pytest.raises(
            UnsupportedOperationError,
            match=r"no properties of a namespace.*open\(namespace_client_properties",
        ):
            getattr(reference, name)
    with pytest.raises(UnsupportedOperationError, match=r"open_db\(\) in a thread"):
        reference.open_db_async()
    with pytest.raises(UnsupportedOperationError, match=r"as_system_table\('jobs'\)\.open\(\)"):
        reference.open_system_db_async()
    assert lance_spark.JobFuture is lance_spark.Job
