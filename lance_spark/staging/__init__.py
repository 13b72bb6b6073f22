"""Staged files, not yet named by a version: their markers, contents and deletion."""
