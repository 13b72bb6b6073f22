"""Versions of a table: history, tags, branches and differences."""
