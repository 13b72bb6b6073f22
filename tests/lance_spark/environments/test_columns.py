"""Columns whose UDFs have their own packages: the place of each step, the stored data, and early failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lance_spark
from lance_spark import (
    BackfillIncompleteError,
    Connection,
    EnvironmentBuildError,
    GenevaManifest,
    Job,
    Manifest,
    OptionError,
    RegistrationError,
    Skip,
    StoredUdfError,
    Table,
    chunker,
    table_function,
    udf,
)
from tests.lance_spark.environments.conftest import VERSIONS, built, holding, packaging
from tests.lance_spark.environments.secrets import SECRETS
from tests.support.waiting import eventually
from tests.udf_runtime.environments.wheels import source
from udf_runtime import UDF

pytestmark = [pytest.mark.spark, pytest.mark.sample(1, tests=6)]

OLD, NEW = VERSIONS


def version_of(manifest: Manifest | None, log: Path | None = None, name: str = "version") -> UDF:
    """Returns a UDF that returns the version of a package, and logs its calls."""

    @udf(data_type=pa.string(), name=name, manifest=manifest)
    def version(id: int) -> str:
        import packaging

        if log is not None:
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{id}\n")
        return str(packaging.__version__)

    assert isinstance(version, UDF)
    return version


def values(table: Table, column: str) -> set[object]:
    return set(table.to_arrow([column])[column].to_pylist())


def bound(table: Table, column: str) -> dict[str, object]:
    stored: dict[str, object] = json.loads(table.schema.field(column).metadata[b"lance-spark:udf"])
    return stored


def test_two_columns_have_two_versions_of_one_package_in_one_session(
    table: Table, environments: Path, tmp_path: Path
):
    calls = tmp_path / "calls"
    old, new = packaging(OLD), packaging(NEW)
    table.add_columns(
        {"old": version_of(old, calls), "new": version_of(new, calls), "own": version_of(None)}
    )
    for column in ("old", "new", "own"):
        assert table.backfill(column).rows_computed == 60
    import packaging as ours

    assert (
        values(table, "old") == {OLD}
        and values(table, "new") == {NEW}
        and values(table, "own") == {ours.__version__}
    )
    assert len(calls.read_text().split()) == 120
    names = {name[:32] for name in built(environments)}
    assert {old.checksum[:32], new.checksum[:32]} <= names
    assert GenevaManifest is Manifest


def test_only_a_job_makes_an_environment_and_only_once(
    table: Table, environments: Path, spark: SparkSession
):
    manifest = (
        Manifest.create_pip("once").pip([f"packaging=={OLD}"]).version("of this test").build()
    )
    before = built(environments)
    table.add_columns({"v": version_of(manifest)})
    table.plan_backfill("v")
    assert table.to_spark().where("v IS NULL").count() == 60
    table.to_spark().createOrReplaceTempView("words")
    assert spark.sql("SELECT count(v) FROM words").first() == (0,)
    assert built(environments) == before
    table.backfill("v", where="id < 20")
    (environment,) = built(environments) - before
    first = (environments / environment / "environment.json").stat()
    table.backfill("v")
    assert built(environments) == before | {environment}
    assert (environments / environment / "environment.json").stat().st_ino == first.st_ino


def test_the_manifest_is_in_the_columns_metadata_and_changes_with_its_udf_only(
    db: Connection, table: Table
):
    old = packaging(OLD)
    with_default = lance_spark.connect(db.uri, db.spark, progress=False, default_manifest=old)
    words = with_default.open_table("words")
    words.add_columns({"a": version_of(None)})
    assert Manifest.from_dict(bound(words, "a")["manifest"]) == old == table.get_manifest("a")
    assert table.get_manifest("id") is None
    # Another default, and none, changes nothing.
    other_db = lance_spark.connect(
        db.uri, db.spark, progress=False, default_manifest=packaging(NEW)
    ).open_table("words")
    assert other_db.backfill("a", where="id < 30").rows_computed == 30
    assert table.backfill("a").rows_computed == 30
    assert values(table, "a") == {OLD}
    # The UDF's own comes first; another environment makes values out of date.
    other_db.alter_columns({"path": "a", "udf": version_of(None)})
    assert other_db.backfill("a").rows_computed == 60
    assert values(table, "a") == {NEW}


def test_the_default_comes_from_the_connection_and_never_from_a_session(
    db: Connection, spark: SparkSession
):
    old, new = packaging(OLD), packaging(NEW)
    table = db.create_table("t", [{"id": 1}])
    db.define_manifest("old one", old)
    assert db.list_manifests() == {"old one": old} and db.get_manifest("old one") == old
    old_table = lance_spark.connect(db.uri, spark, default_manifest="old one").open_table("t")
    spark.conf.set("spark.lance.manifest", new.to_json())
    try:
        old_table.add_columns({"given": version_of(None), "own": version_of(new)})
        with pytest.raises(
            OptionError, match=r"spark.lance.manifest.*was SET in the session.*RESET"
        ):
            table.add_columns({"x": version_of(None)})
    finally:
        spark.conf.unset("spark.lance.manifest")
    manifest_names = {name: bound(table, name)["manifest"]["name"] for name in ("given", "own")}  # type: ignore[index]
    assert manifest_names == {"given": old.name, "own": new.name} and table.schema.names == [
        "id",
        "given",
        "own",
    ]
    db.delete_manifest("old one")
    assert db.list_manifests() == {}
    with pytest.raises(RegistrationError, match="No manifest has the name 'old one'"):
        db.get_manifest("old one")


@pytest.mark.classic
@pytest.mark.parametrize(
    "setting", ["spark.lance.environments.dir", "spark.lance.environments.maxBytes"]
)
def test_a_session_cannot_say_where_environments_are(
    table: Table, spark: SparkSession, tmp_path: Path, setting: str
):
    table.add_columns({"v": version_of(packaging(OLD))})
    before = spark.conf.get(setting, None)
    for value in (str(tmp_path / "elsewhere"), ""):
        spark.sql(f"SET {setting}={value}")
        try:
            with pytest.raises(OptionError, match=rf"{setting}.*was SET in the session"):
                table.backfill("v")
        finally:
            spark.sql(f"RESET {setting}")
    assert spark.conf.get(setting, None) == before and not (tmp_path / "elsewhere").exists()
    assert table.count_rows("v IS NOT NULL") == 0


def test_a_udf_that_is_passed_runs_in_the_columns_environment(table: Table):
    table.add_columns({"v": version_of(packaging(OLD))})
    result = table.backfill("v", udf=version_of(None, name="other"))
    assert result.rows_computed == 60 and values(table, "v") == {OLD}
    # The same UDF in another environment is another computation.
    assert (
        table.backfill(
            "v", udf=version_of(packaging(NEW), name="other"), where="id < 10"
        ).rows_computed
        == 10
    )
    assert values(table, "v") == {OLD, NEW}


def test_a_package_that_is_nowhere_fails_the_job_at_once_before_any_row_is_read(
    table: Table, tmp_path: Path
):
    calls = tmp_path / "calls"
    manifest = Manifest.create_pip("broken").pip(["no-such-package-of-lance-spark==1.0"]).build()
    table.add_columns({"v": version_of(manifest, calls)})
    version = table.version
    with pytest.raises(
        EnvironmentBuildError, match=r"no-such-package-of-lance-spark(?s:.*)Manifest: 'broken'"
    ):
        table.backfill("v")
    assert table.version == version and not calls.exists()
    (job,) = table.list_jobs()
    assert job.status == "FAILED" and "no-such-package-of-lance-spark" in (job.message or "")
    assert table.get_errors() == []
    began = time.monotonic()
    with pytest.raises(EnvironmentBuildError, match="no-such-package"):
        table.backfill("v")
    assert time.monotonic() - began < 10


def test_a_job_that_is_cancelled_while_its_environment_is_made_is_cancelled(
    table: Table, tmp_path: Path
):
    begun = tmp_path / "begun"
    code = f"import os, time; print(os.getpid(), file=open({str(begun)!r}, 'w'), flush=True); time.sleep(300)"
    source(tmp_path, "lance_spark_slow", "1.0", code)
    slow = (
        Manifest.create_pip("slow")
        .pip(["lance-spark-slow==1.0"])
        .find_links([str(tmp_path)])
        .build()
    )
    table.add_columns({"v": version_of(slow)})
    job = table.backfill_async("v")
    assert isinstance(job, Job)
    eventually(lambda: begun.exists() and begun.read_text().endswith("\n"), 60)
    job.cancel()
    with pytest.raises(
        BackfillIncompleteError, match="the job was cancelled; 0 of 3 fragments done"
    ):
        job.result(30)
    assert job.status == "CANCELLED" and table.get_job(job.job_id).status == "CANCELLED"
    eventually(lambda: not psutil.pid_exists(int(begun.read_text())))


@pytest.mark.long
def test_values_of_environment_variables_reach_the_udf_and_nothing_else(
    environments: Path, tmp_path: Path
):
    command = [
        sys.executable,
        "-m",
        "tests.lance_spark.environments.secrets",
        str(tmp_path),
        str(environments),
    ]
    process = subprocess.run(
        command,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "KEY_OURS": SECRETS["KEY_OURS"]},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    assert "to stderr *** *** ***" in process.stderr and "printed *** *** ***" in process.stderr
    for secret in [line for value in SECRETS.values() for line in value.splitlines()]:
        assert secret not in process.stdout + process.stderr
        assert holding(tmp_path, secret) == [] and holding(environments, secret) == []


@pytest.mark.long
def test_what_a_process_prints_before_it_dies_is_in_the_error_record(table: Table):
    @udf(data_type=pa.int64(), manifest=packaging(OLD))
    def die(id: int) -> int:
        import os
        import sys

        if id == 33:
            sys.stderr.write("the native library said why\n")
            sys.stderr.flush()
            os._exit(3)
        return id

    table.add_columns({"v": die})
    with pytest.raises(BackfillIncompleteError, match="1 row killed the process"):
        table.backfill("v", checkpoint_size=8)
    assert table.count_rows("v = id") == 59
    (error,) = table.get_errors()
    assert error.outcome == "crashed" and "the native library said why" in (error.error_trace or "")


@pytest.mark.long
def test_exceptions_of_packages_that_only_the_udf_has_can_be_named_in_its_policy(table: Table):
    # A driver needs the package to name the class, so this process has the package too; the next test covers executors
    # without the package.
    from packaging.version import InvalidVersion

    @udf(data_type=pa.string(), manifest=packaging(OLD), on_error=Skip(InvalidVersion))
    def parse(id: int) -> str:
        from packaging.version import Version

        return str(Version("no version" if id == 5 else f"1.{id}"))

    table.add_columns({"v": parse})
    result = table.backfill("v")
    assert result.rows_skipped == 1 and result.rows_computed == 59


@pytest.mark.sample(1)
def test_stored_environments_are_code_that_can_be_forbidden(
    table: Table, monkeypatch: pytest.MonkeyPatch
):
    table.add_columns({"v": version_of(packaging(OLD))})
    monkeypatch.setenv("LANCE_SPARK_ALLOW_STORED_UDFS", "0")
    with pytest.raises(StoredUdfError, match="forbidden by LANCE_SPARK_ALLOW_STORED_UDFS"):
        table.backfill("v")
    with pytest.raises(
        StoredUdfError, match=r"Manifest: 'packaging 23.2' of column 'v'.*manifest of its own"
    ):
        table.backfill("v", udf=version_of(None))
    assert table.backfill("v", udf=version_of(packaging(NEW))).rows_computed == 60
    assert values(table, "v") == {NEW}


def test_a_table_function_of_spark_refuses_an_environment(spark: SparkSession):
    @chunker(output_schema=pa.schema({"part": pa.string()}), manifest=packaging(OLD))
    def split(text: str) -> list[tuple[str]]:
        return [(text,)]

    with pytest.raises(
        RegistrationError, match=r"manifest 'packaging 23.2'.*create_udtf_view.*spark.archives"
    ):
        table_function(split, spark=spark)


@pytest.mark.long
def test_modules_and_the_working_directory_go_along(
    table: Table, db: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    project = tmp_path / "project"
    (project / "features").mkdir(parents=True)
    (project / "features" / "__init__.py").write_text("def double(x):\n    return 2 * x\n")
    (project / "single.py").write_text("def triple(x):\n    return 3 * x\n")
    manifest = (
        Manifest.create_pip("mine")
        .pip([f"packaging=={OLD}"])
        .py_modules([str(project / "single.py")])
        .build()
    )
    monkeypatch.chdir(project)
    captured = db.capture_local_environment("captured", skip_site_packages=True)

    @udf(data_type=pa.int64(), manifest=manifest)
    def thrice(id: int) -> int:
        import single  # type: ignore[import-not-found]

        return int(single.triple(id))

    @udf(data_type=pa.int64(), manifest=captured)
    def twice(id: int) -> int:
        import features  # type: ignore[import-not-found]
        import lance  # the executors' own

        assert lance.__version__
        return int(features.double(id))

    table.add_columns({"a": thrice, "b": twice})
    (project / "single.py").unlink()
    assert table.backfill("a").rows_computed == 60
    assert table.backfill("b").rows_computed == 60
    assert table.count_rows("a = 3 * id AND b = 2 * id") == 60
    assert captured.skip_site_packages and [archive.role for archive in captured.archives] == [
        "workspace"
    ]


@pytest.mark.sample(1)
def test_an_archive_that_was_altered_in_the_store_is_refused(table: Table, tmp_path: Path):
    module = tmp_path / "altered_module.py"
    module.write_text("VALUE = 1\n")
    manifest = Manifest.create_pip("m").pip([f"packaging=={OLD}"]).py_modules([str(module)]).build()

    @udf(data_type=pa.int64(), manifest=manifest)
    def value(id: int) -> int:
        import altered_module  # type: ignore[import-not-found]

        return int(altered_module.VALUE)

    table.add_columns({"v": value})
    part = (
        Path(table.uri).parent / "_lance_spark" / "environments" / manifest.archives[0].sha256 / "0"
    )
    part.write_bytes(part.read_bytes()[::-1])
    with pytest.raises(EnvironmentBuildError, match=r"modules archive .* was altered"):
        table.backfill("v")
