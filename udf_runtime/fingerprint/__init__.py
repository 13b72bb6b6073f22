"""Digests of code: what tells one version of a UDF from another."""

from __future__ import annotations

from udf_runtime.fingerprint.digest import fingerprint

__all__ = ["fingerprint"]
