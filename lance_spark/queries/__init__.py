"""Searches as values: vectors and full texts."""
