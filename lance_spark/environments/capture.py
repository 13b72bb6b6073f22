"""Captures this process's environment as a manifest. Runs on the driver."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from lance_spark.objects import LanceObjects
from udf_runtime import Manifest
from udf_runtime.environments.archives import site_archive, upload, workspace_archive
from udf_runtime.environments.manifest import current_python, current_user


def capture(name: str | None, objects: LanceObjects, *, skip_site_packages: bool) -> Manifest:
    """Returns a manifest of the working directory, and of the installed packages, if requested.

    Zip files of both go through this machine's disk into the store, a part in memory at a time.

    Raises:
        UdfDefinitionError: The working directory is the home directory, or has more than a
            gibibyte.
        TableUnwritableError: The store refused.
    """
    archives = [workspace_archive(os.getcwd())]
    if not skip_site_packages:
        archives.append(site_archive())
    upload(archives, objects, delete_local=True)
    return Manifest(
        name=name or f"{current_user() or 'captured'}-{datetime.now(UTC):%Y%m%d-%H%M%S}",
        python_version=current_python(),
        archives=tuple(archives),
        skip_site_packages=skip_site_packages,
        created_by=current_user(),
    )
