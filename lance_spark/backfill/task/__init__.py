"""A task of a backfill, on an executor: from the input rows to the column file."""
