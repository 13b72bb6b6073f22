"""Upkeep of tables: compaction, cleanup, indexes kept up to date, statistics."""
