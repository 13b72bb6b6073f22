"""The driver of a backfill: submits tasks, commits their files, follows concurrent commits."""
