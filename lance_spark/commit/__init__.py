"""Commits: requests and results, checks against the latest version, and the retry loop."""
