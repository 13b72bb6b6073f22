"""The driver of a backfill: submits tasks, commits what they finish, follows concurrent commits."""
