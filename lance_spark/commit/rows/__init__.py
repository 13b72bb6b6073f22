"""Commits of rows: appended, edited, replaced and compacted."""
