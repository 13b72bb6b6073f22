"""File systems of PyArrow for the locations and storage options of Lance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from lance_spark.errors import OptionError
from lance_spark.locations import is_local, normalize_uri

FileSystem: TypeAlias = Any
"""A `pyarrow.fs.FileSystem`."""

_S3_OPTIONS = {
    "access_key": ("aws_access_key_id", "access_key_id"),
    "secret_key": ("aws_secret_access_key", "secret_access_key"),
    "session_token": ("aws_session_token", "session_token", "aws_token"),
    "region": ("aws_region", "region", "aws_default_region"),
    "endpoint_override": ("aws_endpoint", "endpoint", "aws_endpoint_url", "endpoint_url"),
}
"""Options of PyArrow's S3, and their names in Lance."""

_AZURE_OPTIONS = {
    "account_name": ("azure_storage_account_name", "account_name"),
    "account_key": (
        "azure_storage_account_key",
        "account_key",
        "azure_storage_access_key",
        "access_key",
    ),
    "sas_token": ("azure_storage_sas_token", "azure_storage_sas_key", "sas_token", "sas_key"),
    "blob_storage_authority": ("azure_storage_endpoint", "azure_endpoint", "endpoint"),
}
"""Options of PyArrow's Azure blob storage, and their names in Lance."""


ARROW_SCHEMES = ("abfs", "gcs", "hdfs", "s3a", "viewfs")
"""Schemes of stores for files but not for tables: PyArrow supports them, and Lance does not."""


def file_system_of(
    uri: str, options: Mapping[str, str], *, option: str, remedy: str
) -> tuple[FileSystem, str]:
    """Returns the file system of a location, and the path within the file system.

    Args:
        uri: A local path, or a URI of a store.
        options: Options of the object store under the names in Lance.
        option: Name of the argument with the location, for the message.
        remedy: The remedy for a store without support of PyArrow.

    Raises:
        OptionError: PyArrow does not support the file system.
    """
    from pyarrow import fs

    uri = normalize_uri(uri, option=option, also=ARROW_SCHEMES)
    if is_local(uri):
        return fs.LocalFileSystem(), uri
    scheme, _, path = uri.partition("://")
    if scheme in ("s3", "s3a") and options:
        values = _named(options, _S3_OPTIONS)
        if "endpoint_override" in values:
            values["scheme"], values["endpoint_override"] = _endpoint(values["endpoint_override"])
        return fs.S3FileSystem(**values), path  # type: ignore[arg-type]
    if scheme in ("az", "abfs", "abfss") and options:
        values = _named(options, _AZURE_OPTIONS)
        if "blob_storage_authority" in values:
            scheme, place = _endpoint(values["blob_storage_authority"])
            # The account follows the host, unless the host has the account. PyArrow adds it.
            host = place.partition("/")[0]
            values |= {
                "blob_storage_authority": host,
                "dfs_storage_authority": host.replace(".blob.", ".dfs."),
            }
            values |= {"blob_storage_scheme": scheme, "dfs_storage_scheme": scheme}
        return fs.AzureFileSystem(**values), path  # type: ignore[arg-type]
    try:
        system, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, ValueError, OSError) as error:
        accepted = f"a local path, or a location that PyArrow reads ({error}); {remedy}"
        raise OptionError(option, uri, accepted) from error
    return system, path


def _named(options: Mapping[str, str], names: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Returns options under PyArrow's names, without options of Lance alone."""
    by_name = {name.lower(): value for name, value in options.items()}
    return {
        ours: by_name[name]
        for ours, aliases in names.items()
        for name in aliases
        if name in by_name
    }


def _endpoint(location: str) -> tuple[str, str]:
    """Returns scheme and address of a store's server."""
    scheme, _, place = location.rpartition("://")
    return scheme or "https", place.rstrip("/")
