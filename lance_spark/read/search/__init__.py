"""Rows by rank: nearest vectors, best texts, and both together."""
