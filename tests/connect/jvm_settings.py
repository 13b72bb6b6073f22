"""Settings of a JVM of Spark with the jar and a catalog."""

from __future__ import annotations

from pathlib import Path

import lance_spark


def settings(tables: Path, *, jar: str | None = None, **more: str) -> list[str]:
    """Returns the arguments for a JVM of Spark with a catalog."""
    configuration = {
        "spark.jars": jar or lance_spark.jar(),
        "spark.sql.extensions": "lancespark.LanceExtensions",
        "spark.sql.catalog.lance": "lancespark.LanceCatalog",
        "spark.sql.catalog.lance.root": str(tables),
        "spark.sql.warehouse.dir": f"{tables}/warehouse",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        **more,
    }
    return [
        "--master",
        "local[2]",
        *(text for key, value in configuration.items() for text in ("--conf", f"{key}={value}")),
    ]
