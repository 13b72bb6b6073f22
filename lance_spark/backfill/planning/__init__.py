"""The planning of a backfill: checks, fragments, ranges and tasks, and the readable plan."""
