"""The end of a failed job makes the same requests after few and after many versions."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lance_spark import UDF, udf
from lance_spark.errors import CommitImpossibleError
from tests.object_stores.counted_operations import RemoteTable
from tests.object_stores.request_counts import CountedCall, count_requests
from tests.object_stores.stores import Store, StorePlace, strays
from tests.support.inline_jobs import NoSpark, acting

pytestmark = pytest.mark.cluster

BUDGET = tomllib.loads(Path(__file__).with_name("request_budgets.toml").read_text())[
    "end of a failed job"
]


def copying(uri: str, path: str, version: str) -> UDF:
    """Returns a UDF that acts during its first call, and notes the time of its last call in a file."""

    @udf(data_type=pa.float64(), version=version)
    def copied(x: pa.Array) -> pa.Array:
        import time

        from tests.support.inline_jobs import act_at

        act_at(uri, 0)
        with open(path, "w") as note:
            note.write(str(time.time()))
        return x

    return copied


@pytest.mark.parametrize("versions", [2, 20])
def test_the_end_of_a_failed_job_does_not_read_each_version(
    versions: int, counting: Store, tmp_path: Path
):
    session: Any = NoSpark()
    remote = RemoteTable(
        spark=session, root=counting.root, storage=counting.storage, fragments=4, rows=10
    )
    remote.make()
    path = str(tmp_path / "call")
    remote.table.add_columns({"copied": copying(remote.uri, path, "1")})

    def add_versions() -> None:
        dataset = remote.dataset()
        for number in range(versions - 1):
            dataset.update_config({"number": str(number)})
        remote.table.alter_columns({"path": "copied", "udf": copying(remote.uri, path, "2")})

    def fail() -> None:
        with pytest.raises(CommitImpossibleError, match="got another UDF"):
            remote.table.backfill("copied")

    with acting(remote.uri, 0, add_versions):
        call = count_requests(remote.storage, fail)
    called_s = float(Path(path).read_text())
    ending = CountedCall([request for request in call.requests if request.began_s > called_s])
    exceeded = {
        method: count for method, count in ending.by_method.items() if count > BUDGET.get(method, 0)
    }
    assert not exceeded, "\n".join([str(ending.by_method), *ending.paths(ending.by_method)])
    assert remote.dataset().version == versions + 2
    assert strays(StorePlace(uri=remote.uri, storage=remote.storage)) == set()
