"""Driver process for refreshes: `python -m tests.support.refresh_driver MASTER JOBS`.

JOBS is JSON: the folder and the settings of each refresh, by the view's name. The setting `point` is the name of a
method of `RefreshJob`, before which the refresh stops.
"""

from __future__ import annotations

import contextlib
import json
import sys
from functools import partial

import lance_spark
from lance_spark.views.refresh import RefreshJob
from tests.support.driver import session
from tests.support.hooks import _before, hold


def main(master: str, jobs: str) -> None:
    spark = session(master)
    try:
        with contextlib.ExitStack() as stack:
            for view, (home, settings) in json.loads(jobs).items():
                point = settings.pop("point", None)
                if point is not None:
                    stack.enter_context(_before(RefreshJob, point, partial(hold, home)))
                lance_spark.connect(home, spark, progress=False).open_table(view).refresh(
                    **settings
                )
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
