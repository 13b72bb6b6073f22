"""An application with a web UI and an event log: `python -m tests.support.web_ui_application FOLDER`.

Runs two jobs, and prints a line of JSON with the page of the tab "Lance".
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

import lance_spark
from lance_spark import skip_on_error, udf
from tests.support.web_ui import fetch, wait_for_events


@udf(on_error=skip_on_error())
def checked(id: int) -> int:
    if id == 2:
        raise ValueError(f"a secret value {id}")
    return id


def main(folder: str) -> None:
    builder = SparkSession.builder.master("local[1]").config(
        "spark.ui.showConsoleProgress", "false"
    )
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file://{folder}/events",
    }
    spark = lance_spark.configure(builder.config(map=settings)).getOrCreate()
    table = lance_spark.connect(f"{folder}/tables", spark).create_table(
        "t", [{"id": number} for number in range(4)]
    )
    table.add_columns({"x": checked})
    empty = fetch(f"{spark.sparkContext.uiWebUrl}/lance/")
    table.backfill("x")
    table.add([{"id": 5}])
    table.compact_files()
    wait_for_events(spark)
    page = fetch(f"{spark.sparkContext.uiWebUrl}/lance/")
    application = spark.sparkContext.applicationId
    spark.stop()
    print(json.dumps({"empty": empty, "page": page, "application": application}))


if __name__ == "__main__":
    main(sys.argv[1])
