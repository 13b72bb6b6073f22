"""Partitions hold every row once, in order, and are neither too big nor too many."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lance_spark.read.planning.partitioning import (
    FRAGMENT_COST_BYTES,
    MAX_PARTITION_ROWS,
    CutRule,
    ScanTask,
    plan_scan_tasks,
)
from lance_spark.read.planning.sizes import FragmentSize

MIB = 1 << 20


@st.composite
def fragment_sizes(draw: st.DrawFn) -> list[FragmentSize]:
    sizes = []
    for number in sorted(draw(st.sets(st.integers(0, 200), max_size=30))):
        live = draw(st.integers(1, 20_000))
        sizes.append(
            FragmentSize(
                number, live + draw(st.integers(0, 5000)), live, draw(st.integers(0, 3000)) * 1000
            )
        )
    return sizes


def spans(
    tasks: list[ScanTask], sizes: list[FragmentSize], *, physical: bool
) -> list[tuple[int, int, int]]:
    rows = {f.fragment_id: f.physical_rows if physical else f.live_rows for f in sizes}
    row_spans = []
    for task in tasks:
        if task.start is not None:
            assert len(task.fragments) == 1
            row_spans.append((task.fragments[0], task.start, task.stop))
        else:
            row_spans += [(number, 0, rows[number]) for number in task.fragments]
    return row_spans


@settings(deadline=None)
@given(fragment_sizes(), st.integers(1000, 5_000_000), st.integers(1, 64), st.booleans())
def test_every_row_is_in_exactly_one_partition_and_in_the_order_of_the_table(
    sizes, target, parallelism, physical
):
    rule = CutRule(target_bytes=target, parallelism=parallelism, physical=physical)
    covered = {f.fragment_id: 0 for f in sizes}
    for number, start, stop in spans(plan_scan_tasks(sizes, rule), sizes, physical=physical):
        assert covered[number] == start < stop
        covered[number] = stop
    assert covered == {f.fragment_id: f.physical_rows if physical else f.live_rows for f in sizes}
    order = [number for task in plan_scan_tasks(sizes, rule) for number in task.fragments]
    assert order == sorted(order)


@settings(deadline=None)
@given(fragment_sizes(), st.integers(0, 100_000), st.integers(1000, 5_000_000))
def test_a_prefix_is_exactly_the_first_rows(sizes, prefix, target):
    tasks = plan_scan_tasks(sizes, CutRule(target_bytes=target, prefix=prefix))
    assert sum(task.rows for task in tasks) == min(prefix, sum(f.live_rows for f in sizes))
    remaining = prefix
    expected = []
    for f in sizes:
        if remaining:
            expected.append((f.fragment_id, min(remaining, f.live_rows)))
            remaining -= expected[-1][1]
    got: dict[int, int] = {}
    for number, start, stop in spans(tasks, sizes, physical=False):
        assert got.get(number, 0) == start
        got[number] = stop
    assert list(got.items()) == expected


@settings(deadline=None)
@given(fragment_sizes(), st.integers(1000, 5_000_000))
def test_whole_fragments_are_never_cut(sizes, target):
    tasks = plan_scan_tasks(sizes, CutRule(target_bytes=target, splittable=False))
    assert all(task.start is None for task in tasks)
    assert [n for task in tasks for n in task.fragments] == [f.fragment_id for f in sizes]


def test_a_huge_fragment_becomes_ranges_of_equal_length():
    tasks = plan_scan_tasks(
        [FragmentSize(7, 10_000_000, 10_000_000, 1024 * MIB)], CutRule(target_bytes=128 * MIB)
    )
    assert len(tasks) == 8
    assert {task.fragments for task in tasks} == {(7,)}
    lengths = [task.stop - task.start for task in tasks]
    assert max(lengths) - min(lengths) < 0.1 * max(lengths)


def test_narrow_rows_are_cut_by_their_number():
    rows = 10 * MAX_PARTITION_ROWS
    tasks = plan_scan_tasks(
        [FragmentSize(0, rows, rows, rows // 8)], CutRule(target_bytes=1024 * MIB)
    )
    assert len(tasks) >= 10
    assert max(task.rows for task in tasks) <= MAX_PARTITION_ROWS + 4096


def test_thousands_of_small_fragments_are_packed():
    sizes = [FragmentSize(i, 10, 10, 1000) for i in range(10_000)]
    tasks = plan_scan_tasks(sizes, CutRule(target_bytes=128 * MIB))
    assert len(tasks) == 10_000 * FRAGMENT_COST_BYTES // (128 * MIB) + 1


def test_a_small_table_is_cut_for_the_cores_that_are_there():
    sizes = [FragmentSize(0, 1_000_000, 1_000_000, 100 * MIB)]
    assert len(plan_scan_tasks(sizes, CutRule(target_bytes=128 * MIB, parallelism=1))) == 1
    assert len(plan_scan_tasks(sizes, CutRule(target_bytes=128 * MIB, parallelism=4))) == 4
    tiny = [FragmentSize(0, 1000, 1000, MIB)]
    assert len(plan_scan_tasks(tiny, CutRule(target_bytes=128 * MIB, parallelism=64))) == 1


def test_fragments_that_differ_a_little_are_shared_evenly():
    sizes = [FragmentSize(i, 500_000, 500_000, 22 * MIB + i % 3 * 1000) for i in range(8)]
    tasks = plan_scan_tasks(sizes, CutRule(target_bytes=128 * MIB, parallelism=2))
    assert [len(task.fragments) for task in tasks] == [4, 4]
    assert len(plan_scan_tasks(sizes, CutRule(target_bytes=43 * MIB, parallelism=2))) == 8
