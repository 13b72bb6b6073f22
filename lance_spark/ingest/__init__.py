"""Data of any library as rows for a table."""
