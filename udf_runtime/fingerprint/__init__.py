"""Digests of code: the automatic versions of UDFs."""

from __future__ import annotations

from udf_runtime.fingerprint.digest import fingerprint
from udf_runtime.fingerprint.first_scheme import first_digest, is_first_digest

__all__ = ["fingerprint", "first_digest", "is_first_digest"]
