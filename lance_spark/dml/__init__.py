"""Changes of rows: update, delete, merge."""
