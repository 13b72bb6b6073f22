"""A driver whose UDF uses secrets, and tries to leak them: `python -m tests.lance_spark.environments.secrets FOLDER
CACHE`.

The folder contains everything that Spark keeps for the driver.
"""

from __future__ import annotations

import hashlib
import os
import sys

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import Manifest, Skip, UdfDefinitionError, udf
from tests.lance_spark.environments.conftest import VERSIONS

SECRETS = {
    "KEY_CALLED": "called-s3cr3t-value",
    "KEY_GIVEN": "given-s3cr3t-value",
    "KEY_LINES": "-----BEGIN KEY-----\nfirst+s3cr3t/line\nsecond+s3cr3t/line\n-----END KEY-----\n",
    "KEY_OURS": "ours-s3cr3t-value",
}


def main(folder: str, environments: str) -> None:
    spark = lance_spark.configure(
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.local.dir", f"{folder}/local")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", folder)
        .config("spark.lance.environments.dir", environments)
    ).getOrCreate()
    db = lance_spark.connect(f"{folder}/db", spark, progress=False)
    table = db.create_table("t", pa.table({"id": pa.array(range(60), pa.int64())}))
    secrets_for_udf = {name: SECRETS[name] for name in ("KEY_GIVEN", "KEY_LINES")}
    builder = (
        Manifest.create_pip("keys").pip([f"packaging=={VERSIONS[0]}"]).env_vars(secrets_for_udf)
    )
    manifest = (
        builder.add_env_var("KEY_CALLED", lambda: "called-" + "s3cr3t-value")
        .add_env_var("KEY_OURS")
        .build()
    )

    @udf(data_type=pa.string(), manifest=manifest, on_error=Skip(ValueError))
    def tell(id: int) -> str:
        keys = [os.environ[name] for name in ("KEY_CALLED", "KEY_GIVEN", "KEY_LINES", "KEY_OURS")]
        if id % 20 == 7:
            print("printed", *keys)
            print("to stderr", *keys, file=sys.stderr)
            raise ValueError(f"failed with {keys}")
        with open("/proc/self/environ", "rb") as file:
            environ = file.read()
        if any(key.encode() in environ for key in keys):
            raise OSError("the system shows a secret")
        return hashlib.sha256(" ".join(keys).encode()).hexdigest()

    table.add_columns({"v": tell})
    result = table.backfill("v")
    right = hashlib.sha256(" ".join(SECRETS[name] for name in sorted(SECRETS)).encode()).hexdigest()
    assert (result.rows_skipped, table.count_rows(f"v = '{right}'")) == (3, 57)
    assert {error.error_message for error in table.get_errors()} == {
        "failed with ['***', '***', '***\\n', '***']"
    }
    for process in psutil.Process().children(recursive=True):
        if process.status() == psutil.STATUS_ZOMBIE:
            continue
        for secret in (*secrets_for_udf.values(), SECRETS["KEY_CALLED"]):
            assert secret not in " ".join(process.cmdline()) and secret not in str(
                process.environ()
            )
    del os.environ["KEY_OURS"]
    try:
        table.backfill("v", where="1=1")
    except UdfDefinitionError as error:
        assert "KEY_OURS has no value" in str(error)  # noqa: PT017 - not in a test
    else:
        raise AssertionError


if __name__ == "__main__":
    main(*sys.argv[1:])
