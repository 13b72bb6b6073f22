"""Measures commits with concurrent writers: `python -m benchmarks.commits [--rounds 5] [--scale
1.0] [--only carrying|columns|writers ...]`.

The benchmark has three parts: the speed of carrying values over to moved rows, the cost of
committing a column file to tables with
many fragments, and the commit rate of racing writers. Contestants take turns within each round, and
the ratios are medians over
the rounds, as in the other benchmarks.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata

from benchmarks import commits_child
from benchmarks.commits_child import column_change, replace_bare, stage_of, staged_column
from benchmarks.report import add_rounds, add_scale, describe_machine, make_parser, write_report

CARRIED_ROWS = {"int64": 2_000_000, "vectors": 40_000}
TABLES = (10, 1_000, 100_000)
"""Numbers of fragments of the tables for column file commits."""
CONCURRENT_COMMITS = 10
"""Number of concurrent commits between the read and the commit, in cases with concurrent commits.
"""
WRITERS = (1, 4, 16)
COMMITS = 96
"""Total number of commits of all writers."""
_ROWS = 10
_ROOT = Path(__file__).resolve().parent.parent

Numbers = dict[str, Any]


def main() -> None:
    """Runs the parts, prints a line per case, and writes `commits.json`."""
    parser = make_parser("commits", __doc__)
    add_rounds(parser, 5)
    add_scale(parser, "2 M numbers and 40 k vectors")
    parser.add_argument(
        "--only", action="append", choices=sorted(PARTS), help="run only this part; repeatable"
    )
    arguments = parser.parse_args()
    path = arguments.out / "commits.json"
    content: Numbers = json.loads(path.read_text()) if arguments.only and path.exists() else {}
    content["machine"] = describe_machine()
    content["versions"] = {"pylance": lance.__version__}
    for name, part in PARTS.items():
        if name not in (arguments.only or PARTS):
            continue
        part_results = {
            "rounds": arguments.rounds,
            "scale": arguments.scale,
            "cases": list[Numbers](),
        }
        content[name] = part_results
        with tempfile.TemporaryDirectory(prefix="lance-spark-bench-") as folder:
            for case in part(Path(folder), arguments.rounds, arguments.scale):
                part_results["cases"].append(case)
                print(line(case), flush=True)
                write_report(arguments, "commits", rounded(content))


def line(case: Numbers) -> str:
    """Formats the medians of a case as a line of text."""
    medians = "  ".join(f"{name} {value:.4g}" for name, value in case["medians"].items())
    ratios = "  ".join(f"{value:.2f} x {name}" for name, value in case.get("ratios", {}).items())
    return f"{case['case']:44} {medians}  {ratios}  load {case['load'][0]:.1f} to {case['load'][1]:.1f}"


def rounded(value: Any) -> Any:
    """Rounds all numbers for readability."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def case_of(
    name: str, note: str, rounds: Sequence[Numbers], load: float, **quotients: tuple[str, str]
) -> Numbers:
    """Returns a case for the results file.

    Args:
        name: Name of the case.
        note: Description of the work.
        rounds: Measured numbers of each round, by name.
        load: Load average before the case.
        quotients: Dividend and divisor of each ratio, by the name of the ratio.
    """
    names = [key for key, value in rounds[0].items() if isinstance(value, (int, float))]
    return {
        "case": name,
        "note": note,
        "medians": {key: statistics.median(measured[key] for measured in rounds) for key in names},
        "ratios": {
            key: statistics.median(measured[above] / measured[below] for measured in rounds)
            for key, (above, below) in quotients.items()
        },
        "rounds": list(rounds),
        "load": (load, os.getloadavg()[0]),
    }


# Carry-over


def carrying(folder: Path, rounds: int, scale: float) -> Iterator[Numbers]:
    """Carries the values of a compacted table over: in the commit process of a write, and in a job
    of the table API."""
    for kind, most in CARRIED_ROWS.items():
        rows = int(most * scale)
        yield _carried_by_a_write(folder / kind, kind, rows, rounds)
    for kind, most in CARRIED_ROWS.items():
        rows = int(most * scale)
        yield _carried_by_a_job(folder / f"{kind}-job", kind, rows, rounds)


def _carried_by_a_write(folder: Path, kind: str, rows: int, rounds: int) -> Numbers:
    """Makes the table, its staged files and the compaction once, and restores the table before each
    round."""
    folder.mkdir()
    path, pristine, message = folder / "t.lance", folder / "kept", folder / "message"
    staged = _ask("stage", path=str(path), kind=kind, rows=rows, message=str(message))
    path.rename(pristine)
    results: list[Numbers] = []
    load = os.getloadavg()[0]
    for number in range(rounds + 1):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(pristine, path)
        copied = _ask("copy", path=str(path), files=staged["files"], rows=rows)
        carried = _ask("carry", message=str(message), rows=rows)
        if number:
            numbers = _carried(
                rows,
                staged["bytes"],
                carried["seconds"],
                carried["mib"],
                carried["mib_before"],
                copied,
            )
            results.append(
                {**numbers, "carry_cpu_s": carried["cpu_s"], "commit_s": carried["commit_s"]}
            )
    return case_of(
        f"carried by a write's commit, {kind}",
        f"{rows:,} rows of {commits_child.FRAGMENTS} column files to the fragments that a compaction made of them",
        results,
        load,
        copy=("carry_s", "copy_s"),
        copy_in_cpu=("carry_cpu_s", "copy_cpu_s"),
    )


def _carried(
    rows: int, size: int, seconds: float, mib: int, before: int, copied: Numbers
) -> Numbers:
    return {
        "carry_s": seconds,
        "copy_s": copied["seconds"],
        "copy_cpu_s": copied["cpu_s"],
        "carry_rows_per_s": rows / seconds,
        "copy_rows_per_s": rows / copied["seconds"],
        "carry_mib_per_s": size / seconds / (1 << 20),
        "carry_peak_mib": mib,
        "carry_before_mib": before,
        "copy_peak_mib": copied["mib"],
        "copy_before_mib": copied["mib_before"],
    }


def _carried_by_a_job(folder: Path, kind: str, rows: int, rounds: int) -> Numbers:
    import lance_spark
    from lance_spark.session.sessions import make_session
    from udf_runtime import udf

    folder.mkdir()
    session = make_session("local[2,4]")
    results: list[Numbers] = []
    load = os.getloadavg()[0]
    for number in range(rounds + 1):
        path = str(folder / f"t{number}.lance")
        commits_child.make_table(path, kind, rows)
        lance.dataset(path).drop_columns(["v"])
        table = lance_spark.connect(str(folder), session, progress=False).open_table(f"t{number}")
        table.add_columns({"v": udf(data_type=commits_child.TYPES[kind])(_computed(kind))})
        measured = _compacted_before_its_commit(
            path, lambda table=table: table.backfill("v", commit_granularity=None), rows
        )
        if number:
            results.append(measured)
        shutil.rmtree(path)
    session.stop()
    return case_of(
        f"carried by a job's next round, {kind}",
        f"{rows:,} rows, with planning, Spark job and commit; memory of the largest worker, before it that of the round that computed",
        results,
        load,
        copy=("carry_s", "copy_s"),
        computing=("carry_s", "computed_s"),
    )


def _computed(kind: str) -> Callable[[Any], Any]:
    """Returns a function of random values. The function is nested, so pickling stores it by value."""
    width = commits_child.WIDTH

    def computed(id: pa.Array) -> pa.Array:
        rng = np.random.default_rng(id[0].as_py())
        if kind == "int64":
            return pa.array(rng.integers(0, 1 << 62, len(id)))
        return pa.FixedSizeListArray.from_arrays(
            pa.array(rng.random(len(id) * width, dtype=np.float32)), width
        )

    return computed


def _compacted_before_its_commit(path: str, backfill: Callable[[], Any], rows: int) -> Numbers:
    """Compacts just before the commit of a job. The next round of tasks carries all column files
    over."""
    from benchmarks.table_api_memory import spark_kind, watched
    from lance_spark.backfill.driver.group_commit import GroupCommits
    from lance_spark.backfill.driver.job import BackfillJob

    copied_files = Path(path).with_suffix(".files")
    (copied_files / "data").mkdir(parents=True)
    steps: list[Numbers] = []
    staged: list[str] = []
    real_commit, real_tasks = GroupCommits.commit, BackfillJob._run_round

    def commit(self: GroupCommits, outcomes: Any) -> None:
        if not staged:
            staged.extend(outcome.file for outcome in outcomes)
            for name in staged:
                shutil.copy(f"{path}/data/{name}", copied_files / "data" / name)
            lance.dataset(path).optimize.compact_files()
        real_commit(self, outcomes)

    def run_tasks(self: BackfillJob, *arguments: Any, **more: Any) -> None:
        with watched([os.getpid()], spark_kind) as peaks:
            began = time.perf_counter()
            real_tasks(self, *arguments, **more)
            seconds = time.perf_counter() - began
        steps.append({"seconds": seconds, "mib": peaks.largest("worker") >> 20})

    with (
        patch.object(GroupCommits, "commit", commit),
        patch.object(BackfillJob, "_run_round", run_tasks),
    ):
        result = backfill()
    if result.rows_carried != rows or len(steps) != 2:
        raise RuntimeError(
            f"{result.rows_carried} of {rows} rows were carried over, in {len(steps) - 1} rounds"
        )
    copied = _ask("copy", path=str(copied_files), files=staged, rows=rows)
    size = sum(os.path.getsize(copied_files / "data" / name) for name in staged)
    shutil.rmtree(copied_files)
    numbers = _carried(rows, size, steps[1]["seconds"], steps[1]["mib"], steps[0]["mib"], copied)
    return {**numbers, "computed_s": steps[0]["seconds"]}


# Commits of a column file to large tables


def columns(folder: Path, rounds: int, scale: float) -> Iterator[Numbers]:
    """Commits a column file to tables with many fragments."""
    del scale
    for fragments in TABLES:
        path = str(folder / f"t{fragments}.lance")
        _make_huge_table(path, fragments)
        for door, concurrent in itertools.product(("job", "write"), (0, CONCURRENT_COMMITS)):
            yield _column_commits(path, door, concurrent, fragments, rounds)


def _make_huge_table(path: str, fragments: int) -> None:
    """Makes a table whose fragments share one small data file. Only the manifest has the size of a
    huge table."""
    dataset = lance.write_dataset(pa.table({"id": pa.array(range(_ROWS), pa.int64())}), path)
    files = dataset.get_fragments()[0].metadata.files
    fragment = FragmentMetadata(
        id=0, files=files, physical_rows=_ROWS, deletion_file=None, row_id_meta=None
    )
    append = lance.LanceOperation.Append([fragment] * (fragments - 1))
    lance.LanceDataset.commit(path, append, read_version=dataset.version)
    lance.dataset(path).add_columns(pa.schema([("v", pa.int64())]))


def _column_commits(path: str, door: str, concurrent: int, fragments: int, rounds: int) -> Numbers:
    """Commits as a job and as a DataFrame write. Each commit has its own fragment and snapshot."""
    from lance_spark.commit.column_commit import commit_columns
    from lance_spark.dataset import DatasetRef

    results: list[Numbers] = []
    load = os.getloadavg()[0]
    free = itertools.cycle(range(fragments))

    def nothing_to_rebase(*_: Any) -> list[Any]:
        raise AssertionError("nothing has moved")

    for number in range(rounds + 1):
        bare_file, _ = staged_column(path, "v", _ROWS, lance.dataset(path).data_storage_version)
        began, cpu = time.perf_counter(), time.process_time()
        replace_bare(path, next(free), bare_file, max_retries=0)
        bare, bare_cpu = time.perf_counter() - began, time.process_time() - cpu
        snapshot = DatasetRef.at(path).pin(None)
        dataset = snapshot.open()
        file, size = staged_column(path, "v", _ROWS, dataset.data_storage_version)
        change = column_change(dataset, next(free), file, size)
        fragment_ids = frozenset(dataset.fragment_ids())
        for i in range(concurrent):
            lance.dataset(path).update_config({"number": str(number * concurrent + i)})
        with _Clocks() as clocks:
            began, cpu = time.perf_counter(), time.process_time()
            outcome = commit_columns(
                snapshot,
                change,
                job_id=uuid.uuid4().hex,
                stage=stage_of(dataset),
                snapshot_fragments=fragment_ids,
                rebaser=nothing_to_rebase if door == "write" else None,
            )
            ours, ours_cpu = time.perf_counter() - began, time.process_time() - cpu
        if outcome.result.fragments != 1 or outcome.result.retries:
            raise RuntimeError(f"not one plain commit: {outcome}")
        if number:
            spent = clocks.seconds
            rest = ours - sum(spent.values())
            results.append(
                {
                    "ours_s": ours,
                    "bare_s": bare,
                    "ours_cpu_s": ours_cpu,
                    "bare_cpu_s": bare_cpu,
                    **{f"{name}_s": s for name, s in spent.items()},
                    "rest_s": rest,
                }
            )
    between = f", {concurrent} commits of others between" if concurrent else ""
    return case_of(
        f"one column file, {door}, {fragments:,} fragments{between}",
        "open, history, manifest: looking at the head; judge: what to commit; commit: pylance's own; bare: pylance alone, without a look",
        results,
        load,
        bare=("ours_s", "bare_s"),
        bare_in_cpu=("ours_cpu_s", "bare_cpu_s"),
    )


class _Clocks(ExitStack):
    """Measures the parts of a column commit.

    Attributes:
        seconds: Time by part.
    """

    def __enter__(self) -> _Clocks:
        from lance_spark.commit import commit_loop as committer
        from lance_spark.commit.column_plan import Planner
        from lance_spark.commit.conflicts import table_state as heads

        super().__enter__()
        self.seconds: dict[str, float] = {}
        self._time("open", committer, "_open_head")
        self._time("history", committer, "find_job")
        self._time("history", heads.SeenHistory, "look")
        self._time("manifest", heads.Head, "of", static=True)
        self._time("judge", Planner, "plan")
        self._time("commit", lance.LanceDataset, "commit", static=True)
        return self

    def _time(self, part: str, owner: Any, name: str, *, static: bool = False) -> None:
        real: Callable[..., Any] = getattr(owner, name)
        self.seconds.setdefault(part, 0.0)

        def timed(*arguments: Any, **more: Any) -> Any:
            began = time.perf_counter()
            try:
                return real(*arguments, **more)
            finally:
                self.seconds[part] += time.perf_counter() - began

        self.enter_context(patch.object(owner, name, staticmethod(timed) if static else timed))


# Racing writers


def writers(folder: Path, rounds: int, scale: float) -> Iterator[Numbers]:
    """Lets several processes commit to the same table."""
    del scale
    for what, count in itertools.product(("appends", "columns"), WRITERS):
        results: list[Numbers] = []
        load = os.getloadavg()[0]
        for number in range(rounds):
            measured: Numbers = {}
            for who in ("ours", "pylance"):
                raced = _race(
                    str(folder / f"{what}-{count}-{number}-{who}.lance"), what, who, count
                )
                measured.update({f"{who}_{name}": value for name, value in raced.items()})
            results.append(measured)
        note = f"{COMMITS} commits by {count} processes; pylance with its own {20} retries; errors are commits that were given up"
        yield case_of(
            f"{what} by {count} writers",
            note,
            results,
            load,
            ours_to_pylance_per_s=("ours_commits_per_s", "pylance_commits_per_s"),
        )


def _race(path: str, what: str, who: str, count: int) -> Numbers:
    commits = COMMITS // count
    ids = pa.table({"id": np.arange(COMMITS * _ROWS, dtype=np.int64)})
    lance.write_dataset(ids, path, max_rows_per_file=_ROWS, enable_stable_row_ids=True)
    lance.dataset(path).add_columns(pa.schema([("v", pa.int64())]))
    children = [
        _child("writer", path=path, who=who, what=what, number=number, commits=commits)
        for number in range(count)
    ]
    for child in children:
        _answer(child)
    for child in children:
        child.stdin.write(b"go\n")  # type: ignore[union-attr]
        child.stdin.flush()  # type: ignore[union-attr]
    answers = [_answer(child) for child in children]
    for child in children:
        child.communicate()
    commit_count = sum(answer["done"] for answer in answers)
    _refuse_losses(path, what, commit_count)
    seconds = max(answer["ended"] for answer in answers) - min(
        answer["began"] for answer in answers
    )
    shutil.rmtree(path)
    errors = [error for answer in answers for error in answer["errors"]]
    return {
        "commits_per_s": commit_count / seconds,
        "seconds": seconds,
        "longest_s": max(answer["longest_s"] for answer in answers),
        "errors": len(errors),
        "retries": sum(answer["retries"] for answer in answers),
        "first_error": errors[0] if errors else None,
    }


def _refuse_losses(path: str, what: str, commit_count: int) -> None:
    dataset = lance.dataset(path)
    committed = (
        dataset.count_rows("v IS NOT NULL") // _ROWS
        if what == "columns"
        else dataset.count_rows() - COMMITS * _ROWS
    )
    if committed != commit_count:
        raise RuntimeError(f"{commit_count} commits, and the table has {committed}")


# Processes


def _child(part: str, /, **question: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.commits_child", part, json.dumps(question)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=_ROOT,
    )


def _answer(child: subprocess.Popen[bytes]) -> Any:
    text = child.stdout.readline()  # type: ignore[union-attr]
    if not text:
        raise RuntimeError(f"a part of the benchmark ended early: {child.args}")
    return json.loads(text)


def _ask(part: str, /, **question: object) -> Numbers:
    child = _child(part, **question)
    answer: Numbers = _answer(child)
    child.communicate()
    return answer


PARTS: dict[str, Callable[[Path, int, float], Iterator[Numbers]]] = {
    "carrying": carrying,
    "columns": columns,
    "writers": writers,
}

if __name__ == "__main__":
    main()
