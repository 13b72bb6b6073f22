"""Versions of a table: history, tags and branches."""
