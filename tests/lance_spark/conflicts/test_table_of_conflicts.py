"""Every row of the table of conflicts, by each API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lance_spark.conflicts.cases import JOBS, Case, Moment
from tests.lance_spark.conflicts.jobs import Lab


def jobs():
    for case in JOBS:
        for moment in case.moments.split():
            for stable in case.stable:
                yield pytest.param(case, moment, stable, id=f"{case.name}-{moment}{'' if stable else '-addresses'}")


@pytest.mark.parametrize(("case", "moment", "stable"), [*jobs()])
def test_a_job(case: Case, moment: Moment, stable: bool, lab: Lab) -> None:
    indexed = stable == (moment in ("before", "slipped")) and case.act.__name__ != "cast_target"
    lab.check_case(case, moment, stable=stable, indexed=indexed)
