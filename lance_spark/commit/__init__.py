"""Commits: what was written, whether it still fits the latest version, and the retry loop."""
