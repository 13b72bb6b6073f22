"""Rebasing of values on the latest version: row origins, changed inputs, and carry-over."""
