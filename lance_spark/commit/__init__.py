"""Commits: what was written, what it belongs to, whether it still fits the head, and the one retry loop."""
