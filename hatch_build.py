"""Compiles `lance_spark/lance-spark.jar` for wheels and source distributions.

A jar that was made of these sources for the newest release of Spark is taken as it is, as the jar
of a source distribution. Else this needs a JDK, and pip installs PySpark into the environment of
the build. An editable install does without: `make` compiles the jar there.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PYSPARK = "pyspark>=4.3,<4.4"
"""The newest release that the jar serves. Its jars are what the Java is compiled against."""


class JarBuildHook(BuildHookInterface):  # type: ignore[misc] # hatchling is not there when types are checked
    """Sees to it that the jar is there before files are collected."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [] if _build(self.root).is_current() else [PYSPARK]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's signature
        build = _build(self.root)
        if version != "editable" and not build.is_current():
            build.make_jar(build.installed_release(), build.installed_jars())


def _build(root: str) -> ModuleType:
    path = Path(root, "java", "build.py")
    spec = importlib.util.spec_from_file_location("lance_spark_build", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} is missing. It belongs to every checkout and source distribution.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
