"""The driver of a backfill: submits tasks, commits what they finish, and follows concurrent commits."""
