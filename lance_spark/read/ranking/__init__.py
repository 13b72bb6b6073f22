"""Searches: nearest vectors, best texts, and hybrid ranking."""
