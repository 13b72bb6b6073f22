"""`configure` in each way of starting Spark: real processes, with a jar and an extension of a user."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_spark
from java.maven import MavenJar
from tests.support.java_classes import JVM_OPTIONS
from tests.support.processes import SPARK_HOME, environment

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

EXTENSION = """
package other;

public final class Extension
    extends scala.runtime.AbstractFunction1<org.apache.spark.sql.SparkSessionExtensions, scala.runtime.BoxedUnit> {
  @Override
  public scala.runtime.BoxedUnit apply(org.apache.spark.sql.SparkSessionExtensions extensions) {
    System.setProperty("other.extension", "loaded");
    return scala.runtime.BoxedUnit.UNIT;
  }
}
"""

CONFIGURED = """
import lance_spark
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config(map={in_builder!r})
spark = lance_spark.configure(builder).getOrCreate()
"""

OWN = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config(map={in_builder!r}).getOrCreate()
spark.range(1).count()
"""

REPORT = """
import json

def pushes(session):
    df = session.read.format("lance").load({path!r}).where("id > 7")
    return "pushed: " in df._jdf.queryExecution().toString() and df.count() == 2

search = "SELECT count(*) AS n FROM lance_vector_search('" + {path!r} + "', array(1.0, 0.0), k => 3)"
jars = spark.sparkContext._jsc.sc().listJars()
seen = {{
    "pushes": [pushes(spark), pushes(spark.newSession())],
    "searches": spark.sql(search).first().n,
    "other": spark._jvm.java.lang.System.getProperty("other.extension"),
    "jars": sorted(str(jars.apply(i)).rpartition("/")[2] for i in range(jars.size())),
}}
print("seen: " + json.dumps(seen), flush=True)
"""

WHOLE = {
    "pushes": [True, True],
    "searches": 3,
    "other": "loaded",
    "jars": ["lance-spark.jar", "other.jar"],
}
"""The features of a session made by `configure` with the jar and the extension of a user."""


@pytest.fixture(scope="module")
def other_jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The jar of another extension."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "Extension.java").write_text(EXTENSION)
    jars = f"{SPARK_HOME}/jars/*"
    subprocess.run(["javac", "-cp", jars, "-d", folder, folder / "Extension.java"], check=True)
    with zipfile.ZipFile(folder / "other.jar", "w") as jar:
        jar.write(folder / "other/Extension.class", "other/Extension.class")
    return folder / "other.jar"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with vectors."""
    location = str(tmp_path_factory.mktemp("ways") / "t.lance")
    vectors = pa.array([[float(i), 0.0] for i in range(10)], pa.list_(pa.float32(), 2))
    lance.write_dataset(pa.table({"id": range(10), "e": vectors}), location)
    return location


def run(
    command: list[str],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    program: str | None = None,
) -> dict[str, object]:
    """Runs a process, and returns the features of its session."""
    used = (
        environment()
        | {"PYTHONWARNINGS": "ignore", "SPARK_SUBMIT_OPTS": JVM_OPTIONS}
        | dict(variables or {})
    )
    used.setdefault("SPARK_CONF_DIR", str(folder))
    process = subprocess.run(
        command,
        input=program,
        cwd=folder,
        env=used,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [
        line.partition("seen: ")[2] for line in process.stdout.splitlines() if "seen: " in line
    ]
    assert len(lines) == 1, process.stdout[-2000:] + process.stderr[-4000:]
    report: dict[str, object] = json.loads(lines[0])
    return report


def settings_of(jar: Path) -> dict[str, str]:
    return {
        "spark.jars": str(jar),
        "spark.sql.extensions": "other.Extension",
        "spark.ui.enabled": "false",
    }


def by_submit(jar: Path, folder: Path, program: str) -> dict[str, object]:
    (folder / "program.py").write_text(program)
    arguments = ["--jars", str(jar), "--conf", "spark.sql.extensions=other.Extension"]
    arguments += ["--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    return run(
        [str(SPARK_HOME / "bin/spark-submit"), *arguments, str(folder / "program.py")], folder
    )


@pytest.mark.long
def test_a_program_of_spark_submit_has_all_beside_its_own_jars(
    other_jar: Path, path: str, tmp_path: Path
) -> None:
    assert (
        by_submit(other_jar, tmp_path, CONFIGURED.format(in_builder={}) + REPORT.format(path=path))
        == WHOLE
    )


def in_python(jar: Path, folder: Path, path: str) -> dict[str, object]:
    return run(
        [
            sys.executable,
            "-c",
            CONFIGURED.format(in_builder=settings_of(jar)) + REPORT.format(path=path),
        ],
        folder,
    )


def in_a_file(jar: Path, folder: Path, path: str) -> dict[str, object]:
    (folder / "spark-defaults.conf").write_text(
        "".join(f"{key} {value}\n" for key, value in settings_of(jar).items())
    )
    return run(
        [sys.executable, "-c", CONFIGURED.format(in_builder={}) + REPORT.format(path=path)], folder
    )


def in_arguments(jar: Path, folder: Path, path: str) -> dict[str, object]:
    arguments = f"--jars {jar} --conf spark.sql.extensions=other.Extension --conf spark.ui.enabled=false pyspark-shell"
    program = CONFIGURED.format(in_builder={}) + REPORT.format(path=path)
    return run([sys.executable, "-c", program], folder, {"PYSPARK_SUBMIT_ARGS": arguments})


def after_stop(jar: Path, folder: Path, path: str) -> dict[str, object]:
    program = OWN.format(in_builder=settings_of(jar)) + "spark.stop()\n"
    return run(
        [
            sys.executable,
            "-c",
            program + CONFIGURED.format(in_builder={}) + REPORT.format(path=path),
        ],
        folder,
    )


def while_it_runs(jar: Path, folder: Path, path: str) -> dict[str, object]:
    program = OWN.format(in_builder=settings_of(jar))
    return run(
        [
            sys.executable,
            "-c",
            program + CONFIGURED.format(in_builder={}) + REPORT.format(path=path),
        ],
        folder,
    )


def in_the_shell(jar: Path, folder: Path, path: str) -> dict[str, object]:
    arguments = [f"--conf={key}={value}" for key, value in settings_of(jar).items()]
    program = CONFIGURED.format(in_builder={}) + REPORT.format(path=path).replace(
        "\n\nsearch", "\n\n\nsearch"
    )
    command = [str(SPARK_HOME / "bin/pyspark"), "--master", "local[1]", *arguments]
    # Without a terminal, the shell reads a block up to an empty line.
    return run(command, folder, {"PYSPARK_DRIVER_PYTHON": sys.executable}, program + "\nquit()\n")


def in_a_notebook(jar: Path, folder: Path, path: str) -> dict[str, object]:
    """Cells run one by one in the module of a kernel, and their output is separate from the output of the process."""
    cells = [
        OWN.format(in_builder=settings_of(jar)),
        "spark.stop()",
        CONFIGURED.format(in_builder={}),
    ]
    kernel = f"""
import contextlib, io, sys
output, names = io.StringIO(), {{"__name__": "__main__"}}
with contextlib.redirect_stdout(output):
    for cell in {[*cells, REPORT.format(path=path)]!r}:
        exec(compile(cell, "<cell>", "exec"), names)
print(output.getvalue())
"""
    return run([sys.executable, "-c", kernel], folder)


CONNECTOR = MavenJar(
    "org/lance/lance-spark-3.5_2.12/0.4.0/lance-spark-3.5_2.12-0.4.0.jar",
    "078627d23e4f704a857b8c5406bff0bf59a3f58fb6aad31b75c0955103831f4f",
)
"""The JVM connector, which registers the format `lance`, too."""


@pytest.mark.long
@pytest.mark.parametrize("before", ["", OWN])
def test_the_format_is_ours_beside_the_jar_of_the_jvm_connector(
    before: str, path: str, tmp_path: Path
) -> None:
    jars = {"spark.jars": str(CONNECTOR.fetch()), "spark.ui.enabled": "false"}
    write = """
rows = spark.read.format("lance").load({path!r})
rows.write.format("lance").mode("append").option("e.arrow.fixed-size-list.size", "2").save({copy!r})
spark.sql("CREATE TEMPORARY VIEW copied USING lance OPTIONS (path '" + {copy!r} + "')")
assert spark.sql("SELECT count(*) FROM copied").first() == (10,)
"""
    program = before.format(in_builder=jars) + CONFIGURED.format(in_builder={} if before else jars)
    program += write.format(path=path, copy=str(tmp_path / "copy.lance")) + REPORT.format(path=path)
    report = run([sys.executable, "-c", program], tmp_path)
    assert report == WHOLE | {
        "other": None,
        "jars": ["lance-spark-3.5_2.12-0.4.0.jar", "lance-spark.jar"],
    }
    assert lance.dataset(tmp_path / "copy.lance").count_rows() == 10


def by_settings_alone(jar: Path, folder: Path, path: str) -> dict[str, object]:
    """The program does not use this package, and the JVM starts a Python process."""
    own = settings_of(jar)
    both = {"spark.jars": lance_spark.jar(), "spark.sql.extensions": "lancespark.LanceExtensions"}
    own |= {key: f"{own[key]},{value}" for key, value in both.items()}
    return run(
        [sys.executable, "-c", OWN.format(in_builder=own) + REPORT.format(path=path)], folder
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "start",
    [
        in_python,
        in_a_file,
        in_arguments,
        after_stop,
        while_it_runs,
        in_the_shell,
        in_a_notebook,
        by_settings_alone,
    ],
)
def test_configure_extends_what_a_user_has_set(
    start: Callable[[Path, Path, str], dict[str, object]],
    other_jar: Path,
    path: str,
    tmp_path: Path,
) -> None:
    assert start(other_jar, tmp_path, path) == WHOLE
