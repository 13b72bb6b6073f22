"""Catalogs that fixtures of the tests of SQL have made."""

from __future__ import annotations

NAMES: dict[str, str] = {}
"""Names of catalogs by the location of their folder."""
