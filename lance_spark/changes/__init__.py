"""Changes of rows from version to version: the change feed, and its part in `Table.diff`."""
