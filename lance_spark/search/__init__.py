"""Queries over one table: rows by a condition, nearest vectors, best texts, and many at once."""
