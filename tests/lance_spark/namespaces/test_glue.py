"""Tables of a Glue catalog, by the package `lance-namespace-impls` and a server of moto."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Connection
from lance_spark.errors import TableNotFoundError, UnsupportedOperationError

pytestmark = pytest.mark.long


@pytest.fixture
def db(spark: SparkSession, tmp_path: Path) -> Iterator[Connection]:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"region": "us-east-1", "access_key_id": "test", "secret_access_key": "test"}
    properties = {"endpoint": f"http://{host}:{port}", **keys}
    db = lance_spark.connect(
        namespace_client_impl="glue",
        namespace_client_properties=properties,
        spark=spark,
        progress=False,
    )
    db.create_namespace(["sales"], {"location": str(tmp_path)})
    yield db
    server.stop()


def test_tables_of_glue(db: Connection, tmp_path: Path, spark: SparkSession):
    namespace = ["sales"]
    with pytest.raises(TableNotFoundError):
        db.open_table("t", namespace=namespace)
    table = db.create_table("t", spark.range(10), namespace=namespace)
    table.add(spark.range(10, 12))
    assert sorted(row.id for row in table.to_spark().collect()) == list(range(12))
    assert db.table_names(namespace=namespace) == ["t"]
    with pytest.raises(UnsupportedOperationError, match="cannot rename"):
        db.rename_table("t", "u", namespace=namespace)
    assert db.register_table("r", str(tmp_path / "t.lance"), namespace=namespace).count_rows() == 12
    db.deregister_table("r", namespace=namespace)
    db.drop_table("t", namespace=namespace)
    assert db.table_names(namespace=namespace) == []
    assert list(tmp_path.iterdir()) == []
