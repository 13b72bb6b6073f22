"""Indexes of tables: builds by Spark tasks, commits with retries, listing and upkeep."""
