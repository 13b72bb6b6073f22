"""Measures models in UDFs: `python -m benchmarks.models [--rounds 3] [--scale 1.0] [--only NAME ...]
[--daft PYTHON] [--geneva PYTHON]`.

The contestants take turns within each round, on the same rows. The limit of a case is the bare loop
(the model alone, a process per core, rows in memory, loading excluded), or the time that a service
or device takes at least. The first job of each contestant loads its models, and is listed
separately.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import lance_spark
from benchmarks.measure import OURS
from benchmarks.models_work import (
    GPU,
    IN_FLIGHT,
    PREPARE,
    SERVICE,
    WORKS,
    BatchModel,
    ModelWork,
    ServiceModel,
    count_loads,
)
from benchmarks.report import (
    add_only,
    add_rounds,
    add_scale,
    describe_machine,
    is_chosen,
    make_parser,
    write_report,
)
from benchmarks.table_api_child import Child
from lance_spark import UDF, Table, udf
from lance_spark.session.sessions import make_session
from udf_runtime.execute.isolation.devices import list_devices

LOOP = "bare loop"

_PEERS = ("daft", "geneva")
"""Engines in environments of their own."""

_WARM_UP_JOBS = 20
"""Jobs before the first case: the JVM compiles as much again as a job of 24,000 rows costs."""

_PATIENCE_S = 300
"""Maximum time for a job of another engine."""

_LONG = 4
"""Factor for the rows of a long case."""

CASES = {
    **{name: (name, 1) for name in WORKS},
    **{f"{name}, long": (name, _LONG) for name in (SERVICE, GPU)},
}
"""Model and factor for the rows of each case. A job's planning, start and commit take as long with
more rows, so a long case shows their part."""

Contestant = Callable[[], dict[str, float]]


@dataclass(slots=True, kw_only=True)
class MeasuredModel:
    """The result of a case.

    Attributes:
        name: Name of the case.
        work: Its model.
        rows: Number of rows.
        first: Seconds of the first job, which loads the models, by contestant.
        seconds: Seconds of each later job, by contestant.
        loads: Loads of the model in the first job of lance-spark, and in all later jobs.
        load: Load average of the last minute at the end.
    """

    name: str
    work: ModelWork
    rows: int
    first: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    loads: tuple[int, int] = (0, 0)
    load: float = 0.0

    @property
    def limit_s(self) -> float | None:
        """Seconds that the work takes at least; None for the bare loop of the same round."""
        return None if self.work.limit_s is None else self.work.limit_s(self.rows)

    @property
    def shares(self) -> dict[str, float]:
        """Share of the limit that each contestant reaches: the median of the rounds."""
        limits = (
            self.seconds[LOOP] if self.limit_s is None else [self.limit_s] * len(self.seconds[LOOP])
        )
        return {
            name: statistics.median(limit / own for limit, own in zip(limits, times, strict=True))
            for name, times in self.seconds.items()
        }

    @property
    def rates(self) -> dict[str, float]:
        """Rows per second of each contestant, by the median of its times."""
        return {name: self.rows / statistics.median(times) for name, times in self.seconds.items()}

    def as_json(self) -> dict[str, Any]:
        """Returns all data for a comparison with another run."""
        return {
            "case": self.name,
            "rows": self.rows,
            "limit_s": self.limit_s,
            "first_job_seconds": self.first,
            "seconds": self.seconds,
            "rows_per_second": {name: round(rate, 1) for name, rate in self.rates.items()},
            "share_of_limit": {name: round(share, 3) for name, share in self.shares.items()},
            "goal": round(self.work.goal, 3),
            "loads_first_job": self.loads[0],
            "loads_later_jobs": self.loads[1],
            "load": self.load,
        }

    def line(self) -> str:
        """Formats the case as a line of text."""
        rates = "  ".join(
            f"{name} {rate:.0f} rows/s ({self.shares[name]:.2f})"
            for name, rate in self.rates.items()
        )
        verdict = "met" if self.shares[OURS] >= self.work.goal else "MISSED"
        loads = f"loads {self.loads[0]}, later {self.loads[1]}"
        return f"{self.name:20} {rates}  (goal {self.work.goal:.2f}: {verdict})  {loads}  load {self.load:.1f}"


class ModelContest:
    """The folder of the rows, the session, and the processes of the other contestants."""

    def __init__(
        self, folder: Path, scale: float, pythons: dict[str, tuple[str, str]], stack: ExitStack
    ) -> None:
        self._folder, self._scale = folder, scale
        self._children = {
            name: Child(python, kind, module="benchmarks.models_child")
            for name, (kind, python) in pythons.items()
        }
        service = Child(sys.executable, "service", module="benchmarks.models_child")
        for child in (*self._children.values(), service):
            stack.callback(child.close)
        self._url = service.answer()

    def measure(self, case_name: str, rounds: int, spark: SparkSession) -> MeasuredModel:
        """Runs the first job of each contestant, compares the values, and runs the rounds."""
        name, factor = CASES[case_name]
        folder, work = self._folder / case_name.replace(" ", "-").replace(",", ""), WORKS[name]
        folder.mkdir()
        case = MeasuredModel(
            name=case_name, work=work, rows=self._make_rows(name, self._scale * factor, folder)
        )
        table = lance_spark.connect(str(folder), spark, progress=False).open_table("rows")
        contestants: dict[str, Contestant] = {OURS: lambda: backfill(table, name, folder)}
        for peer, child in self._children.items():
            contestants[peer] = functools.partial(
                child.ask, _PATIENCE_S, work=name, folder=str(folder)
            )
        for contestant, act in list(contestants.items()):
            try:
                case.first[contestant] = run_once(act, case)
            except TimeoutError:
                print(
                    f"{case_name}: {contestant} is left out from here on, since a job took more than {_PATIENCE_S} s"
                )
                del contestants[contestant], self._children[contestant]
        compare(table, folder, work)
        loads = count_loads(folder)
        case.seconds = {contestant: [] for contestant in contestants}
        for _ in range(rounds):
            for contestant, act in contestants.items():
                case.seconds[contestant].append(run_once(act, case))
        case.loads, case.load = (loads, count_loads(folder) - loads), os.getloadavg()[0]
        return case

    def _make_rows(self, name: str, scale: float, folder: Path) -> int:
        """Writes the rows for all contestants: Lance, Arrow, and four files of Parquet."""
        rows = WORKS[name].table(scale)
        lance.write_dataset(rows, folder / "rows.lance", enable_stable_row_ids=True)
        with pa.ipc.new_file(str(folder / "rows.arrow"), rows.schema) as writer:
            writer.write_table(rows)
        (folder / "rows.parquet").mkdir()
        part = -(-rows.num_rows // 4)
        for number in range(4):
            pq.write_table(
                rows.slice(number * part, part), folder / "rows.parquet" / f"{number}.parquet"
            )
        (folder / "url").write_text(self._url)
        if name in PREPARE:
            PREPARE[name](rows, folder)
        return rows.num_rows


def run_once(act: Contestant, case: MeasuredModel) -> float:
    """Runs a contestant, and returns its seconds.

    Raises:
        RuntimeError: Rows have no result.
    """
    answer = act()
    if answer["rows"] != case.rows:
        raise RuntimeError(f"{case.name}: {answer['rows']} of {case.rows} rows have a result")
    return answer["seconds"]


def backfill(table: Table, name: str, folder: Path) -> dict[str, float]:
    """Computes every row of the column, which the first job adds."""
    work = WORKS[name]
    if "result" not in table.schema.names:
        table.add_columns({"result": make_udf(name, folder)})
    began = time.perf_counter()
    result = table.backfill("result", where="1=1", concurrency=work.processes)
    return {"seconds": time.perf_counter() - began, "rows": result.rows_computed}


def is_possible(work: ModelWork) -> bool:
    """Tells whether this machine has the GPU that a case needs."""
    return work.num_gpus is None or bool(list_devices())


def warm_up(folder: Path, spark: SparkSession) -> None:
    """Runs small jobs, because the compilation of Spark's code belongs to the start of Spark."""
    lance.write_dataset(
        pa.table({"value": range(1000)}), folder / "warm.lance", enable_stable_row_ids=True
    )
    table = lance_spark.connect(str(folder), spark, progress=False).open_table("warm")

    def repeat(value: int) -> int:
        return value

    table.add_columns({"result": udf(repeat, data_type=pa.int64())})
    for _ in range(_WARM_UP_JOBS):
        table.backfill("result", where="1=1", task_size=250)


def make_udf(name: str, folder: Path) -> UDF:
    """Returns the UDF of a case."""
    if name == SERVICE:
        return udf(ServiceModel, max_in_flight=IN_FLIGHT)(str(folder))
    work = WORKS[name]
    return udf(
        BatchModel,
        data_type=work.data_type,
        batch_size=work.batch_size,
        num_gpus=work.num_gpus,
    )(name, str(folder))


def compare(table: Table, folder: Path, work: ModelWork) -> None:
    """Compares the column with the values of the bare loop.

    Raises:
        RuntimeError: A value differs.
    """
    ours = table.to_pandas()
    parts = [pa.ipc.open_file(str(file)).read_all() for file in sorted(folder.glob("loop-*.arrow"))]
    bare = pa.concat_tables(parts).to_pandas()
    ours, bare = (
        frame.sort_values("value", kind="stable").reset_index(drop=True) for frame in (ours, bare)
    )
    if pa.types.is_string(work.data_type) or pa.types.is_integer(work.data_type):
        equal = (ours["result"] == bare["result"]).all()
    else:
        equal = np.allclose(np.stack(ours["result"]), np.stack(bare["result"]), atol=work.tolerance)
    if not equal:
        raise RuntimeError(f"lance-spark has other values than the bare loop in {folder}")


def main() -> None:
    """Runs the cases, prints a line for each, and writes `models.json`."""
    parser = make_parser("models", __doc__)
    add_rounds(parser, 3, "rounds of later jobs")
    add_scale(parser, "4,000 to 24,000 rows, and four times as many in long cases")
    add_only(parser)
    models = "magika, scikit-learn, onnxruntime and pillow"
    for peer in _PEERS:
        variable = f"{peer.upper()}_PYTHON"
        parser.add_argument(
            f"--{peer}",
            metavar="PYTHON",
            default=os.environ.get(variable),
            help=f"the interpreter of an environment that has {peer}, {models}; by default ${variable}, else {peer} is "
            "left out",
        )
    arguments = parser.parse_args()
    pythons = {LOOP: ("loop", sys.executable), "pandas UDF": ("pandas-udf", sys.executable)}
    pythons |= {peer: (peer, python) for peer in _PEERS if (python := getattr(arguments, peer))}
    spark = make_session("local[2,4]")
    measured: list[MeasuredModel] = []
    with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder, ExitStack() as stack:
        stage = ModelContest(Path(folder), arguments.scale, pythons, stack)
        warm_up(Path(folder), spark)
        for name, (model, _) in CASES.items():
            if is_chosen(name, arguments) and is_possible(WORKS[model]):
                measured.append(stage.measure(name, arguments.rounds, spark))
                print(measured[-1].line(), flush=True)
                write_report(arguments, "models", as_json(measured, arguments))
    spark.stop()


def as_json(measured: list[MeasuredModel], arguments: argparse.Namespace) -> dict[str, object]:
    """Returns all data for a comparison with another run."""
    import pyspark

    return {
        "machine": describe_machine(),
        "versions": {"pyspark": pyspark.__version__, "pylance": lance.__version__},
        "rounds": arguments.rounds,
        "scale": arguments.scale,
        "cases": [case.as_json() for case in measured],
    }


if __name__ == "__main__":
    main()
